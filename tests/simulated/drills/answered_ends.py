"""What follows from the end of a batch, and the ladder's steps, for the drill of answers.

`Ends` changes the picture of a partition, piece by piece, to the one that must follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aioidem._engine.batch import Batch, BatchState, Persistence
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.record import PendingRecord
from aioidem._engine.recovery import Rung
from aioidem._engine.route import Route
from aioidem.structs import DeliveryStatus

from .answered_rows import GAP, LOSS, WHERE, Ended, Picture, Reason

__all__ = ["LONGEST", "Ends", "Facts", "Stamps"]

LONGEST: Final = 64.0
"""Seconds: the longest back-off; the first is one second, and each is twice as long as the last."""


@dataclass
class Stamps:
    """The timestamps from which the leader may count until it forgets the producer."""

    acked: int | None = None
    by_log: int | None = None
    """When the log appended the last acknowledged batch, if it stamps its batches."""
    unknown: int | None = None
    """The oldest one of a batch that ended UNKNOWN."""

    @property
    def oldest(self) -> int | None:
        """The oldest one that counts while no batch is without an outcome."""
        last = self.by_log if self.unknown is not None and self.by_log is not None else self.unknown
        return min((each for each in (self.acked, last) if each is not None), default=None)


@dataclass
class Facts:
    """What an answer does not change."""

    now: float
    idempotent: bool
    transactional: bool
    resend: bool
    gated: bool
    identity: ProducerIdentity | None
    route: Route | None
    next_ordinal: int
    suspect: bool
    proof: str
    """How a batch in doubt is being resolved."""
    probes_left: bool
    pass_began: float
    stamps: Stamps


class Ends:
    """A picture of a partition, which becomes the one that must follow an event."""

    def __init__(self, picture: Picture, facts: Facts) -> None:
        self.picture = picture
        self.facts = facts

    # -- what follows from the end of a batch ------------------------------------------------------

    def tell(self, *event: object) -> None:
        self.picture.events[event] += 1

    def lose_numbers(self, reason: Reason | None) -> None:
        """Let numbers be given up: another epoch is asked for once."""
        picture, facts = self.picture, self.facts
        if facts.idempotent and not picture.wanted:
            picture.wanted = True
            self.tell("epoch", WHERE, facts.identity, None if reason is None else reason[0])

    def skip(self, batch: Batch) -> None:
        skipped = self.picture.skipped
        self.picture.skipped = batch.base if skipped is None else min(skipped, batch.base)

    def _end(self, batch: Batch, state: BatchState, ended: Ended) -> None:
        self.picture.rows[batch].state = state
        self.picture.rows[batch].trusted = False
        self.picture.unresolved.remove(batch)
        self.picture.salvaged.discard(batch)
        self.picture.ended.append(ended)

    def acknowledge(
        self, batch: Batch, offset: int = -1, append_ms: int = -1, start: int = -1, how: str = ""
    ) -> None:
        """Let a batch end ACKED."""
        picture, row = self.picture, self.picture.rows[batch]
        picture.acked.append(50.0 - batch.deadline)
        if row.since is not None:
            picture.doubts[how or self.facts.proof] += 1
        row.persistence = Persistence.STORED
        records = list(batch.records)
        ended = Ended(DeliveryStatus.ACKED, records, batch.attempts, offset, append_ms, start)
        self._end(batch, BatchState.ACKED, ended)
        self.reach(batch, offset)

    def reach(self, batch: Batch, offset: int) -> None:
        picture, last = self.picture, offset + batch.count - 1
        picture.newest = max(picture.newest, batch.ordinal)
        if offset >= 0 and last > picture.offset:
            picture.offset, picture.end = last, (last, batch.identity, batch.wire_last)

    def fail(self, batch: Batch, reason: Reason, *, numbers: bool = True) -> None:
        """Let a batch end NOT_WRITTEN."""
        self.skip(batch)
        ended = Ended(DeliveryStatus.NOT_WRITTEN, list(batch.records), batch.attempts)
        self._end(batch, BatchState.NOT_WRITTEN, ended._replace(reason=reason))
        if numbers:
            self.lose_numbers(reason)

    def give_up(
        self,
        batch: Batch,
        reason: Reason,
        status: DeliveryStatus = DeliveryStatus.UNKNOWN,
    ) -> None:
        """Let a batch end UNKNOWN, or as its transaction has ended."""
        row, stamps, identity = self.picture.rows[batch], self.facts.stamps, batch.identity
        incident: tuple[object, ...] | None = None
        if status is DeliveryStatus.UNKNOWN:
            self.picture.doubts["unknown"] += 1
            stamp = batch.max_timestamp_ms
            stamps.unknown = stamp if stamps.unknown is None else min(stamps.unknown, stamp)
            if identity is not None:
                key = batch.wire_base, batch.count, row.renamed, None
                incident = tuple(identity), *key
        if row.absent and not row.flies:
            self.skip(batch)
        ended = Ended(status, list(batch.records), batch.attempts, reason=reason, incident=incident)
        self._end(batch, BatchState.UNKNOWN, ended)
        self.lose_numbers(reason)

    def doubts(self) -> list[Batch]:
        return [batch for batch in self.picture.unresolved if self.picture.rows[batch].doubt]

    def head(self) -> Batch | None:
        """Return the oldest batch that will be sent under its present numbers."""
        rows = self.picture.rows
        for batch in self.picture.unresolved:
            if not self.picture.wanted or (rows[batch].doubt and not rows[batch].forsaken):
                return batch
        return None

    def climb(self, rung: Rung) -> None:
        """Let the partition go to a rung, where it begins anew."""
        picture = self.picture
        if rung is not picture.rung:
            picture.rung, picture.passes, picture.next_pass, picture.refusal = rung, 0, 0.0, None
            picture.searches = picture.searches and rung in {Rung.ASKING, Rung.PROBING}
            picture.salvaged = set()

    def back_off(self) -> None:
        """Let the partition wait for longer than the last time, unless it waits already."""
        picture, now = self.picture, self.facts.now
        if now >= picture.retry_at:
            picture.retry_at = now + min(2.0**picture.failures, LONGEST)
            picture.failures += 1

    def note_failure(self, reason: Reason | None) -> None:
        since, attempts, _, leaderless = self.picture.trouble or (self.facts.now, 0, None, None)
        self.picture.trouble = since, attempts + 1, reason, leaderless

    def show_loss(self, batch: Batch) -> None:
        """Let a batch's offset show a loss, which explains what it and older ones lack."""
        self.tell(*LOSS)
        for other, row in self.picture.rows.items():
            row.explained = row.explained or other.ordinal <= batch.ordinal

    def disown(self, reason: Reason) -> None:
        """Let batches in doubt end: a resend could be answered about another client's batch."""
        self.picture.disowned, self.picture.wanted = reason, True
        for batch in self.doubts():
            self.give_up(batch, reason)

    # -- the ladder --------------------------------------------------------------------------------

    def advanced(self, pause: float, *, may_ask: bool) -> None:
        """Derive the next step by which doubt is resolved."""
        picture, facts = self.picture, self.facts
        if picture.disowned is not None:
            self.disown(picture.disowned)
        if picture.outstanding or picture.rung is Rung.CLEAR:
            return
        left = any(not picture.rows[each].forsaken for each in self.doubts())
        if picture.rung is Rung.SALVAGE:
            if all(picture.rows[e].state is not BatchState.WAITING for e in picture.salvaged):
                self.climb(Rung.CLEAR)
        elif picture.rung is Rung.REFUSED and not left:
            self._lose()
        elif facts.suspect:
            if picture.rung is Rung.REFUSED and facts.resend:
                self._renumber()
            else:
                picture.exempt = False
                self.climb(Rung.CLEAR)
        elif picture.rung is Rung.REFUSED:
            self.climb(Rung.ASKING if may_ask else Rung.PROBING)
        elif not left:
            self.climb(Rung.CLEAR)
        elif picture.rung is Rung.PROBING and facts.now >= picture.next_pass:
            self._end_pass(pause)

    def _end_pass(self, pause: float) -> None:
        picture, facts = self.picture, self.facts
        rows = [picture.rows[batch] for batch in picture.unresolved]
        if facts.probes_left:
            return
        if any(row.appended for row in rows):
            self.climb(Rung.CLEAR)  # it is in the log, and waits for followers
            return
        late_copies = any(row.astray and row.doubt for row in rows)
        picture.passes += 1
        picture.next_pass = max(facts.pass_began + pause, facts.now)
        if picture.passes == 2 or (picture.refusal is not None and not late_copies):
            self._lose()

    def _lose(self) -> None:
        """Let what is in doubt not be in the log; it is a loss if only its sequence was refused."""
        picture, refusal = self.picture, self.picture.refusal
        if refusal is None and not picture.wanted:
            self.tell(*LOSS)
        if self.facts.resend:
            self._renumber()
            return
        self.back_off()
        for batch in self.doubts():
            self.give_up(batch, refusal or GAP)
        self.lose_numbers(None)
        self.climb(Rung.CLEAR)

    def _renumber(self) -> None:
        self.back_off()
        for batch in self.doubts():
            self.picture.rows[batch].forsaken = True
        self.lose_numbers(None)
        self.climb(Rung.CLEAR)

    def asked(self) -> None:
        """Derive that probing begins, if the leader was asked for it."""
        if self.picture.rung is Rung.ASKING:
            self.climb(Rung.PROBING)

    # -- what no answer brings ---------------------------------------------------------------------

    def ended(self, batches: list[Batch], reason: Reason, *, answered: bool) -> None:
        """Let batches end: UNKNOWN if they are in the log perhaps, or may get there."""
        for batch in batches:
            row = self.picture.rows[batch]
            if row.doubt or (row.flies and not answered):
                self.give_up(batch, reason)
            else:
                self.fail(batch, reason)

    def _empty_queue(self, queued: list[PendingRecord], reason: Reason) -> None:
        if queued:
            self.picture.ended.append(Ended(DeliveryStatus.NOT_WRITTEN, queued, reason=reason))
            self.picture.queued = 0

    def abandoned(self, queued: list[PendingRecord], reason: Reason) -> None:
        """Let all records end."""
        self._empty_queue(queued, reason)
        self.ended(list(self.picture.unresolved), reason, answered=False)

    def aborted(
        self, queued: list[PendingRecord], reason: Reason, doubt: DeliveryStatus | None
    ) -> None:
        """Let all records end that are not in flight; `doubt` is the outcome of those in doubt."""
        self._empty_queue(queued, reason)
        for batch in [each for each in self.picture.unresolved if self.picture.rows[each].due]:
            if not self.picture.rows[batch].doubt:
                self.fail(batch, reason, numbers=False)
            elif doubt is not None:
                self.give_up(batch, reason, doubt)
            self.lose_numbers(reason)

    def set_back(self, what: str, at: float) -> None:
        """Derive what has failed, and until when the partition waits."""
        picture, now = self.picture, self.facts.now
        if what == "leaderless":
            since, attempts, last, leaderless = picture.trouble or (now, 0, None, None)
            picture.trouble = since, attempts, last, now if leaderless is None else leaderless
        elif what == "led" and picture.trouble is not None:
            picture.trouble = (*picture.trouble[:3], None)
        elif what == "forget":
            picture.trouble = None
        elif what == "leader changed":
            picture.retry_at = 0.0
        elif what == "wait":
            picture.retry_at = at
