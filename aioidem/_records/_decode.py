"""The reader's hot loop: decode the record section of a batch (magic 2) into records.

The loop is not compiled: a producer reads records only to find out what became of a batch in doubt.
The data is untrusted: malformed data raises ValueError or IndexError, which the caller turns into
ProtocolError. A length or a count is compared with the number of bytes left before anything is
allocated for it.

Invariants: every record ends exactly where its length says. Offset deltas rise and do not exceed
the batch's last one. Varints of one and two bytes are decoded inline, because a function call takes
a quarter of the time of decoding a record; longer ones, and headers, are decoded by functions.

Rejected: ``memoryview`` (every slice would have to become ``bytes`` again), ``struct`` (it has no
varints), calling the record's class (a NamedTuple's own ``__new__`` doubles the cost).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
# The smallest record has one byte each for length, attributes, timestamp delta, offset delta, key
# length, value length and number of headers.
MIN_RECORD_SIZE = 7

Headers = tuple[tuple[str, bytes | None], ...]


class ReadRecord(NamedTuple):
    """A record as read; ``timestamp_ms`` is the broker's append time if the topic uses that."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


_new_record = tuple.__new__


def _number(data: bytes, start: int, limit: int) -> tuple[int, int]:
    """Read a varint of at most ``limit`` bytes (5 or 10), without undoing zigzag.

    Returns:
        The number, and the position after it.
    """
    number = 0
    shift = 0
    for pos in range(start, start + limit):
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
        number, pos = _number(data, pos, 5)
    if number & 1:
        if number != 1:
            raise ValueError("a length is below -1")
        return None, pos
    end = pos + (number >> 1)
    if end > len(data):
        raise ValueError("a length runs past the end")
    return data[pos:end], end


def _headers(data: bytes, pos: int, count: int) -> tuple[Headers, int]:
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, pos = _nullable(data, pos)
        if name is None:
            raise ValueError("a header has no key")
        value, pos = _nullable(data, pos)
        # Brokers store names without decoding them, and Java's consumer replaces what is not UTF-8.
        headers.append((name.decode(errors="replace"), value))
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
    """Yield the ``count`` records of ``data``, which must end with the last of them.

    Args:
        data: The record section, decompressed.
        count: The number of records that the batch's header announces.
        base_offset: The batch's base offset.
        last_offset_delta: The batch's last offset delta.
        first_timestamp: The batch's first timestamp in ms.
        append_timestamp: Replaces every record's own timestamp, if the topic uses append times.
        max_items: The limit on records and headers together.

    Raises:
        ValueError: A record is malformed; the error comes in place of that record.
        IndexError: The data ends early; the error comes after the last whole record.
    """
    total = len(data)
    if count < 0 or count * MIN_RECORD_SIZE > total or count > max_items:
        raise ValueError(f"{count} records in {total} bytes")
    max_items -= count
    pos = 0
    previous = -1
    timestamp = first_timestamp if append_timestamp is None else append_timestamp
    key: bytes | None
    value: bytes | None
    for _ in range(count):
        number = data[pos]
        if number < 0x80:
            pos += 1
        elif (byte := data[pos + 1]) < 0x80:
            number += (byte - 1) << 7
            pos += 2
        else:
            number, pos = _number(data, pos, 5)
        end = pos + (number >> 1)
        if number & 1 or end > total:
            raise ValueError("a record's length runs past the end")

        pos += 1  # a record's attributes are unused
        number = data[pos]
        if number < 0x80:
            pos += 1
        elif (byte := data[pos + 1]) < 0x80:
            number += (byte - 1) << 7
            pos += 2
        else:
            number, pos = _number(data, pos, 10)
        if append_timestamp is None:
            timestamp = first_timestamp + (number >> 1 ^ -(number & 1))
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise ValueError("a timestamp is out of range")

        number = data[pos]
        if number < 0x80:
            pos += 1
        elif (byte := data[pos + 1]) < 0x80:
            number += (byte - 1) << 7
            pos += 2
        else:
            number, pos = _number(data, pos, 5)
        delta = number >> 1
        if number & 1 or delta <= previous or delta > last_offset_delta:
            raise ValueError("offset deltas are out of order")
        previous = delta

        number = data[pos]
        if number < 0x80:
            pos += 1
        elif (byte := data[pos + 1]) < 0x80:
            number += (byte - 1) << 7
            pos += 2
        else:
            number, pos = _number(data, pos, 5)
        # Slicing a key or value that runs past the end gives fewer bytes; the check of the record's
        # end below then fails.
        if number & 1 == 0:
            start = pos
            pos += number >> 1
            key = data[start:pos]
        elif number == 1:
            key = None
        else:
            raise ValueError("a key's length is below -1")

        number = data[pos]
        if number < 0x80:
            pos += 1
        elif (byte := data[pos + 1]) < 0x80:
            number += (byte - 1) << 7
            pos += 2
        else:
            number, pos = _number(data, pos, 5)
        if number & 1 == 0:
            start = pos
            pos += number >> 1
            value = data[start:pos]
        elif number == 1:
            value = None
        else:
            raise ValueError("a value's length is below -1")

        number = data[pos]
        if number == 0:
            pos += 1
            headers: Headers = ()
        else:
            number, pos = _number(data, pos, 5)
            number_of = number >> 1
            if number & 1 or number_of * 2 > end - pos or number_of > max_items:
                raise ValueError("a header count runs past the end")
            max_items -= number_of
            headers, pos = _headers(data, pos, number_of)
        if pos != end:
            raise ValueError("a record is not as long as it says")
        yield _new_record(ReadRecord, (base_offset + delta, timestamp, key, value, headers))
    if pos != total:
        raise ValueError(f"{total - pos} bytes follow the last record")
