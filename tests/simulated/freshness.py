"""The judge of metadata's age: it is asked for again in time while brokers answer.

An answer to Produce shows that the producer is awake, and that it has a connection with room for a
request. If metadata was due long before, the producer has forgotten to ask for it. It has not if it
has asked on that connection, in time: then other requests filled the connection, and the answer
comes after theirs. Nor has it if it has asked on another connection in time, which may have fallen
silent: it asks elsewhere after the request timeout.
"""

from __future__ import annotations

from collections.abc import Callable

from aioidem._config import ProducerConfig
from aioidem.testing import Anomaly, Violation

from .progress import JITTER

__all__ = ["Freshness"]

# To the answer that makes room for the request, and to the answer to the request.
_ROUND_TRIPS = 2


class Freshness:
    """Judges how old the producer's metadata is whenever a broker has answered.

    Args:
        config: The producer's options.
        rtt: The longest round trip, in seconds.
        report: Called with the violation, at most once.
    """

    def __init__(
        self, config: ProducerConfig, rtt: float, report: Callable[[Violation], None]
    ) -> None:
        backoff = config.retry_backoff_max * JITTER
        self._max_age = config.metadata_max_age
        self._bound = backoff + _ROUND_TRIPS * rtt
        # What a fault has swallowed is asked for again after the request timeout and a back-off.
        self._recovery = config.request_timeout + backoff
        self._report = report
        # Until when metadata was asked for on connections that were silent, in seconds.
        self._swallowed = 0.0
        self._told_at: float | None = None
        # When Metadata requests without an answer were sent, in seconds, by connection and request.
        self._asked: dict[object, dict[object, float]] = {}

    def asked(self, connection: object, request: object, now: float) -> None:
        """Note that metadata is being asked for, and not only which cluster a broker is part of."""
        self._asked.setdefault(connection, {})[request] = now

    def told(self, connection: object, request: object, now: float) -> None:
        """Note that an answer about the cluster has reached the producer."""
        if self._asked.get(connection, {}).pop(request, None) is not None:
            self._told_at = now

    def moved(self, now: float) -> None:
        """Note that the producer has moved to another cluster, whose metadata it has."""
        self._told_at = now

    def answered(self, connection: object, now: float, healed_at: float) -> None:
        """Judge the metadata's age when an answer to Produce has reached the producer.

        Args:
            connection: Where it came.
            now: Seconds.
            healed_at: When the last fault was over, in seconds; 0 if there was none so far.
        """
        if self._told_at is None:
            return
        due_at = self._told_at + self._max_age
        if healed_at:
            due_at = max(due_at, healed_at + self._recovery)
        latest = max(due_at, self._swallowed) + self._bound
        if now <= latest or any(at <= latest for at in self._asked.get(connection, {}).values()):
            return
        elsewhere = [at for requests in self._asked.values() for at in requests.values()]
        waits = [at + self._recovery for at in elsewhere if at <= latest]
        self._swallowed = max([self._swallowed, *waits])
        if now > self._swallowed + self._bound:
            age = now - self._told_at
            self._told_at = None
            detail = f"metadata is {age:.3f} s old, and {self._max_age:.3f} s are the most"
            self._report(Violation(Anomaly.STALE, detail))
