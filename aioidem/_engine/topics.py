"""What the producer keeps per topic name.

That is the records that have no partition yet, what metadata says of the topic, and the size that a
batch may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.unassigned import UnassignedRecords
from aioidem.errors import KafkaError, broker_error

__all__ = ["TopicState"]

CEILING_MEMORY = 3600.0
"""Seconds for which a MESSAGE_TOO_LARGE bounds the batches of its topic."""


class TopicState:
    """One topic by name."""

    __slots__ = (
        "_ceiling",
        "_ceiling_until",
        "_too_large",
        "described_by",
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
        self.unassigned = UnassignedRecords()
        # The number of the last Metadata request whose answer named its partitions.
        self.described_by = 0
        # Callers who wait until its partitions are known.
        self.waiting = 0
        self.error_code = 0
        # Why the cluster refuses the topic for good, as far as metadata said last.
        self.refused: KafkaError | None = None
        self._ceiling: int | None = None
        self._ceiling_until = 0.0
        # The smallest batch that was refused meanwhile.
        self._too_large = 0

    def describe(self, error_code: int, *, told_by: int | None) -> None:
        """Take what a Metadata answer says of the topic.

        Args:
            error_code: of the topic, 0 for none.
            told_by: the number of the request, where its answer tells of partitions; else None.
        """
        self.error_code = error_code
        self.refused = None
        if told_by is not None:
            self.described_by = told_by

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Have metadata asked for until the partitions are known, as long as a caller waits."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def refuse(self) -> KafkaError:
        """Take note that the cluster refuses the topic for good, and return why."""
        self.refused = broker_error(self.error_code, f"topic {self.name!r}")
        return self.refused

    def too_large(self, nbytes: int, now: float) -> None:
        """Keep batches smaller for an hour: one of `nbytes` was refused as too large."""
        ceiling = max(1, nbytes // 2)
        if self._ceiling is None or now >= self._ceiling_until:
            self._ceiling, self._too_large = ceiling, nbytes
        else:
            self._ceiling = min(self._ceiling, ceiling)
            self._too_large = min(self._too_large, nbytes)
        self._ceiling_until = now + CEILING_MEMORY

    def ceiling(self, default: int, now: float, told: int | None = None) -> int:
        """Return the most bytes that a batch of this topic may have now.

        `told`: the limit that the topic's leader has named; it replaces half of what was refused,
        where it explains the refusal.
        """
        if self._ceiling is None or now >= self._ceiling_until:
            return default
        if told is not None and told < self._too_large:
            return min(default, told)
        return min(default, self._ceiling)

    def forget_cluster(self) -> None:
        """Forget what a cluster that is left said of the topic."""
        self.error_code = 0
        self.refused = None
        self.described_by = 0
        self._ceiling = None
