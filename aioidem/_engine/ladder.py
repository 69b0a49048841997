"""Ladder: takes the steps of the recovery ladder of one partition.

`Recovery` has the rungs and says which batch is probed or salvaged next. The ladder moves from rung
to rung once no batch is outstanding, has the leader asked (DescribeProducers), and ends the batches
in doubt when the leader turns out not to have them.
"""

from __future__ import annotations

from aioidem import errors
from aioidem._engine.effects import Effects
from aioidem._engine.endings import Endings
from aioidem._engine.idempotence import SequenceLedger
from aioidem._engine.recovery import Recovery, RecoveryEvent, Rung
from aioidem._engine.setbacks import Setbacks
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.unresolved import UnresolvedBatches

__all__ = ["Ladder"]


class Ladder:
    """The steps by which one partition resolves its batches in doubt.

    Args:
        where: the partition's name in messages.
        pause: the least number of seconds between the beginnings of two passes of probes.
        resend: whether the option `in_doubt="resend"` permits second copies of batches in doubt.
        batches: its batches without an outcome.
        ledger: the identity that it writes under, and whether its numbers were given up.
        suspicion: whether the leader may have forgotten the producer.
        recovery: the rung.
        setbacks: has it wait before what is lost is sent anew.
        endings: ends the batches.
    """

    __slots__ = (
        "_batches",
        "_endings",
        "_ledger",
        "_pause",
        "_recovery",
        "_resend",
        "_setbacks",
        "_suspicion",
        "_where",
    )

    def __init__(
        self,
        where: str,
        *,
        pause: float,
        resend: bool,
        batches: UnresolvedBatches,
        ledger: SequenceLedger,
        suspicion: Suspicion,
        recovery: Recovery,
        setbacks: Setbacks,
        endings: Endings,
    ) -> None:
        self._where = where
        self._pause = pause
        self._resend = resend
        self._batches = batches
        self._ledger = ledger
        self._suspicion = suspicion
        self._recovery = recovery
        self._setbacks = setbacks
        self._endings = endings

    def advance(
        self, now: float, out: Effects, *, throttled: float = 0.0, may_ask: bool = False
    ) -> None:
        """Take the next step of the recovery ladder, once no batch is outstanding.

        The ladder (`recovery`) is the sequence of steps that resolves batches in doubt.

        Args:
            now: seconds.
            out: receives what concerns the whole producer, and the outcomes of records.
            throttled: the last throttle time of the leader's connection, in seconds.
            may_ask: whether DescribeProducers is worth sending to the leader.
        """
        if self._ledger.disowned is not None:
            # Again, because more batches may be in doubt by now.
            self._endings.disown(self._ledger.disowned, out)
        if self._batches.outstanding or self._recovery.rung is Rung.CLEAR:
            return
        doubt = any(batch.keeps_numbers for batch in self._batches.unresolved)
        match self._recovery.rung:
            case Rung.REFUSED if not doubt:
                self._lose("the leader refuses the sequence after those it acknowledged", now, out)
            case Rung.REFUSED if self._suspicion.suspect and self._resend:
                self._resend_renumbered(now, out)
            case Rung.REFUSED | Rung.ASKING | Rung.PROBING if self._suspicion.suspect:
                self._suspicion.refused()
                self._recovery.move(RecoveryEvent.RESTART)
            case Rung.REFUSED:
                self._recovery.move(RecoveryEvent.ASK if may_ask else RecoveryEvent.DOUBT_REMAINS)
            case Rung.ASKING | Rung.PROBING if not doubt:
                self._recovery.move(RecoveryEvent.RESOLVED)
            case Rung.PROBING:
                self._end_pass_if_over(now, throttled, out)
            case Rung.SALVAGE if self._recovery.next_salvage(oldest=self._resend) is None:
                self._recovery.move(RecoveryEvent.RESOLVED)

    def _end_pass_if_over(self, now: float, throttled: float, out: Effects) -> None:
        if now < self._recovery.pass_not_before:
            return
        if self._recovery.next_probe(self._batches.unresolved, now) is not None:
            return
        if any(batch.appended for batch in self._batches.unresolved):
            # DUPLICATE has shown that a batch is in the log, though perhaps not replicated yet. So
            # nothing is lost, and the batches are resent again, oldest first. They wait before: a
            # leader that has lost that batch since would refuse all of them in each round trip.
            self._setbacks.back_off(now)
            self._recovery.move(RecoveryEvent.RESTART)
        elif self._recovery.end_pass(now, max(self._pause, throttled)) or self._refused_for_good:
            self._lose("the batches in doubt are not in the leader's log", now, out)

    @property
    def _refused_for_good(self) -> bool:
        """Whether another pass of probes (resends of batches in doubt) would show nothing new.

        That is so if the leader refused a probe for its content, and no copy of a batch in doubt
        can be appended later.
        """
        astray = any(batch.astray for batch in self._batches.unresolved if batch.in_doubt)
        return self._recovery.refusal is not None and not astray

    def _lose(self, reason: str, now: float, out: Effects) -> None:
        refusal = self._recovery.refusal
        if refusal is None and not self._ledger.bump_wanted:
            # If sequence numbers were given up already (an epoch bump is pending), OUT_OF_ORDER is
            # the expected answer and no data loss. The same is true under a producer id that
            # another client uses: that client's batches may have caused the answer.
            out.data_loss(self._where, reason)
        self._setbacks.back_off(now)
        for batch in [b for b in self._batches.unresolved if b.in_doubt]:
            if self._resend:
                batch.forsake()
            else:
                lost = errors.OutOfOrderSequenceNumber(f"{self._where}: {reason}")
                self._endings.give_up(batch, refusal or lost, out)
        self._endings.give_up_numbers(out, reason)
        self._recovery.move(RecoveryEvent.RESOLVED)

    def _resend_renumbered(self, now: float, out: Effects) -> None:
        """Have the batches in doubt resent under another epoch (`in_doubt="resend"`).

        The leader has refused the oldest one by OUT_OF_ORDER, and would refuse it again. Probes
        would prove nothing, because the leader may forget the producer between them (KIP-854).
        """
        self._setbacks.back_off(now)
        for batch in [b for b in self._batches.unresolved if b.in_doubt]:
            batch.forsake()
        self._endings.give_up_numbers(
            out, "the leader refuses a batch in doubt, and may forget its state"
        )
        self._recovery.move(RecoveryEvent.RESOLVED)

    @property
    def wants_producers(self) -> bool:
        """Whether the next step of the recovery ladder is to send DescribeProducers."""
        return self._recovery.rung is Rung.ASKING and not self._recovery.asked

    def on_producers(self, last_sequence: tuple[int, int] | None) -> None:
        """Begin to probe with the batch that DescribeProducers names as the newest in the log.

        To probe is to resend batches in doubt, the newest first. If one succeeds, the earlier ones
        are stored.

        Args:
            last_sequence: the producer epoch and last sequence that the leader has for the producer
            id; None if not known.
        """
        if self._recovery.rung is not Rung.ASKING:
            return
        hinted = None
        identity = self._ledger.identity
        if last_sequence is not None and identity is not None:
            epoch, last = last_sequence
            if epoch == identity.epoch:
                hinted = next(
                    (b for b in self._batches.unresolved if b.in_doubt and b.wire_last == last),
                    None,
                )
        self._recovery.hint(hinted)
