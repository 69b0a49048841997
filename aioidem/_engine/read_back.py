"""What a page of a partition's log says of who wrote it: the headers, without the records."""

from __future__ import annotations

from typing import NamedTuple

from aioidem._records import read_batches

__all__ = ["WrittenBatch", "written_batches"]


class WrittenBatch(NamedTuple):
    """The header of a committed batch, as far as it says whose it is."""

    base_offset: int
    next_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def written_batches(page: bytes) -> list[WrittenBatch]:
    """The whole batches of a page, in order; a page ends anywhere.

    Raises:
        ProtocolError: they are malformed.
    """
    return [
        WrittenBatch(
            batch.base_offset,
            batch.base_offset + batch.last_offset_delta + 1,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
        )
        for batch in read_batches(page, partial=True)
    ]
