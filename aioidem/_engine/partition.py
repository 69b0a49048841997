"""One partition: what waits, what is unresolved, and every rule that decides which batch goes next.

Invariants
- `unresolved` holds batches in drain order, which is sequence order; it is never sorted by
  sequence.
- At most one route (connection, leader epoch) has batches of this partition outstanding at a time:
  nothing goes to a new leader while the old one owes answers, else the two could append in either
  order.
- While the first-ack gate is closed only the oldest unresolved batch is in flight: a leader without
  state for our producer id accepts *any* first sequence (KAFKA-15591), so a second batch could
  overtake a refused first.
- A new identity is adopted only when nothing is outstanding or in doubt: the first append under
  epoch e+1 fences epoch e, and a batch in doubt that a resend would have saved is lost with it.

When can a batch fail? NOT_WRITTEN: refused for good while every attempt was refused before the
append; expired while that holds; a rejected batch below a success (its order can no longer be
kept). UNKNOWN: in doubt past its deadline and grace; refused for good where nothing proves that the
leader knows us; in doubt when the data is not in the leader's log; fenced. Everything else is
retried.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from aioidem import errors
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Attempt, Batch, BatchEvent, BatchState, Evidence, Persistence
from aioidem._engine.classify import Action, Disposition
from aioidem._engine.effects import Effects
from aioidem._engine.first_ack_gate import FirstAckGate
from aioidem._engine.idempotence import ProducerIdentity, SequenceLedger, wire_sequence
from aioidem._engine.log_position import LogPosition
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.read_back import ReadBack, WrittenBatch
from aioidem._engine.record import PendingRecord, Settlement
from aioidem._engine.recovery import Recovery, RecoveryEvent, Rung
from aioidem._engine.retention import RetentionEvidence, earlier_link
from aioidem._engine.route import Route
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.windows import DEFAULT_BATCHES_RETAINED, PartitionWindow
from aioidem._protocol.produce import PartitionAnswer
from aioidem._records import restamp
from aioidem.structs import DeliveryStatus

__all__ = ["SEQUENCE_CAP", "PartitionState", "Refusal"]

SEQUENCE_CAP = 1 << 30
"""No span of unresolved records reaches it, so that "before" and "after" stay distinct modulo 2^31
(KIP-758).
"""


class Refusal(NamedTuple):
    """What an answer other than error NONE says of a batch."""

    disposition: Disposition
    error: errors.KafkaError
    culprits: Mapping[int, errors.KafkaError]
    """The records that the leader refused the batch for, by their place in it (KIP-467)."""
    innocent: Batch | None
    """The batch without these records; None when it has no others, or none is named."""


class PartitionState:
    """One partition of one topic id."""

    __slots__ = (
        "_evidence",
        "_pause",
        "_resend",
        "_retry",
        "_skipped",
        "_transactional",
        "bump_wanted",
        "disowned",
        "gate",
        "idempotent",
        "ledger",
        "log",
        "next_ordinal",
        "outstanding",
        "partition",
        "queue",
        "read_back",
        "recovery",
        "retry_at",
        "route",
        "sequence_cap",
        "suspicion",
        "topic",
        "topic_id",
        "unresolved",
        "window",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: UUID | None,
        *,
        idempotent: bool,
        retry: Backoff,
        pause: float,
        resend: bool = False,
        sequence_cap: int | None = None,
        transactional: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.idempotent = idempotent
        self.queue = PartitionQueue()
        self.unresolved: list[Batch] = []
        self.ledger = SequenceLedger()
        self.window = PartitionWindow()
        self.recovery = Recovery()
        self.route: Route | None = None
        self.outstanding = 0
        self.next_ordinal = 0
        self.retry_at = 0.0
        self.bump_wanted = False
        # Why its producer id is not ours; None while it is.
        self.disowned: errors.KafkaError | None = None
        self.log = LogPosition()
        self.suspicion = Suspicion()
        self._evidence = RetentionEvidence()
        # KIP-758 mode: the span of sequences that binds instead of the window; None otherwise.
        self.sequence_cap = sequence_cap
        self._resend = resend
        # In a transaction no doubt is resolved by probing, and none by resending under other
        # sequences: whatever would need that makes the transaction abortable.
        self._transactional = transactional
        self.gate = FirstAckGate(applies=idempotent)
        self.read_back = ReadBack()
        # The lowest number that a batch was failed with under this identity: no leader that holds
        # our state may append above it.
        self._skipped: int | None = None
        self._retry = retry
        self._pause = pause

    # -- what may be sent --------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether there is anything to do for it."""
        return bool(self.queue.records or self.unresolved or self.outstanding)

    @property
    def waits(self) -> bool:
        """Whether a record or a batch of it waits to be sent."""
        return bool(self.queue.records) or any(batch.due for batch in self.unresolved)

    @property
    def where(self) -> str:
        """Its name in messages: topic, dash, number."""
        return f"{self.topic}-{self.partition}"

    @property
    def gate_open(self) -> bool:
        """Whether more than the oldest unresolved batch may be in flight."""
        return self.gate.is_open((self.ledger.identity, self.route))

    @property
    def _gate_passed(self) -> bool:
        return self.gate.passed((self.ledger.identity, self.route))

    def need_gate(self, *, needed: bool) -> None:
        """Say whether there is a first-ack gate: in transactions that depends on their version."""
        self.gate.need(applies=self.idempotent and needed)

    def limit_span(self, sequence_cap: int | None) -> None:
        """Limit what is unresolved by sequence numbers, in place of the window (KIP-758)."""
        self.sequence_cap = sequence_cap

    def assess_memory(self, wall_ms: float, expiration: float) -> None:
        """Judge whether the leader may have forgotten the producer (KIP-854).

        A broker keeps the state of a producer whose transaction is open.
        """
        if self.idempotent and not self._transactional:
            self.suspicion.assess(wall_ms, expiration, self.unresolved)

    @property
    def span(self) -> int:
        """Batches from the oldest unresolved to the newest sent, inclusive."""
        return self.next_ordinal - self.unresolved[0].ordinal if self.unresolved else 0

    @property
    def in_doubt(self) -> int:
        """Unresolved batches that may have been appended."""
        return sum(batch.in_doubt for batch in self.unresolved)

    def follow(self, route: Route) -> bool:
        """Turn to where the partition is led now. False while another route still owes answers."""
        if route == self.route:
            return True
        if self.outstanding:
            return False
        if self.route is not None and not self.route.same_leader(route):
            self.retry_at = 0.0  # the back-off was for the old leader
            self.suspicion.leader_changed()
        self.route = route
        self.read_back.end()
        self.window.reset()
        self._evidence.clear()
        self.gate.restart()
        self.recovery.move(RecoveryEvent.RESTART)
        return True

    def next_resend(self, now: float) -> Batch | None:
        """Return the batch that must be sent again before anything new, if it may be sent now."""
        if now < self.retry_at or self.read_back.offset is not None:
            # What is being read may show that what was refused before it has been overtaken.
            return None
        match self.recovery.rung:
            case Rung.CLEAR:
                return self._next_in_order()
            case Rung.REFUSED | Rung.ASKING:
                return None
            case Rung.PROBING:
                if self.outstanding and self.gate.questioned:
                    return None
                return self.recovery.next_probe(self.unresolved, now)
            case Rung.SALVAGE:
                blocked = self.outstanding or self.must_not_resend
                return None if blocked else self.recovery.next_salvage()

    def _next_in_order(self) -> Batch | None:
        for position, batch in enumerate(self.unresolved):
            if not batch.due:
                continue
            if self.bump_wanted and not _keeps_numbers(batch):
                continue  # it is to be renumbered first
            if batch.in_doubt and self.must_not_resend:
                return None
            if self.outstanding and not (self.gate_open and self._all_in_flight_precede(position)):
                return None
            if self.idempotent and not self._within_window(batch):
                return None
            return batch
        return None

    @property
    def must_not_resend(self) -> bool:
        """Whether a resend could be appended twice because the leader may have forgotten us."""
        return self.suspicion.suspect and not self._resend

    def _all_in_flight_precede(self, position: int) -> bool:
        return not any(b.state is BatchState.IN_FLIGHT for b in self.unresolved[position:])

    def _within_window(self, batch: Batch) -> bool:
        # Measured from the batch itself, not from the newest ever sent: twenty in doubt at a limit
        # of five must move.
        if self.sequence_cap is not None:
            return True
        return self.window.admits(batch.ordinal - self.unresolved[0].ordinal + 1)

    def may_send_new(self) -> bool:
        """Whether a batch may be sealed and sent for the first time."""
        if not self.unresolved:
            return not self.bump_wanted
        if not self.idempotent:
            return not any(batch.due for batch in self.unresolved)
        if self.bump_wanted or not self.gate_open or any(batch.due for batch in self.unresolved):
            return False
        if self.sequence_cap is not None:
            return self._unresolved_records < self.sequence_cap
        return self._unresolved_records < SEQUENCE_CAP // 2 and self.window.admits(self.span + 1)

    @property
    def _unresolved_records(self) -> int:
        return self.ledger.next - self.unresolved[0].base if self.unresolved else 0

    @property
    def sequence_room(self) -> int:
        """How many records the next batch may have, at least one.

        A KIP-758 broker deduplicates within a range of sequences: it does not recognise what lies
        further below the newest sequence as a duplicate.
        """
        if self.sequence_cap is None:
            return SEQUENCE_CAP
        return max(1, self.sequence_cap - self._unresolved_records)

    def adopt(self, identity: ProducerIdentity) -> None:
        """Turn to a newer identity, and renumber what waits.

        Not done while a batch is outstanding, or in doubt under the old identity.
        """
        if self.ledger.identity == identity or self.outstanding:
            return
        if any(_keeps_numbers(batch) for batch in self.unresolved):
            return
        self.ledger.adopt(identity)
        self.bump_wanted = False
        self.disowned = None
        self._skipped = None
        self.gate.restart()
        self._evidence.clear()
        self.suspicion.renewed()
        self.recovery.move(RecoveryEvent.RESOLVED)
        for ordinal, batch in enumerate(self.unresolved):
            base = self.ledger.take(batch.count)
            stamp = restamp(
                batch.data,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=wire_sequence(base),
            )
            batch.renumber(identity, base, stamp, ordinal)
        self.next_ordinal = len(self.unresolved)
        self.log.renumber()

    def enlist(self, batch: Batch) -> None:
        """Append a batch that was just sealed."""
        self.unresolved.append(batch)
        self.next_ordinal = batch.ordinal + 1
        self.window.observe(self.span)

    def send(self, batch: Batch, now: float) -> None:
        """Note that a batch is being given to the connection of the current route."""
        route = self.route
        if route is None:
            raise errors.InternalError("a batch was sent without a route")
        probing = self.recovery.rung is Rung.PROBING
        if self.suspicion.suspect and not self.outstanding:
            # The leader's state may have gone while nothing was on its way.
            self.gate.close_unless_fresh(now)
        attempt = Attempt(
            route.link_id,
            route.leader_id,
            route.leader_epoch,
            now,
            # Without a gate too: brokers of 4.0 have transactions v2, and take any first sequence.
            knows_us=self.idempotent
            and not self.suspicion.suspect
            and ((probing and not self.gate.questioned) or self._gate_passed),
            earlier_link=earlier_link(batch, (route.leader_id, route.leader_epoch)),
        )
        batch.send(attempt)
        self._evidence.sent(batch, self.next_ordinal - batch.ordinal)
        self.outstanding += 1
        if probing:
            self.recovery.probed(batch, now)

    # -- what is heard -----------------------------------------------------------------------------

    def on_ack(
        self, batch: Batch, answer: PartitionAnswer, now: float, *, current: bool, out: Effects
    ) -> None:
        """Handle error NONE.

        Args:
            batch: what was sent.
            answer: of its partition.
            now: seconds.
            current: whether the leader epoch it was sent under is still the newest we know of.
            out: gets what follows beyond the partition.
        """
        self.outstanding -= 1
        attempt = batch.attempt
        if self.log.contradicts(batch, answer.base_offset):
            out.data_loss(self.where, f"offset {answer.base_offset} came after {self.log.offset}")
            self.log.accept_loss(batch, answer.base_offset)
            if attempt is not None:
                attempt.disbelieve()  # it is another log, whatever that leader has shown before
        if batch.settled:
            self._note_recognised(batch, now, out)
            self.log.reach(batch, answer.base_offset)
            return  # given up meanwhile; where it lies still tells whether a later answer fits
        self.suspicion.acked(batch.max_timestamp_ms, answer.log_append_time_ms)
        below = self.unresolved[: self.unresolved.index(batch)]
        self._settle_ack(batch, answer.base_offset, out, answer)
        if self.idempotent:
            self._imply(batch, below, attempt, out)
        self._hear_none(batch, attempt, now)
        if current:
            self.window.learn(answer.retained)
        self._note_recognised(batch, now, out)
        if self.recovery.rung is not Rung.CLEAR:
            self.recovery.move(
                RecoveryEvent.PROVED
                if self.recovery.rung is not Rung.SALVAGE
                else self._salvage_state()
            )

    def _note_recognised(self, batch: Batch, now: float, out: Effects) -> None:
        self._evidence.recognised(batch, self.log.ordinal - batch.ordinal + 1)
        self._judge_memory(now, out)

    def _judge_memory(self, now: float, out: Effects) -> None:
        """Hold what the leader was seen to remember against what it says, on this connection."""
        disproof = self._evidence.verdict(self.window.said) if self.window.heard else None
        if disproof is not None and not self.suspicion.suspect and self.sequence_cap is None:
            out.disprove(self.topic, self.partition, self.route, disproof, now)

    def _salvage_state(self) -> RecoveryEvent:
        return RecoveryEvent.PROVED if self.recovery.salvaging else RecoveryEvent.RESOLVED

    def _hear_none(self, batch: Batch, attempt: Attempt | None, now: float) -> None:
        self._retry.reset()
        self.retry_at = 0.0
        route = self.route
        if attempt is None or route is None or attempt.link_id != route.link_id:
            return
        if batch.identity == self.ledger.identity:
            self.gate.hear_none((batch.identity, route), now)

    def _imply(
        self, acked: Batch, below: Sequence[Batch], attempt: Attempt | None, out: Effects
    ) -> None:
        """Draw the conclusions of a success for the unresolved batches below it."""
        doubtful = [b for b in below if b.in_doubt]
        if self._was_accepted_over_a_hole(acked, below, out):
            self.recovery.salvage(doubtful)
        elif not doubtful or self.recovery.rung is Rung.SALVAGE:
            return
        elif attempt is not None and attempt.knows_us and not self.suspicion.suspect:
            for batch in doubtful:
                self._settle_ack(batch, -1, out, None)
        else:
            # It may have been accepted by a leader that had forgotten us, with a hole below it. No
            # later success may close that hole either, now that the leader holds state again.
            self.recovery.salvage(doubtful)

    def _was_accepted_over_a_hole(self, acked: Batch, below: Sequence[Batch], out: Effects) -> bool:
        """Whether the leader accepted a batch over one that it had refused.

        Then it had lost our state in between. What was refused could only be appended after it now:
        NOT_WRITTEN.
        """
        rejected = [b for b in below if b.state is not BatchState.IN_FLIGHT and not b.in_doubt]
        if not rejected and (self._skipped is None or self._skipped >= acked.base):
            return False
        if not self.log.is_explained(rejected[-1] if rejected else acked):
            out.data_loss(self.where, "a later batch was accepted over a rejected one")
        for batch in rejected:
            self._fail(batch, errors.OutOfOrderSequenceNumber(), out)
        self._skipped = None  # reported once
        self._give_up_numbers(out)
        return True

    def on_error(
        self,
        batch: Batch,
        refusal: Refusal,
        now: float,
        out: Effects,
    ) -> bool:
        """Handle any other answer.

        Returns:
            Whether it says that somebody else writes under our producer id.
        """
        self.outstanding -= 1
        disposition, error, culprits = refusal.disposition, refusal.error, refusal.culprits
        self._note_refused(batch, disposition, now, out)
        if disposition.refresh_metadata:
            out.refresh_metadata()
        if batch.settled:
            return False  # a probe whose question has been answered meanwhile
        self.gate.close()
        if disposition.action is Action.DUPLICATE:
            self.gate.hear_of_state()
            self._on_duplicate(batch, now, out)
            return False
        batch.learn(Evidence.REFUSED if disposition.precedes_append else Evidence.AMBIGUOUS, now)
        if disposition.action is Action.FAIL and not disposition.precedes_append:
            self._question_leader()
        elif not disposition.precedes_append:
            batch.go_astray()
        match disposition.action:
            case Action.OUT_OF_ORDER:
                self.gate.hear_of_state()  # only a leader that holds our state says so
                self._on_out_of_order(batch, error, out)
            case Action.SPLIT:
                self._on_too_large(batch, error, out)
            case Action.FAIL if culprits and not batch.in_doubt and batch.records[0].group is None:
                self._on_culprits(batch, culprits, refusal.innocent, error, out)
            case Action.FAIL:
                self._on_permanent(batch, error, out)
            case Action.FENCED if not self._transactional:
                # Nobody else raises the epoch of a producer id that is ours alone.
                if not batch.in_doubt:
                    self._retry_later(batch, now)
                return True
            case Action.NO_STATE | Action.FENCED:
                self._on_state_gone(batch, error, now, out)
            case Action.FATAL:
                self._end(batch, error, out, answered=True)
                out.fatal(error)
            case _:
                self._retry_later(batch, now)
        return False

    def _note_refused(
        self, batch: Batch, disposition: Disposition, now: float, out: Effects
    ) -> None:
        if disposition.action is Action.OUT_OF_ORDER:
            self._evidence.refused(batch)
        else:
            self._evidence.ended(batch)
        self._judge_memory(now, out)

    def _question_leader(self) -> None:
        """Stop believing that the leader holds our state.

        A refusal by a code that no table names may say that it does not. A success implies nothing
        of the batches below it from now on.
        """
        self.gate.question()
        for batch in self.unresolved:
            if batch.attempt is not None:
                batch.attempt.disbelieve()

    def _retry_later(self, batch: Batch, now: float) -> None:
        batch.move(BatchEvent.RETRY)
        self._back_off(now)
        self._stop_probing()

    def _back_off(self, now: float) -> None:
        # Twenty batches that fail together are one failure, not twenty: the delay doubles with each
        # incident, not with each batch of it.
        if now >= self.retry_at:
            self.retry_at = now + self._retry.next_delay()

    def _stop_probing(self) -> None:
        """End the pass of probes: one got no answer, so the pass proves nothing."""
        if self.recovery.rung is Rung.PROBING:
            self.recovery.move(RecoveryEvent.RESTART)

    def _on_duplicate(self, batch: Batch, now: float, out: Effects) -> None:
        """Note that a batch is appended and not committed yet (KIP-758).

        It is acknowledged by error NONE to it, or to a batch above it.
        """
        if batch.persistence is Persistence.REJECTED:
            # In range of the leader's last sequence, and yet refused every time: accepted over it,
            # statelessly.
            out.data_loss(self.where, "DUPLICATE_SEQUENCE_NUMBER for a batch that was rejected")
            batch.learn(Evidence.AMBIGUOUS, now)
            self._give_up(batch, errors.DuplicateSequenceNumber(), out)
            return
        batch.learn(Evidence.AMBIGUOUS, now)
        batch.find_appended()
        self._retry_later(batch, now)
        if self._transactional:
            return
        if self.recovery.rung is Rung.CLEAR and batch is self._head and self.in_doubt > 1:
            # It has state for us and keeps offsets of the newest only: ask from that end.
            self.recovery.move(RecoveryEvent.HEAD_REFUSED)

    def _on_out_of_order(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        if self._transactional:
            batch.move(BatchEvent.RETRY)
            if batch is self._head or batch in self.recovery.salvaged:
                out.fail_transaction(self.where, error)
            return
        if batch in self.recovery.salvaged:
            self._give_up(batch, errors.OutOfOrderSequenceNumber(), out)
            self.recovery.move(self._salvage_state())
            return
        batch.move(BatchEvent.RETRY)
        # Behind an older batch that failed, or whose sequences were given up, it is expected.
        if batch is self._head and self.recovery.rung is Rung.CLEAR:
            self.recovery.move(RecoveryEvent.HEAD_REFUSED)
            # It says that it remembers this batch: probe below it for how many it does remember.
            distance = self.next_ordinal - batch.ordinal
            within = DEFAULT_BATCHES_RETAINED < distance <= self.window.said
            self.recovery.search(wanted=within)

    @property
    def _head(self) -> Batch | None:
        """The oldest batch that the leader may be asked about under its present numbers."""
        for batch in self.unresolved:
            if not self.bump_wanted or _keeps_numbers(batch):
                return batch
        return None

    def _on_permanent(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        if not batch.in_doubt:
            self._fail(batch, error, out)
            self._give_up_numbers(out)
        elif self._knows_us(batch) and batch not in self.recovery.salvaged:
            # The refusal says nothing of the first copy, but this leader is known to hold our
            # state: as OUT_OF_ORDER.
            self._on_out_of_order(batch, error, out)
            self.recovery.refused_for_good(error)
        else:
            self._give_up(batch, error, out)

    def _knows_us(self, batch: Batch) -> bool:
        """Whether this leader would recognise another copy of the batch."""
        return self.idempotent and self.gate.has_heard((batch.identity, self.route))

    def _on_too_large(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        if batch.in_doubt:
            self._on_permanent(batch, error, out)
            return
        if batch.count == 1:
            self._fail(batch, error, out)
            self._give_up_numbers(out)
            return
        # It goes in parts (`replace`) when it is its turn: the topic's limit may be known by then.
        batch.refuse_size()

    def replace(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """Put other batches of its records in the place of one that was never appended.

        Parts of one that is too large carry its numbers between them (every attempt at the whole
        was answered, so no copy of it can turn up later), and what follows keeps its own. Only the
        ordinals shift.
        """
        self._evidence.clear()  # it counts in batches
        position = self.unresolved.index(batch)
        batch.move(BatchEvent.SPLIT)
        self.unresolved[position : position + 1] = parts
        for later in self.unresolved[position + len(parts) :]:
            later.shift(len(parts) - 1)
        self.next_ordinal += len(parts) - 1

    def _on_culprits(
        self,
        batch: Batch,
        culprits: Mapping[int, errors.KafkaError],
        innocent: Batch | None,
        error: errors.KafkaError,
        out: Effects,
    ) -> None:
        """Fail the records that a batch was refused for (KIP-467).

        The others, which were not written either, go on in a batch of their own, in front of what
        follows. A batch that a caller put together fails as a whole: it has one outcome, which must
        be true of each of its records.
        """
        if innocent is None:
            self._fail(batch, error, out)
        else:
            self.replace(batch, [innocent])
            for place, reason in culprits.items():
                guilty = [batch.records[place]]
                self.settle_records(guilty, DeliveryStatus.NOT_WRITTEN, reason, out)
        # No record uses the sequences of the culprits: all that follows is renumbered.
        self._give_up_numbers(out)

    def _on_state_gone(
        self, batch: Batch, error: errors.KafkaError, now: float, out: Effects
    ) -> None:
        if self._transactional:
            self._retry_later(batch, now)
            out.fail_transaction(self.where, error)
            self._give_up_numbers(out)
            return
        if batch.in_doubt:
            self._give_up(batch, error, out)
            return
        self._retry_later(batch, now)
        self._give_up_numbers(out)

    def disown(self, error: errors.KafkaError, out: Effects) -> None:
        """Send nothing more under a producer id that another producer uses too.

        No answer to a resend would be about our copy, so what is in doubt ends UNKNOWN.
        """
        self.disowned = error
        self.bump_wanted = True
        for batch in [b for b in self.unresolved if b.in_doubt]:
            self._give_up(batch, error, out)

    def on_lost(self, batch: Batch, *, written: bool, now: float) -> None:
        """Note that an attempt ended without an answer.

        The connection was lost or timed out, or the answer left the partition out.
        """
        self.outstanding -= 1
        self.gate.close()
        self._evidence.ended(batch)
        if batch.settled:
            return
        batch.learn(Evidence.AMBIGUOUS if written else Evidence.UNSENT, now)
        if written:
            batch.go_astray()
            self._retry_later(batch, now)
        else:
            batch.move(BatchEvent.RETRY)
            self._stop_probing()

    def on_unanswered(self, batch: Batch, now: float, out: Effects) -> None:
        """Settle a batch under acks=0 as UNKNOWN, without an error: no answer will come."""
        self.outstanding -= 1
        if batch.settled:
            return
        batch.learn(Evidence.AMBIGUOUS, now)
        batch.move(BatchEvent.GIVE_UP)
        self.unresolved.remove(batch)
        out.settle(Settlement(self.topic, self.partition, batch.records, DeliveryStatus.UNKNOWN))

    # -- time --------------------------------------------------------------------------------------

    def advance(
        self, now: float, out: Effects, *, throttled: float = 0.0, may_ask: bool = False
    ) -> None:
        """Take the decisions that had to wait until nothing is outstanding.

        Args:
            now: seconds.
            out: gets what follows beyond the partition.
            throttled: the last throttle time of the leader's connection, in seconds.
            may_ask: whether DescribeProducers is worth asking there.
        """
        if self.disowned is not None:
            self.disown(self.disowned, out)  # what has come to be in doubt since
        if self.outstanding or self.recovery.rung is Rung.CLEAR:
            return
        doubt = any(_keeps_numbers(batch) for batch in self.unresolved)
        match self.recovery.rung:
            case Rung.REFUSED if not doubt:
                self._lose("the leader does not have what it acknowledged", now, out)
            case Rung.REFUSED | Rung.ASKING | Rung.PROBING if self.suspicion.suspect:
                self.recovery.move(RecoveryEvent.RESTART)
            case Rung.REFUSED:
                self.recovery.move(RecoveryEvent.ASK if may_ask else RecoveryEvent.DOUBT_REMAINS)
            case Rung.ASKING | Rung.PROBING if not doubt:
                self.recovery.move(RecoveryEvent.RESOLVED)
            case Rung.PROBING:
                self._end_pass_if_over(now, throttled, out)
            case Rung.SALVAGE if self.recovery.next_salvage() is None:
                self.recovery.move(RecoveryEvent.RESOLVED)

    def _end_pass_if_over(self, now: float, throttled: float, out: Effects) -> None:
        if now < self.recovery.pass_not_before:
            return
        if self.recovery.next_probe(self.unresolved, now) is not None:
            return
        if any(batch.appended for batch in self.unresolved):
            # DUPLICATE is no refusal: it is there, and only not committed yet.
            self.recovery.move(RecoveryEvent.RESTART)
        elif self.recovery.end_pass(now, max(self._pause, throttled)) or self._refused_for_good:
            self._lose("no batch in doubt is in the leader's log", now, out)

    @property
    def _refused_for_good(self) -> bool:
        """Whether another pass of probes would show no more than the last one.

        The leader refuses these batches for what they are, and no copy of them can turn up any
        more.
        """
        astray = any(batch.astray for batch in self.unresolved if batch.in_doubt)
        return self.recovery.refusal is not None and not astray

    def _lose(self, reason: str, now: float, out: Effects) -> None:
        refusal = self.recovery.refusal
        if refusal is None and not self.bump_wanted:
            # Where sequences were given up already (an epoch bump is pending) OUT_OF_ORDER is the
            # expected gap, not data loss. Under a producer id that is not ours alone, the gap may
            # be the other producer's.
            out.data_loss(self.where, reason)
        self._back_off(now)
        for batch in [b for b in self.unresolved if b.in_doubt]:
            if self._resend:
                batch.forsake()
            else:
                self._give_up(batch, refusal or errors.OutOfOrderSequenceNumber(), out)
        self._give_up_numbers(out)
        self.recovery.move(RecoveryEvent.RESOLVED)

    # -- asking the leader, instead of resending ---------------------------------------------------

    @property
    def wants_producers(self) -> bool:
        """Whether DescribeProducers should be asked now."""
        return self.recovery.rung is Rung.ASKING and not self.recovery.asked

    def on_producers(self, last_sequence: tuple[int, int] | None) -> None:
        """Note what DescribeProducers says of our producer id.

        `last_sequence`: the epoch and the last sequence; None: nothing is known.
        """
        if self.recovery.rung is not Rung.ASKING:
            return
        hinted = None
        identity = self.ledger.identity
        if last_sequence is not None and identity is not None:
            epoch, last = last_sequence
            if epoch == identity.epoch:
                hinted = next(
                    (b for b in self.unresolved if b.in_doubt and b.wire_last == last), None
                )
        self.recovery.hint(hinted)

    @property
    def wants_read_back(self) -> bool:
        """Whether the log must be read to settle doubt that no resend may settle."""
        return (
            self.must_not_resend
            and not self.outstanding
            and self.read_back.offset is None
            and any(batch.in_doubt and batch.due for batch in self.unresolved)
        )

    def begin_read_back(self) -> int | None:
        """Where to start reading: behind the last acknowledged offset; None when there is none."""
        return self.read_back.begin(self.log.offset)

    def on_read_back(
        self, page: Sequence[WrittenBatch], high_watermark: int, out: Effects
    ) -> int | None:
        """Handle a page of the log; where the next one starts, or None when the log ends.

        What is found is acknowledged. What is not found is proved by nothing: UNKNOWN.
        """
        doubtful = [b for b in self.unresolved if b.in_doubt and b.due]
        found = self.read_back.found(page, doubtful)
        for batch, written in found:
            below = self.unresolved[: self.unresolved.index(batch)]
            self._settle_ack(batch, written.base_offset, out, None)
            self._was_accepted_over_a_hole(batch, below, out)
        following = self.read_back.following(page, high_watermark)
        if following is None or len(found) == len(doubtful):
            self.give_up_doubt(out)
            return None
        return following

    def end_read_back(self, retry_at: float | None = None) -> None:
        """Stop reading, for a reason that may pass: start over, not before `retry_at` if given."""
        self.read_back.end()
        if retry_at is not None:
            self.retry_at = retry_at

    def give_up_doubt(self, out: Effects) -> None:
        """Nothing can tell: what is in doubt ends UNKNOWN."""
        self.read_back.end()
        for batch in [b for b in self.unresolved if b.in_doubt and b.due]:
            self._give_up(batch, errors.UnknownProducerId(), out)

    def expire(self, now: float, grace: float, answered_at: float | None, out: Effects) -> None:
        """Settle what is past its deadline.

        A batch in doubt has `grace` more seconds while answers come in; a broker that never answers
        ends every future at its deadline.

        Args:
            now: seconds.
            grace: seconds.
            answered_at: when the leader's connection last answered a Produce request, if ever.
            out: gets the outcomes.
        """
        expired = self.queue.expire(now)
        if expired:
            self.settle_records(expired, DeliveryStatus.NOT_WRITTEN, self._timeout(), out)
        for batch in [b for b in self.unresolved if b.deadline <= now]:
            if batch.due and not batch.in_doubt:
                self._fail(batch, self._timeout(), out)
                self._give_up_numbers(out)
            elif now >= batch.deadline + (grace if _resolving(batch, answered_at) else 0.0):
                self._give_up(batch, self._timeout(), out)

    def _timeout(self) -> errors.KafkaError:
        return errors.DeliveryTimeoutError(
            f"{self.topic}-{self.partition}: not acknowledged within delivery_timeout"
        )

    def next_deadline(self, now: float, grace: float) -> float | None:
        """When `expire` has something to do next (at the latest)."""
        deadlines = [batch.deadline for batch in self.unresolved]
        if self.queue.records:
            deadlines.append(self.queue.records[0].deadline)
        # Past its deadline a batch has only the grace to wait for.
        return min((at if at > now else at + grace for at in deadlines), default=None)

    def wakes(self, now: float, grace: float, linger: float) -> Iterator[float]:
        """When a poll could do something for it that it could not do now."""
        deadline = self.next_deadline(now, grace)
        if deadline is not None:
            yield deadline
        if self.retry_at > now:
            yield self.retry_at
        if self.recovery.rung is Rung.PROBING and self.recovery.pass_not_before > now:
            yield self.recovery.pass_not_before
        if self.queue.records:
            lingers_until = self.queue.records[0].queued_at + linger
            if lingers_until > now:
                yield lingers_until

    # -- verdicts ----------------------------------------------------------------------------------

    def _settle_ack(
        self, batch: Batch, base_offset: int, out: Effects, answer: PartitionAnswer | None
    ) -> None:
        batch.learn(Evidence.PROVED, 0.0)
        batch.move(BatchEvent.ACK)
        self.unresolved.remove(batch)
        self.log.reach(batch, base_offset)
        out.settle(
            Settlement(
                self.topic,
                self.partition,
                batch.records,
                DeliveryStatus.ACKED,
                base_offset=base_offset,
                log_append_time_ms=-1 if answer is None else answer.log_append_time_ms,
                log_start_offset=-1 if answer is None else answer.log_start_offset,
            )
        )

    def _fail(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        """NOT_WRITTEN: it was never written, or every attempt was refused before the append."""
        batch.move(BatchEvent.REJECT)
        self.unresolved.remove(batch)
        if self._skipped is None or batch.base < self._skipped:
            self._skipped = batch.base
        self.settle_records(batch.records, DeliveryStatus.NOT_WRITTEN, error, out)

    def _give_up(
        self,
        batch: Batch,
        error: errors.KafkaError,
        out: Effects,
        status: DeliveryStatus = DeliveryStatus.UNKNOWN,
    ) -> None:
        """End a batch as UNKNOWN, unless an abort has decided its status.

        Its numbers are never used again under this identity.
        """
        batch.move(BatchEvent.GIVE_UP)
        self.unresolved.remove(batch)
        self.settle_records(batch.records, status, error, out)
        self._give_up_numbers(out)

    def _end(
        self, batch: Batch, error: errors.KafkaError, out: Effects, *, answered: bool = False
    ) -> None:
        if batch.in_doubt or (batch.state is BatchState.IN_FLIGHT and not answered):
            self._give_up(batch, error, out)
        else:
            self._fail(batch, error, out)
            self._give_up_numbers(out)

    def _give_up_numbers(self, out: Effects) -> None:
        if self.idempotent and not self.bump_wanted:
            self.bump_wanted = True
            out.bump(self.where, self.ledger.identity)

    def reclaim(self) -> list[PendingRecord]:
        """Take back the records of batches that were never appended, in order.

        They get the numbers of another partition. What is in flight or in doubt stays.
        """
        taken: list[PendingRecord] = []
        for batch in [b for b in self.unresolved if b.due and not b.in_doubt]:
            batch.move(BatchEvent.SPLIT)
            self.unresolved.remove(batch)
            taken.extend(batch.records)
        return taken

    def abandon(self, error: errors.KafkaError, out: Effects) -> None:
        """End everything now: the producer is closing, is dead, or the topic was recreated."""
        queued = self.queue.empty()
        if queued:
            self.settle_records(queued, DeliveryStatus.NOT_WRITTEN, error, out)
        for batch in list(self.unresolved):
            self._end(batch, error, out)

    def abort(self, error: errors.KafkaError, doubt: DeliveryStatus | None, out: Effects) -> None:
        """Settle what is not outstanding: its transaction is aborted, or will be.

        `doubt`: what becomes of batches in doubt; None while that is to be decided by the abort.
        """
        queued = self.queue.empty()
        if queued:
            self.settle_records(queued, DeliveryStatus.NOT_WRITTEN, error, out)
        for batch in [each for each in self.unresolved if each.due]:
            if not batch.in_doubt:
                self._fail(batch, error, out)
            elif doubt is not None:
                self._give_up(batch, error, out, doubt)
            # At once, whenever it will be settled: the end of this transaction must know that the
            # next one needs another epoch, or a late copy would be part of it (v1).
            self._give_up_numbers(out)

    def settle_records(
        self,
        records: Sequence[PendingRecord],
        status: DeliveryStatus,
        error: errors.KafkaError,
        out: Effects,
    ) -> None:
        """Report a failure of records."""
        error = copy.copy(error)
        error.status = status
        out.settle(Settlement(self.topic, self.partition, records, status, error=error))

    def __repr__(self) -> str:
        return (
            f"<PartitionState {self.topic}-{self.partition} span {self.span}/{self.window.limit}, "
            f"{self.recovery.rung.value}, queued {len(self.queue.records)}>"
        )


def _keeps_numbers(batch: Batch) -> bool:
    """Whether its numbers are its own for ever: it may have been appended under them."""
    return batch.in_doubt and not batch.forsaken


def _resolving(batch: Batch, answered_at: float | None) -> bool:
    return (
        batch.in_doubt
        and answered_at is not None
        and batch.doubted_at is not None
        and answered_at > batch.doubted_at
    )
