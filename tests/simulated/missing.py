"""The judge of records whose topic does not have their partition.

The judge keeps books of its own: which records were queued before which Metadata request was sent,
and what its answer said. A record must be refused at the time of the first answer that lacks its
partition and was requested after the record was queued. No record may be refused without such an
answer, or a partition that was just added would be missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from aioidem.testing import Anomaly, Outcome, Row, ValueId, Violation

__all__ = ["MissingPartitions"]


class MissingPartitions:
    """The judge's books about records, Metadata requests and their answers.

    Args:
        rows: the history, which grows during the run.
    """

    def __init__(self, rows: Mapping[ValueId, Row]) -> None:
        self._rows = rows
        self._order = count()
        self._queued: dict[ValueId, int] = {}
        self._asked: dict[int, int] = {}
        # The records that were refused, and since when an answer entitled the producer to refuse
        # each.
        self._refused: set[ValueId] = set()
        self._due: dict[ValueId, float] = {}

    def queued(self, value: ValueId) -> None:
        """Note that a record is being queued; only one that names its partition counts."""
        if value.partition >= 0:
            self._queued[value] = next(self._order)

    def asked(self, token: int) -> None:
        """Note that a Metadata request is being sent."""
        self._asked[token] = next(self._order)

    def told(self, token: int, topic: str, partitions: frozenset[int], now: float) -> None:
        """Note an answer about a topic; `partitions` are all partitions known of it."""
        asked = self._asked[token]
        for value, order in self._queued.items():
            lacking = value.topic == topic and value.partition not in partitions
            if lacking and order < asked and self._rows[value].outcome is Outcome.PENDING:
                self._due.setdefault(value, now)

    def refused(self, value: ValueId) -> None:
        """Note that a record ended because there is no such partition."""
        self._refused.add(value)

    def violations(self) -> list[Violation]:
        """Return the records that were refused without a reason, or not when they had to be."""
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
