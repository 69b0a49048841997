"""What a recorder keeps of a log that was read back: where batches are, and whose they are.

The log may have records of other producers. Only the positions, producer ids, epochs, sequences and
append times of its batches are kept, which is all that the engine looks at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from aioidem._engine.read_back import WrittenBatch, written_batches
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._records import layout
from aioidem.errors import FlightRecordError, ProtocolError

__all__ = ["page_of", "shortened"]


def shortened(answer: ReadBackAnswer) -> tuple[Any, ...]:
    """Return an answer without the contents of the log."""
    try:
        batches: tuple[WrittenBatch, ...] | None = tuple(written_batches(answer.records))
    except ProtocolError:
        batches = None
    return ("pages", answer.error_code, answer.high_watermark, batches, answer.throttle_ms)


def page_of(batches: Iterable[WrittenBatch] | None) -> bytes:
    """Return a page of a log with batches in these places, which have no records.

    Args:
        batches: the batches; None for a page that cannot be read.

    Raises:
        FlightRecordError: a number does not fit into its field.
    """
    if batches is None:
        return bytes(layout.BATCH_OVERHEAD)
    try:
        return b"".join(map(_header, batches))
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        raise FlightRecordError(f"the flight record is damaged: {error!r:.200}") from None


def _header(batch: WrittenBatch) -> bytes:
    length = layout.BATCH_OVERHEAD - layout.PREAMBLE.size
    delta = batch.next_offset - batch.base_offset - 1
    attributes = layout.LOG_APPEND_TIME if batch.log_append_time_ms >= 0 else 0
    numbers = attributes, delta, 0, batch.log_append_time_ms, *batch.identity, 0
    lead = layout.LEAD.pack(batch.base_offset, length, layout.NO_LEADER_EPOCH, layout.MAGIC, 0)
    return lead + layout.TAIL.pack(*numbers)
