"""Where records without a key go: sticky, switched by bytes (KIP-480, KIP-794).

One partition takes such records until a batch's worth of bytes went to it, then another is drawn at
random from those that have a leader. Round robin per record would cut every batch into as many
pieces as there are partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aioidem.engine.cluster import NO_LEADER, PartitionView

__all__ = ["StickyPartitioner"]


class StickyPartitioner:
    """The choice for one topic."""

    __slots__ = ("_bytes", "_current", "_random", "_switch_after")

    def __init__(self, switch_after: int, random: Callable[[], float]) -> None:
        self._switch_after = switch_after
        self._random = random
        self._current: int | None = None
        self._bytes = 0

    def choose(self, size: int, partitions: Mapping[int, PartitionView]) -> int:
        """The partition for a record of `size` bytes; `partitions` must not be empty."""
        current = self._current
        if current is None or self._bytes >= self._switch_after or current not in partitions:
            current = self._current = self._draw(partitions)
            self._bytes = 0
        self._bytes += size
        return current

    def _draw(self, partitions: Mapping[int, PartitionView]) -> int:
        led = sorted(index for index, view in partitions.items() if view.leader_id != NO_LEADER)
        choices = led or sorted(partitions)
        if len(choices) > 1 and self._current in choices:
            choices.remove(self._current)
        return choices[int(self._random() * len(choices)) % len(choices)]
