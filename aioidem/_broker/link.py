"""Round-trip time and bandwidth of one connection, as delivery times.

Invariants
    Order is kept: nothing is delivered before what was handed in earlier, even if the delay is
    lowered meanwhile. Links are pipelined: a second message waits for the first one's bytes to be
    sent, not for its delivery. There is no clock and no sleeping: time (seconds) is an argument,
    and the result is a due time.

Rejected
    Sleeping in the reader and the writer: that turns a long link into a slow one (one message per
    round trip), and makes the broker's count of unanswered batches depend on a scheduler.
"""

from __future__ import annotations

__all__ = ["Lane", "Link"]


class Lane:
    """One direction: ``delay`` in seconds, ``bandwidth`` in bytes per second (None: unlimited)."""

    __slots__ = ("_last_due", "_sent_until", "bandwidth", "delay")

    def __init__(self, delay: float, bandwidth: float | None) -> None:
        self.delay = delay
        self.bandwidth = bandwidth
        self._sent_until = 0.0
        self._last_due = 0.0

    def due(self, now: float, size: int) -> float:
        """Return when the last of ``size`` bytes that are handed in at ``now`` is delivered."""
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
    """Both directions: each has half of the round-trip time and the whole bandwidth."""

    __slots__ = ("down", "up")

    def __init__(self, rtt: float = 0.0, bandwidth: float | None = None) -> None:
        self.up = Lane(rtt / 2, bandwidth)
        self.down = Lane(rtt / 2, bandwidth)

    def set_rtt(self, rtt: float) -> None:
        """Set the round-trip time, in seconds, for bytes that are handed in from now on."""
        self.up.delay = self.down.delay = rtt / 2

    def set_bandwidth(self, bandwidth: float | None) -> None:
        """Set bytes per second each way (None: unlimited), for bytes handed in from now on."""
        self.up.bandwidth = self.down.bandwidth = bandwidth
