"""UnseenFailures: records that failed and whose outcome nobody has looked at, as lines in the log.

Looked at means: a task awaits the delivery, or its group (`send_many`), a callback is attached, or
`exception()` or `metadata` was read. What failed without that is counted when it fails, by topic
and error, and taken back out when somebody looks after all.

The first failure is logged at once, with whatever fails for the same cause; after that there is one
line per interval at most, and only if there is something new. The line says "yet":
whoever holds the deliveries may still look. When the producer ends, one line says what nobody ever
looked at.

Rejected: a line when a `Delivery` is garbage collected, as asyncio does for futures. It comes late,
or never for those that are held, and 45,000 of them are 45,000 lines.
"""

from __future__ import annotations

import logging
from collections import Counter

from aioidem.errors import KafkaError

__all__ = ["UnseenFailures"]

logger = logging.getLogger("aioidem")

INTERVAL = 10.0
"""Seconds between two lines."""

_NAMED = 5

_Failure = tuple[str, str]
"""A topic, and the name of the error's type."""


class UnseenFailures:
    """Of one producer.

    Args:
        client_id: its name in the log.
    """

    __slots__ = ("_client_id", "_first", "_first_ever", "_new", "_next_at", "_unseen", "wanted")

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        # False when the log has told it otherwise.
        self.wanted = True
        self._unseen: Counter[_Failure] = Counter()
        # Those that no line has told of yet, looked at or not.
        self._new: Counter[_Failure] = Counter()
        self._first: KafkaError | None = None
        self._first_ever: KafkaError | None = None
        self._next_at = float("-inf")

    def __reduce__(self) -> tuple[type[UnseenFailures], tuple[str]]:
        return UnseenFailures, (self._client_id,)  # each process has its own log

    def add(self, topic: str, error: KafkaError) -> None:
        """A record failed and nobody looks."""
        failure = topic, type(error).__name__
        self._unseen[failure] += 1
        self._new[failure] += 1
        if self._first is None:
            self._first = error
        if self._first_ever is None:
            self._first_ever = error

    def looked_at(self, topic: str, error: KafkaError | None) -> None:
        """Somebody looked at one of these after all."""
        self._unseen[topic, type(error).__name__] -= 1

    @property
    def due_at(self) -> float | None:
        """When `report` has something to say; None while nothing is new."""
        return self._next_at if self._new else None

    def report(self, now: float) -> None:
        """Log what is new, if the interval is over."""
        if not self._new or now < self._next_at or not self.wanted:
            return
        counts = self._new & self._unseen
        first, self._first = self._first, None
        self._new.clear()
        if counts:
            self._next_at = now + INTERVAL
            logger.warning(
                "%s: %s failed, and nobody has looked at the outcome yet: %s; the first: %s",
                self._client_id,
                "1 record" if counts.total() == 1 else f"{counts.total()} records",
                _described(counts),
                first,
            )

    def report_the_rest(self) -> None:
        """The producer has ended: log what nobody has looked at, and forget it."""
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
    """Counts by topic and error, the largest first."""
    largest = counts.most_common(_NAMED)
    named = [f"{count} of {topic!r} {error}" for (topic, error), count in largest]
    if len(counts) > _NAMED:
        named.append(f"{len(counts) - _NAMED} more kinds")
    return ", ".join(named)
