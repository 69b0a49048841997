"""The drill of the sealer: the size, the numbers and the bytes of each batch, and its division."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.batch import Batch
from aioidem._records import BATCH_OVERHEAD, BatchBody

from .comparing import unequal
from .divided import stamped, wrong_parts
from .queue_rows import fills, nbytes, ordinals
from .sealed_bench import ENDLESS, SealerBench

__all__ = ["drill_sealed"]

_STEPS: Final = 55


def drill_sealed(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the batches that a sealer makes of one partition's records."""
    drill = _SealerDrill(dice)
    for _ in range(_STEPS):
        action = dice.choice(drill.actions)
        wrong = action() or drill.difference()
        if wrong is not None:
            yield f"{wrong} after {action.__name__}"
            return


class _SealerDrill(SealerBench):
    """A sealer whose batches are judged."""

    def __init__(self, dice: Random) -> None:
        super().__init__(dice)
        usual = [self._append, self._append, self._seal, self._seal, self._seal, self._compressed]
        rare = [self._prepare, self._split, self._end, self._learn, self._learn, self._mark]
        self.actions = [*(usual * 2), *rare, self._learn, self._empty]

    # -- new batches

    def _most_records(self) -> int:
        """Return the most records of a batch: a KIP-758 broker knows so many sequences only."""
        return max(1, self._cap - sum(batch.count for batch in self._open))

    def _seal(self) -> str | None:
        """Seal the next batch for a request with some room left, and judge it.

        If it is to be compressed elsewhere, a draft begins; once that is compressed, it is sealed.
        """
        if not self._rows:
            return None
        dice = self._dice
        alone = dice.random() < 0.5
        size = self._encoded(self._rows[: dice.randrange(1, 9)]).batch_size
        room = dice.choice((ENDLESS, ENDLESS, size - 1, size, 300))
        most = self._limits.most(self._now)
        limit = self._limits.limit(most, nbytes(self._rows), blocked=self._blocked)
        told_most = self._sealer.most(self._topic, self._link, self._now)
        told_limit = self._sealer.limit(self._state, self._link, most)
        wrong = unequal(
            {
                "bytes that the leader accepts": (told_most, most),
                "bytes that a batch may have": (told_limit, limit),
            }
        )
        if wrong is not None:
            return wrong
        batch = self._sealer.seal(
            self._state, self._topic, self._link, self._now, room, alone=alone
        )
        if self._drafted:
            return self._sealed_draft(batch, most, room, alone=alone)
        if self._is_slow(limit):
            return self._began(limit) if batch is None else f"{batch} is sealed without a draft"
        return self._sealed(batch, limit, most, room, alone=alone)

    def _sealed(
        self, batch: Batch | None, limit: int, most: int, room: int, *, alone: bool
    ) -> str | None:
        """Return what is wrong with a batch that was sealed at once, or with the lack of one.

        Args:
            batch: the batch.
            limit: the most bytes that it may have.
            most: the most bytes that the leader accepts.
            room: the bytes that are left in the request.
            alone: whether it is the first of its request, and may exceed that room.
        """
        plain = min(limit, room)
        if self._compresses:
            plain = int(plain / self._share.ratio)
        counts = fills(self._rows, plain, self._most_records(), limit)
        tries = [self._tries(count, most, min(most, room)) for count in counts]
        made = [each for each in tries if batch is not None and each[-1].count == batch.count]
        # The estimate of the compression is learned from each body that was made.
        bodies = (made or tries)[0]
        for body in bodies:
            self._share.observe(body)
        first, last = bodies[0], bodies[-1]
        fits = last.batch_size <= room or alone
        if fits is not (batch is not None):
            size = f"{last.count} records, {last.batch_size} bytes; room {room}, alone: {alone}"
            return f"{batch} is sealed, not {'one of' if fits else 'None, for'} {size}"
        if first.count == len(self._rows):
            self._blocked = False
            self._flushing = self._flushing and (len(bodies) > 1 or not fits)
        return None if batch is None else self._take(batch, last)

    def _tries(self, count: int, most: int, bound: int) -> list[BatchBody]:
        """Return the bodies that are made until one is small enough.

        A batch that came out too large is made again with as many records as would fit, if all
        took the same number of bytes. A caller's batch is not divided if the leader accepts it.
        """
        bodies = [self._encoded(self._rows[:count])]
        whole = self._rows[0].group is not None
        while (size := bodies[-1].batch_size) > bound and count > 1:
            if whole and size <= most:
                break
            count = max(1, min(count - 1, count * bound // size))
            bodies.append(self._encoded(self._rows[:count]))
        return bodies

    def _take(self, batch: Batch, body: BatchBody) -> str | None:
        """Take the records of a new batch, and return what is wrong with it."""
        rows, self._rows = self._rows[: body.count], self._rows[body.count :]
        base = 0 if self._identity is None else self._next
        pairs: dict[str, tuple[object, object]] = {
            "records": (ordinals(batch.records), [row.ordinal for row in rows]),
            "count": (batch.count, len(rows)),
            "ordinal": (batch.ordinal, self._ordinal),
            "identity": (batch.identity, self._identity),
            "base sequence": (batch.base, base),
            "deadline": (batch.deadline, rows[0].deadline),
            "largest timestamp": (
                batch.max_timestamp_ms,
                max(row.record.timestamp_ms for row in rows),
            ),
            "data": (batch.data, stamped(body, self._identity, base, self._config)),
            "compression": (batch.compression, body.compression if self._compresses else 1.0),
        }
        self._state.enlist(batch)
        self._open.append(batch)
        self._ordinal += 1
        self._next += 0 if self._identity is None else len(rows)
        return unequal(pairs)

    def _split(self) -> str | None:
        """Divide a batch that the leader refuses, and return what is wrong with its parts."""
        several = [batch for batch in self._open if batch.count > 1]
        if not several:
            return None
        batch, most = self._dice.choice(several), self._dice.choice((200, 1000, 5000))
        plain = sum(record.size for record in batch.records) + BATCH_OVERHEAD
        parts = self._sealer.split(self._state, batch, most)
        if self._compresses:
            self._share.now = max(1.0, len(batch.data) / plain)
        wrong = wrong_parts(parts, batch, most, self._config)
        self._state.batches.replace(batch, parts)
        place = self._open.index(batch)
        self._open[place : place + 1] = parts
        self._ordinal += len(parts) - 1
        return wrong

    # -- batches that are compressed elsewhere

    def _is_slow(self, limit: int) -> bool:
        """Return whether the next batch takes long to compress."""
        plain = min(int(limit / self._share.ratio), nbytes(self._rows))
        return self._compresses and max(plain, self._rows[0].size) > self._drafts.quick

    def _prepare(self) -> str | None:
        """Let the compression of the next batch begin before the batch is due."""
        if not self._rows or self._drafted or not self._compresses:
            return None
        most = self._limits.most(self._now)
        limit = self._limits.limit(most, nbytes(self._rows), blocked=self._blocked)
        self._sealer.prepare(self._state, self._topic, self._link, self._now)
        return self._began(limit) if self._is_slow(limit) else None

    def _began(self, limit: int) -> str | None:
        """Return what is wrong with a draft of the next batch, which should have begun."""
        if len(self._under_way) >= self._drafts.at_once:
            return None
        plain = int(limit / self._share.ratio)
        return self._begun(fills(self._rows, plain, self._most_records(), limit))

    def _begun(self, counts: range) -> str | None:
        """Return what is wrong with a new draft, of one of these numbers of records."""
        steps = self._drafts.take_steps()
        if len(steps) != 1:
            return f"{len(steps)} compressions begin, not 1, of a number of records in {counts}"
        (step,) = steps
        self._under_way.append(step)
        self._drafted, self._token, self._body = len(step.records), step.token, None
        if self._drafted not in counts:
            return f"a draft of {self._drafted} records begins, not of a number in {counts}"
        pairs: dict[str, tuple[object, object]] = {
            "records of the draft": (
                ordinals(step.records),
                [row.ordinal for row in self._rows[: self._drafted]],
            ),
            "codec and level": (
                (step.codec, step.level),
                (self._codec, self._config.compression_level),
            ),
        }
        return unequal(pairs)

    def _compressed(self) -> str | None:
        """Take the result of a compression."""
        if not self._under_way:
            return None
        step = self._under_way.pop(self._dice.randrange(len(self._under_way)))
        ended = self._drafts.end(step.token)
        awaited = self._drafted > 0 and step.token == self._token
        if (ended is not None) is not awaited:
            known = "unknown" if awaited else "known"
            return f"the draft of step {step.token} is {known}; awaited is step {self._token}"
        if ended is None:
            return None
        state, owner, draft = ended
        if state is not self._state or owner is not state.queue or owner.draft is not draft:
            return f"the draft of step {step.token} belongs to {state}, {owner}, or is another one"
        draft.body = self._encode(step.records, step.codec, step.level)
        self._body = self._encoded(self._rows[: self._drafted])
        self._learn_share(self._body)
        return None

    def _sealed_draft(
        self, batch: Batch | None, most: int, room: int, *, alone: bool
    ) -> str | None:
        """Return what is wrong with the batch of a draft, or with the lack of one.

        A draft that has become too large begins anew with fewer records.
        """
        body, records = self._body, self._most_records()
        if body is None or self._shrinks(body, most, records):
            if batch is not None:
                size = None if body is None else (body.count, body.batch_size)
                return (
                    f"{batch} is sealed of a draft with {size}, not one of {records}, {most} bytes"
                )
            if body is None:
                return None
            keep = max(1, min(body.count * most // body.batch_size, body.count - 1, records))
            return self._begun(range(keep, keep + 1))
        if body.batch_size > room and not alone:
            sealed = f"{batch}, {body.batch_size} bytes, is sealed for {room} bytes"
            return None if batch is None else sealed
        if batch is None:
            return f"no batch is sealed of a draft with {body.batch_size} bytes for {room} bytes"
        self._drafted = 0
        if body.count == len(self._rows):
            self._blocked = self._flushing = False
        return self._take(batch, body)

    @staticmethod
    def _shrinks(body: BatchBody, most: int, records: int) -> bool:
        """Return whether a draft has become too large for one batch."""
        return (body.batch_size > most and body.count > 1) or body.count > records
