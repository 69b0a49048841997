"""Endings: how the batches and records of one partition get their outcome.

When does a batch fail?

It ends NOT_WRITTEN if no attempt was appended (each was refused before the append, or no byte of it
was written), and
- the last refusal is permanent,
- or the batch is past its deadline,
- or a later batch was accepted, so that the order cannot be kept any more.

It ends UNKNOWN if it is in doubt (an attempt may have been appended), and
- it is past its deadline and the grace time that follows,
- or it is not in the leader's log,
- or its producer id or epoch was refused,
- or it was permanently refused, and nothing proves that the leader holds the producer's state.

In every other case it is retried. The sequence numbers of a batch that failed are not used again,
and a leader refuses the gap, so the partition then requests another epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from aioidem import errors
from aioidem._engine.batch import Batch, BatchEvent, BatchState, Evidence
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import SequenceLedger
from aioidem._engine.log_position import LogPosition
from aioidem._engine.outcome_error import outcome_error
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import Outcome, PendingRecord
from aioidem._engine.recovery import Recovery
from aioidem._engine.settlement import Settlement
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.unresolved import UnresolvedBatches
from aioidem._protocol.produce import PartitionAnswer
from aioidem.structs import DeliveryStatus, TopicPartition

if TYPE_CHECKING:
    from aioidem._engine.read_back import WrittenBatch
    from aioidem.incident import Incident

__all__ = ["Endings"]

_ACKED = DeliveryStatus.ACKED  # a member's name is looked up slowly in Python 3.11, see `Named`

_ENDED_NOT_WRITTEN = "a batch ended NOT_WRITTEN"
"""Why sequence numbers were given up, for messages."""


def _append_time(batch: Batch, answer: PartitionAnswer | None, written: WrittenBatch | None) -> int:
    """Return when a broker appended a batch, in ms since the epoch; -1 with CreateTime or unknown.

    The log says whether a timestamp is the append time. The answer to a duplicate does not: it
    names the timestamp of the stored batch, which is no append time if it is the batch's own.
    """
    if answer is None:
        return -1 if written is None else written.log_append_time_ms
    told = answer.log_append_time_ms
    return -1 if told == batch.max_timestamp_ms and batch.attempts > 1 else told


class Endings:
    """Ends the batches and the queued records of one partition, each with its outcome.

    Args:
        topic_partition: the partition.
        topic_id: the id of its topic.
        where: the partition's name in messages.
        idempotent: whether its batches have sequence numbers.
        queue: its records that are in no batch yet.
        batches: its batches without an outcome.
        ledger: the numbers that are given up.
        log: how far its log is known to reach.
        suspicion: counts the timestamps of batches that end UNKNOWN.
        recovery: tells how doubt was resolved, for the metrics.
    """

    __slots__ = (
        "_batches",
        "_idempotent",
        "_ledger",
        "_log",
        "_queue",
        "_recovery",
        "_suspicion",
        "_topic_id",
        "_topic_partition",
        "_where",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        where: str,
        *,
        idempotent: bool,
        queue: PartitionQueue,
        batches: UnresolvedBatches,
        ledger: SequenceLedger,
        log: LogPosition,
        suspicion: Suspicion,
        recovery: Recovery,
    ) -> None:
        self._topic_partition = topic_partition
        self._topic_id = topic_id
        self._where = where
        self._idempotent = idempotent
        self._queue = queue
        self._batches = batches
        self._ledger = ledger
        self._log = log
        self._suspicion = suspicion
        self._recovery = recovery

    def settle_ack(
        self,
        batch: Batch,
        base_offset: int,
        out: Effects,
        answer: PartitionAnswer | None,
        written: WrittenBatch | None = None,
    ) -> None:
        """End a batch as ACKED.

        Args:
            batch: the batch.
            base_offset: its offset; -1 if that is not known.
            out: receives the outcome.
            answer: the answer to the batch; None if it was proved otherwise.
            written: the batch as it was found in the log; None if it was proved otherwise.
        """
        meters = out.meters
        meters.acked.append(meters.now - batch.deadline)
        if batch.doubted_at is not None:
            out.doubt_ended(self._recovery.proof if written is None else "read back")
        batch.learn(Evidence.PROVED, 0.0)
        batch.move(BatchEvent.ACK)
        self._batches.unresolved.remove(batch)
        self._log.reach(batch, base_offset)
        topic, partition = self._topic_partition
        outcome = Outcome(
            topic,
            partition,
            _ACKED,
            base_offset=base_offset,
            log_append_time_ms=_append_time(batch, answer, written),
            log_start_offset=-1 if answer is None else answer.log_start_offset,
            attempts=batch.attempts,
            topic_partition=self._topic_partition,
        )
        out.settle(Settlement(outcome, batch.records))

    def fail(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        """End a batch as NOT_WRITTEN: it was never sent, or no attempt got as far as the append."""
        batch.move(BatchEvent.REJECT)
        self._batches.unresolved.remove(batch)
        self._ledger.skip(batch.base)
        self.settle_records(
            batch.records, DeliveryStatus.NOT_WRITTEN, error, out, attempts=batch.attempts
        )

    def fail_overtaken(self, batches: Iterable[Batch], why: str, out: Effects) -> None:
        """End batches as NOT_WRITTEN: a later batch is in the log, or may be."""
        for batch in batches:
            error = errors.OutOfOrderSequenceNumber(
                f"{self._where}: the batch of sequence {batch.wire_base} {why}, so it could be "
                "appended only out of order"
            )
            self.fail(batch, error, out)

    def give_up(
        self,
        batch: Batch,
        error: errors.KafkaError,
        out: Effects,
        status: DeliveryStatus = DeliveryStatus.UNKNOWN,
    ) -> None:
        """End a batch as UNKNOWN, or with the status that the end of its transaction decided.

        The batch's sequence numbers are never used again under this identity.
        """
        if status is DeliveryStatus.UNKNOWN:
            out.doubt_ended("unknown")
            self._suspicion.given_up(batch.max_timestamp_ms)
        if batch.absent_here and batch.state is not BatchState.IN_FLIGHT:
            self._ledger.skip(batch.base)
        batch.move(BatchEvent.GIVE_UP)
        self._batches.unresolved.remove(batch)
        incident = None
        if status is DeliveryStatus.UNKNOWN:
            # Imported here, because most producers never need it.
            from aioidem._engine.incident_of import incident_of

            incident = incident_of(batch, self._topic_partition, self._topic_id)
        self.settle_records(batch.records, status, error, out, incident, attempts=batch.attempts)
        self.give_up_numbers(out, "a batch in doubt was given up", error)

    def leave_unknown(self, batch: Batch, out: Effects) -> None:
        """End a batch under acks=0 as UNKNOWN, without an error."""
        batch.move(BatchEvent.GIVE_UP)
        self._batches.unresolved.remove(batch)
        topic, partition = self._topic_partition
        outcome = Outcome(topic, partition, DeliveryStatus.UNKNOWN, attempts=batch.attempts)
        out.settle(Settlement(outcome, batch.records))

    def end(
        self, batch: Batch, error: errors.KafkaError, out: Effects, *, answered: bool = False
    ) -> None:
        """End a batch as UNKNOWN if it may be in the log, otherwise as NOT_WRITTEN.

        Args:
            batch: the batch.
            error: the error that its records get.
            out: receives the outcome.
            answered: whether its attempt is answered. One that is not may be appended yet.
        """
        if batch.in_doubt or (batch.state is BatchState.IN_FLIGHT and not answered):
            self.give_up(batch, error, out)
        else:
            self.drop(batch, error, out)

    def give_up_numbers(
        self, out: Effects, what: str, error: errors.KafkaError | None = None
    ) -> None:
        """Request another epoch, under which the partition's sequences begin again at 0.

        The usual reason is a batch that ended NOT_WRITTEN or UNKNOWN: its sequence numbers are not
        used again, and a leader would refuse the gap.

        Args:
            out: gets the request for the new epoch.
            what: what happened to the batch, for messages.
            error: the error that ended the batch, if there is one.
        """
        if self._idempotent and not self._ledger.bump_wanted:
            self._ledger.bump_wanted = True
            # The reason names only the error's class; the failed records have the whole error.
            reason = what if error is None else f"{what} ({type(error).__name__})"
            out.bump(self._where, self._ledger.identity, reason)

    def drop(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        """End a batch as NOT_WRITTEN, and give up its sequence numbers."""
        self.fail(batch, error, out)
        self.give_up_numbers(out, _ENDED_NOT_WRITTEN, error)

    def disown(self, error: errors.KafkaError, out: Effects) -> None:
        """Stop sending under a producer id that another client uses too.

        Batches in doubt end UNKNOWN: the answer to a resend might be about the other client's
        batch.
        """
        self._ledger.disown(error)
        for batch in [b for b in self._batches.unresolved if b.in_doubt]:
            self.give_up(batch, error, out)

    def abandon(self, error: errors.KafkaError, out: Effects) -> None:
        """Settle all records and batches now: the producer ends, or the topic was recreated."""
        queued = self._queue.empty()
        if queued:
            self.settle_records(queued, DeliveryStatus.NOT_WRITTEN, error, out)
        for batch in list(self._batches.unresolved):
            self.end(batch, error, out)

    def abort(self, error: errors.KafkaError, doubt: DeliveryStatus | None, out: Effects) -> None:
        """Settle queued records and batches not in flight: the transaction is or will be aborted.

        Args:
            error: the error that the records get.
            doubt: the outcome of batches in doubt; None leaves them unsettled until the end of the
            transaction decides their outcome.
            out: receives the outcomes.
        """
        queued = self._queue.empty()
        if queued:
            self.settle_records(queued, DeliveryStatus.NOT_WRITTEN, error, out)
        for batch in [each for each in self._batches.unresolved if each.due]:
            if not batch.in_doubt:
                self.fail(batch, error, out)
            elif doubt is not None:
                self.give_up(batch, error, out, doubt)
            # The sequence numbers are given up now, even if the batch is settled later. That makes
            # the producer request another epoch before the next transaction. Without a new epoch, a
            # late copy of the batch would become part of that transaction (in transactions v1).
            self.give_up_numbers(out, "the transaction is aborted", error)

    def settle_records(
        self,
        records: Sequence[PendingRecord],
        status: DeliveryStatus,
        error: errors.KafkaError,
        out: Effects,
        incident: Incident | None = None,
        *,
        attempts: int = 0,
    ) -> None:
        """Report the outcome of records that were not acknowledged, with a copy of the error.

        Args:
            records: the records.
            status: their outcome.
            error: the error, which the copy is made of.
            out: receives the outcome.
            incident: the batch in which the records may be in the log; None if they cannot be, or
                if nothing identifies their batch.
            attempts: how often the records' batch was sent; 0 if they were in none.
        """
        own = outcome_error(error, self._where, status, incident)
        outcome = Outcome(*self._topic_partition, status, attempts=attempts, error=own)
        out.settle(Settlement.of_items(outcome, records))
