"""When to ask for metadata: the refresh policy, apart from the view it feeds.

Asked: when a topic is wanted that is not known, when an answer or a lost connection says that the
view is stale, and when the view is older than `metadata.max.age`. One request at a time; after a
failure or a useless answer the next waits for an exponential back-off, so that a cluster without
leaders is not hammered.
"""

from __future__ import annotations

from aioidem._engine.backoff import Backoff

__all__ = ["MetadataRefresher"]


class MetadataRefresher:
    """Decides when the next Metadata request is due."""

    __slots__ = (
        "_backoff",
        "_max_age",
        "_next_at",
        "in_flight",
        "refreshed_at",
        "requests",
        "wanted",
    )

    def __init__(self, max_age: float, backoff: Backoff) -> None:
        self._max_age = max_age
        self._backoff = backoff
        self._next_at = 0.0
        self.wanted = True
        self.in_flight = False
        # How many were sent. The n-th answer is about the time before the n-th request was sent.
        self.requests = 0
        self.refreshed_at: float | None = None

    def want(self) -> None:
        """Ask for metadata at the next chance: the view is stale, or lacks something."""
        self.wanted = True

    def due(self, now: float) -> bool:
        """Whether a request should go out now."""
        at = self.due_at()
        return at is not None and now >= at

    def due_at(self) -> float | None:
        """When one should; None while one is in flight."""
        if self.in_flight:
            return None
        if self.wanted or self.refreshed_at is None:
            return self._next_at
        return max(self._next_at, self.refreshed_at + self._max_age)

    def sent(self) -> None:
        """Note that a request was sent."""
        self.requests += 1
        self.in_flight = True
        self.wanted = False

    def failed(self, now: float) -> None:
        """Its connection was lost, or it was answered with an error."""
        self.in_flight = False
        self.wanted = True
        self._next_at = now + self._backoff.next_delay()

    def answered(self, now: float, *, enough: bool) -> None:
        """Handle an answer; `enough` is False when something asked for is still missing."""
        self.in_flight = False
        self.refreshed_at = now
        self._next_at = now + self._backoff.next_delay()
        if enough:
            self._backoff.reset()
        else:
            self.wanted = True
