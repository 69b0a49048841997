"""Overdue: the error of records that were not acknowledged within delivery_timeout.

It says what the records waited for and since when, how far they came, which attempt failed last,
and what to do. Its ``__cause__`` is the last answer of a broker, or the last error of a connection.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from aioidem import errors
from aioidem._engine.batch import Batch, BatchState
from aioidem._engine.reach import reason_of

__all__ = [
    "LeaderStatus",
    "Trouble",
    "batch_progress",
    "last_failure",
    "obstacle",
    "overdue",
    "queue_progress",
]


class Trouble:
    """Why a partition has had no acknowledgement since its first failure.

    Args:
        now: the time of the first failure, in seconds.
    """

    __slots__ = ("attempts", "last", "leaderless_since", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        # The number of failed attempts since then, and the reason of the last one.
        self.attempts = 0
        self.last: errors.KafkaError | str | None = None
        # Since when metadata has named no leader, in seconds; None if it names one.
        self.leaderless_since: float | None = None

    def add(self, reason: errors.KafkaError | str) -> None:
        """Note a failed attempt."""
        self.attempts += 1
        self.last = reason


class LeaderStatus(NamedTuple):
    """A partition's leader and the connection to it, as known now."""

    name: str | None
    """The broker's id and address, for messages; the last known leader's if there is none now."""
    leads: bool
    """Whether metadata names a leader now."""
    down_since: float | None
    """Since when the broker has not been reached, in seconds; None if it is connected, or if no
    connection to it has failed.
    """
    attempts: int
    """The number of connections to the broker in a row that failed."""
    error: Exception | None
    """Why the last of them failed."""
    throttle: float = 0.0
    """By how many seconds the broker has lately delayed this client, because of a quota."""
    not_added: str | None = None
    """Why the partition is not in the open transaction yet, for messages; None if it is, or if it
    need not be added (see `Transactions.not_added`).
    """
    refusal: errors.KafkaError | None = None
    """The coordinator's last refusal, if `not_added` tells it."""


def overdue(
    where: str,
    count: int,
    timeout: float,
    progress: str,
    waited_for: str,
    trouble: Trouble | None,
    leader: LeaderStatus,
    *,
    in_doubt: bool,
) -> errors.DeliveryTimeoutError:
    """Return the error of records that are past their deadline.

    Args:
        where: the topic and partition.
        count: how many records of the partition end now for the same reason.
        timeout: delivery_timeout, in seconds.
        progress: how far the records came.
        waited_for: the result of `obstacle`.
        trouble: the failures since the partition's last acknowledgement; None without any.
        leader: the partition's leader.
        in_doubt: whether the records may be in the log.
    """
    records = "1 record" if count == 1 else f"{count} records"
    verdict = "not acknowledged, perhaps written," if in_doubt else "not written"
    last = None if trouble is None else trouble.last
    error = errors.DeliveryTimeoutError(
        f"{where}: {records} {verdict} in delivery_timeout ({timeout:g} s): {waited_for}; "
        f"{progress}{last_failure(trouble)}. {_advice(leader)}, or raise delivery_timeout"
    )
    causes = (leader.error, leader.refusal, last if isinstance(last, Exception) else None)
    cause = next((each for each in causes if each is not None), None)
    # The copy has no traceback, whose frames would keep a closed connection in memory.
    error.__cause__ = copy.copy(cause) if isinstance(cause, errors.KafkaError) else cause
    return error


def last_failure(trouble: Trouble | None) -> str:
    """Say in words which attempt of a partition failed last; empty if none did."""
    if trouble is None or trouble.last is None:
        return ""
    failures = "failure" if trouble.attempts == 1 else f"of {trouble.attempts} failures"
    return f"; last {failures}: {trouble.last}"


def obstacle(
    trouble: Trouble | None, leader: LeaderStatus, now: float, *, identified: bool = True
) -> str:
    """Return what a partition's records wait for, and since when.

    Args:
        trouble: the failures since the partition's last acknowledgement; None without any.
        leader: the partition's leader.
        now: seconds.
        identified: whether the producer has the producer id that it needs.
    """
    if not leader.leads:
        since = None if trouble is None else trouble.leaderless_since
        duration = "" if since is None else f" for {now - since:.1f} s"
        tried = "" if leader.name is None else f"; last tried {leader.name}{_why(leader)}"
        return f"no leader{duration}{tried}"
    if leader.down_since is not None:
        attempts = "1 attempt" if leader.attempts == 1 else f"{leader.attempts} attempts"
        return (
            f"no connection to the leader, {leader.name}, for {now - leader.down_since:.1f} s and "
            f"{attempts}{_why(leader)}"
        )
    if not identified:
        return "the cluster has granted no producer id"
    if leader.not_added is not None:
        return leader.not_added
    duration = "" if trouble is None else f", for {now - trouble.since:.1f} s"
    slowed = ""
    if leader.throttle:
        slowed = f", which throttles this client (a quota) by up to {leader.throttle:.1f} s"
    return f"no acknowledgement of the leader, {leader.name}{slowed}{duration}"


def _why(leader: LeaderStatus) -> str:
    error = leader.error
    return "" if error is None else f": {reason_of(error)}"


def _advice(leader: LeaderStatus) -> str:
    if not leader.leads:
        return "Check why no replica of the partition can lead it"
    if isinstance(leader.error, errors.AuthenticationFailedError):
        return "Check this client's credentials, and where they come from"
    if leader.down_since is not None:
        return f"Check whether {leader.name} runs and can be reached at that address from here"
    if leader.not_added is not None:
        return "Check the log of that coordinator"
    if leader.throttle:
        return "Send less, or raise this client's quota"
    return f"Check the log of {leader.name}, and whether it keeps up"


def batch_progress(batch: Batch, now: float) -> str:
    """Say in words how often a batch was sent, and whether an attempt is still unanswered."""
    if batch.attempt is None:
        return "never sent"
    times = "sent once" if batch.attempts == 1 else f"sent {batch.attempts} times"
    if batch.state is not BatchState.IN_FLIGHT:
        return times
    return f"{times}, the last time {now - batch.attempt.sent_at:.1f} s ago without an answer yet"


def queue_progress(earlier: int) -> str:
    """Return why queued records were not sent, as far as their own partition is the reason.

    Args:
        earlier: the number of batches before them that are not resolved.
    """
    if earlier:
        batches = "a batch" if earlier == 1 else f"{earlier} batches"
        return f"never sent: waiting behind {batches} without an acknowledgement"
    return "never sent"
