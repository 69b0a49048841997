"""PartitionState: the queue and unresolved batches of one partition, and which batch is sent next.

What an answer means, how doubt is resolved and how a batch ends is decided by the parts that are
made here. Each of them has its own file, and is given the others that it needs; none knows this
class.

Invariants
- At most one route (connection, leader epoch) has outstanding batches of this partition at a time:
  nothing is sent to a new leader while the old one still has to answer, because the two could
  append in either order.
- Until the leader acknowledges a batch (the first-ack gate is closed), only the oldest unresolved
  batch is in flight: a leader without state for the producer id accepts *any* first sequence
  (KAFKA-15591), so a second batch could overtake a refused first one.
- A new producer id or epoch is adopted only when no batch is outstanding or in doubt (perhaps
  appended): the first append under epoch e+1 fences epoch e, so resending could not resolve the
  doubt any more.
"""

from __future__ import annotations

import math
from uuid import UUID

from aioidem import errors
from aioidem._engine.acknowledgements import Acknowledgements
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.deadlines import Deadlines
from aioidem._engine.endings import Endings
from aioidem._engine.failed_attempts import FailedAttempts
from aioidem._engine.first_ack_gate import FirstAckGate
from aioidem._engine.idempotence import ProducerIdentity, SequenceLedger, wire_sequence
from aioidem._engine.ladder import Ladder
from aioidem._engine.leadership import Leadership
from aioidem._engine.log_lookup import LogLookup
from aioidem._engine.log_position import LogPosition
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.read_back import ReadBack
from aioidem._engine.recovery import Recovery, RecoveryEvent, Rung
from aioidem._engine.retention import RetentionEvidence, earlier_link
from aioidem._engine.route import Route
from aioidem._engine.setbacks import Setbacks
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.unresolved import UnresolvedBatches
from aioidem._engine.windows import PartitionWindow
from aioidem._records import restamp
from aioidem.structs import TopicPartition

__all__ = ["SEQUENCE_CAP", "PartitionState"]

SEQUENCE_CAP = 1 << 30
"""The most sequences (records) that unresolved batches may take together.

Sequences wrap around at 2^31. Which of two sequences is the later one is certain only if they are
less than 2^30 apart (KIP-758).
"""


class PartitionState:
    """One partition of one topic id: its parts, and what may be sent.

    A batch is unresolved until it has an outcome. It is in doubt if an attempt to send it has ended
    and the leader may have appended it. The route is the connection to the partition's leader, with
    the leader epoch. The identity is the producer id with its epoch. The window limits how many
    batches there may be from the oldest unresolved one to the newest sent one.
    """

    __slots__ = (
        "_evidence",
        "_resend",
        "_transactional",
        "acknowledgements",
        "batches",
        "deadlines",
        "endings",
        "failures",
        "gate",
        "idempotent",
        "ladder",
        "leadership",
        "ledger",
        "log",
        "lookup",
        "partition",
        "queue",
        "read_back",
        "recovery",
        "setbacks",
        "suspicion",
        "topic",
        "topic_id",
        "where",
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
        self.where = f"{topic}-{partition}"
        topic_partition = TopicPartition(topic, partition)
        self.topic_id = topic_id
        self.idempotent = idempotent
        self._resend = resend
        self._transactional = transactional
        self._evidence = RetentionEvidence()
        self.queue = PartitionQueue()
        self.ledger = SequenceLedger()
        self.batches = UnresolvedBatches(self.ledger, self._evidence)
        self.log = LogPosition()
        self.suspicion = Suspicion(resend=resend)
        self.window = PartitionWindow(sequence_cap)
        self.gate = FirstAckGate(applies=idempotent)
        self.recovery = Recovery()
        self.read_back = ReadBack()
        self.setbacks = Setbacks(retry)
        self.leadership = Leadership(
            topic_partition,
            self.ledger,
            self.window,
            self.gate,
            self._evidence,
            self.suspicion,
            self.log,
        )
        self.endings = Endings(
            topic_partition,
            topic_id,
            self.where,
            idempotent=idempotent,
            queue=self.queue,
            batches=self.batches,
            ledger=self.ledger,
            log=self.log,
            suspicion=self.suspicion,
            recovery=self.recovery,
        )
        self.deadlines = Deadlines(
            self.where,
            idempotent=idempotent,
            queue=self.queue,
            batches=self.batches,
            ledger=self.ledger,
            recovery=self.recovery,
            setbacks=self.setbacks,
            endings=self.endings,
        )
        self.acknowledgements = Acknowledgements(
            self.where,
            idempotent=idempotent,
            batches=self.batches,
            ledger=self.ledger,
            log=self.log,
            suspicion=self.suspicion,
            leadership=self.leadership,
            recovery=self.recovery,
            setbacks=self.setbacks,
            endings=self.endings,
        )
        self.failures = FailedAttempts(
            self.where,
            transactional=transactional,
            batches=self.batches,
            ledger=self.ledger,
            leadership=self.leadership,
            recovery=self.recovery,
            setbacks=self.setbacks,
            endings=self.endings,
        )
        self.ladder = Ladder(
            self.where,
            pause=pause,
            resend=resend,
            batches=self.batches,
            ledger=self.ledger,
            suspicion=self.suspicion,
            recovery=self.recovery,
            setbacks=self.setbacks,
            endings=self.endings,
        )
        self.lookup = LogLookup(
            self.where,
            batches=self.batches,
            log=self.log,
            read_back=self.read_back,
            suspicion=self.suspicion,
            setbacks=self.setbacks,
            acknowledgements=self.acknowledgements,
            endings=self.endings,
        )

    # -- what may be sent --------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether the partition has a queued record, an unresolved batch or an outstanding one."""
        return bool(self.queue.records or self.batches.unresolved or self.batches.outstanding)

    @property
    def unsettled(self) -> int:
        """The number of records without an outcome."""
        return self.queue.count + sum(batch.count for batch in self.batches.unresolved)

    @property
    def oldest(self) -> float:
        """When the oldest record without an outcome was queued, in seconds; infinity if none is."""
        if self.batches.unresolved:
            return self.batches.unresolved[0].records[0].queued_at
        records = self.queue.records
        return records[0].queued_at if records else math.inf

    def waits(self) -> bool:
        """Return whether a record or a batch of the partition waits to be sent."""
        if self.queue.records:
            return True
        for batch in self.batches.unresolved:  # noqa: SIM110 - as in `Deadlines.past`
            if batch.due:
                return True
        return False

    def untroubled(self) -> bool:
        """Return whether nothing special has to be resolved in this partition.

        That is so if the recovery ladder (`recovery`) is not in use, the leader is not suspected to
        have forgotten the producer, and no other client was seen to use the producer id.
        """
        return (
            self.recovery.rung is Rung.CLEAR
            and not self.suspicion.suspect
            and self.ledger.disowned is None
        )

    def begin_transaction(self, number: int, *, gated: bool) -> None:
        """Close the first-ack gate, unless it was closed for this transaction before.

        A closed gate permits one batch in flight until error NONE comes. With KIP-758 it always
        applies. If all batches in doubt were resent at once, the success of the newest one would
        prove nothing about the others, and each copy of those is answered DUPLICATE.

        Args:
            number: the number of the transaction in this producer; 0 means none.
            gated: whether first-ack gates apply, which depends on the transaction's version.
        """
        gated = gated or self.window.sequence_cap is not None
        self.gate.begin(number, applies=self.idempotent and gated)

    def assess_memory(self, wall_ms: float, expiration: float) -> None:
        """Decide whether the leader may have forgotten the producer (KIP-854).

        With a transactional id nothing is decided: a broker keeps a producer's state while its
        transaction is open.

        Args:
            wall_ms: the time of day, in milliseconds since the Unix epoch.
            expiration: seconds after which brokers forget a producer.
        """
        if self._transactional or not self.idempotent:
            return
        unresolved = self.batches.unresolved
        if self.suspicion.assess(wall_ms, expiration, unresolved):
            newest = unresolved[0] if len(unresolved) == 1 else None
            if newest is not None and newest.ordinal <= self.log.ordinal:
                newest = None
            self.suspicion.exempt_alone(newest, wall_ms, expiration)

    def follow(self, route: Route) -> bool:
        """Change to the route to the partition's present leader.

        Returns:
            Whether the partition now uses the new route; False while a batch that was sent on the
            old route is outstanding.
        """
        known = self.leadership.route
        if route == known:
            return True
        if self.batches.outstanding:
            return False
        same_leader = known is not None and known.same_leader(route)
        if known is not None and not same_leader:
            self.suspicion.leader_changed()
            self.setbacks.leader_changed()
        self.leadership.take(route)
        self.read_back.end()
        if same_leader and self.recovery.pauses:
            # An idle connection was closed between two passes. What the leader has answered stays,
            # but it must show anew that it holds the producer's state.
            self.gate.question()
        else:
            self.recovery.move(RecoveryEvent.RESTART)
        return True

    def next_resend(self, now: float) -> Batch | None:
        """Return the batch to be resent now; None if no batch must or may be resent now."""
        if not self.batches.unresolved:
            return None
        if now < self.setbacks.retry_at or self.read_back.offset is not None:
            # Nothing is resent while the log is read back. If a batch is found there, an earlier
            # batch that was rejected must not be resent any more: it would be written out of order.
            return None
        match self.recovery.rung:
            case Rung.CLEAR:
                return self._next_in_order()
            case Rung.REFUSED | Rung.ASKING:
                return None
            case Rung.PROBING:
                if self.batches.outstanding and self.gate.questioned:
                    return None
                return self.recovery.next_probe(self.batches.unresolved, now)
            case Rung.SALVAGE:
                blocked = self.batches.outstanding or self.suspicion.forbids_resend
                return None if blocked else self.recovery.next_salvage(oldest=self._resend)

    def _next_in_order(self) -> Batch | None:
        for position, batch in enumerate(self.batches.unresolved):
            if not batch.due:
                continue
            if self.ledger.bump_wanted and not batch.keeps_numbers:
                continue  # the batch must be renumbered first
            if self.suspicion.forbids_resend and self.batches.doubts():
                # The doubt is looked into first. A leader that had forgotten the producer may have
                # taken a batch without a refused one before it, which would then come after it.
                return None
            if self.batches.outstanding and not (
                self.leadership.gate_open and self.batches.all_in_flight_precede(position)
            ):
                return None
            if self.idempotent and not self._within_window(batch):
                return None
            return batch
        return None

    def _within_window(self, batch: Batch) -> bool:
        # The window limits the distance from the oldest unresolved batch to this batch, not to the
        # newest one. Otherwise the oldest of twenty batches in doubt could not be resent when the
        # window has fallen to five. Batches that will be renumbered do not count: they are not
        # sent before this batch is resolved, and the leader retains none of them.
        if self.window.sequence_cap is not None:
            return True
        oldest = self.batches.head or batch
        return self.window.admits(batch.ordinal - oldest.ordinal + 1)

    def may_send_new(self) -> bool:
        """Return whether a new batch may be sealed and sent."""
        if not self.batches.unresolved:
            return not self.ledger.bump_wanted
        if not self.idempotent:
            return not any(batch.due for batch in self.batches.unresolved)
        if (
            self.ledger.bump_wanted
            or not self.leadership.gate_open
            or any(batch.due for batch in self.batches.unresolved)
        ):
            return False
        if self.window.sequence_cap is not None:
            return self.batches.sequences < self.window.sequence_cap
        return self.batches.sequences < SEQUENCE_CAP // 2 and self.window.admits(
            self.batches.span + 1
        )

    def sequence_room(self) -> int:
        """Return the largest number of records that the next batch may have, at least one.

        A broker with KIP-758 recognises a duplicate only within a range of sequences below the
        newest sequence in its log. So all unresolved batches must fit into that range together.
        """
        if self.window.sequence_cap is None:
            return SEQUENCE_CAP
        return max(1, self.window.sequence_cap - self.batches.sequences)

    def may_outgrow(self, batch_size: int) -> bool:
        """Return whether the next batch may be larger than `batch_size` bytes (late sealing).

        It may if a batch was ready but could not be sent, or if the queue has more bytes than could
        be in flight at once in batches of that size.
        """
        queue = self.queue
        return queue.blocked or queue.bytes > batch_size * self.window.limit

    def adopt(self, identity: ProducerIdentity) -> None:
        """Adopt a newer identity, and renumber the batches that wait.

        Nothing is done while a batch is outstanding, or in doubt under the old identity.
        """
        if self.ledger.identity == identity or self.batches.outstanding:
            return
        if any(batch.keeps_numbers for batch in self.batches.unresolved):
            return
        self.ledger.adopt(identity)
        self.leadership.renew()
        self.recovery.move(RecoveryEvent.RESOLVED)
        for ordinal, batch in enumerate(self.batches.unresolved):
            base = self.ledger.take(batch.count)
            # A part of a divided batch may have no bytes yet; then nothing is restamped.
            stamp = batch.data and restamp(
                batch.data,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=wire_sequence(base),
            )
            batch.renumber(identity, base, stamp, ordinal)
        self.batches.next_ordinal = len(self.batches.unresolved)
        self.log.renumber()

    def enlist(self, batch: Batch) -> None:
        """Add a newly sealed batch to the end of the list of unresolved batches."""
        self.window.observe(self.batches.enlist(batch))

    def send(self, batch: Batch, now: float) -> None:
        """Record that a batch is being given to the connection of the current route.

        Raises:
            InternalError: the partition has no route.
        """
        route = self.leadership.route
        if route is None:
            raise errors.InternalError("a batch was sent without a route")
        probing = self.recovery.rung is Rung.PROBING
        if self.suspicion.suspect and not self.batches.outstanding:
            # The leader may have forgotten the producer while no batch was outstanding.
            self.gate.close_unless_fresh(now)
        attempt = Attempt(
            route.link_id,
            route.leader_id,
            route.leader_epoch,
            now,
            # A success proves earlier batches only if the leader is known to hold the producer's
            # state, even where no first-ack gate applies (transactions v2): brokers of release 4.0
            # have v2, and yet accept any first sequence.
            knows_us=self.idempotent
            and not self.suspicion.suspect
            and (
                (probing and not self.gate.questioned)
                or self.gate.passed((self.ledger.identity, route))
            ),
            earlier_link=None
            if batch.attempt is None
            else earlier_link(batch, (route.leader_id, route.leader_epoch)),
            after=self.log.end,
            sent_ms=self.suspicion.now_ms,
        )
        batch.send(attempt)
        self._evidence.sent(batch, self.batches.next_ordinal - batch.ordinal)
        self.batches.outstanding += 1
        if probing:
            self.recovery.probed(batch, now)

    def __repr__(self) -> str:
        return (
            f"<PartitionState {self.where} span {self.batches.span}/{self.window.limit}, "
            f"{self.recovery.rung.value}, queued {self.queue.count}>"
        )
