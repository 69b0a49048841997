"""What the producer keeps per topic name: records that have no partition yet, and the size a batch
may have.

Records of a topic that metadata does not know yet wait here, in call order, and move to their
partitions the moment it does. They wait `max.block` at most; then they end NOT_WRITTEN with what
the cluster last said of the topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aioidem.engine.accumulator import PendingRecord
from aioidem.engine.sticky import StickyPartitioner
from aioidem.errors import KafkaError

__all__ = ["TopicState"]

CEILING_MEMORY = 3600.0
"""Seconds for which a MESSAGE_TOO_LARGE bounds the batches of its topic."""


class TopicState:
    """One topic by name."""

    __slots__ = (
        "_ceiling",
        "_ceiling_until",
        "error_code",
        "name",
        "refused",
        "sticky",
        "unassigned",
        "waiting",
    )

    def __init__(self, name: str, switch_after: int, random: Callable[[], float]) -> None:
        self.name = name
        self.sticky = StickyPartitioner(switch_after, random)
        self.unassigned: deque[tuple[float, PendingRecord]] = deque()
        # Callers who wait to hear of its partitions.
        self.waiting = 0
        self.error_code = 0
        # Why the cluster refuses the topic for good, as far as metadata said last.
        self.refused: KafkaError | None = None
        self._ceiling: int | None = None
        self._ceiling_until = 0.0

    def too_large(self, nbytes: int, now: float) -> None:
        """A batch of `nbytes` was refused as too large: smaller ones for an hour."""
        ceiling = max(1, nbytes // 2)
        if self._ceiling is None or now >= self._ceiling_until:
            self._ceiling = ceiling
        else:
            self._ceiling = min(self._ceiling, ceiling)
        self._ceiling_until = now + CEILING_MEMORY

    def ceiling(self, default: int, now: float) -> int:
        """The most bytes a batch of this topic may have now."""
        if self._ceiling is None or now >= self._ceiling_until:
            return default
        return min(default, self._ceiling)

    def expire(self, now: float) -> list[PendingRecord]:
        """Take out the records that waited for the topic too long."""
        expired = []
        while self.unassigned and self.unassigned[0][0] <= now:
            expired.append(self.unassigned.popleft()[1])
        return expired
