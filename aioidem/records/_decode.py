"""The reader's hot loop: the record section of a batch (magic 2) in, records out, one at a time.

Self-contained like `_encode`, for the same reason. Input is hostile: whatever is wrong with it ends
in ValueError or IndexError (the caller makes one ProtocolError of both), nothing is allocated for a
length or a count before the bytes that carry it are known to be there.

Invariants: every record ends exactly where its length says; offset deltas rise and stay within the
batch's last one.
Rejected: reading through ``memoryview`` (every slice would need ``bytes()`` again) and ``struct``
(no varints).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
# A byte each: length, attributes, timestamp delta, offset delta, key length, value length, headers.
MIN_RECORD_SIZE = 7


class ReadRecord(NamedTuple):
    """A record as read; ``timestamp_ms`` is the append time where the topic says so."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _long_number(data: bytes, start: int, limit: int) -> tuple[int, int]:
    """(number before zigzag, next position) of a varint of two to ``limit`` bytes."""
    number = data[start] & 0x7F
    shift = 7
    for pos in range(start + 1, start + limit):
        byte = data[pos]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> (32 if limit == 5 else 64):
                raise ValueError("a varint is out of range")
            return number, pos + 1
        shift += 7
    raise ValueError(f"a varint is longer than {limit} bytes")


def _nullable(data: bytes, pos: int) -> tuple[bytes | None, int]:
    number = data[pos]
    if number < 0x80:
        pos += 1
    else:
        number, pos = _long_number(data, pos, 5)
    if number & 1:
        if number != 1:
            raise ValueError("a length is below -1")
        return None, pos
    end = pos + (number >> 1)
    if end > len(data):
        raise ValueError("a length runs past the end")
    return data[pos:end], end


def _headers(data: bytes, pos: int, count: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, pos = _nullable(data, pos)
        if name is None:
            raise ValueError("a header has no key")
        value, pos = _nullable(data, pos)
        headers.append((name.decode(), value))
    return tuple(headers), pos


def iter_records(
    data: bytes,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    first_timestamp: int,
    append_timestamp: int | None,
    max_items: int,
) -> Iterator[ReadRecord]:
    """The ``count`` records of ``data``, which must end with the last of them.

    ``append_timestamp`` replaces every record's timestamp. ``max_items`` bounds records and headers
    together. Raises ValueError or IndexError (UnicodeDecodeError is a ValueError) at the record
    that is malformed.
    """
    total = len(data)
    if count < 0 or count * MIN_RECORD_SIZE > total or count > max_items:
        raise ValueError(f"{count} records in {total} bytes")
    max_items -= count
    pos = 0
    previous = -1
    timestamp = first_timestamp if append_timestamp is None else append_timestamp
    for _ in range(count):
        number = data[pos]
        if number < 0x80:
            pos += 1
        else:
            number, pos = _long_number(data, pos, 5)
        end = pos + (number >> 1)
        if number & 1 or end > total:
            raise ValueError("a record's length runs past the end")

        pos += 1  # the attributes of a record are unused
        number = data[pos]
        if number < 0x80:
            pos += 1
        else:
            number, pos = _long_number(data, pos, 10)
        if append_timestamp is None:
            timestamp = first_timestamp + (number >> 1 ^ -(number & 1))
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise ValueError("a timestamp is out of range")

        number = data[pos]
        if number < 0x80:
            pos += 1
        else:
            number, pos = _long_number(data, pos, 5)
        delta = number >> 1
        if number & 1 or delta <= previous or delta > last_offset_delta:
            raise ValueError("offset deltas are out of order")
        previous = delta

        # Null, and lengths below 64, take the short way: a call costs more than the rest.
        number = data[pos]
        if number == 1:
            key = None
            pos += 1
        elif number < 0x80 and not number & 1:
            pos += 1
            start = pos
            pos += number >> 1
            key = data[start:pos]
        else:
            key, pos = _nullable(data, pos)
        value, pos = _nullable(data, pos)

        number = data[pos]
        if number == 0:
            pos += 1
            headers: tuple[tuple[str, bytes | None], ...] = ()
        else:
            if number < 0x80:
                pos += 1
            else:
                number, pos = _long_number(data, pos, 5)
            number_of = number >> 1
            if number & 1 or number_of * 2 > end - pos or number_of > max_items:
                raise ValueError("a header count runs past the end")
            max_items -= number_of
            headers, pos = _headers(data, pos, number_of)
        if pos != end:
            raise ValueError("a record is not as long as it says")
        yield ReadRecord(base_offset + delta, timestamp, key, value, headers)
    if pos != total:
        raise ValueError(f"{total - pos} bytes follow the last record")
