"""What is right for records whose topic does not have their partition.

The judge keeps books of its own: which records were queued before which Metadata request was asked,
and what its answer told. A record is refused in the instant in which the first answer comes that
lacks its partition and was asked for after the record was queued; and no record is refused without
such an answer, or a partition that was just added would be missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from aioidem.testing import Anomaly, Outcome, Row, ValueId, Violation

__all__ = ["MissingPartitions"]


class MissingPartitions:
    """The books.

    Args:
        rows: the history, as it grows.
    """

    def __init__(self, rows: Mapping[ValueId, Row]) -> None:
        self._rows = rows
        self._order = count()
        self._queued: dict[ValueId, int] = {}
        self._asked: dict[int, int] = {}
        # When each was refused, and when an answer entitled the producer to.
        self._refused: set[ValueId] = set()
        self._due: dict[ValueId, float] = {}

    def queued(self, value: ValueId) -> None:
        """A record that names its partition, or none, is being queued."""
        if value.partition >= 0:
            self._queued[value] = next(self._order)

    def asked(self, token: int) -> None:
        """A Metadata request is being sent."""
        self._asked[token] = next(self._order)

    def told(self, token: int, topic: str, partitions: frozenset[int], now: float) -> None:
        """Its answer told of a topic; `partitions` are all that are known of it."""
        asked = self._asked[token]
        for value, order in self._queued.items():
            lacking = value.topic == topic and value.partition not in partitions
            if lacking and order < asked and self._rows[value].outcome is Outcome.PENDING:
                self._due.setdefault(value, now)

    def refused(self, value: ValueId) -> None:
        """A record ended with the news that there is no such partition."""
        self._refused.add(value)

    def violations(self) -> list[Violation]:
        """What was refused without a reason, or not when it had to be."""
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
        return found
