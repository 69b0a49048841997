"""FailedAttempts: what the end of an attempt without error NONE means for the batch.

An attempt ends with an error code, without an answer, or with the connection. The batch is then
retried, split or ended, or the partition goes on the recovery ladder (`recovery`), the sequence of
steps that resolves batches in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aioidem import errors
from aioidem._engine.batch import Batch, BatchEvent, Evidence, Persistence
from aioidem._engine.classify import Action, Disposition
from aioidem._engine.effects import Effects
from aioidem._engine.endings import Endings
from aioidem._engine.idempotence import SequenceLedger
from aioidem._engine.leadership import Leadership
from aioidem._engine.recovery import Recovery, RecoveryEvent, Rung
from aioidem._engine.setbacks import Setbacks
from aioidem._engine.unresolved import UnresolvedBatches
from aioidem._engine.windows import DEFAULT_BATCHES_RETAINED
from aioidem.structs import DeliveryStatus

__all__ = ["FailedAttempts", "Refusal"]

_UNANSWERED = "an attempt got no answer"
_UNWRITTEN = "a connection ended before all of an attempt was written"
_STATE_GONE = "the leader refused the producer id or its epoch"


class Refusal(NamedTuple):
    """The meaning of an answer with an error code, for the batch that it answers."""

    disposition: Disposition
    error: errors.KafkaError
    culprits: Mapping[int, errors.KafkaError]
    """The errors of the records for which the leader refused the batch, by index in the batch
    (KIP-467).
    """
    innocent: Batch | None
    """The batch without the `culprits`; None if every record is a culprit, or none is."""


class FailedAttempts:
    """Handles the attempts at the batches of one partition that end without error NONE.

    Args:
        where: the partition's name in messages.
        transactional: whether the batches belong to transactions. If so, batches in doubt are
        not probed (resent newest first, `recovery`) after OUT_OF_ORDER, nor resent under other
        sequences. Where this would be necessary, the transaction becomes abortable instead.
        batches: its batches without an outcome.
        ledger: the numbers that are skipped.
        leadership: what the leader has shown.
        recovery: how doubt is resolved at present.
        setbacks: what has failed since the last success, and until when the partition waits.
        endings: ends the batches.
    """

    __slots__ = (
        "_batches",
        "_endings",
        "_evidence",
        "_gate",
        "_leadership",
        "_ledger",
        "_recovery",
        "_setbacks",
        "_transactional",
        "_where",
        "_window",
    )

    def __init__(
        self,
        where: str,
        *,
        transactional: bool,
        batches: UnresolvedBatches,
        ledger: SequenceLedger,
        leadership: Leadership,
        recovery: Recovery,
        setbacks: Setbacks,
        endings: Endings,
    ) -> None:
        self._where = where
        self._transactional = transactional
        self._batches = batches
        self._ledger = ledger
        self._leadership = leadership
        self._gate = leadership.gate
        self._window = leadership.window
        self._evidence = leadership.evidence
        self._recovery = recovery
        self._setbacks = setbacks
        self._endings = endings

    def on_error(
        self,
        batch: Batch,
        refusal: Refusal,
        now: float,
        out: Effects,
    ) -> bool:
        """Handle an error code: retry, split or settle the batch, or begin the recovery ladder.

        The ladder (`recovery`) is the sequence of steps that resolves batches in doubt.

        Args:
            batch: the batch that was answered.
            refusal: what the error code means for the batch.
            now: seconds.
            out: receives what concerns the whole producer, and the outcomes of records.

        Returns:
            Whether the answer shows that another client uses the same producer id.
        """
        self._batches.outstanding -= 1
        disposition, error, culprits = refusal.disposition, refusal.error, refusal.culprits
        self._setbacks.failed(error, now)
        out_of_order = disposition.action is Action.OUT_OF_ORDER
        self._leadership.refused(batch, now, out, out_of_order=out_of_order)
        if disposition.refresh_metadata:
            out.refresh_metadata()
        if disposition.action is Action.FAIL and not disposition.precedes_append:
            self._question_leader()
        if batch.settled:
            return False  # the answer to a resend of a batch that has its outcome already
        self._gate.close()
        if disposition.action is Action.DUPLICATE:
            self._gate.hear_of_state()
            self._on_duplicate(batch, now, out)
            return False
        batch.learn(Evidence.REFUSED if disposition.precedes_append else Evidence.AMBIGUOUS, now)
        if disposition.action is not Action.FAIL and not disposition.precedes_append:
            batch.go_astray()
        match disposition.action:
            case Action.OUT_OF_ORDER:
                # Only a leader with the producer's state sends this code.
                self._gate.hear_of_state()
                self._on_out_of_order(batch, error, out)
            case Action.SPLIT:
                self._on_too_large(batch, error, out)
            case Action.FAIL if culprits and not batch.in_doubt and batch.records[0].group is None:
                self._on_culprits(batch, culprits, refusal.innocent, error, out)
            case Action.FAIL:
                self._on_permanent(batch, error, out)
            case Action.FENCED if not self._transactional:
                # The epoch was raised, and not by this producer. No one else may raise the epoch of
                # its producer id, so another client must be using the same id.
                if not batch.in_doubt:
                    self._retry_later(batch, now)
                return True
            case Action.NO_STATE | Action.FENCED:
                self._on_state_gone(batch, error, now, out)
            case Action.FATAL:
                self._endings.end(batch, error, out, answered=True)
                out.fatal(error)
            case _:
                self._retry_later(batch, now)
        return False

    def _question_leader(self) -> None:
        """Stop taking a success as proof about earlier batches: an unknown error code has come.

        A code that is not in the table of `classify` may mean that the leader lost the producer's
        state. Then the success of a batch that is in flight now proves nothing about earlier ones.
        """
        self._gate.close()
        self._gate.question()
        for batch in self._batches.unresolved:
            if batch.attempt is not None:
                batch.attempt.disbelieve()

    def _retry_later(self, batch: Batch, now: float) -> None:
        batch.move(BatchEvent.RETRY)
        self._setbacks.back_off(now)
        self._recovery.interrupt()

    def _on_duplicate(self, batch: Batch, now: float, out: Effects) -> None:
        """Note that the leader has a batch in its log, perhaps not replicated yet (KIP-758).

        Error NONE, for this batch or for a later one, will acknowledge the batch.
        """
        if batch.persistence is Persistence.REJECTED:
            # The leader takes the batch for a duplicate although it refused every attempt at it. So
            # the leader must have lost the producer's state and then accepted a later batch.
            reason = (
                f"DUPLICATE_SEQUENCE_NUMBER for the batch of sequence {batch.wire_base}, although "
                "every attempt at it had been refused: the leader lost this producer's state"
            )
            out.data_loss(self._where, reason)
            batch.learn(Evidence.AMBIGUOUS, now)
            self._endings.give_up(
                batch, errors.DuplicateSequenceNumber(f"{self._where}: {reason}"), out
            )
            return
        batch.learn(Evidence.AMBIGUOUS, now)
        batch.find_appended()
        self._retry_later(batch, now)
        if (
            self._recovery.rung is Rung.CLEAR
            and batch is self._batches.head
            and self._batches.in_doubt > 1
        ):
            # The leader holds the producer's state, but knows only the offsets of its newest
            # batches. So the batches in doubt are resent next, beginning with the newest (probing).
            self._recovery.move(RecoveryEvent.HEAD_REFUSED)

    def _on_out_of_order(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        if self._transactional:
            batch.move(BatchEvent.RETRY)
            if batch is self._batches.head or batch in self._recovery.salvaged:
                out.fail_transaction(self._where, error)
            return
        if batch in self._recovery.salvaged:
            lost = errors.OutOfOrderSequenceNumber(
                f"{self._where}: the leader lost this producer's state, and does not know the "
                f"batch of sequence {batch.wire_base}"
            )
            self._endings.give_up(batch, lost, out)
            self._recovery.salvaged_one()
            return
        batch.move(BatchEvent.RETRY)
        # Only OUT_OF_ORDER for the oldest batch begins the recovery ladder, the sequence of steps
        # that resolves batches in doubt. For a later batch that code is expected, because an
        # earlier batch failed or gave up its sequence numbers.
        if batch is self._batches.head and self._recovery.rung is Rung.CLEAR:
            self._recovery.move(RecoveryEvent.HEAD_REFUSED)
            # If this batch is among the newest batches that the leader says it retains, the leader
            # should have recognised it, so it may retain fewer. To find out how many, also probe
            # batches older than the one that DescribeProducers names.
            distance = self._batches.next_ordinal - batch.ordinal
            within = DEFAULT_BATCHES_RETAINED < distance <= self._window.said
            self._recovery.search(wanted=within)

    def _on_permanent(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        if not batch.in_doubt:
            self._endings.drop(batch, error, out)
        elif (
            self._leadership.knows(batch)
            and not batch.absent_here
            and batch not in self._recovery.salvaged
        ):
            # The refusal does not say whether an earlier attempt was appended. But this leader
            # would recognise another copy, so the doubt can be resolved as after OUT_OF_ORDER.
            self._on_out_of_order(batch, error, out)
            self._recovery.refused_for_good(error)
        else:
            if batch.absent_here:
                self._ledger.skip(batch.base)
            self._endings.give_up(batch, error, out)

    def _on_too_large(self, batch: Batch, error: errors.KafkaError, out: Effects) -> None:
        if batch.in_doubt:
            self._on_permanent(batch, error, out)
            return
        if batch.count == 1:
            self._endings.drop(batch, error, out)
            return
        # The batch is split when it is its turn to be sent (`UnresolvedBatches.replace`): the
        # topic's limit may be known by then.
        batch.refuse_size()

    def _on_culprits(
        self,
        batch: Batch,
        culprits: Mapping[int, errors.KafkaError],
        innocent: Batch | None,
        error: errors.KafkaError,
        out: Effects,
    ) -> None:
        """Fail the records that the leader named as the reason for refusing a batch (KIP-467).

        The batch's remaining records were not written either; they are sent in a new batch
        (`innocent`), which takes the batch's place. A batch that a caller built does not come here:
        it fails as a whole, because its one outcome must be true of each record.
        """
        if innocent is None:
            self._endings.fail(batch, error, out)
        else:
            self._batches.replace(batch, [innocent])
            for place, reason in culprits.items():
                guilty = [batch.records[place]]
                self._endings.settle_records(
                    guilty, DeliveryStatus.NOT_WRITTEN, reason, out, attempts=batch.attempts
                )
        # The sequence numbers of the failed records are used by no record any more. A leader would
        # refuse the gap, so all later batches are renumbered.
        self._endings.give_up_numbers(out, "single records were refused", error)

    def _on_state_gone(
        self, batch: Batch, error: errors.KafkaError, now: float, out: Effects
    ) -> None:
        if self._transactional:
            self._retry_later(batch, now)
            out.fail_transaction(self._where, error)
            self._endings.give_up_numbers(out, _STATE_GONE, error)
            return
        if batch.in_doubt:
            self._endings.give_up(batch, error, out)
            return
        self._retry_later(batch, now)
        self._endings.give_up_numbers(out, _STATE_GONE, error)

    def on_lost(self, batch: Batch, *, written: bool, now: float) -> None:
        """Handle the end of an attempt that got no answer.

        The connection was lost or timed out, or the answer left the partition out.

        Args:
            batch: the batch of the attempt.
            written: whether the broker may have received it.
            now: seconds.
        """
        self._batches.outstanding -= 1
        self._gate.close()
        self._evidence.ended(batch)
        if batch.settled:
            return
        batch.learn(Evidence.AMBIGUOUS if written else Evidence.UNSENT, now)
        self._setbacks.failed(_UNANSWERED if written else _UNWRITTEN, now)
        if written:
            batch.go_astray()
            self._retry_later(batch, now)
        else:
            batch.move(BatchEvent.RETRY)
            self._recovery.interrupt()

    def on_unanswered(self, batch: Batch, now: float, out: Effects) -> None:
        """Settle a batch under acks=0 as UNKNOWN, without an error: no answer will come."""
        self._batches.outstanding -= 1
        if batch.settled:
            return
        batch.learn(Evidence.AMBIGUOUS, now)
        self._endings.leave_unknown(batch, out)
