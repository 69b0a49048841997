"""Draft: records of a batch while a thread compresses them.

A long compression must not hold up the event loop, so the engine has the Sender do it in a thread
(step `Compress`), and makes the batch when the result has come. Compressed records contain neither
producer id nor sequence. So the batch is numbered only when it is sent, like any other.

A draft belongs to a partition's queue, whose next batch it becomes, or to a part of a batch that
was divided because the broker refused it.

Invariant: the records of a queue's draft stay in the queue until the batch is sealed, and are the
first ones there. Whatever happens to queued records (expiry, an abort, the end of the producer,
another cluster) happens to these in the same way, and ends the draft, whose result is then ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import items_of
from aioidem._records import BatchBody

__all__ = ["Draft"]


class Draft:
    """Records that are being compressed for a batch, or have been.

    Args:
        records: the records, in order.

    Attributes:
        items: the same records, as single records and as blocks (`RecordBlock`).
        size: the sum of their sizes before compression, in bytes.
        body: the compressed records; None until they are.
    """

    __slots__ = ("body", "items", "records", "size")

    def __init__(self, records: Sequence[PendingRecord]) -> None:
        self.records = records
        self.items = items_of(records)
        self.size = sum(item.size for item in self.items)
        self.body: BatchBody | None = None
