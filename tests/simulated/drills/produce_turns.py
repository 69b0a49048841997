"""What a partition may send now: the rules by which it sends its batches in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from aioidem._engine.batch import Batch
from aioidem._engine.links import Link
from aioidem._engine.record import PendingRecord
from aioidem._records import BATCH_OVERHEAD

from .produce_bench import Row, batch_size_of

__all__ = ["Sent", "Turn"]


@dataclass
class Sent:
    """A batch of a partition, or the record of one that will be made."""

    record: PendingRecord
    size: int
    """Its bytes."""
    waits: bool
    """Whether it waits to be sent again."""
    ordinal: int
    batch: Batch | None = None
    """None if it will be made of the record."""


class Turn:
    """What a partition may send now.

    Args:
        row: the partition.
        link: the connection on which it may be sent; None if it may not.
        several: whether more than one of its batches may be in flight: the first-ack gate is open.
        idempotent: whether its batches have sequence numbers.
    """

    def __init__(self, row: Row, link: Link | None, *, several: bool, idempotent: bool) -> None:
        self.row = row
        self.link = link
        state = row.state
        self._several = several
        self._idempotent = idempotent
        # Whether numbers were given up, so that most batches get others first.
        self._renumbers = state.ledger.bump_wanted
        self._lacks_id = idempotent and state.ledger.identity is None
        self._next = state.batches.next_ordinal
        self.queue = deque(row.queue)
        self.batches = [
            Sent(batch.records[0], len(batch.data), batch.due, batch.ordinal, batch)
            for batch in state.batches.unresolved
        ]
        self._in_flight = state.batches.outstanding

    def waits(self) -> bool:
        """Return whether a record or a batch waits to be sent."""
        return bool(self.queue) or any(each.waits for each in self.batches)

    def take(self, room: int, *, alone: bool) -> Sent | None:
        """Take the batch to be sent: one that was sent before goes before a new one."""
        sent = self._again() if any(each.waits for each in self.batches) else self._new()
        if sent is None:
            return None
        # How large a new batch becomes is not known before it is made.
        bound = sent.size if sent.batch is not None else sent.record.size + BATCH_OVERHEAD
        if not alone and bound > room:
            return None
        if sent.batch is None:
            self.queue.popleft()
            self.batches.append(sent)
            self._next += 1
        sent.waits = False
        self._in_flight += 1
        return sent

    def _again(self) -> Sent | None:
        """Return the oldest batch that waits, if it may be sent again now.

        None that is younger may be in flight, and the leader must still remember the oldest one.
        """
        for place, each in enumerate(self.batches):
            if not each.waits:
                continue
            keeps = each.batch is not None and each.batch.keeps_numbers
            if self._renumbers and not keeps:
                continue
            later = any(not other.waits for other in self.batches[place:])
            if self._in_flight and (later or not self._several):
                return None
            oldest = self._oldest()
            too_far = each.ordinal - (each.ordinal if oldest is None else oldest) >= self.row.said
            return None if too_far and self._idempotent else each
        return None

    def _oldest(self) -> int | None:
        """Return the number of the oldest batch that keeps its sequence numbers."""
        for each in self.batches:
            if not self._renumbers or (each.batch is not None and each.batch.keeps_numbers):
                return each.ordinal
        return None

    def _new(self) -> Sent | None:
        """Return the batch that is made of the next record, if one may be made now."""
        if not self.queue or self._lacks_id or (self._renumbers and self._idempotent):
            return None
        span = self._next - self.batches[0].ordinal if self.batches else 0
        if self.batches and self._idempotent and (not self._several or span >= self.row.said):
            return None
        record = self.queue[0]
        return Sent(record, batch_size_of(len(record.value or b"")), False, self._next)
