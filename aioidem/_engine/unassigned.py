"""UnassignedRecords: records of one topic that have no partition yet, in call order.

Call order is the order in which the user's calls gave the records to the producer.

A record waits here while metadata does not name its topic, for `max_block` seconds (an option of
the producer) at most. Then it fails with the last error that the cluster gave for the topic, or
with `KafkaTimeoutError` if the cluster gave none. It was never sent, so its status is NOT_WRITTEN.
A `RecordBlock`, many records of one call, waits here as one record does.

A record for a partition that its topic lacks waits here too, until the answer to a Metadata request
that was sent after the record came: partitions may have been added since the last answer. An answer
to an earlier request proves nothing; an answer to a later one that lacks the partition ends the
record.

When metadata names the topic's partitions, the waiting records become *due*: they get their
partitions little by little, at most 1000 in each call of the producer core's `poll` (the module
`assigning`). Assigning tens of thousands at once would block the event loop.

Invariants:

- Call order: every waiting record is older than every due one. While records are due, a new record
  of the topic is put behind them, whatever its partition, and does not wait. The due records are
  taken from the front. If the partition of the first one is still missing, that record waits again;
  the records that are still due are younger, so the order holds.
- A due record does not expire: its topic is known, so its partition is assigned soon.

Rejected: waiting `max_block` for a missing partition, as Java does. Usually the caller's partition
number is wrong, and the error should not take a minute.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from aioidem._engine.call_order import in_call_order
from aioidem._engine.record import PendingRecord

__all__ = ["Unassigned", "UnassignedRecords"]


class Unassigned(NamedTuple):
    """A record that waits for its partition."""

    until: float
    """The time in seconds at which the record ends if it has no partition by then."""
    asked: int
    """The number of Metadata requests sent before the record came: only the answer to a later one
    can refuse the record.
    """
    record: PendingRecord


class UnassignedRecords:
    """The records of one topic that have no partition yet."""

    __slots__ = ("_first_end", "_waiting", "due")

    def __init__(self) -> None:
        # Records that wait for the next Metadata answer.
        self._waiting: deque[Unassigned] = deque()
        # Records that soon get a partition (see `assigning`): metadata has named the topic's
        # partitions.
        self.due: deque[Unassigned] = deque()
        # No waiting record expires before this time, in seconds.
        self._first_end = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting or self.due)

    def __len__(self) -> int:
        """Return the number of records; a block counts as many as it holds."""
        return sum(each.record.count for each in (*self._waiting, *self.due))

    @property
    def waits(self) -> bool:
        """Whether a record waits for a Metadata answer."""
        return bool(self._waiting)

    def waited(self, now: float, delivery_timeout: float) -> float:
        """Return for how many seconds the first waiting record has waited; 0 if none waits."""
        if not self._waiting:
            return 0.0
        return now - (self._waiting[0].record.deadline - delivery_timeout)

    def first_queued_at(self, delivery_timeout: float) -> float:
        """Return when the first record was queued, in seconds; infinity if there is none."""
        firsts = (queue[0].record.deadline for queue in (self._waiting, self.due) if queue)
        return min(firsts, default=math.inf) - delivery_timeout

    def wait(self, until: float, asked: int, record: PendingRecord) -> None:
        """Let a record wait for metadata; `until` and `asked` are those of `Unassigned`."""
        if not self._waiting or until < self._first_end:
            self._first_end = until
        self._waiting.append(Unassigned(until, asked, record))

    def follow(self, until: float, asked: int, record: PendingRecord) -> None:
        """Put a new record behind the records in `due`, to keep call order.

        `until` and `asked` are those of `Unassigned`.
        """
        self.due.append(Unassigned(until, asked, record))

    def make_due(self) -> None:
        """Make all waiting records due: metadata has named the topic's partitions."""
        self._waiting.extend(self.due)
        self._waiting, self.due = deque(), self._waiting

    def put_in_order(self) -> None:
        """Sort all records into call order, after some were taken back from partitions.

        No record is due afterwards: all wait for the next `make_due`.
        """
        taken = (((each.until, each.asked), each.record) for each in self.take())
        for (until, asked), record in in_call_order(taken):
            self.wait(until, asked, record)

    def next_end(self) -> float | None:
        """Return the earliest time at which a record may expire, in seconds; None if none waits."""
        return self._first_end if self._waiting else None

    def expire(self, now: float) -> list[PendingRecord]:
        """Take out and return the waiting records whose `until` has passed."""
        # All are checked, because `until` does not rise from record to record: a caller that first
        # waited for room in the buffer has less of its `max_block` left.
        if not self._waiting or now < self._first_end:
            return []
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if each.until > now:
                self.wait(*each)
        return [each.record for each in waiting if each.until <= now]

    def take(self) -> list[Unassigned]:
        """Take out all records."""
        taken = [*self._waiting, *self.due]
        self._waiting.clear()
        self.due.clear()
        return taken
