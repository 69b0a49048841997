"""The simulated link of one connection: delivery times from a delay and a bandwidth.

Invariants
    Messages are delivered in the order in which they were sent, even if the delay is lowered
    while some are on their way.
    A link is a pipeline: a message waits until the bytes of the one before it have been sent, not
    until they have been delivered.
    Nothing here reads a clock or sleeps: the time of sending (seconds) is an argument, and the time
    of delivery is the result.

Rejected
    Sleeping in the reader and the writer: a reader that sleeps through the delay of each message
    reads only one message per delay, and the broker's count of unanswered batches would depend on
    when the event loop wakes its tasks.
"""

from __future__ import annotations

import math

__all__ = ["Lane", "Link", "can_be"]


def can_be(delays: tuple[float, ...], bandwidth: float | None) -> bool:
    """Return whether a link can have these delays and this bandwidth; none can have NaN."""
    within = all(0 <= each < math.inf for each in delays)
    return within and (bandwidth is None or bandwidth > 0)


class Lane:
    """One direction of a link: delay in seconds, bandwidth in bytes per second (None: no bound)."""

    __slots__ = ("_last_due", "_sent_until", "bandwidth", "delay")

    def __init__(self, delay: float, bandwidth: float | None) -> None:
        self.delay = delay
        self.bandwidth = bandwidth
        self._sent_until = 0.0
        self._last_due = 0.0

    def due(self, now: float, size: int) -> float:
        """Return when the last of ``size`` bytes that are sent at ``now`` is delivered."""
        if self.bandwidth is None:
            due = now + self.delay
        else:
            self._sent_until = max(self._sent_until, now) + size / self.bandwidth
            due = self._sent_until + self.delay
        if due < self._last_due:
            due = self._last_due
        self._last_due = due
        return due


class Link:
    """Both directions of a connection, each with half the round-trip time and all the bandwidth."""

    __slots__ = ("down", "up")

    def __init__(self, rtt: float = 0.0, bandwidth: float | None = None) -> None:
        self.up = Lane(rtt / 2, bandwidth)
        self.down = Lane(rtt / 2, bandwidth)

    def set_rtt(self, rtt: float) -> None:
        """Set the round-trip time, in seconds, for bytes that are sent from now on."""
        self.up.delay = self.down.delay = rtt / 2

    def set_bandwidth(self, bandwidth: float | None) -> None:
        """Set the bandwidth each way, in bytes per second, for bytes that are sent from now on.

        None means unlimited.
        """
        self.up.bandwidth = self.down.bandwidth = bandwidth
