"""Overdue: the error of records that were not acknowledged within delivery_timeout.

It says how long the records were queued, how far they came, and the last failure in their
partition, which is usually the reason.
"""

from __future__ import annotations

from aioidem import errors
from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.route import Route

__all__ = ["batch_progress", "overdue", "queue_progress"]


def overdue(
    where: str,
    waited: float,
    progress: str,
    failure: errors.KafkaError | str | None,
    route: Route | None,
) -> errors.DeliveryTimeoutError:
    """Return the error of records that are past their deadline.

    Args:
        where: the topic and partition.
        waited: seconds since the oldest of the records was queued for the partition.
        progress: how far the records came.
        failure: the last failed attempt in the partition since its last acknowledgement, if any.
        route: the way to the partition's leader; None if there was none yet.
    """
    because = "" if failure is None else f"; last failure: {failure}"
    check = (
        "whether the brokers are reachable and the partition has a leader"
        if route is None
        else f"whether broker {route.leader_id}, the last known leader, is reachable and keeps up"
    )
    return errors.DeliveryTimeoutError(
        f"{where}: not acknowledged within delivery_timeout: queued {waited:.1f} s ago, "
        f"{progress}{because}. Check {check}, or raise delivery_timeout"
    )


def batch_progress(batch: Batch, now: float) -> str:
    """Say in words how often a batch was sent, and whether an attempt is still unanswered."""
    if batch.attempt is None:
        return "never sent"
    times = "sent once" if batch.attempts == 1 else f"sent {batch.attempts} times"
    if batch.state is not BatchState.IN_FLIGHT:
        return times
    return f"{times}, the last time {now - batch.attempt.sent_at:.1f} s ago without an answer yet"


def queue_progress(earlier: int, route: Route | None, *, identified: bool) -> str:
    """Return why queued records were not sent.

    Args:
        earlier: the number of batches before them that are not resolved.
        route: the way to the partition's leader; None if there was none yet.
        identified: whether the producer has the producer id that it needs.
    """
    if earlier:
        batches = "a batch" if earlier == 1 else f"{earlier} batches"
        return f"never sent: waiting behind {batches} without an acknowledgement"
    if route is None:
        return "never sent: no connection to a leader of the partition"
    if not identified:
        return "never sent: the cluster has granted no producer id"
    return f"never sent: broker {route.leader_id} is not connected or takes no more requests"
