"""StickyTarget: the partition that gets the next records of a topic that have no key.

The sticky partitioner (`sticky`) chooses one partition for many records in a row. As long as this
choice holds, a record that has neither a key nor a partition goes to the same partition as the
record before it, and nothing needs to be looked up.

Invariant: a topic has a target only while `RecordAccumulator`, without the target, would choose the
same partition. So metadata must know the topic, no earlier records of the topic may be about to get
their partitions, and the topic must not have been deleted. `Partitions` and `RecordAccumulator`
forget all targets when one of these conditions may have changed. If a topic has no target, its next
record sets one. A producer with a custom partitioner or with transactions has no targets.
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
