"""A batch in doubt keeps the producer id, epoch and sequence that it was first sent with.

A batch is in doubt if it was sent and nothing shows whether the leader has stored it.
Most of these tests check a rule that another Kafka client has broken; the docstring of the test
names that client's bug.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._protocol.produce import ProduceAnswer

from .driver import (
    ACKED,
    INVALID_RECORD,
    NONE,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    UNKNOWN,
    UNKNOWN_PRODUCER_ID,
    Request,
    Rig,
    pipelined,
    refuse_until_bumped,
    wait_until,
)

SHORT: dict[str, Any] = {"delivery_timeout": 20.0, "request_timeout": 5.0}


def identities(rig: Rig, value: bytes | None) -> set[tuple[int, int, int]]:
    """Return every (producer id, epoch, base sequence) under which a record was ever sent."""
    return {
        (*part.identity, part.sequence)
        for request in rig.everything
        for part in request.parts
        if value in part.values
    }


def value_of(request: Request) -> bytes | None:
    return request.only.values[0]


@pytest.mark.parametrize("idle", [0.0, 660.0])
def test_out_of_order_for_a_batch_that_was_never_in_doubt_bumps_and_restarts_at_zero(
    idle: float,
) -> None:
    """OUT_OF_ORDER for a batch that was never in doubt bumps the epoch; sequences restart at 0.

    A broker may answer OUT_OF_ORDER after ten minutes without records (Redpanda #22670).
    """
    rig, (only,) = pipelined(1)
    rig.ack(only)
    rig.tick(idle)
    (fresh,) = rig.send()
    wait_until(rig, lambda: bool(rig.outstanding()), 5.0)
    for _ in range(10):
        (request,) = rig.outstanding()
        if request.epoch == 1:
            break
        assert request.sequence == 2
        rig.fail(request, OUT_OF_ORDER)
        wait_until(rig, lambda: bool(rig.outstanding()), 30.0)
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    rig.ack_all()
    assert fresh.status is ACKED
    assert rig.core.epoch_bumps == 1
    assert rig.core.counters.data_loss_events == 1
    rig.assert_drained()


def test_out_of_order_for_a_batch_in_doubt_never_gets_it_another_identity() -> None:
    """A batch in doubt that is answered OUT_OF_ORDER never gets another identity.

    Some brokers answered OUT_OF_ORDER where they should have reported a duplicate (Redpanda #3039,
    librdkafka #4953, kafka-python #2841 and #2843).
    """
    rig, requests = pipelined(5)
    values = [value_of(request) for request in requests]
    rig.lose()
    for _ in range(200):
        for request in rig.outstanding():
            if request.epoch == 0:
                rig.fail(request, OUT_OF_ORDER)
        rig.tick(0.5)
    assert rig.statuses[1:] == [UNKNOWN] * 5
    assert [len(identities(rig, value)) for value in values] == [1] * 5
    rig.send()
    rig.settle_down(5.0)
    assert rig.statuses[-1] is ACKED
    rig.assert_drained()


@pytest.mark.parametrize("in_doubt", ["fail", "resend"])
def test_only_under_resend_a_batch_in_doubt_ever_gets_another_identity(in_doubt: str) -> None:
    """Only `in_doubt="resend"` gives a batch in doubt another identity."""
    rig, requests = pipelined(3, in_doubt=in_doubt)
    values = [value_of(request) for request in requests]
    rig.lose()
    for _ in range(200):
        for request in rig.outstanding():
            if request.epoch == 0:
                rig.fail(request, OUT_OF_ORDER)
            else:
                rig.ack(request)
        rig.tick(0.25)
    kept = in_doubt == "fail"
    assert rig.statuses[1:] == [UNKNOWN if kept else ACKED] * 3
    assert [len(identities(rig, value)) for value in values] == [1 if kept else 2] * 3
    rig.assert_drained()


def test_a_batch_in_doubt_that_expires_before_its_resend_under_another_identity_is_unknown() -> (
    None
):
    """With `in_doubt="resend"` a batch that expires before its resend in a new epoch is UNKNOWN.

    An attempt in the old epoch may have been appended.
    """
    rig, requests = pipelined(3, in_doubt="resend", delivery_timeout=60.0, request_timeout=5.0)
    rig.lose()
    refuse_until_bumped(rig)
    rig.down = {1}
    rig.lose(unwritten=rig.outstanding())
    rig.tick(70.0)
    assert rig.statuses[1:] == [UNKNOWN] * len(requests)
    rig.assert_drained()


def test_what_is_refused_for_good_under_its_new_identity_is_not_asked_about_again() -> None:
    """The doubt is about an attempt in the old epoch, which no copy of a new batch can resolve."""
    rig, requests = pipelined(3, in_doubt="resend")
    rig.lose()
    refuse_until_bumped(rig)
    rig.ack(rig.outstanding()[0])
    second, third = rig.outstanding()
    assert (second.epoch, third.epoch) == (1, 1)
    rig.fail(second, INVALID_RECORD)
    assert rig.statuses[2] is UNKNOWN
    rig.fail(third, INVALID_RECORD)
    rig.tick(60.0)
    assert rig.statuses[1:] == [ACKED, UNKNOWN, UNKNOWN]
    tries = [value_of(request) for request in rig.everything if request.epoch]
    assert [tries.count(value_of(request)) for request in requests] == [1, 1, 1]
    rig.assert_drained()


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER_ID, OUT_OF_ORDER])
def test_a_record_refused_by_a_leader_that_lost_our_state_arrives_under_the_next_epoch(
    code: int,
) -> None:
    """A record refused by a leader that lost the producer's state is sent under the next epoch.

    The refusal leaves no doubt, because the leader appended nothing (KAFKA-14920, KAFKA-9144,
    platformatic #309).
    """
    rig, (only,) = pipelined(1)
    rig.fail(only, code)
    for _ in range(100):
        for request in rig.outstanding():
            if request.epoch:
                rig.ack(request)
            else:
                rig.fail(request, code)
        rig.tick(0.1)
    assert rig.statuses == [ACKED, ACKED]
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_an_expiry_after_request_timed_out_renumbers_no_later_batch_in_flight() -> None:
    """A batch that expires changes no numbers of the batches in flight behind it (KAFKA-14397).

    b1 is answered REQUEST_TIMED_OUT until it expires; b2 and b3 were in flight. Java's producer
    reset the sequences of b2 and b3, and they were written twice.
    """
    rig = Rig(**SHORT).start()
    rig.send()
    rig.ack_all()
    rig.send()
    rig.tick(3.0)
    rig.send(2)
    requests = rig.outstanding()
    values = [value_of(request) for request in requests]
    assert rig.sequences == [1, 2, 3]
    while rig.outcomes[1].status is PENDING:
        for request in rig.outstanding():
            rig.fail(request, REQUEST_TIMED_OUT)
        rig.tick(0.1)
    assert rig.statuses[1:] == [UNKNOWN, PENDING, PENDING]
    rig.settle_down(10.0)
    assert rig.statuses[2:] == [ACKED, ACKED]
    assert [len(identities(rig, value)) for value in values] == [1, 1, 1]
    rig.assert_drained()


@given(st.lists(st.sampled_from([NONE, INVALID_RECORD, OUT_OF_ORDER]), min_size=2, max_size=5))
def test_renumbering_keeps_the_order(codes: list[int]) -> None:
    """Batches that get sequences of a new epoch keep their order (KAFKA-8483, KAFKA-8484).

    Java's producer numbered them in the order of a heap, which is not the order of sending.
    """
    rig, requests = pipelined(len(codes))
    refused = False
    for request, code in zip(requests, codes, strict=True):
        if not refused and code == NONE:
            rig.ack(request, poll=False)
        else:
            # The broker appends no batch after a refused one, so NONE becomes OUT_OF_ORDER.
            rig.fail(request, code or OUT_OF_ORDER, poll=False)
            refused = True
    rig.settle_down(30.0)
    for outcome, code in zip(rig.outcomes[1:], codes, strict=True):
        assert outcome.status is (NOT_WRITTEN if code == INVALID_RECORD else ACKED)
    offsets = [outcome.offset for outcome in rig.outcomes if outcome.status is ACKED]
    assert offsets == sorted(offsets)
    for epoch in range(1, rig.core.epoch_bumps + 1):
        starts = list(dict.fromkeys(r.sequence for r in rig.everything if r.epoch == epoch))
        assert starts == list(range(len(starts))), (
            "each epoch counts in sending order, without gaps"
        )
    rig.assert_drained()


def test_a_late_answer_settles_its_own_batch_and_not_one_of_the_same_number() -> None:
    """A late answer settles its own batch, not a newer one with the same sequence (KAFKA-13794).

    Java's producer looked batches up by sequence, and removed the wrong one.
    """
    rig = Rig(**SHORT).start()
    (first,) = rig.send()
    old = rig.outstanding()[0]
    rig.tick(5.1)
    assert old.link.closed
    rig.down = {1}
    rig.lose()
    rig.tick(16.0)
    assert first.status is UNKNOWN
    rig.down = set()
    (second,) = rig.send()
    wait_until(rig, lambda: bool(rig.outstanding()), 10.0)
    new = rig.outstanding()[0]
    assert (old.sequence, new.sequence) == (0, 0)
    assert old.epoch < new.epoch
    answer = ProduceAnswer((rig.entry(old, old.only, NONE, 99),), 0, ())
    rig.core.on_answer(old.step, answer, rig.now)
    rig.poll()
    assert (first.status, second.status) == (UNKNOWN, PENDING)
    rig.ack(new, 7)
    assert (second.status, second.offset) == (ACKED, 7)
    rig.assert_drained()


def test_a_leader_that_moves_while_the_epoch_is_bumped_gets_each_record_once() -> None:
    """Batches in doubt whose leader moves during an epoch bump keep their epoch (Dekaf #3385).

    Dekaf sent them to the new leader under the new epoch.
    """
    rig = Rig(brokers=2, partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    doubtful = rig.send(2, partition=1)
    requests = rig.outstanding()
    values = [value_of(request) for request in requests]
    rig.send(partition=0)
    rig.fail(rig.outstanding()[-1], INVALID_RECORD)
    assert rig.core.epoch_bumps == 1
    for request in requests:
        rig.fail(request, NOT_LEADER, 17 + request.sequence, poll=False)
    rig.move_leader(2, 1, partition=1)
    rig.settle_down(10.0)
    assert [outcome.status for outcome in doubtful] == [ACKED, ACKED]
    assert [len(identities(rig, value)) for value in values] == [1, 1]
    rig.send(partition=1)
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    rig.ack_all()
    rig.assert_drained()


def test_a_batch_in_doubt_is_resent_although_the_window_fell_below_its_distance() -> None:
    """Batches that will be renumbered do not keep the last one, which is in doubt, from its resend.

    The third of 20 batches is refused for good, so all after it are refused, too, and wait for a
    new epoch. The answer to the last is lost. The next connection offers a window of 5.
    """
    rig, requests = pipelined(20, version=14, max_in_flight_requests_per_connection=50)
    *refused, last = requests[2:]
    for request in requests[:2]:
        rig.ack(request)
    rig.fail(refused[0], INVALID_RECORD, poll=False)
    for request in refused[1:]:
        rig.fail(request, OUT_OF_ORDER)
    rig.version = 13
    rig.lose()
    rig.tick(1.0)
    assert [(r.sequence, r.epoch) for r in rig.outstanding()] == [(last.sequence, last.epoch)]
    for _ in range(3):  # its resend, and two passes of probes
        wait_until(rig, lambda: bool(rig.outstanding()))
        rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    rig.settle_down()
    assert rig.statuses == [ACKED] * 3 + [NOT_WRITTEN] + [ACKED] * 16 + [UNKNOWN]
