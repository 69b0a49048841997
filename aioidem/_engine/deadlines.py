"""Deadlines: when the records and batches of one partition have waited for too long.

At its deadline a record in the queue, and a batch that was not appended, ends NOT_WRITTEN. A batch
in doubt ends UNKNOWN, then or after the grace time in which its doubt may still be resolved.
"""

from __future__ import annotations

import math

from aioidem import errors
from aioidem._engine.batch import Batch
from aioidem._engine.effects import Effects
from aioidem._engine.endings import Endings
from aioidem._engine.idempotence import SequenceLedger
from aioidem._engine.overdue import (
    LeaderStatus,
    batch_progress,
    obstacle,
    overdue,
    queue_progress,
)
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.recovery import Recovery, Rung
from aioidem._engine.setbacks import Setbacks
from aioidem._engine.unresolved import UnresolvedBatches
from aioidem.structs import DeliveryStatus

__all__ = ["Deadlines"]


class Deadlines:
    """The deadlines of one partition's records and batches, and when it acts next.

    Args:
        where: the partition's name in messages.
        idempotent: whether its batches have sequence numbers.
        queue: its records that are in no batch yet.
        batches: its batches without an outcome.
        ledger: the identity that it writes under.
        recovery: when the next pass of probes may begin.
        setbacks: what has failed, and until when it waits.
        endings: ends the records and batches.
    """

    __slots__ = (
        "_batches",
        "_endings",
        "_idempotent",
        "_ledger",
        "_queue",
        "_recovery",
        "_setbacks",
        "_where",
    )

    def __init__(
        self,
        where: str,
        *,
        idempotent: bool,
        queue: PartitionQueue,
        batches: UnresolvedBatches,
        ledger: SequenceLedger,
        recovery: Recovery,
        setbacks: Setbacks,
        endings: Endings,
    ) -> None:
        self._where = where
        self._idempotent = idempotent
        self._queue = queue
        self._batches = batches
        self._ledger = ledger
        self._recovery = recovery
        self._setbacks = setbacks
        self._endings = endings

    def past(self, now: float) -> bool:
        """Return whether the deadline of a queued record or of a batch has passed."""
        records = self._queue.records
        if records and records[0].deadline <= now:
            return True
        for batch in self._batches.unresolved:  # noqa: SIM110 - each poll asks, and `any` takes 3 times as long
            if batch.deadline <= now:
                return True
        return False

    def expire(
        self,
        now: float,
        grace: float,
        timeout: float,
        answered_at: float | None,
        leader: LeaderStatus,
        out: Effects,
    ) -> None:
        """Settle records and batches that are past their deadline.

        A batch in doubt has `grace` more seconds if, at its deadline, its leader has answered a
        request since the doubt arose. It keeps them if the leader changes then. Otherwise the doubt
        cannot be resolved soon, and the deadline applies.

        Args:
            now: seconds.
            grace: the additional time for a batch in doubt, in seconds.
            timeout: delivery_timeout in seconds, for the errors.
            answered_at: when the leader's connection last answered a Produce request; None if
            never.
            leader: the partition's leader, for the errors.
            out: receives the outcomes.
        """
        late = [batch for batch in self._batches.unresolved if batch.deadline <= now]
        failed = [batch for batch in late if batch.due and not batch.in_doubt]
        others = [batch for batch in late if batch not in failed]
        for batch in others:
            batch.extended = batch.extended or _resolving(batch, answered_at)
        unknown = [b for b in others if now >= b.deadline + (grace if b.extended else 0.0)]
        progress = queue_progress(len(self._batches.unresolved))
        expired = self._queue.expire(now)
        # The errors name the number of records that end together with the same status.
        count = sum(record.count for record in expired) + sum(batch.count for batch in failed)

        def error(progress: str, count: int, *, in_doubt: bool) -> errors.DeliveryTimeoutError:
            waited_for = self.obstacle(leader, now)
            return overdue(
                self._where,
                count,
                timeout,
                progress,
                waited_for,
                self._setbacks.trouble,
                leader,
                in_doubt=in_doubt,
            )

        if expired:
            overtaken = error(progress, count, in_doubt=False)
            self._endings.settle_records(expired, DeliveryStatus.NOT_WRITTEN, overtaken, out)
        for batch in failed:
            reason = error(batch_progress(batch, now), count, in_doubt=False)
            self._endings.drop(batch, reason, out)
        doubtful = sum(batch.count for batch in unknown)
        for batch in unknown:
            self._endings.give_up(
                batch, error(batch_progress(batch, now), doubtful, in_doubt=True), out
            )

    def obstacle(self, leader: LeaderStatus, now: float) -> str:
        """Return what the partition's records wait for, and since when, in words."""
        identified = not self._idempotent or self._ledger.identity is not None
        return obstacle(self._setbacks.trouble, leader, now, identified=identified)

    def next_wake(self, now: float, grace: float, linger: float) -> float:
        """Return when `poll` could next act on this partition, in seconds; infinity: never."""
        first = math.inf
        records = self._queue.records
        if records:
            first = _next_expiry(records[0].deadline, now, grace)
            lingers_until = records[0].queued_at + linger
            if now < lingers_until < first:
                first = lingers_until
        for batch in self._batches.unresolved:
            at = batch.deadline
            if at <= now:
                at += grace  # after the deadline only the end of the grace time is awaited
            if at < first:
                first = at
        if now < self._setbacks.retry_at < first:
            first = self._setbacks.retry_at
        if self._recovery.rung is Rung.PROBING and now < self._recovery.pass_not_before < first:
            first = self._recovery.pass_not_before
        return first


def _next_expiry(deadline: float, now: float, grace: float) -> float:
    # `expire` settles everything at its deadline, except that a batch in doubt has the grace time.
    return deadline if deadline > now else deadline + grace


def _resolving(batch: Batch, answered_at: float | None) -> bool:
    return (
        batch.in_doubt
        and answered_at is not None
        and batch.doubted_at is not None
        and answered_at > batch.doubted_at
    )
