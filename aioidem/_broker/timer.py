"""A deadline that can be moved and taken back, of a cluster whose events cannot.

Invariants
    However often it is set, at most one event of the cluster's is outstanding for it, unless it is
    set to an earlier time: heartbeats do not pile up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioidem._broker.state import ClusterState

__all__ = ["Timer"]


class Timer:
    """Calls something at a time, seconds on the cluster's clock."""

    __slots__ = ("_act", "_cluster", "_due", "_event")

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._act: Callable[[], None] | None = None
        self._due: float | None = None
        # When the cluster will next call `_ring`, and it counts.
        self._event: float | None = None

    def __repr__(self) -> str:
        return f"<Timer due={self._due}>"

    def set(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` in so many seconds (inf: never), and nothing that was asked for before."""
        if seconds == math.inf:
            self.cancel()
            return
        self._due, self._act = self._cluster.now + seconds, act
        if self._event is None or self._due < self._event:
            self._arm(self._due)

    def cancel(self) -> None:
        """Call nothing."""
        self._due = self._act = None

    def _arm(self, due: float) -> None:
        self._event = due
        self._cluster.at(due, lambda _now: self._ring(due))

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
