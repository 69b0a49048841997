"""UnassignedRecords: records of one topic that have no partition yet, in call order.

Records of a topic that metadata does not know yet wait here. Each waits until the end of its
caller's `max_block` at most; then it ends NOT_WRITTEN with what the cluster last said of the topic.

A record for a partition that its topic lacks waits here too, for one answer to a Metadata request
that was sent after the record came: partitions may have been added since the last one. An older
answer proves nothing, and a younger one that lacks the partition ends the record.

When metadata names the topic's partitions, those that wait become due: they get their partitions in
the polls that follow, some at a time (`assigning`). To assign tens of thousands of them at once
would block the event loop.

Invariants:

- Call order: every record that waits came before every one that is due, and while some are due a
  later record of the topic is put behind them, whatever its partition.
- A record that is due is not given up for its time: its topic is known.

Rejected: waiting `max_block` for a partition, as Java does. A wrong number is the common case, and
a minute of silence is no way to hear of it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from aioidem._engine.record import PendingRecord

__all__ = ["Unassigned", "UnassignedRecords"]


class Unassigned(NamedTuple):
    """A record that waits for its partition."""

    until: float
    """When it is given up."""
    asked: int
    """Metadata requests sent before it came: only the answer to a later one can refuse it."""
    record: PendingRecord


class UnassignedRecords:
    """The records of one topic that have no partition yet."""

    __slots__ = ("_first_end", "_waiting", "due")

    def __init__(self) -> None:
        # They wait for the next Metadata answer.
        self._waiting: deque[Unassigned] = deque()
        # Metadata has named their topic's partitions, and they were not tried since.
        self.due: deque[Unassigned] = deque()
        # No record that waits is given up before this.
        self._first_end = 0.0

    def __len__(self) -> int:
        return len(self._waiting) + len(self.due)

    @property
    def waits(self) -> bool:
        """Whether a record needs metadata that is still to come."""
        return bool(self._waiting)

    def wait(self, until: float, asked: int, record: PendingRecord) -> None:
        """Let a record wait for metadata, until a time at most; see `Unassigned`."""
        if not self._waiting or until < self._first_end:
            self._first_end = until
        self._waiting.append(Unassigned(until, asked, record))

    def follow(self, until: float, asked: int, record: PendingRecord) -> None:
        """Put a record behind those that are due."""
        self.due.append(Unassigned(until, asked, record))

    def make_due(self) -> None:
        """Make every record that waits due: metadata has named the topic's partitions."""
        self._waiting.extend(self.due)
        self._waiting, self.due = deque(), self._waiting

    def put_in_order(self) -> None:
        """Put everything into call order again, after records were taken back from partitions.

        It waits for `make_due`.
        """
        everything = sorted(self.take(), key=lambda each: each.record.ordinal)
        for each in everything:
            self.wait(*each)

    def next_end(self) -> float | None:
        """When the next record must be given up, at the earliest; None while none waits."""
        return self._first_end if self._waiting else None

    def expire(self, now: float) -> list[PendingRecord]:
        """Take out the records that waited for metadata too long."""
        # Their ends are not in order: a caller that waited for room before has less time left.
        if not self._waiting or now < self._first_end:
            return []
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if each.until > now:
                self.wait(*each)
        return [each.record for each in waiting if each.until <= now]

    def take(self) -> list[Unassigned]:
        """Take out everything."""
        taken = [*self._waiting, *self.due]
        self._waiting.clear()
        self.due.clear()
        return taken
