"""What follows from the end of a batch, and from the ladder's steps, for the drill of answers.

The ladder resolves doubt rung by rung (`Rung`): the head is refused, the leader is asked or the
batches are probed, and what the leader has lost is salvaged. `Ends` changes the picture of a
partition, piece by piece, to the one that must follow.
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

from .answered_rows import GAP, LOSS, METERS_NOW, WHERE, Ended, Picture, Reason

__all__ = ["LONGEST", "Ends", "Facts", "Stamps"]

LONGEST: Final = 64.0
"""Seconds: the longest back-off; the first is one second, and each is twice as long as the last."""
_PASSES: Final = 2
"""After so many passes whose probes were all refused, the batches in doubt are not in the log."""


@dataclass
class Stamps:
    """Timestamps of batches, in ms, from which leaders count until they forget a producer."""

    acked: int | None = None
    """That of the last acknowledged batch; None if there is none under this identity."""
    by_log: int | None = None
    """When the log appended the last acknowledged batch, if it stamps its batches."""
    unknown: int | None = None
    """The oldest one of a batch that ended UNKNOWN."""

    @property
    def oldest(self) -> int | None:
        """The oldest one that counts while every batch has an outcome; None if none counts."""
        last = self.by_log if self.unknown is not None and self.by_log is not None else self.unknown
        return min((each for each in (self.acked, last) if each is not None), default=None)


@dataclass
class Facts:
    """What an answer does not change, but its consequences depend on."""

    now: float
    idempotent: bool
    transactional: bool
    resend: bool
    gated: bool
    """Whether one batch at a time is in flight until the leader acknowledges one."""
    identity: ProducerIdentity | None
    route: Route | None
    next_ordinal: int
    suspect: bool
    """Whether the leader may have forgotten the producer."""
    proof: str
    """How a batch in doubt is being resolved, as metrics call it."""
    probes_left: bool
    """Whether a probe of this pass is still to be sent."""
    pass_began: float
    stamps: Stamps


class Ends:
    """A picture of a partition, which becomes the one that must follow an event."""

    def __init__(self, picture: Picture, facts: Facts) -> None:
        self.picture = picture
        self.facts = facts

    # -- what follows from the end of a batch ------------------------------------------------------

    def tell(self, *event: object) -> None:
        """Expect that the rest of the engine is told something."""
        self.picture.events[event] += 1

    def lose_numbers(self, reason: Reason | None) -> None:
        """Expect that sequences are given up: another epoch is asked for, once."""
        picture, facts = self.picture, self.facts
        if facts.idempotent and not picture.wanted:
            picture.wanted = True
            self.tell("epoch", WHERE, facts.identity, None if reason is None else reason[0])

    def skip(self, batch: Batch) -> None:
        """Note that the sequences of a batch are left out of the log."""
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
        """Expect that a batch ends ACKED."""
        picture, row = self.picture, self.picture.rows[batch]
        picture.acked.append(METERS_NOW - batch.deadline)
        if row.since is not None:
            picture.doubts[how or self.facts.proof] += 1
        row.persistence = Persistence.STORED
        records = list(batch.records)
        ended = Ended(DeliveryStatus.ACKED, records, batch.attempts, offset, append_ms, start)
        self._end(batch, BatchState.ACKED, ended)
        self.reach(batch, offset)

    def reach(self, batch: Batch, offset: int) -> None:
        """Note that a batch is stored, at an offset or (-1) at an unknown one."""
        picture, last = self.picture, offset + batch.count - 1
        picture.newest = max(picture.newest, batch.ordinal)
        if offset >= 0 and last > picture.offset:
            picture.offset, picture.end = last, (last, batch.identity, batch.wire_last)

    def fail(self, batch: Batch, reason: Reason, *, numbers: bool = True) -> None:
        """Expect that a batch ends NOT_WRITTEN; `numbers` is whether its sequences are given up."""
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
        """Expect that a batch in doubt ends UNKNOWN, or as its transaction has ended."""
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
        """Return the batches in doubt, oldest first."""
        return [batch for batch in self.picture.unresolved if self.picture.rows[batch].doubt]

    def head(self) -> Batch | None:
        """Return the oldest batch that will be sent under its present numbers."""
        rows = self.picture.rows
        for batch in self.picture.unresolved:
            if not self.picture.wanted or (rows[batch].doubt and not rows[batch].forsaken):
                return batch
        return None

    def climb(self, rung: Rung) -> None:
        """Expect that the partition goes to a rung, where it begins anew."""
        picture = self.picture
        if rung is not picture.rung:
            picture.rung, picture.passes, picture.next_pass, picture.refusal = rung, 0, 0.0, None
            picture.searches = picture.searches and rung in {Rung.ASKING, Rung.PROBING}
            picture.salvaged = set()

    def back_off(self) -> None:
        """Expect a back-off twice as long as the last one, unless one has not ended yet."""
        picture, now = self.picture, self.facts.now
        if now >= picture.retry_at:
            picture.retry_at = now + min(2.0**picture.failures, LONGEST)
            picture.failures += 1

    def note_failure(self, reason: Reason | None) -> None:
        """Note that an attempt has failed, as errors of expired records will tell."""
        since, attempts, _, leaderless = self.picture.trouble or (self.facts.now, 0, None, None)
        self.picture.trouble = since, attempts + 1, reason, leaderless

    def show_loss(self, batch: Batch) -> None:
        """Expect the report of a loss, which a batch's offset shows.

        It explains what that batch and older ones lack, so that is not reported again.
        """
        self.tell(*LOSS)
        for other, row in self.picture.rows.items():
            row.explained = row.explained or other.ordinal <= batch.ordinal

    def disown(self, reason: Reason) -> None:
        """End batches in doubt, because another client uses the producer id and epoch.

        The leader could take a resend for that client's batch.
        """
        self.picture.disowned, self.picture.wanted = reason, True
        for batch in self.doubts():
            self.give_up(batch, reason)

    # -- the ladder --------------------------------------------------------------------------------

    def advanced(self, pause: float, *, may_ask: bool) -> None:
        """Derive the next step by which doubt is resolved.

        Args:
            pause: Seconds from the beginning of a pass to the next one.
            may_ask: Whether the leader may be asked for its last sequence.
        """
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
        """Derive what follows when all probes of a pass were refused."""
        picture, facts = self.picture, self.facts
        rows = [picture.rows[batch] for batch in picture.unresolved]
        if facts.probes_left:
            return
        if any(row.appended for row in rows):
            self.back_off()
            self.climb(Rung.CLEAR)  # it is in the log, and waits for followers
            return
        late_copies = any(row.astray and row.doubt for row in rows)
        picture.passes += 1
        picture.next_pass = max(facts.pass_began + pause, facts.now)
        if picture.passes == _PASSES or (picture.refusal is not None and not late_copies):
            self._lose()

    def _lose(self) -> None:
        """Conclude that what is in doubt is not in the log.

        It is reported as a loss if it was refused for its sequence, and not for its content.
        """
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
        """Expect that the batches in doubt are sent under new sequences."""
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
        """End batches: UNKNOWN if they may be in the log, or in flight without an answer."""
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
        """End all records."""
        self._empty_queue(queued, reason)
        self.ended(list(self.picture.unresolved), reason, answered=False)

    def aborted(
        self, queued: list[PendingRecord], reason: Reason, doubt: DeliveryStatus | None
    ) -> None:
        """End all records that are not in flight.

        Args:
            queued: The records that are in no batch.
            reason: The error.
            doubt: The outcome of batches in doubt; None if they do not end.
        """
        self._empty_queue(queued, reason)
        for batch in [each for each in self.picture.unresolved if self.picture.rows[each].due]:
            if not self.picture.rows[batch].doubt:
                self.fail(batch, reason, numbers=False)
            elif doubt is not None:
                self.give_up(batch, reason, doubt)
            self.lose_numbers(reason)

    def set_back(self, what: str, at: float) -> None:
        """Derive what has failed, and that the partition waits until `at` if it is told so."""
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
