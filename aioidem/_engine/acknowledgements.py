"""Acknowledgements: what error NONE for one batch of a partition proves.

It acknowledges the batch, with its offset. It also proves that each earlier batch in doubt is
stored, if the leader is known to hold the producer's state: such a leader appends only in sequence.
If the leader may have lost that state, or was seen to (it appended a batch after it had refused an
earlier one, or at an offset that leaves no room for those before it), the success proves nothing
about earlier batches, and each of them is resent by itself (salvaged, see `recovery`).
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem._engine.batch import Attempt, Batch, BatchState
from aioidem._engine.effects import Effects
from aioidem._engine.endings import Endings
from aioidem._engine.idempotence import SequenceLedger
from aioidem._engine.leadership import Leadership
from aioidem._engine.log_position import LogPosition
from aioidem._engine.recovery import Recovery, RecoveryEvent, Rung
from aioidem._engine.setbacks import Setbacks
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.unresolved import UnresolvedBatches
from aioidem._protocol.produce import PartitionAnswer

__all__ = ["Acknowledgements"]


class Acknowledgements:
    """Handles error NONE for the batches of one partition.

    Args:
        where: the partition's name in messages.
        idempotent: whether its batches have sequence numbers.
        batches: its batches without an outcome.
        ledger: the lowest number that was skipped.
        log: how far its log is known to reach.
        suspicion: whether the leader may have forgotten the producer.
        leadership: what the leader has shown.
        recovery: how doubt is resolved at present.
        setbacks: end with a success.
        endings: ends the batches.
    """

    __slots__ = (
        "_batches",
        "_endings",
        "_gate",
        "_idempotent",
        "_leadership",
        "_ledger",
        "_log",
        "_recovery",
        "_setbacks",
        "_suspicion",
        "_where",
    )

    def __init__(
        self,
        where: str,
        *,
        idempotent: bool,
        batches: UnresolvedBatches,
        ledger: SequenceLedger,
        log: LogPosition,
        suspicion: Suspicion,
        leadership: Leadership,
        recovery: Recovery,
        setbacks: Setbacks,
        endings: Endings,
    ) -> None:
        self._where = where
        self._idempotent = idempotent
        self._batches = batches
        self._ledger = ledger
        self._log = log
        self._suspicion = suspicion
        self._leadership = leadership
        self._gate = leadership.gate
        self._recovery = recovery
        self._setbacks = setbacks
        self._endings = endings

    def on_ack(
        self, batch: Batch, answer: PartitionAnswer, now: float, *, current: bool, out: Effects
    ) -> None:
        """Handle error NONE: acknowledge the batch, and each earlier one that its success proves.

        Args:
            batch: the batch that was answered.
            answer: the partition's part of the answer.
            now: seconds.
            current: whether the leader epoch that the batch was sent under is still the newest
            known.
            out: receives what concerns the whole producer, and the outcomes of records.
        """
        self._batches.outstanding -= 1
        attempt = batch.attempt
        if self._log.contradicts(batch, answer.base_offset):
            out.data_loss(
                self._where,
                f"a batch was appended at offset {answer.base_offset}, although offset "
                f"{self._log.offset} was acknowledged before: the log was truncated or replaced",
            )
            self._log.accept_loss(batch, answer.base_offset)
            if attempt is not None:
                # The log may have lost earlier batches in doubt as well, so the success of this
                # attempt does not prove that they are stored.
                attempt.disbelieve()
        if current:
            # A batch that has ended already, for instance because a later success proved it, may be
            # the first one in whose answer the leader names another window.
            self._leadership.learn_window(answer.retained, self._where, out)
        if batch.settled:
            self._leadership.recognised(batch, now, out)
            self._log.reach(batch, answer.base_offset)
            return  # the batch has ended UNKNOWN; its offset still serves to check later answers
        self._suspicion.acked(batch.max_timestamp_ms, answer.log_append_time_ms)
        unresolved = self._batches.unresolved
        below = [] if unresolved[0] is batch else unresolved[: unresolved.index(batch)]
        if below:
            self._check_room(batch, below, answer.base_offset, out)
        self._endings.settle_ack(batch, answer.base_offset, out, answer)
        if self._gate.opened_for is None and self._gate.applies and attempt is not None:
            out.waited_at_gate(attempt.sent_at, now)
        if self._idempotent and (below or self._ledger.skipped is not None):
            self._imply(batch, below, attempt, out)
        self._setbacks.end()
        self._leadership.hear_none(batch, attempt, now)
        self._leadership.recognised(batch, now, out)
        if self._recovery.rung is not Rung.CLEAR:
            if self._recovery.rung is Rung.SALVAGE:
                self._recovery.salvaged_one()
            else:
                self._recovery.move(RecoveryEvent.PROVED)

    def _check_room(
        self, acked: Batch, below: Sequence[Batch], base_offset: int, out: Effects
    ) -> None:
        """Disbelieve a success whose offset leaves no room for the batches that it would prove.

        Then the leader forgot the producer, although no timestamp is old enough for that, and has
        accepted a batch without those before it.
        """
        attempt = acked.attempt
        if attempt is None or not attempt.knows_us:
            return
        doubtful = [batch for batch in below if batch.in_doubt]
        if self._log.leaves_room(acked, base_offset, doubtful):
            return
        attempt.disbelieve()
        if not self._log.is_explained(acked):
            self._log.note_loss(acked)
            out.data_loss(
                self._where,
                f"a batch is stored at offset {base_offset}, where the log has no room for each "
                "earlier batch in doubt: the leader lost this producer's state in between",
            )

    def _imply(
        self, acked: Batch, below: Sequence[Batch], attempt: Attempt | None, out: Effects
    ) -> None:
        """Acknowledge the batches in doubt before `acked`, if its success proves them stored.

        If the success proves nothing about them, they are salvaged: each is resent by itself.
        """
        doubtful = [b for b in below if b.in_doubt]
        if self.was_accepted_over_a_hole(acked, below, out):
            self._recovery.salvage(doubtful)
        elif not doubtful or self._recovery.rung is Rung.SALVAGE:
            return
        elif attempt is not None and attempt.knows_us and not self._suspicion.suspect:
            for batch in doubtful:
                self._endings.settle_ack(batch, -1, out, None)
        else:
            # The leader may have forgotten the producer before it accepted this batch, so earlier
            # batches may be missing in the log. The leader holds state again now, but the success
            # of a later batch would not prove that they are stored either.
            self._recovery.salvage(doubtful)

    def was_accepted_over_a_hole(self, acked: Batch, below: Sequence[Batch], out: Effects) -> bool:
        """Return whether the leader accepted a batch although it had refused an earlier one.

        If so, the leader had lost the producer's state in between. The refused batches could now be
        appended only after the accepted one, so this method ends them as NOT_WRITTEN.
        """
        rejected = [b for b in below if b.state is not BatchState.IN_FLIGHT and not b.in_doubt]
        hole = rejected or any(b.absent_here and b.state is not BatchState.IN_FLIGHT for b in below)
        if not hole and (self._ledger.skipped is None or self._ledger.skipped >= acked.base):
            return False
        if not self._log.is_explained(rejected[-1] if rejected else acked):
            out.data_loss(
                self._where,
                f"the leader appended sequence {acked.wire_base}, although it had refused an "
                "earlier batch: it lost this producer's state in between",
            )
        self._endings.fail_overtaken(rejected, "was refused, and a later one was appended", out)
        self._ledger.skipped = None  # so that the loss is reported once
        self._endings.give_up_numbers(
            out, "a batch was appended after an earlier one had been refused"
        )
        return True
