"""The records in a batch that a producer sends. Several judges ask for those of the same batch."""

from __future__ import annotations

from functools import lru_cache

from aioidem._testing.wire_frames import Record, batch_values
from aioidem.testing import ValueId, parse_value

__all__ = ["all_records", "records_in"]


@lru_cache(maxsize=128)
def all_records(data: bytes) -> tuple[Record, ...]:
    """Return the records of a batch."""
    return tuple(batch_values(data))


@lru_cache(maxsize=128)
def records_in(data: bytes) -> tuple[tuple[ValueId, Record], ...]:
    """Return the records of a batch that have values of a schedule, with these values."""
    records = [(parse_value(record.value), record) for record in all_records(data)]
    return tuple((value, record) for value, record in records if value is not None)
