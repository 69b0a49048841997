"""The drill of a partition's queue and of the sealer, which makes batches of what is queued.

A run cuts batches from short queues, and rarely puts records back or lets a part of a queue expire.
Here a queue has single records, batches of the caller's and blocks of all sizes. After each step it
is compared with a list of one row for each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from aioidem._engine.draft import Draft
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import RecordRuns
from aioidem._records import BATCH_OVERHEAD

from .comparing import unequal
from .divided import drill_divided
from .queue_rows import Caller, Row, bound_of, fills, nbytes, ordinals, waiting
from .sealed import drill_sealed

__all__ = ["drill_queued"]

_STEPS: Final = 50
_LINGER: Final = 1.0
"""Seconds."""
_ENDLESS: Final = 1 << 30
"""More bytes, or records, than a queue ever has."""


def drill_queued(dice: Random) -> Iterator[str]:
    """Yield what is wrong with a queue by itself, or with the batches that a sealer makes."""
    for wrong in _QueueDrill(dice).run():
        yield f"queue: {wrong}"
        return
    for wrong in drill_sealed(dice):
        yield f"sealer: {wrong}"
        return
    for wrong in drill_divided(dice):
        yield f"parts: {wrong}"
        return


class _QueueDrill:
    """A queue, and the rows of the records that it must have."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._caller = Caller(dice)
        self._queue = PartitionQueue()
        self._now = dice.choice((0.0, 1000.0))
        self._rows: list[Row] = []
        self._blocked = self._flushing = False
        # How many of the first records are being compressed for a batch.
        self._drafted = 0

    def run(self) -> Iterator[str]:
        """Do at random what the engine does with a queue, and yield what is wrong."""
        usual = [
            self._append,
            self._append,
            self._cut,
            self._cut,
            self._mark,
            self._draft,
            self._draft,
        ]
        rare = [self._head, self._expire, self._empty]
        for _ in range(_STEPS):
            self._now += self._dice.choice((0.0, 0.5, 1.0, 6.0))
            action = self._dice.choice(rare if self._dice.random() < 0.25 else usual)
            wrong = action() or self._difference()
            if wrong is not None:
                yield f"{wrong} after {action.__name__}"
                return

    def _difference(self) -> str | None:
        """Return how the queue differs from its rows; None if it does not."""
        queue, rows = self._queue, self._rows
        pairs: dict[str, tuple[object, object]] = {
            "records": (waiting(queue.records), [row.ordinal for row in rows]),
            "bytes": (queue.bytes, nbytes(rows)),
            "count": (queue.count, len(rows)),
            "first size": (queue.first_size if rows else 0, rows[0].size if rows else 0),
            "held back": (queue.blocked, self._blocked),
            "flushing": (queue.flushing, self._flushing),
            "has a draft": (queue.draft is not None, self._drafted > 0),
        }
        for linger in (0.0, _LINGER):
            head = rows[0].queued_at if rows else self._now
            now = self._dice.choice((head, head + linger - 0.25, head + linger, self._now))
            full = nbytes(rows) + BATCH_OVERHEAD
            for batch_size in (full, full + 1):
                told = queue.ready(now, linger=linger, batch_size=batch_size)
                lingered = now - head >= linger or self._flushing or linger == 0.0
                due = bool(rows) and (lingered or batch_size == full)
                pairs[f"ready at {now}, linger {linger}, batch_size {batch_size}"] = (told, due)
        return unequal(pairs)

    def _calm(self) -> None:
        """Note that an empty queue is neither held back nor flushing."""
        if not self._rows:
            self._blocked = self._flushing = False

    # what the engine does; each returns what is wrong by itself

    def _append(self) -> str | None:
        for item, rows in self._caller.call(self._now):
            self._queue.append(item, self._now)
            self._rows += rows
        return None

    def _mark(self) -> str | None:
        """Flush the queue, have its first batch sent at once, or hold it back."""
        match self._dice.randrange(3):
            case 0:
                self._queue.flush()
                self._flushing = bool(self._rows)
            case 1 if self._rows:
                self._queue.hurry()
                self._flushing = True
            case 2 if self._rows:
                self._queue.hold_back()
                self._blocked = True
        return None

    def _limits(self) -> tuple[int, int, int]:
        """Return limits for a batch that just suffice for some records, or just do not.

        They are the most bytes, the most records, and the most bytes of a caller's batch that is
        not divided.
        """
        dice, rows = self._dice, self._rows
        some = dice.randrange(1, len(rows) + 1)
        limit = BATCH_OVERHEAD + bound_of(rows[:some]) + dice.choice((-1, 0, 1))
        most = dice.choice((_ENDLESS, _ENDLESS, some, 1))
        group = rows[0].group
        whole = 0 if group is None else group.size - dice.choice((0, 1))
        return (
            dice.choice((limit, limit, limit, 0, _ENDLESS, _ENDLESS)),
            most,
            dice.choice((0, whole)),
        )

    def _cut(self) -> str | None:
        """Take the records of one batch, and put some of them back perhaps."""
        if not self._rows or self._drafted:
            return None
        limits = self._limits()
        flushing = self._flushing
        taken = self._queue.cut(*limits)
        wrong = self._taken(taken, limits)
        if wrong is not None:
            return wrong
        rows, self._rows = self._rows[: len(taken)], self._rows[len(taken) :]
        self._calm()
        if self._dice.random() < 0.5:
            keep = self._dice.randrange(len(rows))
            self._queue.put_back(taken[keep:], flushing=flushing)
            self._rows = rows[keep:] + self._rows
            self._flushing = flushing
        return None

    def _taken(self, taken: Sequence[PendingRecord], limits: tuple[int, int, int]) -> str | None:
        """Return what is wrong with the records of one batch."""
        due = fills(self._rows, *limits)
        expected = [row.ordinal for row in self._rows[: len(taken)]]
        if len(taken) not in due:
            many = f"{len(taken)} of {len(self._rows)} records"
            return f"{many} are taken within {limits}, not a number in {due}"
        size = taken.size if type(taken) is RecordRuns else sum(each.size for each in taken)
        return unequal(
            {
                "records taken": (ordinals(taken), expected),
                "bytes taken": (size, nbytes(self._rows[: len(taken)])),
            }
        )

    def _head(self) -> str | None:
        """Look at the records of the next batch, which stay in the queue."""
        if not self._rows or self._drafted:
            return None
        limits = self._limits()
        return self._taken(self._queue.head(*limits), limits)

    def _draft(self) -> str | None:
        """Begin to compress the first records, or take them, or end their draft."""
        queue = self._queue
        if not self._rows:
            return None
        if queue.draft is None:
            self._mark()
            limits = self._limits()
            records = queue.head(*limits)
            queue.draft = Draft(records)
            self._drafted = len(records)
            return self._taken(records, limits)
        due = [row.ordinal for row in self._rows[: self._drafted]]
        if self._drafted > 1 and self._dice.random() < 0.5:
            keep = self._dice.randrange(1, self._drafted)
            taken = queue.shorten_draft(queue.draft, keep)
            due = due[:keep]
        else:
            taken = queue.cut_draft(queue.draft)
            del self._rows[: self._drafted]
            self._calm()
        self._drafted = 0
        return unequal({"records of the draft": (ordinals(taken), due)})

    def _expire(self) -> str | None:
        if self._rows:
            self._now = max(self._now, self._rows[0].deadline + self._dice.choice((-0.25, 0, 1)))
        expired = self._queue.expire(self._now)
        due = [row.ordinal for row in self._rows if row.deadline <= self._now]
        del self._rows[: len(due)]
        self._calm()
        if due:
            self._drafted = 0
        return unequal({f"records that expire at {self._now}": (waiting(expired), due)})

    def _empty(self) -> str | None:
        due = [row.ordinal for row in self._rows]
        self._rows, self._drafted = [], 0
        self._calm()
        return unequal({"records of the emptied queue": (waiting(self._queue.empty()), due)})
