"""Batches for drills of parts that look at a batch's numbers and times, and not at its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.record import Outcome, PendingRecord

__all__ = ["IDENTITY", "Nobody", "made_batch"]

IDENTITY: Final = ProducerIdentity(7, 1)


class Nobody:
    """Stands in for the callers of a block: outcomes are looked at elsewhere."""

    def take(self, rows: Sequence[int], outcome: Outcome, place: int, /) -> None:
        """Ignore the outcome of some records."""


def made_batch(ordinal: int, count: int = 1, stamp_ms: int = 0, base: int = 0) -> Batch:
    """Return a batch of some records, sealed and not sent.

    Args:
        ordinal: its number among the batches of its partition.
        count: how many records it has.
        stamp_ms: the timestamp of all its records.
        base: its base sequence.
    """
    records = [PendingRecord(None, b"", (), stamp_ms, None, 10) for _ in range(count)]
    return Batch(
        ordinal=ordinal,
        records=records,
        data=b"batch",
        identity=IDENTITY,
        base=base,
        deadline=100.0,
        max_timestamp_ms=stamp_ms,
    )
