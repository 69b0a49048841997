"""`Partitions`: which are looked at, how their leaders are, and what becomes of deleted ones."""

from __future__ import annotations

from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.partition import PartitionState
from aioidem._engine.partitions import Partitions
from aioidem._protocol.producer_id import ProducerIdAnswer

from .driver import (
    ACKED,
    INVALID_PRODUCER_EPOCH,
    NONE,
    NOT_LEADER,
    UNKNOWN,
    Rig,
    T,
    topic_id,
    wait_until,
)

LOST = errors.KafkaConnectionError("lost")


def parts(rig: Rig) -> Partitions:
    return rig.core._partitions  # noqa: SLF001 - the rig has no other way to it


def names(states: list[PartitionState]) -> list[int]:
    return [state.partition for state in states]


def opened(state: PartitionState) -> bool:
    """Return whether the first-ack gate was opened; a function, as it changes between two looks."""
    return state.gate.opened_for is not None


def is_quiet(of: Partitions) -> bool:
    return of.quiet


# -- which are looked at


def test_only_partitions_with_something_to_do_are_active() -> None:
    rig = Rig(partitions=3, linger=9.0, batch_size=10_000).start()
    for partition in (2, 0):
        rig.send(partition=partition)
    of = parts(rig)
    assert names(of.active()) == [2, 0]
    assert is_quiet(of)
    rig.tick(10.0)
    assert names(of.active()) == [2, 0], "their batches are outstanding"
    assert not is_quiet(of)
    rig.ack_all()
    assert of.active() == []
    assert list(of.busy) == []
    assert [state.partition for state in of] == [2, 0], "their states are kept"


def test_a_served_partition_goes_behind_the_others() -> None:
    rig = Rig(partitions=3, linger=9.0, batch_size=10_000).start()
    for partition in range(3):
        rig.send(partition=partition)
    of = parts(rig)
    of.served(rig.state(partition=0))
    assert names(of.active()) == [1, 2, 0]
    of.served(rig.state(partition=2))
    assert names(of.active()) == [1, 0, 2]
    of.wake(rig.state(partition=0))
    assert names(of.active()) == [1, 0, 2], "it is awake already"


def test_a_flush_is_for_all_partitions() -> None:
    rig = Rig(partitions=2, linger=9.0, batch_size=10_000).start()
    for partition in range(2):
        rig.send(partition=partition)
    parts(rig).flush()
    assert all(state.queue.flushing for state in parts(rig).active())


def test_a_transaction_closes_the_gates_of_partitions_that_wait_and_of_later_ones() -> None:
    rig = Rig(partitions=2).start()
    for partition in range(2):
        rig.send(partition=partition)
        rig.ack_all()
    rig.send(partition=0)
    of = parts(rig)
    early, late = rig.state(partition=0), rig.state(partition=1)
    assert opened(early)
    of.begin_transaction(gated=True)
    assert not opened(early)
    assert opened(late), "it has nothing to send"
    rig.ack_all()
    rig.send(partition=1)
    assert not opened(late)
    rig.ack_all()
    of.begin_transaction(gated=False)
    rig.send(partition=1)
    assert not late.gate.applies


# -- leaders


def test_the_leader_and_how_it_can_be_reached_are_told() -> None:
    rig = Rig(brokers=2).start()
    rig.send()
    status = parts(rig).leader_status(rig.state(), rig.now)
    assert (status.name, status.leads, status.down_since) == ("broker 1 (b1:9092)", True, None)
    assert (status.attempts, status.error, status.throttle) == (0, None, 0.0)
    request = rig.outstanding()[0]
    rig.answer(request, [rig.entry(request, request.only, NONE, 0)], throttle=3.0)
    assert parts(rig).leader_status(rig.state(), rig.now).throttle == 3.0
    rig.down = {1}
    rig.send()
    rig.lose()
    at = rig.now
    rig.tick(2.0)
    status = parts(rig).leader_status(rig.state(), rig.now)
    assert (status.name, status.leads, status.throttle) == ("broker 1 (b1:9092)", True, 0.0)
    assert status.down_since == pytest.approx(at, abs=0.5)
    assert status.attempts >= 1
    assert isinstance(status.error, errors.KafkaConnectionError)


def test_without_a_leader_the_last_one_is_named() -> None:
    rig = Rig().start()
    rig.send()
    rig.leaders[T, 0] = (-1, 5)
    rig.refresh()
    status = parts(rig).leader_status(rig.state(), rig.now)
    assert (status.name, status.leads) == ("broker 1 (b1:9092)", False)
    other = Rig(partitions=2)
    other.leaders[T, 1] = (-1, 0)
    other.start()
    other.send(partition=1)
    status = parts(other).leader_status(other.state(partition=1), other.now)
    assert (status.name, status.leads, status.attempts) == (None, False, 0)


def test_a_leader_whose_address_is_not_known_is_named_by_its_id() -> None:
    rig = Rig().start()
    rig.leaders[T, 0] = (7, 5)
    rig.refresh()
    before = len(rig.asked)
    rig.send()
    rig.tick(1.0)
    assert any(isinstance(step, steps.FetchMetadata) for step in rig.asked[before:])
    status = parts(rig).leader_status(rig.state(), rig.now)
    assert (status.name, status.leads, status.down_since, status.attempts, status.error) == (
        *("broker 7", True, None, 0),
        None,
    )


def test_the_partition_that_has_waited_longest_is_what_calls_wait_for() -> None:
    rig = Rig(partitions=3, linger=50.0, batch_size=10_000).start()
    of = parts(rig)
    assert of.obstacle(rig.now) is None
    began = rig.now
    rig.send(2, partition=1)
    told = of.obstacle(began + 1.0)
    assert "t-1: 2 records without an outcome, the oldest queued 1.0 s ago" in str(told)
    assert "more partition" not in str(told)
    rig.now += 1.0
    rig.send(partition=0)
    assert "t-1: 2 records" in str(of.obstacle(rig.now))
    assert "; 1 more partition waits" in str(of.obstacle(rig.now))
    rig.send(partition=2)
    assert "; 2 more partitions wait" in str(of.obstacle(rig.now))


# -- the range that brokers deduplicate


@pytest.mark.parametrize(("dedup", "capped"), [("range", True), ("window", False)])
def test_a_range_of_sequences_limits_what_is_unresolved(dedup: str, capped: bool) -> None:
    rig = Rig(broker_dedup=dedup, partitions=2).start()
    rig.send(partition=0)
    assert (rig.state(partition=0).window.sequence_cap is not None) is capped
    parts(rig).limit_span(7)
    rig.send(partition=1)
    assert (
        rig.state(partition=0).window.sequence_cap
        == rig.state(partition=1).window.sequence_cap
        == 7
    )


# -- another client's producer id


def fenced(rig: Rig, partition: int = 0) -> None:
    request = next(r for r in rig.outstanding() if r.only.partition == partition)
    rig.fail(request, INVALID_PRODUCER_EPOCH)


def test_a_shared_producer_id_is_given_up_once() -> None:
    rig = Rig(partitions=2).start()
    for partition in range(2):
        rig.send(partition=partition)
        rig.ack_all()
    before = rig.core.identity.current
    for partition in range(2):
        rig.send(partition=partition)
    fenced(rig)
    rig.tick(1.0)
    after = rig.core.identity.current
    assert before is not None
    assert after is not None
    assert after.producer_id != before.producer_id
    assert len([event for event in rig.events if "requests a new id" in event]) == 1


def test_a_shared_identity_that_is_granted_again_is_refused() -> None:
    """Sequences would begin anew under it, and the leader would take new batches for stored ones.

    The producer asks again after a pause. Another epoch of the id, or another id, is usable.
    """
    rig = Rig().start()
    rig.hold = (steps.InitProducerId,)
    rig.send()
    rig.ack_all()
    shared = rig.core.identity.current
    assert shared is not None
    rig.send()
    fenced(rig)
    for granted in (shared, shared, (shared.producer_id, shared.epoch + 1)):
        wait_until(rig, lambda: bool(rig.held))
        answer = ProducerIdAnswer(NONE, *granted, throttle_ms=0)
        rig.core.on_answer(rig.held.pop(), answer, rig.now)
        assert (rig.core.identity.current == granted) is (granted != shared)
        rig.poll()
        assert not rig.held
    rig.ack_all()
    rig.assert_drained()


# -- deleted topics


def recreated(rig: Rig) -> None:
    rig.ids[T] = topic_id(T, 1)
    rig.refresh(0.5)


def test_a_deleted_partition_is_kept_until_its_leader_has_answered() -> None:
    rig = Rig().start()
    rig.send()
    (owed,) = rig.outstanding()
    old = rig.state()
    of = parts(rig)
    assert of.holds(old)
    recreated(rig)
    assert not of.holds(old)
    assert of.retired == [old]
    assert list(of)[-1] is old
    assert not is_quiet(of)
    rig.fail(owed, NOT_LEADER)
    rig.poll()
    assert is_quiet(of)
    rig.tick(1.0)
    assert of.retired == []
    assert rig.statuses == [UNKNOWN]


def test_a_deleted_partition_that_is_owed_nothing_is_forgotten() -> None:
    rig = Rig().start()
    rig.send()
    rig.ack_all()
    old = rig.state()
    recreated(rig)
    of = parts(rig)
    assert of.retired == []
    assert old not in of.busy
    (record,) = rig.send()
    assert rig.state() is not old
    rig.ack_all()
    assert record.status is ACKED


def test_nothing_is_aimed_at_a_deleted_partition() -> None:
    rig = Rig().start()
    rig.send(partition=None)
    rig.ack_all()
    of = parts(rig)
    targets: Any = of.targets
    assert targets
    old = rig.state()
    recreated(rig)
    (record,) = rig.send(partition=None)
    assert rig.state() is not old
    rig.ack_all()
    assert record.status is ACKED
