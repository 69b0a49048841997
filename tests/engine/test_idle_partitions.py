"""What partitions and topics that have nothing to do cost: nothing, however many there are.

Costs are counted in Python opcodes of the engine, which do not depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from aioidem.errors import DeliveryTimeoutError, KafkaTimeoutError

from .driver import ACKED, NOT_WRITTEN, PENDING, Rig, T

BUSY = 10
FEW, MANY = 10, 500


def opcodes(work: Callable[[], object]) -> int:
    """Return how many opcodes of the engine some work executes."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        del arg
        if "/_engine/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def used(partitions: int, **options: Any) -> Rig:
    """Return an engine that has delivered one record to each of its topics and partitions.

    Half of the partitions belong to one topic, and each of the others to a topic of its own.
    """
    rig = Rig(partitions=partitions, **options)
    topics = [f"u{number}" for number in range(partitions)]
    for topic in topics:
        rig.leaders[topic, 0] = (1, 0)
        rig.core.accumulator.topic(topic)
    rig.start()
    if rig.config.transactional_id is not None:
        rig.tick(1.0)
        rig.begin()
    for topic in topics:
        rig.send(topic=topic, poll=False)
    for index in range(partitions):
        rig.send(partition=index, poll=False)
    rig.poll()
    while rig.outstanding():
        rig.ack_all()
    assert rig.statuses == [ACKED] * 2 * partitions
    return rig


def poll(rig: Rig) -> None:
    rig.core.poll(rig.now)


def costs(work: Callable[[Rig], object], **options: Any) -> tuple[int, int]:
    """Return how many opcodes `work` executes with few idle partitions, and with many.

    Ten partitions are busy in both: each has one batch outstanding and one record queued.
    """
    counts = []
    for partitions in (FEW, MANY):
        rig = used(partitions, **options)
        for _ in range(2):
            for index in range(BUSY):
                rig.send(partition=index, poll=False)
            rig.poll()
        poll(rig)
        counts.append(opcodes(lambda rig=rig: work(rig)))  # type: ignore[misc]
    return counts[0], counts[1]


def test_a_poll_costs_the_same_however_many_partitions_and_topics_are_idle() -> None:
    """A poll looks at the partitions that have something to do, and at no others."""
    few, many = costs(poll, max_in_flight_requests_per_connection=1)
    assert many == few


def test_a_flush_costs_the_same_however_many_partitions_and_topics_are_idle() -> None:
    """A flush looks at the partitions that have records queued, and at no others."""
    few, many = costs(
        lambda rig: rig.core.accumulator.begin_flush(), max_in_flight_requests_per_connection=1
    )
    assert many == few


def test_a_transaction_begins_at_the_same_cost_however_many_partitions_are_idle() -> None:
    """The beginning of a transaction touches no idle partition.

    In each transaction of v1, a partition sends one batch alone until its first ack (the first-ack
    gate). An idle partition's gate closes only when the partition is used again.
    """
    counts = []
    for partitions in (FEW, MANY):
        rig = used(partitions, transactional_id="txn")
        rig.commit()
        rig.tick(1.0)
        rig.core.meters.fold(rig.now)  # what was counted of earlier batches is added up elsewhere
        counts.append(opcodes(rig.begin))
    assert counts[0] == counts[1]


def test_an_idle_partition_begins_a_transaction_behind_its_gate() -> None:
    """A partition that was idle when a transaction began sends its first batch alone."""
    rig = used(2, transactional_id="txn", late_sealing=False)
    rig.send(2, partition=0)
    assert len(rig.outstanding()) == 2, "the gate is open: the leader has answered before"
    rig.ack_all()
    rig.commit()
    rig.tick(1.0)
    rig.begin()
    rig.send(2, partition=0)
    assert len(rig.outstanding()) == 1
    rig.ack_all()
    rig.ack_all()
    rig.assert_drained()


def test_a_partition_that_was_idle_expires_its_records_as_any_other() -> None:
    """A record of a partition that was idle for an hour ends at its own deadline."""
    rig = used(3, delivery_timeout=20.0, request_timeout=5.0)
    rig.tick(3600.0)
    rig.down = {1}
    rig.lose(rig.produce_link())
    (late,) = rig.send(partition=2)
    rig.tick(19.9)
    assert late.status is PENDING
    rig.tick(0.2)
    assert (late.status, type(late.error)) == (NOT_WRITTEN, DeliveryTimeoutError)
    rig.assert_drained()


@pytest.mark.parametrize("again", [False, True])
def test_records_of_an_unknown_topic_expire_beside_idle_topics(*, again: bool) -> None:
    """A record for an unknown topic ends after max_block, and so does the next one for it."""
    rig = used(3, max_block=5.0)
    for _ in range(1 + again):
        (lost,) = rig.send(topic="nowhere", partition=None)
        rig.tick(4.9)
        assert lost.status is PENDING
        rig.tick(0.3)
        assert lost.status is NOT_WRITTEN
        assert isinstance(lost.error, KafkaTimeoutError) or "nowhere" in str(lost.error)
    assert rig.send(topic=T, partition=1)
    rig.ack_all()
    rig.assert_drained()
