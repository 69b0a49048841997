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
_ENDLESS: Final = 1 << 30


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
    """A queue, and the rows that it must have."""

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
                pairs[f"ready at {now} with {linger} and {batch_size}"] = (told, due)
        return unequal(pairs)

    def _forget(self) -> None:
        """Forget what was to be done with the records, if there are none any more."""
        if not self._rows:
            self._blocked = self._flushing = False

    # what the engine does; each returns what is wrong by itself

    def _append(self) -> str | None:
        for item, rows in self._caller.call(self._now):
            self._queue.append(item, self._now)
            self._rows += rows
        return None

    def _mark(self) -> str | None:
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
        """Return limits for a batch, which just suffice for some records, or just do not."""
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
        if not self._rows or self._drafted:
            return None
        limits = self._limits()
        flushing = self._flushing
        taken = self._queue.cut(*limits)
        wrong = self._taken(taken, limits)
        if wrong is not None:
            return wrong
        rows, self._rows = self._rows[: len(taken)], self._rows[len(taken) :]
        self._forget()
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
            return f"{len(taken)} of {len(self._rows)} are taken within {limits}, not {due}"
        if ordinals(taken) != expected:
            return f"{ordinals(taken)} are taken, not {expected}"
        size = taken.size if type(taken) is RecordRuns else sum(each.size for each in taken)
        if size != nbytes(self._rows[: len(taken)]):
            return f"{size} bytes are taken"
        return None

    def _head(self) -> str | None:
        if not self._rows or self._drafted:
            return None
        limits = self._limits()
        return self._taken(self._queue.head(*limits), limits)

    def _draft(self) -> str | None:
        """Begin to compress the first records, or take them, or only some of them."""
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
            self._forget()
        self._drafted = 0
        return None if ordinals(taken) == due else f"{ordinals(taken)} are taken, not {due}"

    def _expire(self) -> str | None:
        if self._rows:
            self._now = max(self._now, self._rows[0].deadline + self._dice.choice((-0.25, 0, 1)))
        expired = self._queue.expire(self._now)
        due = [row.ordinal for row in self._rows if row.deadline <= self._now]
        del self._rows[: len(due)]
        self._forget()
        if due:
            self._drafted = 0
        told = waiting(expired)
        return None if told == due else f"{told} expire, not {due}"

    def _empty(self) -> str | None:
        due = [row.ordinal for row in self._rows]
        self._rows, self._drafted = [], 0
        self._forget()
        told = waiting(self._queue.empty())
        return None if told == due else f"{told} are taken out, not {due}"
