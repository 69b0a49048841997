"""A topic's target: the partition that its next keyless records get without any lookup.

The partitioner, which is usually called for each record, would choose the same partition.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from aioidem import errors

from .driver import ACKED, NOT_WRITTEN, Rig, T, topic_id

MOST_PARTITIONS = 4


def targets(rig: Rig) -> dict[str, Any]:
    """Return the engine's `StickyTarget` of each topic that has one, by the topic's name."""
    return rig.core._partitions.targets  # noqa: SLF001 - they change nothing that can be seen


def send(rig: Rig, count: int = 1, **how: Any) -> None:
    """Queue records of 20 bytes without a partition, and do not poll."""
    rig.send(count, partition=None, size=20, poll=False, **how)


def recreate(rig: Rig, partitions: int) -> None:
    """Delete the topic and create it with so many partitions, while no request is outstanding."""
    rig.ack_all()
    rig.poll()
    generation = sum(1 for each in range(100) if rig.ids.get(T) == topic_id(T, each))
    rig.ids[T] = topic_id(T, generation + len(rig.asked))
    for index in range(MOST_PARTITIONS):
        rig.leaders.pop((T, index), None)
    rig.leaders |= {(T, index): (1, 0) for index in range(partitions)}


def lose_leader(rig: Rig, index: int) -> None:
    """Take an existing partition's leader away, or give it back if the partition has none."""
    if (T, index) in rig.leaders:
        leader, epoch = rig.leaders[T, index]
        rig.leaders[T, index] = (-1 if leader == 1 else 1, epoch + 1)


_ACTS = (
    "send",
    "send with a key",
    "send to a partition",
    "poll",
    "acknowledge",
    "flush",
    "metadata",
    "lose leader",
    "grow",
    "recreate",
)


def perform(rig: Rig, act: str, number: int) -> None:
    """Let the producer or its cluster do something; `number` says how many, or which one."""
    match act:
        case "send":
            send(rig, number)
        case "send with a key":
            send(rig, key=b"key %d" % number)
        case "send to a partition":
            rig.send(partition=number % MOST_PARTITIONS, size=20, poll=False)
        case "poll":
            rig.poll()
        case "acknowledge":
            rig.ack_all()
        case "flush":
            rig.core.accumulator.begin_flush()
            rig.poll()
        case "lose leader":
            lose_leader(rig, number % MOST_PARTITIONS)
        case "grow":
            rig.leaders |= {(T, index): (1, 0) for index in range(MOST_PARTITIONS)}
        case "recreate":
            recreate(rig, 1 + number % MOST_PARTITIONS)
    if act in {"metadata", "lose leader", "grow", "recreate"}:
        rig.refresh()


def run(seed: int, acts: list[tuple[str, int]], *, with_targets: bool) -> list[object]:
    """Perform the acts, and return each record's status, partition and offset."""
    rig = Rig(partitions=2, seed=seed, delivery_timeout=60.0, max_block=30.0)
    if not with_targets:
        rig.core.accumulator._has_targets = False  # noqa: SLF001 - the usual way for each record
    rig.start()
    aimed = False
    for act, number in acts:
        perform(rig, act, number)
        aimed = aimed or bool(targets(rig))
    assert with_targets or not aimed
    if aimed:
        event("a target was used")
    rig.leaders.update({where: (1, epoch + 9) for where, (_, epoch) in rig.leaders.items()})
    rig.refresh()
    rig.settle_down(90.0)
    return [
        (each.status, each.settlement and each.settlement.partition, each.offset)
        for each in rig.outcomes
    ]


@given(
    seed=st.integers(0, 1000),
    acts=st.lists(st.tuples(st.sampled_from(_ACTS), st.integers(0, 9)), max_size=30),
)
def test_with_and_without_targets_each_record_goes_to_the_same_place(
    seed: int, acts: list[tuple[str, int]]
) -> None:
    """Records get the same partitions, order and outcomes whether targets are used or not."""
    acts = [("send", 3), *acts]
    assert run(seed, acts, with_targets=True) == run(seed, acts, with_targets=False)


def test_a_target_serves_until_its_partition_had_a_batch_s_worth() -> None:
    """A target changes to another partition after `batch_size` bytes, as the partitioner would."""
    rig = Rig(partitions=2, linger=60.0).start()
    send(rig)
    first = targets(rig)[T].state
    while targets(rig)[T].sticky.left > 0:
        send(rig)
    assert len(first.queue.records) == len(rig.outcomes)
    send(rig)
    assert targets(rig)[T].state is not first


def test_records_for_a_recreated_topic_go_to_its_new_partition() -> None:
    """A retired partition gets no further record, and the engine loses none."""
    rig = Rig(linger=60.0).start()
    send(rig)
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    send(rig)
    assert len(rig.state(T, 0).queue.records) == 2
    rig.settle_down(70.0)
    assert rig.statuses == [ACKED] * 2


def test_records_for_another_cluster_go_to_its_partition() -> None:
    """After a move to another cluster the partitions of the old one get no further record."""
    rig = Rig(linger=60.0).start()
    send(rig)
    rig.cluster_id, rig.ids[T] = "another", topic_id(T, 7)
    rig.lose()
    rig.tick(5.0)
    send(rig)
    rig.settle_down(90.0)
    assert rig.statuses == [ACKED] * 2


@pytest.mark.parametrize("how", ["closed", "fatal"])
def test_a_producer_that_has_ended_takes_no_record_by_its_target(how: str) -> None:
    """A target does not get around the end of the producer."""
    rig = Rig(linger=60.0).start()
    send(rig)
    assert targets(rig)
    if how == "closed":
        rig.core.accumulator.close()
    else:
        rig.core.fatal(errors.InternalError("an end"))
    with pytest.raises(errors.KafkaError):
        send(rig)
    rig.core.close(rig.now)
    rig.collect()
    assert rig.statuses == [NOT_WRITTEN]


@pytest.mark.parametrize("options", [{"transactional_id": "x"}, {"partitioner": lambda *_: 0}])
def test_transactions_and_own_partitioners_have_no_targets(options: dict[str, Any]) -> None:
    """Where something has to be checked for each record, no topic has a target."""
    rig = Rig(linger=60.0, **options).start()
    if "transactional_id" in options:
        rig.begin()
    send(rig, 3)
    assert not targets(rig)


def test_a_target_wakes_a_partition_that_was_idle() -> None:
    """A record that is added by a target to an idle partition is sent and acknowledged."""
    rig = Rig().start()
    for _ in range(3):
        send(rig)
        rig.poll()
        rig.ack_all()
        rig.poll()
    assert rig.statuses == [ACKED] * 3
