"""The drill of requests: which batches of several partitions go into the next Produce request.

Batches are acknowledged, lost before they were written, and refused for their size. Whether a
partition may send at all is asked of the partition, which the drill 'sending' drives. All that the
accumulator adds to that is derived.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem import errors
from aioidem._engine.batch import Batch, BatchState
from aioidem._records import BATCH_OVERHEAD, Codec, build_body
from aioidem.structs import DeliveryStatus

from .comparing import differs, unequal
from .divided import stamped, wrong_parts
from .drained_bench import ENDLESS, DrainBench, Part
from .queue_rows import Row, fills, nbytes, ordinals

__all__ = ["drill_drained"]

_STEPS: Final = 28


def drill_drained(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the requests that are made of several partitions' records."""
    drill = _DrainDrill(dice)
    for _ in range(3):
        drill.append()
    for _ in range(_STEPS):
        action = dice.choice(drill.actions)
        wrong = action() or drill.difference()
        if wrong is not None:
            yield f"{wrong} after {action.__name__}"
            return
    wrong = drill.taken_back()
    if wrong is not None:
        yield wrong


class _DrainDrill(DrainBench):
    """An accumulator whose records are drained into requests."""

    def __init__(self, dice: Random) -> None:
        super().__init__(dice)
        self.actions = [
            *([self.append] * 4),
            *([self._drain] * 6),
            *([self._answer] * 6),
            *(self._compressed, self._compressed, self._prepare, self._hold_back, self._flush),
            *(self._learn, self._keep, self._abandon),
        ]

    # -- requests

    def _may_seal(self, part: Part, *, may_send: bool) -> bool:
        """Return whether a new batch may be made of a partition's records."""
        state = part.state
        if self._config.enable_idempotence and state.ledger.identity is None:
            return False
        kept = ("t", state.partition) in self._bench.door.kept
        waits = self._now < state.setbacks.retry_at
        return self._is_ripe(part) and may_send and not kept and not waits

    def _is_ripe(self, part: Part) -> bool:
        """Return whether a partition's records fill a batch, or need not wait for others."""
        full = nbytes(part.rows) + BATCH_OVERHEAD >= self._config.batch_size
        lingered = any(self._now - row.queued_at >= self._config.linger for row in part.rows)
        return bool(part.rows) and (full or lingered or part.flushing)

    def _drain(self) -> str | None:
        """Make a request, and return what is wrong with its batches."""
        parts = self._some()
        before = {
            part: (part.state.next_resend(self._now), part.state.may_send_new()) for part in parts
        }
        self._encoded = False
        entries = self._accumulator.drain(self._link, [part.state for part in parts], self._now)
        if self._bench.door.holds:
            return differs("batches that are sent while none may be", len(entries), 0)
        left, room = list(entries), self._config.max_request_size
        for part in parts:
            entry = left[0] if left and left[0][0] is part.state else None
            batch = None if entry is None else entry[1]
            alone = len(left) == len(entries)
            resend, may_send = before[part]
            if resend is not None:
                wrong = self._resent(part, resend, batch, room, alone=alone)
            elif self._may_seal(part, may_send=may_send):
                wrong = self._sealed(part, batch, room, alone=alone)
            else:
                wrong = differs("batch that is sent", batch, None)
            if wrong is not None:
                return f"partition {part.state.partition}: {wrong}"
            if batch is not None:
                if batch.state is not BatchState.IN_FLIGHT:
                    return differs(f"state of {batch}", batch.state, BatchState.IN_FLIGHT)
                del left[0]
                room -= len(batch.data)
                if room < self._config.batch_size:
                    break
        return self._more_compressed() or differs("batches that should not be sent", left, [])

    def _more_compressed(self) -> str | None:
        """Return which compressions begin that were not expected."""
        return differs("compressions that should not begin", self._drafts.take_steps(), [])

    def _resent(
        self, part: Part, resend: Batch, batch: Batch | None, room: int, *, alone: bool
    ) -> str | None:
        """Return what is wrong with a batch that is sent again, or with the lack of one."""
        most = self._limits.at_most(self._now)
        if resend.oversized and len(resend.data) > most:
            place = [each for each, _ in part.open].index(resend)
            wrong = self._divided(part, place, most)
            if wrong is not None:
                return wrong
            resend = part.open[place][0]
        if self._is_unbuilt(resend):
            if batch is not None:
                return f"batch that is sent: told {batch}, expected none before it is compressed"
            return self._begun(part, resend)
        body = build_body(list(resend.records), self._codec)
        data = stamped(body, resend.identity, resend.base, self._config)
        fits = alone or len(data) <= room
        return unequal({"data": (resend.data, data), "batch": (batch, resend if fits else None)})

    def _is_unbuilt(self, batch: Batch) -> bool:
        """Return whether a part of a batch is still to be compressed."""
        return batch.attempts == 0 and self._codec is not Codec.NONE and batch not in self._built

    def _divided(self, part: Part, place: int, most: int) -> str | None:
        """Return what is wrong with the parts of a batch that was refused for its size."""
        self._splits += 1
        whole, rows = part.open[place]
        count = 1 + len(part.state.batches.unresolved) - len(part.open)
        made = part.state.batches.unresolved[place : place + count]
        divided: list[tuple[Batch, list[Row]]] = []
        for each in made:
            divided.append((each, rows[: each.count]))
            rows = rows[each.count :]
        part.open[place : place + 1] = divided
        return wrong_parts(made, whole, most, self._config, begun=True)

    def _sealed(self, part: Part, batch: Batch | None, room: int, *, alone: bool) -> str | None:
        """Return what is wrong with a new batch, or with the lack of one."""
        if not alone and part.rows[0].size + BATCH_OVERHEAD > room:
            return differs("batch without room for its first record", batch, None)
        if self._codec is not Codec.NONE:
            return self._sealed_draft(part, batch, room, alone=alone)
        most = self._limits.most(self._now)
        limit = self._limits.limit(most, nbytes(part.rows), blocked=part.blocked)
        counts = fills(part.rows, min(limit, room), ENDLESS, limit)
        if batch is None:
            sizes = [build_body([r.record for r in part.rows[:n]]).batch_size for n in counts]
            due = alone or min(sizes) <= room
            return (
                f"batch that is sent: told None, expected one of {counts} records" if due else None
            )
        if batch.count not in counts:
            return differs("records of the batch", batch.count, counts)
        return self._took(part, batch)

    def _took(self, part: Part, batch: Batch) -> str | None:
        """Note that a batch has a partition's first records; return what is wrong with it."""
        rows = part.take(batch.count)
        part.open.append((batch, rows))
        if self._codec is Codec.NONE and not self._encoded:
            return "records are encoded otherwise, expected by the function given to encode_by()"
        return unequal({"sent": (ordinals(batch.records), [row.ordinal for row in rows])})

    def _hold_back(self) -> str | None:
        """Let ripe batches wait, as for a connection with requests in flight: they may grow."""
        parts = self._some()
        self._accumulator.hold_back([part.state for part in parts], self._now)
        for part in parts:
            if part.draft is None and self._is_ripe(part):
                part.blocked = True
        return None

    # -- compression: in this drill all of it is asked for by steps, and none is done at once

    def _sealed_draft(
        self, part: Part, batch: Batch | None, room: int, *, alone: bool
    ) -> str | None:
        """Return what is wrong with a new compressed batch, or with the lack of one."""
        if part.draft is None or not part.compressed:
            if batch is not None:
                return f"batch that is sent: told {batch}, expected none before it is compressed"
            return None if part.draft is not None else self._begun(part, None)
        body = build_body(part.draft.records, self._codec)
        if body.batch_size > self._limits.most(self._now) and body.count > 1:
            part.draft = None
            return self._begun(part, None, limited=False)
        if body.batch_size > room and not alone:
            return differs(f"batch that is sent with room for {room} bytes", batch, None)
        if batch is None:
            return f"batch that is sent: told None, expected one of {body.count} records"
        return self._took(part, batch)

    def _begun(self, part: Part, batch: Batch | None, *, limited: bool = True) -> str | None:
        """Return what is wrong with a compression that has to begin, unless too many have begun.

        Args:
            part: The partition.
            batch: The batch; None for the partition's first records.
            limited: Whether there is a limit; there is none for a draft that becomes smaller.
        """
        if batch is not None and any(each is batch for _, _, each in self._under_way):
            return None
        if limited and len(self._under_way) >= self._drafts.at_once:
            return None
        own = ordinals(row.record for row in part.rows)
        steps = self._drafts.steps
        if not steps:
            return "compressions that begin: told 0, expected 1"
        step = steps.pop(0)
        found = ordinals(step.records)
        self._under_way.append((step, part, batch))
        if batch is None:
            part.draft, part.compressed = step, False
            if found and found == own[: len(found)]:
                return None
            return f"records that are compressed: told {found}, expected the first of {own}"
        return unequal({"compressed": (found, ordinals(batch.records))})

    def _prepare(self) -> str | None:
        """Let compressions begin before the batches can be sent; return what is wrong with them."""
        parts = self._some()
        may_send = [part for part in parts if part.state.may_send_new()]
        self._accumulator.prepare(self._link, [part.state for part in parts], self._now)
        if self._codec is not Codec.NONE and not self._bench.door.holds:
            for part in parts:
                if part.draft is None and self._may_seal(part, may_send=part in may_send):
                    wrong = self._begun(part, None)
                    if wrong is not None:
                        return wrong
        return self._more_compressed()

    def _compressed(self) -> str | None:
        """Give the result of a compression, or its error."""
        if not self._under_way:
            return None
        step, part, batch = self._under_way.pop(self._dice.randrange(len(self._under_way)))
        outcomes = self._bench.outcomes
        outcomes.take_settled()
        fails = self._dice.random() < 0.2
        error = errors.RecordError("it cannot be compressed")
        body = build_body(step.records, step.codec, step.level)
        self._accumulator.on_compressed(step.token, error if fails else body)
        due: list[tuple[object, ...]] = []
        if batch is None and part.draft is step:
            part.compressed = True
            if fails:
                due = [(row.ordinal, errors.RecordError) for row in part.take(body.count)]
        elif batch is not None and fails:
            due = [(each.ordinal, errors.RecordError) for each in batch.records]
            part.open = [each for each in part.open if each[0] is not batch]
        elif batch is not None:
            self._built.append(batch)
        told = [
            (record.ordinal, type(each.outcome.error))
            for each in outcomes.take_settled()
            for record in each.records
            if each.outcome.status is DeliveryStatus.NOT_WRITTEN
        ]
        return unequal({"ended": (told, due)})
