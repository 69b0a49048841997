"""The judge of records for partitions that their topic does not have, or for topics denied to us.

The judge notes when each record was queued, when each Metadata request was sent, and which
partitions the answer named. A Metadata answer entitles the producer to refuse a record if the
answer lacks the record's partition and was requested after the record was queued. The producer must
refuse the record when the first such answer arrives, and not before: an older answer may lack a
partition that has just been added.

A Metadata answer may also refuse a topic for good, for example for lack of permission. Records that
wait for the partitions of a topic, because no answer has named them yet, end in that instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from kio.schema.errors import ErrorCode

from aioidem.testing import Anomaly, Outcome, Row, ValueId, Violation

__all__ = ["MissingPartitions"]


class MissingPartitions:
    """Judges whether the producer refuses records for missing partitions in time, and no others.

    Args:
        rows: the run's records with their outcomes; the run adds to them.
    """

    def __init__(self, rows: Mapping[ValueId, Row]) -> None:
        self._rows = rows
        self._order = count()
        self._queued: dict[ValueId, int] = {}
        self._asked: dict[int, int] = {}
        # `_refused`: the records that the producer refused. `_due`: for each record that it had to
        # refuse, the time of the answer that entitled it to.
        self._refused: set[ValueId] = set()
        self._due: dict[ValueId, float] = {}
        self._codes: dict[str, int] = {}
        # The records of topics whose partitions no answer has named yet, and when an answer refused
        # their topic for good.
        self._waiting: dict[str, list[ValueId]] = {}
        self._known: set[str] = set()
        self._denied: dict[ValueId, float] = {}

    def described(self, topic: str, code: int, now: float) -> None:
        """Note the error code of a topic in a Metadata answer, 0 for none."""
        self._codes[topic] = code
        if code and not ErrorCode(code).retriable:
            for value in self._waiting.pop(topic, ()):
                if self._rows[value].outcome is Outcome.PENDING:
                    self._denied[value] = now

    def denied(self, topic: str, code: int) -> bool:
        """Return whether the last Metadata answer about a topic had this error code."""
        return self._codes.get(topic) == code

    def queued(self, value: ValueId) -> None:
        """Note that a record was queued."""
        if value.topic not in self._known:
            self._waiting.setdefault(value.topic, []).append(value)
        if value.partition >= 0:
            self._queued[value] = next(self._order)

    def asked(self, token: int) -> None:
        """Note that a Metadata request is being sent."""
        self._asked[token] = next(self._order)

    def told(self, token: int, topic: str, partitions: frozenset[int], now: float) -> None:
        """Note a Metadata answer, in which the topic has exactly these partitions."""
        self._known.add(topic)
        self._waiting.pop(topic, None)
        asked = self._asked[token]
        for value, order in self._queued.items():
            lacking = value.topic == topic and value.partition not in partitions
            if lacking and order < asked and self._rows[value].outcome is Outcome.PENDING:
                self._due.setdefault(value, now)

    def refused(self, value: ValueId) -> None:
        """Note that the producer refused a record because its partition does not exist."""
        self._refused.add(value)

    def violations(self) -> list[Violation]:
        """Return a violation for each record refused without a reason, too late, or not at all."""
        found = [
            Violation(Anomaly.STUCK, f"{value}: no answer to a later request lacked its partition")
            for value in sorted(self._refused - self._due.keys())
        ]
        for value, at in self._due.items():
            row = self._rows.get(value)
            if row is None or (row.outcome is Outcome.NOT_WRITTEN and row.settled == at):
                continue
            found.append(
                Violation(
                    Anomaly.STUCK,
                    f"{value}: {row.outcome.value} at {row.settled}; that there is no such "
                    f"partition was told at {at}",
                )
            )
        for value, at in self._denied.items():
            row = self._rows.get(value)
            if row is not None and (row.outcome, row.settled) != (Outcome.NOT_WRITTEN, at):
                outcome = f"{row.outcome.value} at {row.settled}"
                found.append(
                    Violation(Anomaly.STUCK, f"{value}: {outcome}; its topic was denied at {at}")
                )
        return found
