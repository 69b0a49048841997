"""The records that a consumer would read from a partition, as tuples that tests can compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aioidem._broker.partition import Partition, Replica
from aioidem._records import read_batches

__all__ = ["StoredRecord", "stored_records"]


class StoredRecord(NamedTuple):
    """A record of a log; ``timestamp`` is in ms since the epoch."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def stored_records(
    partition: Partition, replica: Replica, *, committed: bool
) -> Iterator[StoredRecord]:
    """Return the records below the high watermark, without transaction markers.

    With ``committed`` they are read as with ``isolation.level=read_committed``: without the records
    of aborted transactions, and up to the first record of an open transaction.
    """
    end = partition.last_stable_offset if committed else partition.high_watermark
    log, aborted = replica.log, replica.producers.transactions.aborted(0, end)
    wire = b"".join(batch.wire() for batch in log.batches if batch.last_offset < end)
    for batch in read_batches(wire):
        if batch.control:
            continue
        if committed and any(
            batch.transactional
            and batch.producer_id == each.producer_id
            and each.first_offset <= batch.base_offset < each.last_offset
            for each in aborted
        ):
            continue
        for record in batch.records():
            if record.offset >= log.start_offset:
                yield StoredRecord(
                    partition.index,
                    record.offset,
                    record.timestamp_ms,
                    record.key,
                    record.value,
                    tuple(record.headers),
                )
