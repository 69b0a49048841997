"""A deadline that can be moved and cancelled, unlike an event of the simulated cluster's schedule.

Invariants
    A timer that is set again to a later time, as by every heartbeat, adds no event to the schedule.
    A timer that is set to an earlier time adds an event, and its old event then does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aioidem._broker.schedule import Schedule

__all__ = ["Timer"]


class Timer:
    """A single call of a function, at a time on the cluster's clock."""

    __slots__ = ("_act", "_due", "_event", "_schedule")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._act: Callable[[], None] | None = None
        self._due: float | None = None
        # Due time of the timer's newest event; `_ring` ignores the timer's older events.
        self._event: float | None = None

    def __repr__(self) -> str:
        return f"<Timer due={self._due}>"

    def set(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after ``seconds`` (inf: never); cancel what was set before."""
        if seconds == math.inf:
            self.cancel()
            return
        self._due, self._act = self._schedule.now + seconds, act
        if self._event is None or self._due < self._event:
            self._arm(self._due)

    def cancel(self) -> None:
        """Cancel the call that was set, if there is one."""
        self._due = self._act = None

    def _arm(self, due: float) -> None:
        self._event = due
        self._schedule.at(due, lambda _now: self._ring(due))

    def _ring(self, event: float) -> None:
        if event != self._event:
            return
        self._event = None
        if self._due is None:
            return
        if self._due > event:
            self._arm(self._due)
            return
        act, self._due, self._act = self._act, None, None
        if act is not None:
            act()
