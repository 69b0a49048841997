"""UnseenFailures: log lines about failed records whose outcome the caller has not looked at.

A caller looks at an outcome by awaiting the delivery or its group (`send_many`), by adding a
callback, or by reading `exception()` or `metadata`. Other failures are counted by topic and error;
a failure that the caller looks at later is subtracted again.

The first failure is logged at once, together with those of the same cause. After that there is at
most one line per interval, and only for new failures. The line says "yet", because the caller may
still look. When the producer ends, one line reports the failures that the caller never looked at.

Rejected: a line when a `Delivery` is garbage collected, as asyncio does for futures. It comes late,
or never if the delivery is kept, and 45,000 failures would be 45,000 lines.
"""

from __future__ import annotations

import logging
from collections import Counter

from aioidem.errors import KafkaError

__all__ = ["UnseenFailures"]

logger = logging.getLogger("aioidem")

INTERVAL = 10.0
"""The shortest time between two log lines, in seconds."""

_NAMED = 5

_Failure = tuple[str, str]
"""A topic, and the name of the error's type."""


class UnseenFailures:
    """The failed records of one producer whose outcome no caller has looked at, for the log.

    Args:
        client_id: The producer's name in the log.

    Attributes:
        wanted: Whether to log at all; False once `ProducerLife.abandon` has logged the lost records
            of a producer that nobody closed.
    """

    __slots__ = ("_client_id", "_first", "_first_ever", "_new", "_next_at", "_unseen", "wanted")

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self.wanted = True
        self._unseen: Counter[_Failure] = Counter()
        # Failures that no line has reported yet, whether looked at or not.
        self._new: Counter[_Failure] = Counter()
        self._first: KafkaError | None = None
        self._first_ever: KafkaError | None = None
        self._next_at = float("-inf")

    def __reduce__(self) -> tuple[type[UnseenFailures], tuple[str]]:
        # A copy in another process counts from zero, for the log of that process.
        return UnseenFailures, (self._client_id,)

    def add(self, topic: str, error: KafkaError, count: int = 1) -> None:
        """Count records that failed before the caller looked at their outcome.

        Args:
            topic: Their topic.
            error: The error that they share.
            count: How many they are.
        """
        failure = topic, type(error).__name__
        self._unseen[failure] += count
        self._new[failure] += count
        if self._first is None:
            self._first = error
        if self._first_ever is None:
            self._first_ever = error

    def looked_at(self, topic: str, error: KafkaError | None) -> None:
        """Subtract one failure, because the caller has looked at it now."""
        self._unseen[topic, type(error).__name__] -= 1

    @property
    def due_at(self) -> float | None:
        """When the next log line is due, on the event loop's clock; None if no failure is new."""
        return self._next_at if self._new else None

    def report(self, now: float) -> None:
        """Log the new failures if the interval is over.

        Args:
            now: The event loop's clock, in seconds.
        """
        if not self._new or now < self._next_at or not self.wanted:
            return
        counts = self._new & self._unseen
        first, self._first = self._first, None
        self._new.clear()
        if counts:
            self._next_at = now + INTERVAL
            logger.warning(
                "%s: %s failed, and the outcome has not been looked at yet: %s; the first: %s",
                self._client_id,
                "1 record" if counts.total() == 1 else f"{counts.total()} records",
                _described(counts),
                first,
            )

    def report_the_rest(self) -> None:
        """Log and forget the failures that were never looked at, because the producer has ended."""
        counts = +self._unseen if self.wanted else Counter[_Failure]()
        if counts:
            logger.error(
                "%s: %s never looked at: %s; the first: %s",
                self._client_id,
                "1 failed delivery was"
                if counts.total() == 1
                else f"{counts.total()} failed deliveries were",
                _described(counts),
                self._first_ever,
            )
        self._unseen.clear()
        self._new.clear()
        self._first = self._first_ever = None


def _described(counts: Counter[_Failure]) -> str:
    """Return the counts by topic and error in words, the largest first."""
    largest = counts.most_common(_NAMED)
    named = [f"{count} of {topic!r} {error}" for (topic, error), count in largest]
    if len(counts) > _NAMED:
        named.append(f"{len(counts) - _NAMED} more kinds")
    return ", ".join(named)
