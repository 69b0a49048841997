"""The events of the embedded cluster, by the time at which they are due.

Nothing here reads a clock: the present time is an argument of `Schedule.run_until`. While an event
is carried out, `Schedule.now` is its due time, however late `run_until` was called, so that a slow
caller distorts no delay. Events with the same due time are carried out in the order in which they
were scheduled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

__all__ = ["Schedule"]


class Schedule:
    """A queue of events by due time (seconds on any monotonic scale), with a wall clock."""

    __slots__ = ("_events", "_order", "_wall_offset_ms", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._order = count()
        self._wall_offset_ms = 0.0

    def __repr__(self) -> str:
        return f"<Schedule now={self.now} events={len(self._events)}>"

    def __len__(self) -> int:
        return len(self._events)

    def set_wall_clock(self, now: float, wall_ms: int) -> None:
        """Set the wall clock: it shows ``wall_ms`` (ms since the epoch) at ``now`` (seconds)."""
        self._wall_offset_ms = wall_ms - now * 1000

    def wall_ms(self, at: float) -> int:
        """Return what the wall clock shows at the time ``at`` (seconds), in ms since the epoch."""
        return int(at * 1000 + self._wall_offset_ms)

    @property
    def wall_now_ms(self) -> int:
        """Return what the wall clock shows now, in ms since the epoch."""
        return self.wall_ms(self.now)

    def push(self, due: float, act: Callable[[float, Any], None], argument: Any) -> None:
        """Schedule the call ``act(due, argument)`` for the time ``due`` (seconds)."""
        heapq.heappush(self._events, (due, next(self._order), act, argument))

    def at(self, due: float, act: Callable[[float], None]) -> None:
        """Schedule the call ``act(due)`` for the time ``due`` (seconds)."""
        self.push(due, lambda now, _nothing: act(now), None)

    def later(self, seconds: float, act: Callable[[float], None]) -> None:
        """Schedule the call ``act(due)`` for the time ``due``, ``seconds`` from now."""
        self.at(self.now + seconds, act)

    def next_due(self) -> float | None:
        """Return when the next event is due; None: nothing is scheduled."""
        return self._events[0][0] if self._events else None

    def run_until(self, now: float, before: Callable[[float], None]) -> None:
        """Carry out all events that are due up to ``now``.

        ``before(time)`` is called ahead of each event, and with ``now`` at the end.
        """
        events = self._events
        while events and events[0][0] <= now:
            due, _, act, argument = heapq.heappop(events)
            if due > self.now:
                self.now = due
            before(self.now)
            act(self.now, argument)
        self.now = now
        before(now)
