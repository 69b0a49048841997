"""Batches without an outcome: a part of the drill of doubt (`doubted`), and its model.

Batches are sent, refused, lost, divided, taken back and renumbered in any order. The model keeps
all of them in one list, also those that have ended, so a batch's ordinal is its place there. What
`UnresolvedBatches` tells is derived from that list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from aioidem._engine.batch import Attempt, Batch, BatchEvent, BatchState, Evidence
from aioidem._engine.idempotence import ProducerIdentity, SequenceLedger
from aioidem._engine.record import PendingRecord
from aioidem._engine.retention import RetentionEvidence
from aioidem._engine.unresolved import UnresolvedBatches

from .comparing import unequal
from .made_batches import made_batch

__all__ = ["SEQUENCES", "OpenBatches", "Row"]

SEQUENCES: Final = 2**31
"""Sequences wrap around to 0 here, as a broker sees them."""
_MOST_OPEN: Final = 6
_ATTEMPT: Final = Attempt(1, 0, 0, 0.0, knows_us=True, earlier_link=1)
_ENDS: Final = (BatchEvent.ACK, BatchEvent.GIVE_UP)
_ANSWERS: Final[tuple[Evidence | None, ...]] = (
    *[Evidence.AMBIGUOUS] * 5,
    *(Evidence.REFUSED, Evidence.UNSENT, None, None),
)
"""What the end of an attempt shows; None if the batch ends with it."""


@dataclass(eq=False)
class Row:
    """A batch that was cut from the queue, and what has become of it."""

    batch: Batch
    state: BatchState = BatchState.SEALED
    since: float | None = None
    """When it first came in doubt, in seconds; None if no attempt at it may have been appended."""
    forsaken: bool = False
    """Whether its numbers were given up although it is in doubt."""
    ended: bool = False

    @property
    def due(self) -> bool:
        """Whether it has no outcome and no attempt under way."""
        return not self.ended and self.state is not BatchState.IN_FLIGHT

    @property
    def waits(self) -> bool:
        """Whether it waits to be sent again."""
        return not self.ended and self.state is BatchState.WAITING

    @property
    def flies(self) -> bool:
        """Whether it is in flight."""
        return not self.ended and self.state is BatchState.IN_FLIGHT

    @property
    def doubted(self) -> bool:
        """Whether it is in doubt."""
        return not self.ended and self.since is not None


class OpenBatches:
    """An `UnresolvedBatches`, and all batches under the present identity."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._ledger = SequenceLedger()
        self._ledger.take(dice.choice((0, SEQUENCES - 1, SEQUENCES - 2, SEQUENCES - 3)))
        self._evidence = RetentionEvidence()
        self.told = UnresolvedBatches(self._ledger, self._evidence)
        self.rows: list[Row] = []
        for _ in range(dice.randrange(_MOST_OPEN)):
            self._seal()
        for row in self.rows:
            self.send(row)

    @property
    def open(self) -> list[Row]:
        """The batches without an outcome."""
        return [row for row in self.rows if not row.ended]

    def act(self, now: float) -> str | None:
        """Do something with a batch; return what is wrong by itself."""
        row = self._dice.choice(self.open) if self.open else None
        if row is None or (len(self.open) < _MOST_OPEN and self._dice.random() < 0.3):
            return self._seal()
        if row.flies:
            self._answer(row, now)
            return None
        match self._dice.randrange(8):
            case 0 | 1 | 2:
                self.send(row)
            case 3 if row.doubted:
                self._end(row, self._dice.choice(_ENDS) if row.waits else BatchEvent.GIVE_UP)
            case 4 | 5 if not row.doubted and row.batch.count > 1:
                return self._replace(row)
            case 6 if self._dice.random() < 0.3:
                return self._reclaim()
            case 7:
                self._give_up_numbers(row)
            case _:
                pass
        return None

    def _seal(self) -> str | None:
        count = self._dice.choice((1, 1, 2, 3))
        batch = made_batch(len(self.rows), count, base=self._ledger.take(count))
        self.rows.append(Row(batch))
        span = self.told.enlist(batch)
        return None if span == self._span else f"span with {batch}: {span}, not {self._span}"

    def send(self, row: Row) -> None:
        """Send a batch, perhaps once more."""
        row.batch.send(_ATTEMPT)
        row.state = BatchState.IN_FLIGHT
        self.told.outstanding += 1

    def _answer(self, row: Row, now: float) -> None:
        evidence = self._dice.choice(_ANSWERS)
        self.told.outstanding -= 1
        if evidence is None:
            self._end(row, self._dice.choice(_ENDS))
            return
        row.batch.learn(evidence, now)
        row.batch.move(BatchEvent.RETRY)
        row.state = BatchState.WAITING
        row.forsaken &= evidence is Evidence.UNSENT
        if evidence is Evidence.AMBIGUOUS and row.since is None:
            row.since = now

    def _end(self, row: Row, event: BatchEvent) -> None:
        row.batch.move(event)
        row.ended = True
        self.told.unresolved.remove(row.batch)

    def _replace(self, row: Row) -> str | None:
        """Divide a batch; its parts share its sequence numbers."""
        batch, parts, base = row.batch, list[Batch](), row.batch.base
        first = self._dice.randrange(1, batch.count)
        for count in (first, batch.count - first):
            parts.append(made_batch(batch.ordinal + len(parts), count, base=base))
            base += count
        batch.attempt = batch.attempt or _ATTEMPT
        self._evidence.sent(batch, 1)
        self.told.replace(batch, parts)
        self.rows[batch.ordinal : batch.ordinal + 1] = map(Row, parts)
        if batch.state is not BatchState.SPLIT or not self._evidence.none:
            none = self._evidence.none
            return f"{batch} was divided, and is {batch.state}; evidence is forgotten: {none}"
        return None

    def _reclaim(self) -> str | None:
        """Take back the records of the batches that were certainly not appended."""
        due: list[PendingRecord] = []
        batches: list[Batch] = []
        for row in self.open:
            if row.due and not row.doubted:
                due += row.batch.records
                batches.append(row.batch)
                row.ended = True
        if self.told.reclaim() != due:
            return f"other records than those of {batches} are taken back"
        left = [batch for batch in batches if batch.state is not BatchState.SPLIT]
        return f"the records of {left} are taken back, and these are not split" if left else None

    def _give_up_numbers(self, row: Row) -> None:
        """Want another epoch, perhaps forsake a batch, and take the epoch once that is possible."""
        self._ledger.bump_wanted = True
        if row.doubted and row.waits and self._dice.random() < 0.5:
            row.batch.forsake()
            row.forsaken = True
        if any(each.flies or (each.doubted and not each.forsaken) for each in self.open):
            return
        identity = ProducerIdentity(8, 0)
        self._ledger.adopt(identity)
        self.rows = self.open
        for ordinal, each in enumerate(self.rows):
            base = self._ledger.take(each.batch.count)
            each.batch.renumber(identity, base, b"again", ordinal)
            each.state = BatchState.SEALED
        self.told.next_ordinal = len(self.rows)

    @property
    def _since_oldest(self) -> list[Row]:
        """All batches from the oldest one without an outcome on, also those that have ended."""
        first = next((at for at, row in enumerate(self.rows) if not row.ended), len(self.rows))
        return self.rows[first:]

    @property
    def _span(self) -> int:
        return len(self._since_oldest)

    def differences(self) -> Iterator[str]:
        """Yield how the batches differ from the model."""
        told, rows = self.told, self.open
        doubted = [row for row in rows if row.doubted]
        # If another epoch is wanted, only batches in doubt keep their numbers, unless forsaken.
        keep = [row for row in doubted if not row.forsaken]
        heads = keep if self._ledger.bump_wanted else rows
        place = self._dice.randrange(len(rows) + 1)
        places = [at for at, row in enumerate(self.rows) if not row.ended]
        pairs: dict[str, tuple[object, object]] = {
            "batches": (told.unresolved, [row.batch for row in rows]),
            "ordinals": ([batch.ordinal for batch in told.unresolved], places),
            "next ordinal": (told.next_ordinal, len(self.rows)),
            "outstanding": (told.outstanding, sum(row.flies for row in rows)),
            "span": (told.span, self._span),
            "sequences": (told.sequences, sum(row.batch.count for row in self._since_oldest)),
            "in doubt": (told.in_doubt, len(doubted)),
            "in doubt since": (
                told.doubted_since,
                min((row.since or 0 for row in doubted), default=None),
            ),
            "in doubt, not in flight": (told.doubts(), [row.batch for row in doubted if row.due]),
            "head": (told.head, heads[0].batch if heads else None),
            f"all in flight before {place}": (
                told.all_in_flight_precede(place),
                not [row for row in rows[place:] if row.flies],
            ),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            yield wrong
