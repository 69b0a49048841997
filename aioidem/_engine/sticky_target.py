"""StickyTarget: the partition to which the next records of a topic go that have no key.

The sticky partitioner fills one partition for a batch's worth of bytes. While it does, nothing
needs to be looked up for a record that has neither a key nor a partition: it goes where the one
before it went.

Invariant: a topic has a target only while `RecordAccumulator` would choose the same partition
without it: metadata knows the topic, none of its records is due to get a partition, and the
partition is not retired. `Partitions` and `RecordAccumulator` forget all targets when one of these
may have changed; the next record that finds none sets it again. A producer with a partitioner of
its own or with transactions has no targets.
"""

from __future__ import annotations

from aioidem._engine.partition import PartitionState
from aioidem._engine.sticky import StickyPartitioner

__all__ = ["StickyTarget"]


class StickyTarget:
    """The sticky partitioner of a topic, and the state of the partition that it has chosen."""

    __slots__ = ("state", "sticky")

    def __init__(self, state: PartitionState, sticky: StickyPartitioner) -> None:
        self.state = state
        self.sticky = sticky
