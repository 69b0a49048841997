"""What holds of requests in flight and of one idempotent producer, where no other file tests it.

Also what DescribeProducers may say (KIP-664).
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.idempotence import SEQUENCE_MODULUS
from aioidem._engine.recovery import Rung
from aioidem._protocol.producers import ProducersAnswer

from .driver import (
    ACKED,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN,
    UNKNOWN_PRODUCER_ID,
    UNSUPPORTED_VERSION,
    Rig,
    pipelined,
)

# -- S3: in-flight requests


def test_one_request_takes_one_batch_of_every_partition_that_is_ready_and_once() -> None:
    """S3-1."""
    rig = Rig(partitions=4).start()
    for partition in range(4):
        rig.send(2, partition=partition, poll=False)
    rig.poll()
    (request,) = rig.outstanding()
    assert sorted(part.partition for part in request.parts) == [0, 1, 2, 3]
    rig.poll()
    assert rig.outstanding() == [request], "what is in flight is not drained again"
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    rig.assert_drained()


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("success", ACKED),
        ("retriable", ACKED),
        ("not retriable", NOT_WRITTEN),
        ("version mismatch", NOT_WRITTEN),
        ("disconnect", ACKED),
        ("time-out", ACKED),
        ("time-outs until the deadline", UNKNOWN),
    ],
)
def test_every_way_a_request_can_end_reaches_its_record(end: str, status: object) -> None:
    """S3-2: and the next record is delivered in each case."""
    rig = Rig(request_timeout=5.0, delivery_timeout=20.0).start()
    (outcome,) = rig.send()
    (request,) = rig.outstanding()
    match end:
        case "retriable":
            rig.fail(request, NOT_ENOUGH_REPLICAS)
            assert outcome.status is PENDING
        case "not retriable":
            rig.fail(request, TOPIC_AUTHORIZATION_FAILED)
        case "version mismatch":
            rig.fail(request, UNSUPPORTED_VERSION)
        case "disconnect":
            rig.lose()
        case "time-out":
            rig.tick(6.0)
        case "time-outs until the deadline":
            rig.tick(30.0)
    rig.settle_down(5.0)
    assert outcome.status is status
    (after,) = rig.send()
    rig.settle_down(5.0)
    assert after.status is ACKED
    rig.assert_drained()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_retry_goes_before_what_waits_and_is_on_its_way_once(idempotent: bool) -> None:
    """S3-4: at the head without idempotence, in sequence order with it."""
    rig = Rig(enable_idempotence=idempotent, max_in_flight_requests_per_connection=2).start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.send(5)
    first, second = rig.outstanding()
    rig.fail(first, NOT_LEADER)
    if idempotent:
        rig.fail(second, OUT_OF_ORDER)
    else:
        rig.ack(second)
    rig.tick(1.0)
    again = rig.outstanding()[0]
    assert again.only.values == first.only.values
    values = [value for request in rig.outstanding() for value in request.only.values]
    assert len(values) == len(set(values))
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    rig.assert_drained()


def order_of_appends(*, idempotent: bool, in_flight: int) -> list[bytes | None]:
    """The log of a broker that refuses the second of ten batches once, and with idempotence what
    then is out of sequence.
    """
    rig = Rig(enable_idempotence=idempotent, max_in_flight_requests_per_connection=in_flight)
    rig.start()
    rig.send(10, poll=False)
    log: list[bytes | None] = []
    refused = False
    while PENDING in rig.statuses:
        rig.tick(0.5)
        if not rig.outstanding():
            continue
        request = rig.outstanding()[0]
        if len(log) == 1 and not refused:
            refused = True
            rig.fail(request, NOT_ENOUGH_REPLICAS, poll=False)
        elif idempotent and request.sequence != len(log):
            rig.fail(request, OUT_OF_ORDER, poll=False)
        else:
            log += request.only.values
            rig.ack(request, poll=False)
        assert rig.now < 2000.0
    assert set(rig.statuses) == {ACKED}
    assert len(log) == 10
    return log


def test_one_in_flight_without_idempotence_keeps_the_order() -> None:
    """S3-5: the batch that failed is the first again."""
    log = order_of_appends(idempotent=False, in_flight=1)
    assert log == sorted(log, key=lambda value: value or b"")


@pytest.mark.parametrize("in_flight", [1, 2, 5, 20])
@pytest.mark.parametrize("idempotent", [True, False])
def test_only_several_in_flight_without_idempotence_can_change_the_order(
    idempotent: bool, in_flight: int
) -> None:
    """S3-6: there, and nowhere else, a retry lands behind what was in flight with it."""
    log = order_of_appends(idempotent=idempotent, in_flight=in_flight)
    kept = log == sorted(log, key=lambda value: value or b"")
    assert kept is (idempotent or in_flight == 1)


# -- S4: idempotence


def test_idempotence_and_all_acknowledgements_are_the_default() -> None:
    """S4-1: and five in flight; more is no error any more (S0)."""
    config = ProducerConfig.build("h:1")
    assert (config.acks, config.enable_idempotence) == (-1, True)
    assert config.max_in_flight_requests_per_connection == 5
    wide = ProducerConfig.build("h:1", max_in_flight_requests_per_connection=20)
    assert wide.enable_idempotence


def test_a_bump_renumbers_from_zero_what_was_refused_and_nothing_that_is_in_doubt() -> None:
    """S4-10: "all in flight" would write what is in doubt a second time."""
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, TOPIC_AUTHORIZATION_FAILED, poll=False)
    for request in (second, third):
        rig.fail(request, OUT_OF_ORDER, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    renumbered = [(r.epoch, r.sequence, r.only.values) for r in rig.everything[4:]]
    assert renumbered == [(1, 0, second.only.values), (1, 1, third.only.values)]
    assert rig.statuses == [ACKED, NOT_WRITTEN, ACKED, ACKED]
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_nothing_new_goes_while_anything_is_in_doubt_or_waits_for_its_retry() -> None:
    """S4-11: while one is retried, one is in flight."""
    rig, requests = pipelined(3)
    rig.send(2)
    rig.lose()
    rig.tick(2.0)
    assert rig.sequences == [1]
    rig.send(2)
    assert rig.sequences == [1]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences[:2] == [2, 3]
    assert [r.only.values for r in rig.outstanding()[:2]] == [r.only.values for r in requests[1:3]]
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}


def test_unknown_producer_id_bumps_once_and_retries_what_was_refused() -> None:
    """S4-16, S4-22: retention removed all, a restart forgot the rest (brokers before 2.5)."""
    rig, requests = pipelined(3)
    for request in requests:
        rig.fail(request, UNKNOWN_PRODUCER_ID, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    again = [(r.epoch, r.sequence) for r in rig.everything[4:]]
    assert again == [(1, 0), (1, 1), (1, 2)]
    assert set(rig.statuses) == {ACKED}
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_out_of_order_with_nothing_in_doubt_is_a_loss_a_bump_and_a_retry() -> None:
    """S4-17: what the leader had acknowledged it does not have; nothing can be written twice."""
    rig, (first, second) = pipelined(2)
    rig.fail(first, OUT_OF_ORDER, poll=False)
    rig.fail(second, OUT_OF_ORDER, poll=False)
    rig.tick(2.0)
    rig.ack_all()
    assert [(r.epoch, r.sequence) for r in rig.everything[3:]] == [(1, 0), (1, 1)]
    assert set(rig.statuses) == {ACKED}
    assert rig.core.counters.data_loss_events == 1
    rig.assert_drained()


def test_what_the_broker_never_got_is_appended_by_the_retry() -> None:
    """S4-23, first case: the request was lost on its way."""
    rig, requests = pipelined(3)
    rig.lose()
    rig.tick(2.0)
    again = []
    for offset in (1, 2, 3):
        again.append(rig.outstanding()[0])
        rig.ack(again[-1], offset)
    assert [r.only.data for r in again] == [r.only.data for r in requests]
    assert [(o.status, o.offset) for o in rig.outcomes[1:]] == [(ACKED, n) for n in (1, 2, 3)]


def test_what_the_broker_stored_is_acknowledged_by_the_retry_with_its_first_offset() -> None:
    """S4-23, second case: the answer was lost on its way; others wrote meanwhile."""
    rig, (first, *_) = pipelined(1)
    rig.lose()
    rig.tick(2.0)
    (again,) = rig.outstanding()
    assert again.only.data == first.only.data
    rig.ack(again, 1)
    rig.send()
    rig.ack(rig.outstanding()[0], 90)
    assert [o.offset for o in rig.outcomes] == [0, 1, 90]
    assert rig.core.epoch_bumps == 0


# -- DescribeProducers, which is a hint (KIP-664)


def asked(answer: ProducersAnswer, start: int = 1) -> Rig:
    """Five in doubt, the oldest was answered OUT_OF_ORDER, and the leader tells this."""
    rig = Rig().start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    if start != 1:
        rig.jump(start)
    rig.send(5)
    rig.lose()
    rig.tick(2.0)
    rig.producers = answer
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    return rig


def told(epoch: int, last: int, producer_id: int = 4001) -> ProducersAnswer:
    return ProducersAnswer(0, {producer_id: (epoch, last)})


def test_a_hint_is_asked_first_and_alone_and_only_error_none_acknowledges() -> None:
    """attack.md 2: DescribeProducers runs ahead of the high watermark."""
    rig = asked(told(0, 3))
    assert rig.sequences == [3]
    assert rig.statuses[1:] == [PENDING] * 5
    rig.ack(rig.outstanding()[0], 30)
    assert rig.statuses[1:4] == [ACKED] * 3
    assert [o.offset for o in rig.outcomes[1:4]] == [-1, -1, 30]
    assert rig.sequences == [4, 5]
    rig.ack_all()
    rig.assert_drained()


@pytest.mark.parametrize(
    "answer",
    [
        told(1, 3),
        told(-1, 3),
        told(0, 99),
        told(0, 0),
        told(0, -1),
        told(0, 3, producer_id=4002),
        ProducersAnswer(0, {}),
        ProducersAnswer(TOPIC_AUTHORIZATION_FAILED, {}),
        ProducersAnswer(NOT_LEADER, {}),
    ],
    ids=["newer epoch", "no epoch", "higher", "lower", "-1", "another", "none", "denied", "moved"],
)
def test_whatever_names_no_batch_of_ours_is_ignored(answer: ProducersAnswer) -> None:
    """Another epoch's sequences mean other bytes; the probes then go newest first."""
    rig = asked(answer)
    assert rig.state().recovery.rung is Rung.PROBING
    assert rig.sequences == [5, 4, 3, 2, 1]
    assert rig.statuses[1:] == [PENDING] * 5


def test_a_followers_lie_is_never_a_verdict() -> None:
    """Any replica answers, also one that has what the leader does not: the probes decide."""
    rig = asked(told(0, 5))
    assert rig.sequences == [5]
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.statuses[1:] == [PENDING] * 5
    assert rig.sequences == [4, 3, 2, 1]
    rig.ack(rig.outstanding()[2], 20)
    rig.tick(2.0)
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    assert rig.core.counters.data_loss_events == 0


def test_a_hint_across_the_wrap_is_compared_as_the_wire_has_it() -> None:
    rig = asked(told(0, 0), start=SEQUENCE_MODULUS - 2)
    assert rig.sequences == [0]
    assert rig.state().unresolved[2].base == SEQUENCE_MODULUS


def test_a_denied_question_is_not_asked_again_on_that_connection() -> None:
    rig = asked(ProducersAnswer(TOPIC_AUTHORIZATION_FAILED, {}))
    rig.ack(rig.outstanding()[0])
    rig.tick(1.0)
    rig.send(2)
    for request in rig.outstanding():
        rig.fail(request, ErrorCode.request_timed_out, poll=False)
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.state().recovery.rung is Rung.PROBING
    assert sum(isinstance(step, steps.AskProducers) for step in rig.asked) == 1
