"""What the producer keeps per topic name: records that have no partition yet, and the size a batch
may have.

Records of a topic that metadata does not know yet wait here, in call order, and move to their
partitions the moment it does. Each waits until the end of its caller's `max_block` at most; then it
ends NOT_WRITTEN with what the cluster last said of the topic.

A record for a partition that its topic lacks waits here too, for one answer to a Metadata request
that was sent after the record came: partitions may have been added since the last one. An older
answer proves nothing, and a younger one that lacks the partition ends the record.

Rejected: waiting `max_block` for the partition, as Java does. A wrong number is the common case,
and a minute of silence is no way to hear of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from aioidem.engine.accumulator import PendingRecord
from aioidem.engine.sticky import StickyPartitioner
from aioidem.errors import KafkaError

__all__ = ["TopicState", "Unassigned"]

CEILING_MEMORY = 3600.0
"""Seconds for which a MESSAGE_TOO_LARGE bounds the batches of its topic."""


class Unassigned(NamedTuple):
    """A record that waits for its partition."""

    until: float
    """When it is given up."""
    asked: int
    """Metadata requests sent before it came: only the answer to a later one can refuse it."""
    record: PendingRecord


class TopicState:
    """One topic by name."""

    __slots__ = (
        "_ceiling",
        "_ceiling_until",
        "_first_end",
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
        self.unassigned: deque[Unassigned] = deque()
        # No record in it is given up before this.
        self._first_end = 0.0
        # The number of the last Metadata request whose answer told of its partitions.
        self.described_by = 0
        # Callers who wait to hear of its partitions.
        self.waiting = 0
        self.error_code = 0
        # Why the cluster refuses the topic for good, as far as metadata said last.
        self.refused: KafkaError | None = None
        self._ceiling: int | None = None
        self._ceiling_until = 0.0
        # The smallest batch that was refused meanwhile.
        self._too_large = 0

    def too_large(self, nbytes: int, now: float) -> None:
        """A batch of `nbytes` was refused as too large: smaller ones for an hour."""
        ceiling = max(1, nbytes // 2)
        if self._ceiling is None or now >= self._ceiling_until:
            self._ceiling, self._too_large = ceiling, nbytes
        else:
            self._ceiling = min(self._ceiling, ceiling)
            self._too_large = min(self._too_large, nbytes)
        self._ceiling_until = now + CEILING_MEMORY

    def ceiling(self, default: int, now: float, told: int | None = None) -> int:
        """The most bytes a batch of this topic may have now.

        `told`: the limit that the topic's leader has told; it replaces half of what was refused
        where it says why.
        """
        if self._ceiling is None or now >= self._ceiling_until:
            return default
        if told is not None and told < self._too_large:
            return min(default, told)
        return min(default, self._ceiling)

    def wait(self, until: float, asked: int, record: PendingRecord) -> None:
        """Let a record wait for its partition, until a time at most; see `Unassigned`."""
        if not self.unassigned or until < self._first_end:
            self._first_end = until
        self.unassigned.append(Unassigned(until, asked, record))

    def put_in_order(self) -> None:
        """Put what waits into call order again, after records were taken back from partitions."""
        self.unassigned = deque(sorted(self.unassigned, key=lambda each: each.record.ordinal))

    def next_end(self) -> float | None:
        """When the next record must be given up, at the earliest; None while none waits."""
        return self._first_end if self.unassigned else None

    def forget_cluster(self) -> None:
        """What one cluster said of the topic is not so in another."""
        self.error_code = 0
        self.refused = None
        self.described_by = 0
        self._ceiling = None

    def expire(self, now: float) -> list[PendingRecord]:
        """Take out the records that waited for the topic too long."""
        # Their ends are not in order: a caller that waited for room before has less time left.
        if not self.unassigned or now < self._first_end:
            return []
        waiting = self.take_unassigned()
        for each in waiting:
            if each.until > now:
                self.wait(*each)
        return [each.record for each in waiting if each.until <= now]

    def take_unassigned(self) -> deque[Unassigned]:
        """Take out everything that waits."""
        taken, self.unassigned = self.unassigned, deque()
        return taken
