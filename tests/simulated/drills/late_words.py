"""What the error of an expired record must say: what it waited for, since when, and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from aioidem import errors
from aioidem._engine.overdue import LeaderStatus
from aioidem.structs import DeliveryStatus

__all__ = ["Failures", "due_cause", "due_text", "obstacle_of", "progress_of"]

_VERDICTS: Final = {
    DeliveryStatus.NOT_WRITTEN: "not written",
    DeliveryStatus.UNKNOWN: "not acknowledged, perhaps written,",
}


@dataclass
class Failures:
    """What has failed at a partition since its last acknowledgement."""

    reasons: list[tuple[float, errors.KafkaError | str]] = field(default_factory=list)
    leaderless: list[float] = field(default_factory=list)
    """When metadata named no leader, since it last named one."""
    ever_leaderless: list[float] = field(default_factory=list)

    def led(self) -> None:
        """Note that metadata names a leader."""
        self.ever_leaderless += self.leaderless
        self.leaderless.clear()

    def forget(self) -> None:
        """Note an acknowledgement."""
        self.reasons.clear()
        self.led()
        self.ever_leaderless.clear()

    @property
    def since(self) -> float | None:
        """When the first thing failed; None if nothing did."""
        times = [at for at, _ in self.reasons] + self.leaderless + self.ever_leaderless
        return min(times, default=None)

    @property
    def last(self) -> errors.KafkaError | str | None:
        """Why the last attempt failed; None if none did."""
        return self.reasons[-1][1] if self.reasons else None


def obstacle_of(failures: Failures, leader: LeaderStatus, now: float, *, identified: bool) -> str:
    """Return what the records wait for: the first of all obstacles on the way to the leader."""
    why = "" if leader.error is None else f": {leader.error.args[0]}"
    seconds = {
        "leaderless": _for(failures.leaderless[0] if failures.leaderless else None, now),
        "down": _for(leader.down_since, now),
        "failing": _for(failures.since, now),
    }
    obstacles = []
    if not leader.leads:
        tried = leader.name and f"; last tried {leader.name}{why}"
        obstacles.append(f"no leader{seconds['leaderless']}{tried or ''}")
    if leader.down_since is not None:
        attempts = _counted(leader.attempts, "attempt")
        down = f"no connection to the leader, {leader.name},{seconds['down']} and {attempts}{why}"
        obstacles.append(down)
    if not identified:
        obstacles.append("the cluster has granted no producer id")
    if leader.not_added is not None:
        obstacles.append(leader.not_added)
    quota = f"throttles this client (a quota) by up to {leader.throttle:.1f} s"
    slowly = f", which {quota}" if leader.throttle > 0 else ""
    failing = seconds["failing"] and f",{seconds['failing']}"
    obstacles.append(f"no acknowledgement of the leader, {leader.name}{slowly}{failing}")
    return obstacles[0]


def _for(since: float | None, now: float) -> str:
    return "" if since is None else f" for {now - since:.1f} s"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def progress_of(sent: int, unanswered: float | None) -> str:
    """Return how far a batch came.

    Args:
        sent: how often it was sent.
        unanswered: for how many seconds it has had no answer; None if it is not in flight.
    """
    if not sent:
        return "never sent"
    times = "once" if sent == 1 else f"{sent} times"
    if unanswered is None:
        return f"sent {times}"
    return f"sent {times}, the last time {unanswered:.1f} s ago without an answer yet"


def due_text(
    status: DeliveryStatus, count: int, told: str, failures: Failures, leader: LeaderStatus
) -> str:
    """Return the text of the error of records that have expired.

    Args:
        status: their outcome.
        count: how many records end together with it.
        told: what they waited for, and how far they came.
        failures: what has failed.
        leader: their partition's leader.
    """
    failed = len(failures.reasons)
    which = "failure" if failed == 1 else f"of {failed} failures"
    last = f"; last {which}: {failures.last}" if failed else ""
    return (
        f"DeliveryTimeoutError: t-0: {_counted(count, 'record')} {_VERDICTS[status]} in "
        f"delivery_timeout (20 s): {told}{last}. {_to_do(leader)}, or raise delivery_timeout"
    )


def _to_do(leader: LeaderStatus) -> str:
    """Return what may help against the first obstacle on the way to the leader."""
    advice = {
        "Check why no replica of the partition can lead it": not leader.leads,
        "Check this client's credentials, and where they come from": isinstance(
            leader.error, errors.AuthenticationFailedError
        ),
        f"Check whether {leader.name} runs and can be reached at that address from here": (
            leader.down_since is not None
        ),
        "Check the log of that coordinator": leader.not_added is not None,
        "Send less, or raise this client's quota": leader.throttle > 0,
        f"Check the log of {leader.name}, and whether it keeps up": True,
    }
    return next(text for text, applies in advice.items() if applies)


def due_cause(failures: Failures, leader: LeaderStatus) -> Exception | None:
    """Return the error behind the expiry: of the connection, the coordinator or the leader."""
    last = failures.last if isinstance(failures.last, errors.KafkaError) else None
    return leader.error or leader.refusal or last
