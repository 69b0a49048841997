"""Bugs that other producers had: each test would have caught one, and names its issue.

Bugs that are about one part of the engine are tested with that part.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine import steps
from aioidem._protocol.produce import ProduceAnswer
from aioidem._protocol.producers import ProducersAnswer

from .driver import (
    ACKED,
    DUPLICATE,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NONE,
    NOT_ENOUGH_REPLICAS,
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
    wait_until,
)

SHORT: dict[str, Any] = {"delivery_timeout": 20.0, "request_timeout": 5.0}


def identities(rig: Rig, value: bytes | None) -> set[tuple[int, int, int]]:
    """Every (producer id, epoch, first sequence) under which a record was ever written."""
    return {
        (*part.identity, part.sequence)
        for request in rig.everything
        for part in request.parts
        if value in part.values
    }


def value_of(request: Request) -> bytes | None:
    return request.only.values[0]


# -- identities and sequences


@pytest.mark.parametrize("idle", [0.0, 660.0])
def test_out_of_order_for_a_batch_that_was_never_in_doubt_bumps_and_restarts_at_zero(
    idle: float,
) -> None:
    """A broker may answer so after ten minutes of nothing (Redpanda #22670)."""
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
    """Redpanda #3039, librdkafka #4953, kafka-python #2841 and #2843.

    OUT_OF_ORDER where a duplicate should have been told.
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


def test_an_expiry_after_request_timed_out_renumbers_no_later_batch_in_flight() -> None:
    """An expiry renumbers no batch in doubt behind it (KAFKA-14397).

    b1 is answered REQUEST_TIMED_OUT until it expires; b2 and b3 were in flight. Java reset their
    sequences, and they were written twice.
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
    """Renumbered batches keep their order; Java took that of a heap (KAFKA-8483, KAFKA-8484)."""
    rig, requests = pipelined(len(codes))
    refused = False
    for request, code in zip(requests, codes, strict=True):
        if not refused and code == NONE:
            rig.ack(request, poll=False)
        else:
            # Behind a refused batch the broker cannot append.
            rig.fail(request, code or OUT_OF_ORDER, poll=False)
            refused = True
    rig.settle_down(30.0)
    for outcome, code in zip(rig.outcomes[1:], codes, strict=True):
        assert outcome.status is (NOT_WRITTEN if code == INVALID_RECORD else ACKED)
    offsets = [outcome.offset for outcome in rig.outcomes if outcome.status is ACKED]
    assert offsets == sorted(offsets)
    for epoch in range(1, rig.core.epoch_bumps + 1):
        starts = list(dict.fromkeys(r.sequence for r in rig.everything if r.epoch == epoch))
        assert starts == list(range(len(starts))), "in the order of sending, without gaps"
    rig.assert_drained()


def test_a_late_answer_settles_its_own_batch_and_not_one_of_the_same_number() -> None:
    """An answer settles the batch of its request (KAFKA-13794).

    Java kept batches in flight in a set ordered by sequence, and removed another one.
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
    """Dekaf #3385: batches in doubt at the old leader came to the new one under the new epoch."""
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


# -- expiry


@pytest.mark.parametrize("appended", [True, False])
def test_the_second_of_four_expires_and_the_producer_goes_on(appended: bool) -> None:
    """An expired batch is no fatal gap (librdkafka dotnet#704, #2163).

    b1 is acknowledged, b2 expires unanswered, b3 and b4 are in flight behind it. The broker has b2;
    or it never came, and b3 and b4 are refused.
    """
    rig = Rig(**SHORT).start()
    rig.send()
    rig.ack_all()
    rig.send(2)
    rig.tick(1.0)
    rig.send(2)
    # They leave late, so that b2 expires while its connection is still within its own time.
    rig.lose(unwritten=rig.outstanding())
    rig.tick(2.0)
    rig.ack(rig.outstanding()[0])
    second, *others = rig.outstanding()
    assert rig.sequences == [2, 3, 4]
    deadline = rig.state().unresolved[0].deadline
    while rig.now < deadline + 0.01:
        # Bytes still move: that is a slow broker, not a dead one.
        rig.core.on_progress(second.link.link_id, rig.now)
        rig.tick(0.5)
    assert rig.statuses == [ACKED, ACKED, UNKNOWN, PENDING, PENDING]
    assert not any(request.done for request in (second, *others))
    for request in (second, *others):
        if appended:
            rig.ack(request)
        else:
            rig.fail(request, OUT_OF_ORDER)
    late = rig.send(3)
    rig.settle_down(30.0)
    assert rig.statuses[:5] == [ACKED, ACKED, UNKNOWN, ACKED, ACKED]
    assert [outcome.status for outcome in late] == [ACKED] * 3
    offsets = [outcome.offset for outcome in rig.outcomes if outcome.status is ACKED]
    assert offsets == sorted(offsets)
    # Nothing goes out above the gap under the old epoch.
    assert max(r.sequence for r in rig.everything if r.epoch == 0) == 4
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_an_expiry_that_reached_no_broker_holds_the_others_up_no_longer_than_a_request() -> None:
    """Batches behind an expired first attempt do not wait in OUT_OF_ORDER until they expire."""
    rig = Rig(delivery_timeout=10.0, request_timeout=5.0).start()
    rig.send()
    rig.ack_all()
    rig.send()
    rig.tick(4.0)
    rig.send(2)
    rig.lose(unwritten=rig.outstanding())
    rig.down = {1}
    rig.tick(6.5)
    assert rig.statuses[1:] == [NOT_WRITTEN, PENDING, PENDING]
    rig.down = set()
    healed = rig.now
    rig.settle_down(5.0)
    assert rig.statuses[2:] == [ACKED, ACKED]
    assert all(o.at is not None and o.at - healed < 2.0 for o in rig.outcomes[2:])
    rig.assert_drained()


def test_before_sealing_each_record_has_its_own_deadline_and_after_it_the_oldest_ones() -> None:
    """Old and young records may leave in one late-sealed batch."""
    rig = Rig(late_sealing=True, batch_size=10_000, **SHORT).start()
    rig.down = {1}
    rig.lose()
    (old,) = rig.send()
    rig.tick(10.0)
    (young,) = rig.send()
    rig.tick(10.5)
    assert (old.status, young.status) == (NOT_WRITTEN, PENDING), "waiting, each by itself"
    (younger,) = rig.send()
    rig.down = set()
    wait_until(rig, lambda: bool(rig.outstanding()), 5.0)
    (request,) = rig.outstanding()
    assert request.only.batch.count == 2
    assert rig.state().unresolved[0].deadline == pytest.approx(1001.0 + 10.0 + 20.0, abs=0.1)
    rig.down = {1}
    rig.lose()
    rig.tick(12.0)
    assert (young.status, younger.status) == (UNKNOWN, UNKNOWN), "sealed, by the oldest of them"
    assert younger.at == young.at


@given(
    st.lists(
        st.sampled_from(
            [
                "send",
                "wait",
                "wait",
                "long wait",
                "ack",
                "split",
                "doubt",
                "refuse",
                "reject",
                "cut",
            ]
        ),
        min_size=5,
        max_size=40,
    ),
    st.booleans(),
)
def test_expiry_split_abort_and_answer_may_meet_in_any_order(acts: list[str], abort: bool) -> None:
    """Every record is settled once, and its memory comes back once, in any order of events.

    KAFKA-5494, 6015, 5957, 5429, 7501, 8325, 9605, 7709 and 7311 were such orders.
    """
    rig = Rig(batch_size=700, delivery_timeout=4.0, request_timeout=3.0).start()
    rig.send(3)
    for act in acts:
        request = next(iter(rig.outstanding()), None)
        if act == "send":
            rig.send(4)
        elif act == "wait":
            rig.tick(0.9)
        elif act == "long wait":
            rig.tick(2.5)
        elif request is None:
            continue
        elif act == "ack":
            rig.ack(request)
        elif act == "cut":
            rig.lose(request.link)
        else:
            codes = {
                "split": MESSAGE_TOO_LARGE,
                "doubt": REQUEST_TIMED_OUT,
                "refuse": NOT_ENOUGH_REPLICAS,
                "reject": INVALID_RECORD,
            }
            rig.fail(request, codes[act])
    if abort:
        owed = rig.outstanding()
        rig.core.close(rig.now)
        rig.collect()
        for request in owed:
            answer = ProduceAnswer((rig.entry(request, request.only, NONE, 1),), 0, ())
            rig.core.on_answer(request.step, answer, rig.now)
        rig.requests.clear()
        rig.collect()
    else:
        rig.settle_down(30.0)
    assert PENDING not in rig.statuses
    rig.assert_drained()


# -- doubt


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


def test_the_leader_is_asked_on_the_produce_connection_after_everything_outstanding() -> None:
    """A connection is served in order, so nothing of ours comes after the question."""
    rig, requests = pipelined(5)
    rig.hold = (steps.AskProducers,)
    rig.lose()
    rig.tick(1.0)
    (resend,) = rig.outstanding()
    rig.fail(resend, OUT_OF_ORDER)
    rig.tick(1.0)
    (asked,) = rig.held
    assert asked.link_id == resend.link.link_id
    assert not rig.outstanding(), "nothing overtakes it"
    assert len(requests) == 5


def test_the_leader_is_not_asked_while_an_answer_is_owed() -> None:
    """What is on its way would be appended after the leader has answered."""
    rig, _ = pipelined(5)
    rig.hold = (steps.AskProducers,)
    rig.lose()
    rig.tick(1.0)
    rig.ack(rig.outstanding()[0])
    second, *behind = rig.outstanding()
    assert rig.sequences == [2, 3, 4, 5]
    rig.fail(second, OUT_OF_ORDER)
    for request in behind:
        rig.tick(0.5)
        assert not rig.held
        rig.fail(request, OUT_OF_ORDER)
    rig.tick(0.1)
    assert len(rig.held) == 1


def test_an_answer_about_producers_that_kills_the_connection_is_no_answer() -> None:
    """An answer larger than a frame may be is not requested for ever.

    Probes need no permission, and go on without it.
    """
    rig, _ = pipelined(5)
    rig.hold = (steps.AskProducers,)
    rig.lose()
    newest = 3  # b1 to b3 are stored, and the cache holds one
    for _ in range(100):
        rig.tick(0.2)
        for asked in rig.held:
            end = rig.links[asked.link_id]
            if not end.closed:
                rig.lose(end)
        rig.held.clear()
        for request in rig.outstanding():
            if newest <= request.sequence <= newest + 1:
                newest = request.sequence
                rig.ack(request)
            else:
                rig.fail(request, OUT_OF_ORDER)
    assert rig.statuses == [ACKED] * 6
    assert len([s for s in rig.asked if isinstance(s, steps.AskProducers)]) == 1
    rig.assert_drained()


@pytest.mark.parametrize(
    ("epoch", "last", "begins"),
    [(0, 3, [3]), (1, 3, [5, 4, 3, 2, 1]), (-1, 3, [5, 4, 3, 2, 1]), (0, 99, [5, 4, 3, 2, 1])],
)
def test_what_a_leader_tells_of_producers_is_where_to_begin_and_never_a_verdict(
    epoch: int, last: int, begins: list[int]
) -> None:
    """DescribeProducers acknowledges nothing, and counts with the batch's own epoch only."""
    rig, _ = pipelined(5)
    rig.producers = ProducersAnswer(0, {rig.next_pid: (epoch, last)})
    rig.lose()
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    wait_until(rig, lambda: bool(rig.outstanding()), 5.0)
    assert rig.sequences == begins
    assert rig.statuses[1:] == [PENDING] * 5
    if begins == [3]:
        rig.ack(rig.outstanding()[0])
        assert rig.statuses[1:4] == [ACKED] * 3
        assert rig.sequences == [4, 5]
    rig.ack_all()
    assert rig.statuses == [ACKED] * 6
    rig.assert_drained()


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER_ID, OUT_OF_ORDER])
def test_a_record_refused_by_a_leader_that_lost_our_state_arrives_under_the_next_epoch(
    code: int,
) -> None:
    """Nothing of it is in doubt (KAFKA-14920, KAFKA-9144, platformatic #309)."""
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


def test_one_partition_stuck_in_doubt_stalls_no_other() -> None:
    """The other partitions go on, and so does this one later (librdkafka #4736, Dekaf #3342)."""
    rig = Rig(partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    (stuck,) = rig.send(partition=0)
    for _ in range(20):
        for request in rig.outstanding():
            if request.only.partition == 0:
                rig.fail(request, REQUEST_TIMED_OUT)
        (other,) = rig.send(partition=1)
        for request in rig.outstanding():
            if request.only.partition == 1:
                rig.ack(request)
        assert other.status is ACKED
        rig.tick(0.5)
    assert stuck.status is PENDING
    rig.settle_down(5.0)
    assert stuck.status is ACKED
    rig.assert_drained()


def test_a_batch_called_a_duplicate_gives_none_of_its_records_an_offset() -> None:
    """A record without a known offset has -1; aiokafka reports -1 + i."""
    rig = Rig(batch_size=10_000).start()
    rig.send()
    rig.ack_all()
    rig.send(3, poll=False)
    rig.poll()
    rig.send()
    first, second = rig.outstanding()
    assert first.only.batch.count == 3
    rig.fail(first, DUPLICATE, poll=False)
    rig.ack(second, 4)
    assert rig.statuses == [ACKED] * 5
    assert [outcome.offset for outcome in rig.outcomes] == [0, -1, -1, -1, 4]
    rig.assert_drained()
