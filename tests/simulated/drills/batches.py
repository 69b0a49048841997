"""The drill of batches: their bytes are built, changed and read, beside a second writer.

A run builds and reads batches of a few kinds. Here each batch is one of any codec, identity and
attributes, written a second time by the table of the format (KIP-98), field by field; logs of
several are cut anywhere; headers claim what they cannot have; limits are reached to the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from random import Random

from aioidem._records import (
    RecordBatch,
    assign_offsets,
    checksum_and_codec,
    read_batches,
    restamp,
)
from aioidem._testing.wire_frames import Record
from aioidem.errors import ProtocolError
from tests.simulated.reading import Reading
from tests.simulated.strange_batches import HEADER, PREAMBLE, framed, strange_batch

from .comparing import differences
from .odd_sections import odd_batch
from .written_batches import WrittenBatch, raises, read

__all__ = ["drill_batches"]


def drill_batches(dice: Random) -> Iterator[str]:
    """Yield what is wrong with some batches, and with a log of them."""
    batches = [WrittenBatch(dice) for _ in range(3)]
    for batch in batches:
        for wrong in batch.differences(dice):
            yield f"batch: {wrong}"
            return
    other = restamp(batches[0].data, producer_id=1, producer_epoch=3, base_sequence=0)
    if RecordBatch(batches[0].data) == RecordBatch(other):
        yield "batches with different producer ids are equal, expected unequal"
    for wrong in _of_headers(dice):
        yield f"header: {wrong}"
        return
    for wrong in _of_logs(batches, dice):
        yield f"log: {wrong}"
        return
    told: list[str] = []
    reading = Reading(told.append)
    records = [Record(0, 0, b"v", b"k", (("h", b""),))] * dice.choice((1, 2))
    for _ in range(2):
        reading.read_strange(strange_batch(records, dice))
    for _ in range(12):
        reading.read_strange(odd_batch(dice))
    yield from told[:1]


def _of_headers(dice: Random) -> Iterator[str]:
    """Yield what is wrong with batches that consist of their header, as compaction leaves them."""
    codec, count, last = dice.randrange(8), dice.choice((0, 0, 0, 1, -1)), dice.choice((5, 0, -1))
    data = framed((codec, last, 0, 0, 1, 0, 0, count), b"", 3, -1)
    crc = int.from_bytes(data[17:21], "big")
    valid = codec <= 4 and count >= 0 and last >= 0
    what = f"a header is valid with codec {codec}, {count} records and the last offset delta {last}"
    same = restamp(data, producer_id=1, producer_epoch=0, base_sequence=0)
    placed = assign_offsets(data, base_offset=3, leader_epoch=-1)
    yield from differences(
        {
            what: (not raises(ProtocolError, RecordBatch, data), valid),
            "checksum and codec": (checksum_and_codec(data), (crc, codec)),
            "bytes with the identity that it has": (same, data),
            "bytes with the offset that it has": (placed, data),
        }
    )
    if codec <= 4 and count == 0 <= last and read(data) != []:
        yield f"records of an empty batch: told {read(data)}, expected []"


# -- logs ------------------------------------------------------------------------------------------


def _of_logs(batches: Sequence[WrittenBatch], dice: Random) -> Iterator[str]:
    """Yield what is wrong with the reading of several batches, whole or cut short."""
    parts = [batch.data for batch in batches]
    log = b"".join(parts)
    found = read_batches(log)
    if [batch.raw for batch in found] != parts:
        yield f"{len(found)} batches are read, expected {len(parts)} with the bytes as written"
    for _ in range(4):
        # Mostly in the first bytes of a batch, where the length is or its header ends.
        whole = dice.randrange(len(parts))
        size = dice.choice((1, 11, 12, 17, 18, 60, 61, len(parts[whole]) - 1))
        cut = b"".join(parts[:whole]) + parts[whole][:size]
        some = [batch.raw for batch in read_batches(cut, partial=True)]
        if some != parts[:whole]:
            yield (
                f"{len(some)} batches are read where the last one is cut to {size} bytes, expected "
                f"the {whole} before it"
            )
        if not raises(ProtocolError, read_batches, cut):
            yield f"a log whose last batch is cut to {size} bytes is read, expected ProtocolError"
    yield from _of_lengths(parts[0], dice)


def _of_lengths(data: bytes, dice: Random) -> Iterator[str]:
    """Yield which impossible length or magic is read, or is not named by the error."""
    length = dice.choice((-1, 0, 4, 5, HEADER - PREAMBLE - 1))
    magic = dice.choice((0, 1, 2, 3))
    for partial in (False, True):
        size = dice.choice((12, 16, 17, 40, len(data)))
        log = data[:8] + struct.pack(">i", length) + data[12:16] + bytes((magic,)) + data[17:]
        log = log[:size]
        said = _error_of(log, partial=partial)
        old = magic < 2 and length >= 5 and size > 16
        due = (
            f"a batch has magic {magic}; only 2" if old else f"length field of a batch is {length}"
        )
        if due not in said:
            what = f"error for length {length} and magic {magic} in {size} bytes"
            yield f"{what}: told {said!r}, expected {due!r} in it"
    other = data[:16] + bytes((dice.choice((0, 1, 3)),)) + data[17:]
    words = f"has magic {other[16]}"
    if words not in _error_of(other):
        yield f"error for another magic: told {_error_of(other)!r}, expected {words!r} in it"


def _error_of(log: bytes, *, partial: bool = False) -> str:
    """Return the text of the error for a log that cannot be read; empty if it can."""
    try:
        read_batches(log, partial=partial)
    except ProtocolError as error:
        return str(error)
    return ""
