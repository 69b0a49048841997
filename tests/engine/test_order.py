"""Where batches go and in which order: moved leaders, retries, the partitions of a request."""

from __future__ import annotations

import pytest

from .driver import (
    ACKED,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    Rig,
    T,
    pipelined,
    wait_until,
)

# -- discovery


def test_the_old_leader_is_drained_before_the_new_one_is_written_to() -> None:
    """Nothing is sent to the new leader while the old one owes answers (aiokafka #228)."""
    rig, requests = pipelined(3, brokers=2)
    rig.move_leader(2, 1, seconds=0.5)
    rig.send(3)
    assert all(r.link.host == "b1" for r in rig.outstanding())
    rig.ack(requests[0])
    rig.ack(requests[1])
    assert len(rig.outstanding()) == 1
    rig.ack(requests[2])
    assert [r.link.host for r in rig.outstanding()] == ["b2"]
    assert rig.sequences == [4]
    rig.ack_all()
    rig.assert_drained()


def test_a_leader_that_flaps_is_drained_by_leader_epoch() -> None:
    """The same leader under a new leader epoch gets no batch while the old epoch owes answers."""
    rig, requests = pipelined(2, brokers=2)
    rig.move_leader(1, 2, seconds=0.5)
    rig.send(3)
    assert rig.sequences == [1, 2]
    for request in requests:
        rig.ack(request)
    assert rig.sequences == [3]


def test_a_silent_deposed_leader_does_not_hold_up_its_successor() -> None:
    """A silent former leader's connection is closed after max(3 RTT, 2 s).

    The batches that the former leader has not answered are resent to the new leader.
    """
    rig, _ = pipelined(2, brokers=2)
    began = rig.now
    rig.move_leader(2, 1, seconds=0.5)
    wait_until(rig, lambda: any(r.link.host == "b2" for r in rig.outstanding()))
    assert 2.0 <= rig.now - began < 4.0
    assert rig.sequences == [1]
    assert rig.state().batches.in_doubt == 2
    rig.ack_all()
    assert rig.statuses == [ACKED] * 3


def test_stale_metadata_does_not_move_a_partition_back() -> None:
    """Metadata with an older leader epoch does not move a partition back to its former leader."""
    rig, requests = pipelined(1, brokers=2)
    rig.ack(requests[0])
    rig.move_leader(2, 5)
    rig.send()
    assert rig.outstanding()[0].link.host == "b2"
    rig.ack_all()
    rig.move_leader(1, 4)
    rig.send()
    assert rig.outstanding()[0].link.host == "b2"


# -- retries in order


@pytest.mark.parametrize("batches", [2, 5], ids=["room in the window", "a full window"])
def test_a_retriable_error_on_the_first_is_retried_in_order_with_new_data_behind(
    batches: int,
) -> None:
    """After a retriable error the refused batches are resent in order, and new ones follow.

    See kafka-python #2937, Sarama #1430 and Sarama #3354.
    """
    rig, requests = pipelined(batches)
    rig.fail(requests[0], NOT_LEADER, poll=False)
    for request in requests[1:]:
        rig.fail(request, OUT_OF_ORDER, poll=False)
    rig.send(2)
    assert rig.outstanding() == []
    rig.tick(2.0)
    assert rig.sequences == [1], "the oldest is resent alone, and new batches wait"
    order = []
    while rig.outstanding():
        order.extend(rig.sequences[:1])
        rig.ack(rig.outstanding()[0])
    assert order == list(range(1, batches + 3))
    rig.assert_drained()
    assert rig.core.epoch_bumps == 0


@pytest.mark.parametrize("failing", range(5))
def test_a_retriable_error_on_any_of_five_keeps_the_order(failing: int) -> None:
    """Offsets rise in call order whichever batch fails first (Sarama #2619 and #2860)."""
    rig, requests = pipelined(5)
    for number, request in enumerate(requests):
        if number < failing:
            rig.ack(request)
        else:
            rig.fail(request, NOT_ENOUGH_REPLICAS if number == failing else OUT_OF_ORDER)
    rig.tick(2.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 6
    offsets = [o.offset for o in rig.outcomes]
    assert offsets == sorted(offsets)
    rig.assert_drained()


def test_a_partition_backs_off_by_itself() -> None:
    """A partition that backs off does not hold up another partition of the same broker."""
    rig = Rig(partitions=2).start()
    rig.send(partition=0)
    rig.send(partition=1)
    first = next(r for r in rig.outstanding() if r.only.partition == 0)
    rig.fail(first, NOT_ENOUGH_REPLICAS)
    other = rig.outstanding()[0]
    rig.ack(other)
    rig.send(partition=1)
    assert [part.partition for r in rig.outstanding() for part in r.parts] == [1]
    rig.tick(1.0)
    assert sorted(p.partition for r in rig.outstanding() for p in r.parts) == [0, 1]


def test_back_off_grows_and_ends_with_a_success() -> None:
    rig = Rig(retry_backoff=0.1, retry_backoff_max=1.0).start()
    rig.send()
    waits = []
    for _ in range(6):
        failed_at = rig.now
        rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS)
        wait_until(rig, lambda: bool(rig.outstanding()))
        waits.append(rig.now - failed_at)
    assert waits[0] < 0.13
    assert 0.79 < waits[4] < 1.21
    assert 0.79 < waits[5] < 1.21
    rig.ack(rig.outstanding()[0])
    rig.send()
    failed_at = rig.now
    rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS)
    wait_until(rig, lambda: bool(rig.outstanding()))
    assert rig.now - failed_at < 0.13


def test_the_back_off_is_skipped_when_the_leader_has_moved() -> None:
    """A refused batch is sent to a new leader at once, without waiting for the back-off."""
    rig = Rig(brokers=2, retry_backoff=5.0, retry_backoff_max=60.0).start()
    rig.tick(20.0)
    rig.send()
    rig.fail(
        rig.outstanding()[0], NOT_LEADER, leader_id=2, leader_epoch=1
    )  # the answer names the new leader (KIP-951)
    assert [r.link.host for r in rig.outstanding()] == ["b2"]
    assert rig.core.counters.batches_retried == 1


def test_a_leader_hint_of_an_unknown_broker_is_followed_with_its_address() -> None:
    """A leader named in a Produce answer is reached at the address in that answer (KIP-951)."""
    from aioidem._protocol.produce import LeaderNode

    rig = Rig().start()
    rig.send()
    request = rig.outstanding()[0]
    entry = rig.entry(request, request.only, NOT_LEADER, leader_id=7, leader_epoch=3)
    rig.answer(request, [entry], leaders=(LeaderNode(7, "b7", 9092),))
    assert [r.link.host for r in rig.outstanding()] == ["b7"]


def test_an_old_leader_hint_is_ignored() -> None:
    rig = Rig(brokers=2).start()
    rig.move_leader(1, 4)
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_LEADER, leader_id=2, leader_epoch=3)
    rig.tick(2.0)
    assert [r.link.host for r in rig.outstanding()] == ["b1"]


def test_partial_success_is_judged_partition_by_partition() -> None:
    """Each partition of an answer is judged by its own error code."""
    rig = Rig(partitions=3).start()
    for partition in range(3):
        rig.send(partition=partition, poll=False)
    rig.poll()
    (request,) = rig.outstanding()
    codes = {0: NONE, 1: NOT_LEADER, 2: REQUEST_TIMED_OUT}
    rig.answer(
        request,
        [
            rig.entry(request, part, codes[part.partition], 0 if part.partition == 0 else -1)
            for part in request.parts
        ],
    )
    assert rig.statuses == [ACKED, PENDING, PENDING]
    assert [rig.state(T, p).batches.in_doubt for p in range(3)] == [0, 0, 1]
    rig.tick(2.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 3
    rig.assert_drained()


def test_one_request_takes_one_batch_of_every_partition_that_is_ready_and_once() -> None:
    """A request has at most one batch of each partition, and each batch is in one request."""
    rig = Rig(partitions=4).start()
    for partition in range(4):
        rig.send(2, partition=partition, poll=False)
    rig.poll()
    (request,) = rig.outstanding()
    assert sorted(part.partition for part in request.parts) == [0, 1, 2, 3]
    rig.poll()
    assert rig.outstanding() == [request], "batches in flight are not sent again"
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    rig.assert_drained()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_retry_goes_before_what_waits_and_is_on_its_way_once(idempotent: bool) -> None:
    """A refused batch is resent before all waiting batches, and in one request only."""
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
    """Return the log of a broker that refuses the second of ten batches once.

    With idempotence the broker also refuses batches that are out of sequence.
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
    """Without idempotence one request in flight keeps the order: a refused batch is resent next."""
    log = order_of_appends(idempotent=False, in_flight=1)
    assert log == sorted(log, key=lambda value: value or b"")


@pytest.mark.parametrize("in_flight", [1, 2, 5, 20])
@pytest.mark.parametrize("idempotent", [True, False])
def test_only_several_in_flight_without_idempotence_can_change_the_order(
    idempotent: bool, in_flight: int
) -> None:
    """Records change their order only without idempotence and with several requests in flight.

    A refused batch is then appended behind the batches that were in flight with it.
    """
    log = order_of_appends(idempotent=idempotent, in_flight=in_flight)
    kept = log == sorted(log, key=lambda value: value or b"")
    assert kept is (idempotent or in_flight == 1)


def test_nothing_new_goes_while_anything_is_in_doubt_or_waits_for_its_retry() -> None:
    """While a batch is retried it is the only one in flight, and new batches wait."""
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
