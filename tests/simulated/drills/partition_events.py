"""What happens to one partition that is driven by itself: records, answers, and the leader's state.

The parts of the partition are set as they are after answers that a run rarely has.
"""

from __future__ import annotations

from random import Random
from typing import Final

from aioidem._broker.virtual import idempotent_batch
from aioidem._engine.batch import Batch, BatchEvent, BatchState, Evidence
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.recovery import RecoveryEvent, Rung
from aioidem.errors import KafkaError

from .made_batches import made_batch

__all__ = ["OLD", "YOUNG", "PartitionEvents"]

OLD: Final = 0
YOUNG: Final = 60_000
"""Timestamps of batches in milliseconds: a leader that has only an old one may soon forget it."""
_EVIDENCE: Final = (Evidence.AMBIGUOUS, Evidence.AMBIGUOUS, Evidence.REFUSED, Evidence.UNSENT)


class PartitionEvents:
    """A partition, and what happens to it."""

    def __init__(self, dice: Random, state: PartitionState) -> None:
        self._dice = dice
        self._state = state
        self._stamps: tuple[int, ...] = dice.choice(((YOUNG,), (OLD, YOUNG)))
        self._climbs = dice.choice((0.0, 0.5, 1.0))
        """How often a step of the recovery is taken, if one is drawn."""
        self.most = dice.choice((1, 3, 8))
        """How many batches are made at most before one of them ends."""
        self.queued: list[PendingRecord] = []
        self.acked: int | None = None
        """The timestamp of the last acknowledged batch under the present identity, in ms."""
        self.heard_at = 0.0
        """When error NONE last came for a batch, in seconds."""
        self.carried = False
        """Whether the leader was suspected when it last changed, and nothing was acknowledged."""

    def batch(self) -> Batch:
        """Return a new batch, which is not among those of the partition yet."""
        state, count = self._state, self._dice.choice((1, 1, 2, 3))
        base, ordinal = state.ledger.take(count), state.batches.next_ordinal
        batch = made_batch(ordinal, count, self._dice.choice(self._stamps), base=base)
        batch.identity = state.ledger.identity
        batch.data = self._dice.choice((b"", idempotent_batch(0, count, epoch=9)))
        for record in batch.records:
            record.queued_at = self._dice.choice((1.0, 2.0))
        return batch

    def answer(self, now: float) -> None:
        """End an attempt that is under way, and perhaps its batch."""
        state, dice = self._state, self._dice
        flying = [batch for batch in state.batches.unresolved if not batch.due]
        if not flying:
            return
        batch = dice.choice(flying)
        event = dice.choice((BatchEvent.ACK, BatchEvent.GIVE_UP, *[BatchEvent.RETRY] * 4))
        if event is not BatchEvent.GIVE_UP or dice.random() < 0.5:
            state.batches.outstanding -= 1
        if event is BatchEvent.RETRY:
            batch.learn(dice.choice(_EVIDENCE), now)
        else:
            state.batches.unresolved.remove(batch)
        if event is BatchEvent.ACK:
            state.log.reach(batch, dice.choice((-1, batch.base)))
        batch.move(event)

    def acknowledge(self, stamp: int) -> None:
        """Have a batch with this timestamp acknowledged: the leader remembers it for some time."""
        self.acked, self.carried = stamp, False
        self._state.suspicion.acked(stamp, -1)

    def happen(self, now: float) -> None:
        """Let something happen that is no step of the partition itself, and no answer."""
        state, dice = self._state, self._dice
        flying = sum(each.state is BatchState.IN_FLIGHT for each in state.batches.unresolved)
        if state.batches.outstanding > flying:
            state.batches.outstanding -= 1  # the leader owed an answer to a batch that has ended
        match dice.randrange(10):
            case 0:
                self._queue(now)
            case 1 | 2 | 3:
                self.heard_at = now
                state.gate.hear_none((state.ledger.identity, state.leadership.route), now)
                state.window.learn(dice.choice((None, 1, 3, 20)))
            case 4 if dice.random() < 0.5:
                state.setbacks.wait_until(now + 0.5)
                state.read_back.begin(dice.choice((-1, -1, 0, 3)))
            case 4:
                state.setbacks.wait_until(0.0)
                state.read_back.end()
            case 5 | 6 | 7 if dice.random() < self._climbs:
                self._climb(now)
            case 8:
                self._remember()
            case 9 if dice.random() < 0.5:
                self._give_up()
            case _:
                pass

    def _queue(self, now: float) -> None:
        queue = self._state.queue
        if self.queued and self._dice.random() < 0.4:
            queue.empty()
            self.queued.clear()
            return
        self.queued.append(PendingRecord(None, b"", (), 0, None, self._dice.choice((1, 200))))
        queue.append(self.queued[-1], now)
        if self._dice.random() < 0.3:
            queue.hold_back()

    def _climb(self, now: float) -> None:
        """Take a step of the recovery."""
        recovery, dice = self._state.recovery, self._dice
        doubts = self._state.batches.doubts()
        match recovery.rung:
            case Rung.CLEAR if doubts and dice.random() < 0.6:
                recovery.salvage(doubts)
            case Rung.CLEAR:
                recovery.move(RecoveryEvent.HEAD_REFUSED)
            case Rung.REFUSED | Rung.PROBING if doubts and dice.random() < 0.3:
                recovery.salvage(doubts)
            case Rung.REFUSED:
                recovery.move(dice.choice((RecoveryEvent.DOUBT_REMAINS, RecoveryEvent.ASK)))
            case Rung.ASKING:
                recovery.hint(dice.choice([*doubts, None]))
            case Rung.PROBING if dice.random() < 0.7:
                recovery.end_pass(now, dice.choice((0.0, 1.0)))
            case _ if dice.random() < 0.5:
                recovery.move(RecoveryEvent.RESOLVED)
            case _:
                pass

    def _remember(self) -> None:
        """Change what is known of the leader's memory."""
        state, dice = self._state, self._dice
        match dice.randrange(4):
            case 0:
                self.acknowledge(dice.choice(self._stamps))
            case 1 | 2:
                state.gate.question()
            case _:
                state.gate.close()

    def _give_up(self) -> None:
        """Give up numbers, perhaps those of batches in doubt, or an identity that is shared."""
        state, dice = self._state, self._dice
        if dice.random() < 0.2:
            state.ledger.disown(KafkaError("shared"))
            return
        state.ledger.bump_wanted = True
        forsaken = dice.choice((0.0, 0.5, 1.0))
        for batch in state.batches.doubts():
            if dice.random() < forsaken:
                batch.forsake()
