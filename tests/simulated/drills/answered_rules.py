"""The rules of the drill of answers: what must follow for a partition, from what an answer means.

An answer decides the fate of its batch first: it ends, waits, is divided, or shows that doubt must
be resolved. Whatever else changes follows from that.
"""

from __future__ import annotations

from typing import Final

from aioidem._engine.batch import Batch, BatchState, Persistence
from aioidem._engine.classify import Action
from aioidem._engine.failed_attempts import Refusal
from aioidem._engine.recovery import Rung
from aioidem._protocol.produce import PartitionAnswer
from aioidem.structs import DeliveryStatus

from .answered_ends import Ends
from .answered_rows import GAP, LOSS, WHERE, Ended, Reason, reason_of

__all__ = ["Due"]

_KNOWN: Final = frozenset({Action.OUT_OF_ORDER, Action.DUPLICATE})
"""Only a leader with the producer's state answers so."""
_CONTENT: Final = frozenset({Action.FAIL, Action.SPLIT})
"""What a leader answers to a batch that it refuses for its content or size."""
_DEFAULT_WINDOW: Final = 5
_LARGEST_WINDOW: Final = 1000
"""How many batches a leader retains that names no number, and the most that is believed."""


class Due(Ends):
    """The picture that must follow an answer, or a step of the ladder."""

    # -- error NONE --------------------------------------------------------------------------------

    def acked(self, batch: Batch, answer: PartitionAnswer, *, current: bool) -> None:
        """Derive what error NONE proves.

        `current` is whether it came on the connection that the partition uses.
        """
        picture, row, facts = self.picture, self.picture.rows[batch], self.facts
        picture.outstanding -= 1
        offset, proves = answer.base_offset, row.trusted
        if batch.ordinal > picture.newest and 0 <= offset <= picture.offset:
            picture.offset = offset + batch.count - 1  # the log was cut off, and ends here now
            picture.end = picture.offset, batch.identity, batch.wire_last
            self.show_loss(batch)
            proves = False
        if current:
            self._hear_window(answer.retained)
        if batch.settled:
            self.reach(batch, offset)
            return
        older = picture.unresolved[: picture.unresolved.index(batch)]
        doubtful = [each for each in older if picture.rows[each].doubt]
        room = sum(each.count for each in doubtful if each.ordinal > picture.newest)
        # There must be room in the log for the batches in doubt between it and the last known one.
        if older and proves and 0 <= offset <= picture.offset + room:
            proves = batch.ordinal < picture.newest
            if not proves and not row.explained:
                self.show_loss(batch)
        told = answer.log_append_time_ms
        by_log = told if told >= 0 and told != batch.max_timestamp_ms else None
        facts.stamps.by_log = by_log
        facts.stamps.acked = batch.max_timestamp_ms if by_log is None else by_log
        if told == batch.max_timestamp_ms and batch.attempts > 1:
            told = -1  # perhaps the timestamp of the copy that is stored
        self.acknowledge(batch, offset, told, answer.log_start_offset)
        if facts.gated and not picture.gate and batch.attempt is not None:
            self.tell("gate", batch.attempt.sent_at, facts.now)
        if facts.idempotent:
            self._prove(batch, older, doubtful, proves=proves and not facts.suspect)
        picture.gate, picture.questioned = True, False
        for other, each in picture.rows.items():
            each.known = facts.idempotent and other.identity == facts.identity
        picture.retry_at, picture.failures, picture.trouble = 0.0, 0, None
        if picture.rung is not Rung.SALVAGE or not picture.salvaged:
            self.climb(Rung.CLEAR)

    def _hear_window(self, retained: int | None) -> None:
        """Derive the window from the number of batches that the leader says it retains."""
        said = _DEFAULT_WINDOW if retained is None else min(max(retained, 1), _LARGEST_WINDOW)
        if said != self.picture.said:
            self.tell("window", WHERE, self.facts.route, self.picture.said, said)
        self.picture.said, self.picture.heard = said, True

    def _prove(
        self, batch: Batch, older: list[Batch], doubtful: list[Batch], *, proves: bool
    ) -> None:
        """Derive what becomes of older batches: stored, overtaken, or each resent by itself."""
        picture = self.picture
        idle = [each for each in older if not picture.rows[each].flies]
        refused = [each for each in idle if each not in doubtful]
        absent = [each for each in idle if picture.rows[each].absent]
        over_gap = picture.skipped is not None and picture.skipped < batch.base
        if refused or absent or over_gap:
            # The leader has forgotten the producer, and begun with a sequence that was not next.
            first_told = refused[-1] if refused else batch
            if not picture.rows[first_told].explained:
                self.tell(*LOSS)
            for each in refused:
                self.fail(each, GAP, numbers=False)
            picture.skipped = None
            self.lose_numbers(None)
            self.climb(Rung.SALVAGE)
            picture.salvaged.update(doubtful)
        elif doubtful and picture.rung is not Rung.SALVAGE:
            if proves:
                for each in doubtful:
                    self.acknowledge(each)
            else:
                self.climb(Rung.SALVAGE)
                picture.salvaged.update(doubtful)

    # -- other answers, and none -------------------------------------------------------------------

    def refused(self, batch: Batch, refusal: Refusal) -> None:
        """Derive what an error code leads to."""
        picture, row = self.picture, self.picture.rows[batch]
        action, precedes, refresh = refusal.disposition
        reason = reason_of(refusal.error) or GAP
        picture.outstanding -= 1
        self.note_failure(reason)
        if refresh:
            self.tell("metadata")
        if action is Action.FAIL and not precedes:  # a code that no table explains
            picture.gate, picture.questioned = False, True
            for each in picture.rows.values():
                each.trusted = False
        if batch.settled:
            return
        picture.gate = False
        picture.questioned = picture.questioned and action not in _KNOWN
        only_refused = row.persistence is Persistence.REJECTED
        self._learn(batch, ambiguous=not precedes)
        row.astray |= not precedes and action not in {Action.FAIL, Action.DUPLICATE}
        fate = self._fate(batch, refusal, only_refused=only_refused)
        row.appended |= action is Action.DUPLICATE and fate == "wait"
        self._follow(batch, refusal, fate, reason)
        if action is Action.FENCED and not self.facts.transactional:
            self.disown(reason)  # as the caller does, for all partitions

    def _learn(self, batch: Batch, *, ambiguous: bool) -> None:
        """Derive whether a batch is in doubt; `ambiguous`: the attempt may have been appended."""
        row = self.picture.rows[batch]
        row.forsaken = row.trusted = False
        if ambiguous:
            row.here = True
            row.since = self.facts.now if row.since is None else row.since
            row.persistence = Persistence.IN_DOUBT
        elif not row.doubt:
            row.persistence = Persistence.REJECTED

    def _fate(self, batch: Batch, refusal: Refusal, *, only_refused: bool) -> str:
        """Return what becomes of a batch: it waits, is asked about, is divided, or ends.

        "shared" is for one in doubt whose identity another client uses; `refused` ends it.
        """
        row, action = self.picture.rows[batch], refusal.disposition.action
        salvaged = batch in self.picture.salvaged
        asked = "ask" if row.known and not row.absent and not salvaged else "unknown"
        match action:
            case Action.RETRY:
                return "wait"
            case Action.DUPLICATE:
                return "unknown" if only_refused else "wait"
            case Action.OUT_OF_ORDER:
                return "unknown" if salvaged and not self.facts.transactional else "ask"
            case Action.NO_STATE | Action.FENCED if self.facts.transactional or not row.doubt:
                return "wait"
            case Action.FENCED:
                return "shared"
            case Action.FAIL | Action.SPLIT if row.doubt:
                return asked
            case Action.SPLIT if batch.count > 1:
                return "split"
            case Action.FAIL if refusal.culprits and batch.records[0].group is None:
                return "divide" if refusal.innocent is not None else "not written"
            case _:
                return "unknown" if row.doubt else "not written"

    def _follow(self, batch: Batch, refusal: Refusal, fate: str, reason: Reason) -> None:
        """Derive all that follows from a batch's fate."""
        picture, row, action = self.picture, self.picture.rows[batch], refusal.disposition.action
        head = batch is self.head()
        if action is Action.DUPLICATE and fate == "unknown":
            self.tell(*LOSS)  # a leader with the state would not have taken it
            reason = ("DuplicateSequenceNumber", None)
        elif action is Action.OUT_OF_ORDER and fate == "unknown":
            reason = GAP
        if fate in {"wait", "ask", "split"}:
            row.state = BatchState.WAITING
            row.oversized |= fate == "split"
        if fate == "wait":
            self._wait(action, reason, head=head)
        elif fate == "ask":
            self._ask(batch, action, reason, head=head)
        elif fate == "divide":
            self._divide(batch, refusal, reason)
        elif fate == "not written":
            self.fail(batch, reason)
        elif fate == "unknown":
            if action in _CONTENT and row.absent:
                self.skip(batch)
            last = picture.salvaged == {batch} and action is Action.OUT_OF_ORDER
            self.give_up(batch, reason)
            if last:
                self.climb(Rung.CLEAR)
        if action is Action.FATAL:
            self.tell("fatal", reason)

    def _wait(self, action: Action, reason: Reason, *, head: bool) -> None:
        """Derive what follows if the batch is to be sent again; `head`: it was the oldest one."""
        self.back_off()
        if self.picture.rung is Rung.PROBING:
            self.climb(Rung.CLEAR)  # a probe without a verdict ends the pass
        if action in {Action.NO_STATE, Action.FENCED}:
            if self.facts.transactional:
                self.tell("transaction", WHERE, reason)
            if action is Action.NO_STATE or self.facts.transactional:
                self.lose_numbers(reason)
        several = len(self.doubts()) > 1
        if action is Action.DUPLICATE and head and several and self.picture.rung is Rung.CLEAR:
            self.climb(Rung.REFUSED)

    def _ask(self, batch: Batch, action: Action, reason: Reason, *, head: bool) -> None:
        """Derive what follows if it must be found out whether batches are in the log."""
        picture = self.picture
        if self.facts.transactional:
            if head or batch in picture.salvaged:
                self.tell("transaction", WHERE, reason)
        elif head and picture.rung is Rung.CLEAR:
            self.climb(Rung.REFUSED)
            picture.searches = (
                _DEFAULT_WINDOW < self.facts.next_ordinal - batch.ordinal <= picture.said
            )
        if action in _CONTENT:
            picture.refusal = reason

    def _divide(self, batch: Batch, refusal: Refusal, reason: Reason) -> None:
        """Derive that the refused records end, and the others go into another batch."""
        picture, innocent = self.picture, refusal.innocent
        if innocent is not None:
            place = picture.unresolved.index(batch)
            picture.unresolved[place] = innocent
            picture.rows[batch].state = BatchState.SPLIT
        for at, error in refusal.culprits.items():
            ended = Ended(DeliveryStatus.NOT_WRITTEN, [batch.records[at]], batch.attempts)
            picture.ended.append(ended._replace(reason=reason_of(error)))
        self.lose_numbers(reason)

    def lost(self, batch: Batch, *, written: bool) -> None:
        """Derive what follows from an attempt whose answer was lost."""
        picture, row = self.picture, self.picture.rows[batch]
        picture.outstanding -= 1
        picture.gate = False
        if batch.settled:
            return
        self.note_failure(("", "answer" if written else "written"))
        row.state, row.trusted = BatchState.WAITING, False
        if written:
            self._learn(batch, ambiguous=True)
            row.astray = True
            self.back_off()
        if picture.rung is Rung.PROBING:
            self.climb(Rung.CLEAR)

    def unanswered(self, batch: Batch) -> None:
        """Derive what follows where no answer will come (acks=0)."""
        self.picture.outstanding -= 1
        if not batch.settled:
            self._learn(batch, ambiguous=True)
            ended = Ended(DeliveryStatus.UNKNOWN, list(batch.records), batch.attempts)
            self._end(batch, BatchState.UNKNOWN, ended)
