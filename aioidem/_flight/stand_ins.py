"""Stand-ins: records of a replay, which have the sizes and times of real ones and no contents.

The records that a batch takes are known from the batch: `Load` has their number, their size
together and that of the first one, when it was queued, and when it expires. The other stand-ins
have the mean size. While the engine is polled that took them, they have one `RecordGroup`
(`Together`), so that it puts exactly these records into one batch: which records were together is
given, because their single sizes are not known. Whether the engine sends a batch of them at all is
decided anew; that may depend on the size of the first record behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aioidem._engine.record import Outcome, PendingRecord, RecordGroup
from aioidem._records import (
    BATCH_OVERHEAD,
    BatchBody,
    Codec,
    payload_size,
    record_size,
    record_size_bound,
)
from aioidem.errors import FlightRecordError

_LOOSE_OVERHEAD = record_size_bound(None, None, ()) - payload_size(None, None, ())

__all__ = ["MOST_RECORDS", "Load", "StandIn", "Together", "stand_in_body", "stand_ins"]

MOST_RECORDS = 1_000_000
"""The most records that a batch in a file may have."""


class Load(NamedTuple):
    """The records of one batch."""

    records: int
    """How many there are."""
    size: int
    """The sum of their sizes, in bytes."""
    queued_at: float
    """When the first one got its partition, in seconds."""
    filled_at: float
    """When the last one got its partition, in seconds."""
    deadline: float
    """When the first one expires, in seconds."""
    ordinal: int
    """The number of the first one among all records of the producer."""
    last: int
    """The number of the last one."""
    stamp_ms: int
    """The latest timestamp, in milliseconds since the epoch."""
    encoded: int
    """The size of the batch on the wire, in bytes; 0 if it is not known."""
    lead: int = 0
    """The size of the first record, in bytes; 0 if it is not known, or the only one."""

    def begins_after(self, record: PendingRecord) -> bool:
        """Return whether a record of the partition was queued before these."""
        return record.ordinal < self.ordinal


class Together(RecordGroup):
    """The mark of the stand-ins of one batch. Its size of 0 says that a batch has room for them."""

    __slots__ = ("load",)

    def __init__(self, load: Load) -> None:
        super().__init__(0)
        self.load = load


class StandIn(PendingRecord):
    """A record without contents, whose outcome nobody waits for."""

    __slots__ = ()

    def settle(self, outcome: Outcome, place: int) -> None:
        """Ignore the outcome."""


def stand_ins(load: Load, partition: int) -> list[PendingRecord]:
    """Return the records of a batch.

    Args:
        load: what is known of them.
        partition: their partition.

    Raises:
        FlightRecordError: there are more of them than a batch can have.
    """
    if not 0 < load.records <= MOST_RECORDS or load.size < 0:
        raise FlightRecordError(f"the flight record is damaged: a batch of {load.records} records")
    lead = load.lead if load.records > 1 and 0 < load.lead <= load.size else 0
    each, left = divmod(load.size - lead, load.records - bool(lead))
    sizes = [each] * load.records
    sizes[0] = lead or each
    sizes[-1] += left
    made: list[PendingRecord] = []
    for place, size in enumerate(sizes):
        record = StandIn(None, None, (), load.stamp_ms, partition, size)
        record.queued_at, record.deadline = load.queued_at, load.deadline
        record.ordinal = min(load.ordinal + place, max(load.last, load.ordinal))
        made.append(record)
    return made


def stand_in_body(records: Sequence[PendingRecord], codec: Codec, _level: int | None) -> BatchBody:
    """Return a body of the size that the batch of these records had, instead of encoding them."""
    group, count = records[0].group, len(records)
    size = sum(record.size for record in records)
    tight = record_size(size // count, count, 0) - size // count
    length = size + count * (tight - _LOOSE_OVERHEAD)
    if isinstance(group, Together) and group.load.records == count and group.load.encoded:
        length = group.load.encoded - BATCH_OVERHEAD
    stamps = [record.timestamp_ms for record in records]
    return BatchBody(
        bytes(max(length, 0)), codec, count, stamps[0], max(stamps), size + BATCH_OVERHEAD
    )
