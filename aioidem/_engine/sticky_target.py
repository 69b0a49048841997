"""StickyTarget: the partition that gets the next records of a topic that have no key.

The sticky partitioner (`sticky`) chooses one partition for many records in a row. Meanwhile nothing
needs to be looked up for a record that has neither a key nor a partition: it goes where the one
before it went.

Invariant: a topic has a target only while `RecordAccumulator` would choose the same partition
without it. So metadata must know the topic, no earlier records of the topic may be about to get
their partitions, and the topic must not have been deleted. `Partitions` and `RecordAccumulator`
forget all targets when one of these conditions may have changed. The next record of a topic without
a target sets it again. A producer with a custom partitioner or with transactions has no targets.
"""

from __future__ import annotations

from aioidem._engine.partition import PartitionState
from aioidem._engine.sticky import StickyPartitioner
from aioidem._hot import TargetFields

__all__ = ["StickyTarget"]


class StickyTarget(TargetFields):
    """The sticky partitioner of a topic, and the state and queue of the partition it has chosen."""

    __slots__ = ()

    def __init__(self, state: PartitionState, sticky: StickyPartitioner) -> None:
        super().__init__(state, sticky)
