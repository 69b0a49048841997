"""Settlement: some records of one partition, and the outcome that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from aioidem._engine.record import HEADER_MEMORY, Outcome, PendingRecord
from aioidem._engine.record_block import RecordRuns, records_of
from aioidem._hot import total_overhead, total_size

__all__ = ["Settlement"]

_generation_of = attrgetter("generation")


class Settlement:
    """Some records of one partition, and the outcome that they share.

    Args:
        outcome: what became of them.
        records: the records.
    """

    __slots__ = ("outcome", "records")

    def __init__(self, outcome: Outcome, records: Sequence[PendingRecord]) -> None:
        self.outcome = outcome
        self.records = records

    @classmethod
    def of_items(cls, outcome: Outcome, items: Sequence[PendingRecord]) -> Settlement:
        """Return the settlement of all records in `items`: single records and blocks of records."""
        return cls(outcome, records_of(items))

    def size(self) -> int:
        """Return an upper bound of the records' bytes on the wire, before compression."""
        records = self.records
        return records.size if type(records) is RecordRuns else total_size(records)

    def overhead(self) -> int:
        """Return the bytes that the records take in memory besides their `size`."""
        records = self.records
        if type(records) is RecordRuns:
            return records.overhead()
        return total_overhead(records, HEADER_MEMORY)

    def by_generation(self) -> Counter[int]:
        """Return the number of records by generation (the records queued between two flushes)."""
        records = self.records
        if type(records) is RecordRuns:
            return records.by_generation()
        return Counter(map(_generation_of, records))
