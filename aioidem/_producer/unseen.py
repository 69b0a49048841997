"""UnseenFailures: log lines about failed records whose outcome the caller has not looked at.

A caller looks at an outcome by awaiting the delivery or its group (`send_many`), by adding a
callback, or by reading `exception()` or `metadata`. Other failures are counted by topic and error;
a failure that the caller looks at later is subtracted again.

The first failure is logged at once as a warning, together with those of the same cause. While more
records fail, there are lines at INFO after intervals that double. When no record has failed for an
interval, a warning says how many failed in all. The lines say "yet", because the caller may still
look. When the producer ends, one line reports the failures that the caller never looked at.

Rejected: a line when a `Delivery` is garbage collected, as asyncio does for futures. It comes late,
or never if the delivery is kept, and 45,000 failures would be 45,000 lines.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from aioidem._log import LogLine, Phase, write
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus

__all__ = ["UnseenFailures"]

INTERVAL = 10.0
"""Seconds after the first line until the next one; each following interval is twice as long."""

_LONGEST_INTERVAL = 3600.0

_NAMED = 5

_Failure = tuple[str, str, DeliveryStatus | None]
"""A topic, the name of the error's type, and the outcome."""

_OUTCOMES = {DeliveryStatus.NOT_WRITTEN: "not written", DeliveryStatus.UNKNOWN: "perhaps written"}


class UnseenFailures:
    """The failed records of one producer whose outcome no caller has looked at, for the log.

    Args:
        client_id: The producer's name in the log.

    Attributes:
        wanted: Whether to log at all; False once `ProducerLife.abandon` has logged the lost records
            of a producer that nobody closed.
    """

    __slots__ = (
        "_began",
        "_client_id",
        "_failed",
        "_first",
        "_first_ever",
        "_interval",
        "_new",
        "_next_at",
        "_unseen",
        "wanted",
    )

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self.wanted = True
        self._unseen: Counter[_Failure] = Counter()
        # Failures that no line has reported yet, whether looked at or not.
        self._new: Counter[_Failure] = Counter()
        # The first error of each kind: of those that no line has reported yet, and of those that
        # nobody has looked at.
        self._first: dict[_Failure, KafkaError] = {}
        self._first_ever: dict[_Failure, KafkaError] = {}
        # Since when records fail, in seconds, and how many have failed since; None if none fails.
        self._began: float | None = None
        self._failed = 0
        self._interval = INTERVAL
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
        failure = topic, type(error).__name__, error.status
        self._unseen[failure] += count
        self._new[failure] += count
        self._first.setdefault(failure, error)
        self._first_ever.setdefault(failure, error)

    def looked_at(self, topic: str, error: KafkaError | None) -> None:
        """Subtract one failure, because the caller has looked at it now."""
        failure = topic, type(error).__name__, None if error is None else error.status
        self._unseen[failure] -= 1
        if self._unseen[failure] <= 0:
            self._first_ever.pop(failure, None)

    @property
    def due_at(self) -> float | None:
        """When the next log line is due, on the event loop's clock; None if none is."""
        return None if self._began is None and not self._new else self._next_at

    def report(self, now: float) -> None:
        """Log the new failures, or that there are none any more, if the interval is over.

        Args:
            now: The event loop's clock, in seconds.
        """
        if self.due_at is None or now < self._next_at or not self.wanted:
            return
        counts = self._new & self._unseen
        firsts, self._first = self._first, {}
        self._new.clear()
        if counts:
            self._go_on(counts, _first_of(counts, firsts), now)
        elif self._began is not None:
            none = "no failure was left unseen" if firsts else "no record has failed"
            self._end(none, self._began, now)

    def _go_on(self, counts: Counter[_Failure], first: KafkaError | None, now: float) -> None:
        begins = self._began is None
        if self._began is None:
            self._began, self._failed, self._interval = now, 0, INTERVAL
        else:
            self._interval = min(2 * self._interval, _LONGEST_INTERVAL)
        self._failed += counts.total()
        self._next_at = now + self._interval
        records = "1 record" if counts.total() == 1 else f"{counts.total()} records"
        write(
            LogLine.UNSEEN_FAILURES,
            f"{records} failed, and the outcome has not been looked at yet: {_described(counts)}; "
            f"the first: {first}",
            client_id=self._client_id,
            level=None if begins else logging.INFO,
            phase=Phase.BEGINS if begins else Phase.CONTINUES,
            fields={"count": counts.total(), "error": type(first).__name__},
        )

    def _end(self, none: str, began: float, now: float) -> None:
        self._began = None
        self._next_at = now
        write(
            LogLine.UNSEEN_FAILURES,
            f"{none} for {self._interval:.0f} s; {self._failed} failed in the "
            f"{now - self._interval - began:.0f} s before, and {max(self._unseen.total(), 0)} have "
            "not been looked at yet",
            client_id=self._client_id,
            phase=Phase.ENDS,
            fields={"count": self._failed, "seconds": round(now - began, 3)},
        )

    def report_the_rest(self) -> None:
        """Log and forget the failures that were never looked at, because the producer has ended."""
        counts = +self._unseen if self.wanted else Counter[_Failure]()
        if counts:
            total = counts.total()
            deliveries = (
                "1 failed delivery was" if total == 1 else f"{total} failed deliveries were"
            )
            unknown = sum(
                count for failure, count in counts.items() if DeliveryStatus.UNKNOWN in failure
            )
            first = _first_of(counts, self._first_ever)
            write(
                LogLine.NEVER_LOOKED_AT,
                f"{deliveries} never looked at: {_described(counts)}; the first: {first}",
                client_id=self._client_id,
                fields={
                    "count": total,
                    "unknown": unknown,
                    "error": type(first).__name__,
                },
            )
        self._unseen.clear()
        self._new.clear()
        self._first.clear()
        self._first_ever.clear()
        self._began = None


def _first_of(
    counts: Counter[_Failure], firsts: Mapping[_Failure, KafkaError]
) -> KafkaError | None:
    """Return the first error of the kinds that are counted."""
    return next((error for failure, error in firsts.items() if failure in counts), None)


def _described(counts: Counter[_Failure]) -> str:
    """Return the counts by topic, error and outcome in words, the largest first."""
    named: list[str] = []
    for (topic, error, status), count in counts.most_common(_NAMED):
        outcome = "" if status is None else f" ({_OUTCOMES[status]})"
        named.append(f"{count} of {topic!r} {error}{outcome}")
    if len(counts) > _NAMED:
        named.append(f"{len(counts) - _NAMED} more kinds")
    return ", ".join(named)
