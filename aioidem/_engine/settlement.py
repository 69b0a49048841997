"""Settlement: some records of one partition, and the outcome that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from aioidem._engine.record import HEADER_MEMORY, Outcome, PendingRecord
from aioidem._engine.record_block import RecordRuns, records_of

__all__ = ["Settlement"]

_generation_of = attrgetter("generation")
_headers_of = attrgetter("headers")
_memory_of = attrgetter("memory")
_size_of = attrgetter("size")


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
        return records.size if type(records) is RecordRuns else sum(map(_size_of, records))

    def overhead(self) -> int:
        """Return the bytes that the records take in memory besides their `size`."""
        records = self.records
        if type(records) is RecordRuns:
            return records.overhead()
        headers: int = sum(map(len, map(_headers_of, records)))
        memory: int = sum(map(_memory_of, records))
        return memory + headers * HEADER_MEMORY

    def by_generation(self) -> Counter[int]:
        """Return the number of records by generation (the records queued between two flushes)."""
        records = self.records
        if type(records) is RecordRuns:
            return records.by_generation()
        return Counter(map(_generation_of, records))
