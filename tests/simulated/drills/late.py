"""The drill of deadlines: which records expire when, with which outcome, and in which words.

In a run few records expire, and most for the same reason. Here records, blocks and batches wait
with deadlines that come close to each other, leaders answer or not, and a search of all times finds
when the partition has something to do next. What the errors must say is in `late_words`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from aioidem import errors
from aioidem._broker.virtual import idempotent_batch
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Attempt, Batch, BatchEvent, Evidence
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.overdue import LeaderStatus
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import Columns, RecordBlock
from aioidem._engine.recovery import RecoveryEvent, Rung
from aioidem._engine.settlement import Settlement
from aioidem.structs import DeliveryStatus

from .late_words import Failures, due_cause, due_text, obstacle_of, progress_of
from .made_batches import Nobody, made_batch
from .quiet_effects import QuietEffects

__all__ = ["drill_late"]

_STEPS: Final = 25
_TIMEOUT: Final = 20.0
_GRACE: Final = 5.0
_LINGER: Final = 2.0
"""Seconds: `delivery_timeout`, how much longer a batch in doubt waits for an answer whose leader is
alive, and `linger`.
"""
_DATA: Final = idempotent_batch(0, 1, producer_id=7, epoch=1)
_NAME: Final = "broker 1 (b1:9092)"
_REFUSED: Final = errors.CoordinatorLoadInProgressError("loading")
_REASONS: Final[tuple[errors.KafkaError | str, ...]] = (
    "closed",
    errors.NotEnoughReplicasError("no"),
    errors.KafkaError("odd"),
)
_DOWN: Final[tuple[Exception | None, ...]] = (
    None,
    None,
    OSError("refused"),
    errors.AuthenticationFailedError("no"),
)
_CAUSES: Final[tuple[object, ...]] = (*_DOWN, *_REASONS, _REFUSED)


def drill_late(dice: Random) -> Iterator[str]:
    """Yield which record or batch expires too early, too late, or with other words."""
    for wrong in _LateDrill(dice).run():
        yield f"late: {wrong}"
        return


@dataclass(eq=False)
class _Row:
    """A batch, and what has become of it."""

    batch: Batch
    deadline: float
    sent: int = 0
    """How often it was sent."""
    sent_at: float = 0.0
    flies: bool = False
    since: float | None = None
    """When an attempt first ended that may have been appended; None if each was not."""
    graced: bool = False
    """Whether it has the grace: the leader answered something after it came into doubt."""


class _LateDrill:
    """The deadlines of a partition, and everything in it that has one."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._idempotent = dice.random() < 0.7
        self._state = PartitionState(
            *("t", 0, None),
            idempotent=self._idempotent,
            retry=Backoff(1.0, 64.0, dice.random),
            pause=10.0,
        )
        self._effects = QuietEffects()
        self._queued: list[PendingRecord] = []
        self._rows: list[_Row] = []
        self._failures = Failures()
        self._retry_at = self._pass_at = 0.0

    def run(self) -> Iterator[str]:
        """Let records and batches wait, fail and expire, and yield what is wrong."""
        now = 100.0
        for _ in range(_STEPS):
            now += self._dice.choice((0.0, 0.5, 1.0, 4.5, 5.0))
            for _ in range(2):
                self._act(now)
            yield from self._differences(now)
            if self._dice.random() < 0.5:
                yield from self._expire(now)

    # -- what happens

    def _act(self, now: float) -> None:
        match self._dice.randrange(9):
            case 0 | 1:
                self._queue(now)
            case 2:
                self._seal(now)
            case 3 | 4 | 5 if self._rows:
                self._send_or_answer(self._dice.choice(self._rows), now)
            case 6:
                self._probe(now)
            case 7:
                self._fail(now)
            case _ if self._dice.random() < 0.5:
                self._state.ledger.identity = self._dice.choice((None, ProducerIdentity(7, 1)))
            case _:
                pass

    def _queue(self, now: float) -> None:
        record = PendingRecord(None, b"", (), 0, None, 10)
        if self._dice.random() < 0.4:
            count = self._dice.randrange(1, 4)
            record = RecordBlock(Columns((b"v",) * count, None, (), 0), Nobody(), None)
        record.deadline = now + _TIMEOUT
        self._state.queue.append(record, now)
        self._queued.append(record)

    def _seal(self, now: float) -> None:
        batch = made_batch(self._state.batches.next_ordinal, self._dice.randrange(1, 3))
        batch.data = _DATA
        batch.deadline = now + self._dice.choice((1.0, 5.0, 10.0, 20.0))
        batch.identity = batch.identity if self._idempotent else None
        self._state.enlist(batch)
        self._rows.append(_Row(batch, batch.deadline))

    def _send_or_answer(self, row: _Row, now: float) -> None:
        if not row.flies:
            row.batch.send(Attempt(1, 0, 0, now, knows_us=True))
            row.flies, row.sent, row.sent_at = True, row.sent + 1, now
            return
        evidence = self._dice.choice((Evidence.AMBIGUOUS, Evidence.AMBIGUOUS, Evidence.REFUSED))
        row.batch.learn(evidence, now)
        row.batch.move(BatchEvent.RETRY)
        row.flies = False
        if evidence is Evidence.AMBIGUOUS and row.since is None:
            row.since = now

    def _probe(self, now: float) -> None:
        recovery = self._state.recovery
        if recovery.rung is Rung.PROBING and self._dice.random() < 0.3:
            recovery.move(RecoveryEvent.RESTART)
            self._pass_at = 0.0
            return
        if recovery.rung is not Rung.PROBING:
            recovery.move(RecoveryEvent.HEAD_REFUSED)
            recovery.move(RecoveryEvent.DOUBT_REMAINS)
        pause = self._dice.choice((0.0, 0.5, 3.0))
        recovery.end_pass(now, pause)
        self._pass_at = now + pause

    def _fail(self, now: float) -> None:
        setbacks, failures, dice = self._state.setbacks, self._failures, self._dice
        match dice.randrange(8):
            case 0 | 1 | 2:
                reason = dice.choice(_REASONS)
                setbacks.failed(reason, now)
                failures.reasons.append((now, reason))
            case 3:
                setbacks.leaderless(now)
                failures.leaderless.append(now)
            case 4:
                setbacks.led()
                failures.led()
            case 5 if dice.random() < 0.3:
                setbacks.end()
                failures.forget()
                self._retry_at = 0.0
            case _:
                self._retry_at = now + dice.choice((0.5, 3.0))
                setbacks.wait_until(self._retry_at)

    def _leader(self, now: float) -> LeaderStatus:
        """Return a leader that is reached or not, and slow, or waits for a coordinator."""
        dice = self._dice
        leads = dice.random() < 0.8
        down_since = dice.choice((None, None, now - 3.25))
        not_added = dice.choice((None, None, "not added: loading"))
        return LeaderStatus(
            _NAME if leads else dice.choice((_NAME, None)),
            leads,
            down_since,
            0 if down_since is None else dice.choice((1, 2)),
            dice.choice(_DOWN),
            dice.choice((0.0, 0.0, 2.5)),
            not_added,
            None if not_added is None else dice.choice((None, _REFUSED)),
        )

    # -- what must follow

    def _differences(self, now: float) -> Iterator[str]:
        """Yield what is told of the deadlines against all of them."""
        deadlines, leader = self._state.deadlines, self._leader(now)
        all_of = [record.deadline for record in self._queued] + [row.deadline for row in self._rows]
        past = any(at <= now for at in all_of)
        if deadlines.past(now) is not past:
            yield f"a deadline of {all_of} is past at {now}: told {not past}, expected {past}"
        # The head of the queue expires first; what is past its deadline waits for the grace to end.
        times = [record.deadline for record in self._queued[:1]]
        times += [row.deadline for row in self._rows]
        times = [at if at > now else at + _GRACE for at in times]
        others = [record.queued_at + _LINGER for record in self._queued[:1]]
        others += [self._retry_at, self._pass_at]
        due = min(times + [at for at in others if at > now], default=math.inf)
        told = deadlines.next_wake(now, _GRACE, _LINGER)
        if told != due:
            what = f"when something is due after {now}, of {times} and {others}"
            yield f"{what}: told {told}, expected {due}"
        words = obstacle_of(self._failures, leader, now, identified=self._identified)
        if deadlines.obstacle(leader, now) != words:
            obstacle = deadlines.obstacle(leader, now)
            yield f"what records wait for: told {obstacle!r}, expected {words!r}"

    @property
    def _identified(self) -> bool:
        """Whether the producer has a producer id, or needs none."""
        return not self._idempotent or self._state.ledger.identity is not None

    def _expire(self, now: float) -> Iterator[str]:
        """Let expire what is past its deadline, and yield which outcome is another one."""
        leader, dice = self._leader(now), self._dice
        doubts = [row.since for row in self._rows if row.since is not None]
        answered = dice.choice((None, now, now - 1.0, *doubts, *(at + 0.5 for at in doubts)))
        due = self._due(now, answered, leader)
        self._effects.settlements.clear()
        self._state.deadlines.expire(now, _GRACE, _TIMEOUT, answered, leader, self._effects)
        told = sorted(map(_outcome_of, self._effects.settlements), key=str)
        if told != sorted(due, key=str):
            what = f"outcomes at {now}, where the leader last answered at {answered}"
            yield f"{what}: told {told}, expected {sorted(due, key=str)}"
        left = [row.batch for row in self._rows]
        if self._state.batches.unresolved != left:
            yield f"batches that are left: told {self._state.batches.unresolved}, expected {left}"
        if list(self._state.queue.records) != self._queued:
            told_queued = list(self._state.queue.records)
            yield f"queued records: told {told_queued}, expected {self._queued}"

    def _due(
        self, now: float, answered: float | None, leader: LeaderStatus
    ) -> list[tuple[object, ...]]:
        """Take out what must expire now, and return the outcomes.

        `answered` is when the leader last answered anything, in seconds.
        """
        rows = [row for row in self._rows if row.deadline <= now]
        absent = [row for row in rows if row.since is None and not row.flies]
        unknown: list[_Row] = []
        for row in rows:
            if row.since is not None and answered is not None and answered > row.since:
                row.graced = True
            until = row.deadline + (_GRACE if row.graced else 0.0)
            if row not in absent and until <= now:
                unknown.append(row)
        expired = [record for record in self._queued if record.deadline <= now]
        behind = len(self._rows)
        self._queued = [record for record in self._queued if record not in expired]
        self._rows = [row for row in self._rows if row not in [*absent, *unknown]]

        queued = sum(record.count for record in expired)
        not_written = queued + sum(row.batch.count for row in absent)
        words = obstacle_of(self._failures, leader, now, identified=self._identified)
        cause = due_cause(self._failures, leader)
        # A copy is told, without a traceback that would keep a connection in memory.
        told_as = repr(cause), isinstance(cause, errors.KafkaError)

        def outcome(
            status: DeliveryStatus, count: int, sent: int, total: int, progress: str
        ) -> tuple[object, ...]:
            text = due_text(status, total, f"{words}; {progress}", self._failures, leader)
            return status.value, count, sent, text, told_as

        due = []
        if expired:
            waits = "a batch" if behind == 1 else f"{behind} batches"
            why = f": waiting behind {waits} without an acknowledgement" if behind else ""
            progress = f"never sent{why}"
            due.append(outcome(DeliveryStatus.NOT_WRITTEN, queued, 0, not_written, progress))
        total = sum(row.batch.count for row in unknown)
        for row in absent + unknown:
            status = DeliveryStatus.UNKNOWN if row in unknown else DeliveryStatus.NOT_WRITTEN
            progress = progress_of(row.sent, now - row.sent_at if row.flies else None)
            together = total if row in unknown else not_written
            due.append(outcome(status, row.batch.count, row.sent, together, progress))
        return due


def _outcome_of(settlement: Settlement) -> tuple[object, ...]:
    """Return the outcome that records were told, in the form of `_due`."""
    outcome = settlement.outcome
    text, _, _ = str(outcome.error).partition(". The records may be written.")
    cause = None if outcome.error is None else outcome.error.__cause__
    told_as = repr(cause), not any(cause is each for each in _CAUSES)
    return outcome.status.value, len(settlement.records), outcome.attempts, text, told_as
