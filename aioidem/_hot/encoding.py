"""Encode records into the record section of a batch (magic 2), and compute their sizes.

These are the pure-Python forms of the functions of the same names in ``_compiled.pyx``.

Invariants: the offset delta of record ``i`` is ``i``. A timestamp delta is the difference to the
timestamp of the *first* record, and may be negative. A timestamp is -1 (none) or at least 0, as in
Java's `MemoryRecordsBuilder`. Varints of small numbers are looked up in tables, never by a negative
index.

Rejected, all measured in CPython 3.11: one growing ``bytearray`` (17 to 25 % slower than a list and
one ``join``, which computes the size once), ``%``-formatting a record (30 to 60 % slower), catching
the IndexError of a table instead of comparing the index first (same speed, and errors would be
hidden), a table with the first bytes of records whose timestamp delta is 0 (5 % faster for those
records, 50 % slower for others).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

__all__ = [
    "MAX_RECORD_OVERHEAD",
    "TABLE_SIZE",
    "VARINT",
    "NewRecord",
    "encode_headers",
    "encode_records",
    "payload_size",
    "record_size",
    "unsigned_varint",
    "varint",
    "varint_size",
]

# The most bytes of a record besides key, value and headers: length 5, attributes 1, timestamp
# delta 10, offset delta 5.
MAX_RECORD_OVERHEAD = 21
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
TABLE_SIZE = 4096


class NewRecord(Protocol):
    """The attributes of a record that the encoder reads; times are milliseconds since the epoch."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...
    @property
    def timestamp_ms(self) -> int: ...


def unsigned_varint(number: int) -> bytes:
    """Encode a number that is not negative as base-128 groups, lowest first."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def varint(number: int) -> bytes:
    """Encode a number as zigzag varint; raise OverflowError if it does not fit 64 bits signed."""
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise OverflowError(f"{number} does not fit 64 bits")
    return unsigned_varint(number << 1 if number >= 0 else ~number << 1 | 1)


def varint_size(number: int) -> int:
    """Return how many bytes `varint(number)` has: 1 to 10."""
    zigzag = number << 1 if number >= 0 else ~number << 1 | 1
    return (zigzag.bit_length() + 6) // 7 or 1


_NULL = varint(-1)
_NO_HEADERS = varint(0)
# Three tables with an entry for each small n: varint(n) alone; varint(n) as offset delta, followed
# by a null key; and attributes 0, followed by varint(n) as timestamp delta.
VARINT: list[bytes] = [bytes((zigzag,)) for zigzag in range(0, 0x80, 2)]
VARINT += [bytes((zigzag & 0x7F | 0x80, zigzag >> 7)) for zigzag in range(0x80, 2 * TABLE_SIZE, 2)]
_OFFSET_NULL_KEY: list[bytes] = [offset + _NULL for offset in VARINT]
_ATTRIBUTES_TIME: list[bytes] = [b"\x00" + delta for delta in VARINT]


def encode_headers(headers: Sequence[tuple[str, bytes | None]], names: dict[str, bytes]) -> bytes:
    """Encode a record's header count and headers; ``names`` caches encoded keys, which recur."""
    pieces: list[bytes] = [varint(len(headers))]
    for name, value in headers:
        encoded_name = names.get(name)
        if encoded_name is None:
            raw = name.encode()
            encoded_name = names[name] = varint(len(raw)) + raw
        if value is None:
            pieces += (encoded_name, _NULL)
        else:
            size = len(value)
            value_size = VARINT[size] if size < TABLE_SIZE else varint(size)
            pieces += (encoded_name, value_size, value)
    return b"".join(pieces)


def encode_records(records: Iterable[NewRecord]) -> tuple[bytes, int, int, int]:
    """Encode records; return (record section, count, first timestamp, maximum timestamp).

    Timestamps are in milliseconds. Without records the result is (b"", 0, -1, -1). A record with
    wrong types or values raises TypeError, ValueError, OverflowError or AttributeError.
    """
    small = TABLE_SIZE
    table = VARINT
    offsets_null_key = _OFFSET_NULL_KEY
    null = _NULL
    no_headers = _NO_HEADERS
    pieces: list[bytes] = []
    names: dict[str, bytes] = {}
    first = maximum = previous = -1
    lead = b""
    lead_size = 0
    offset = 0
    for record in records:
        key = record.key
        value = record.value
        headers = record.headers
        timestamp = record.timestamp_ms

        # Successive records often have the same timestamp, so its delta is encoded only once.
        if timestamp != previous or offset == 0:
            if offset == 0:
                first = maximum = timestamp
            elif timestamp > maximum:
                maximum = timestamp
            if timestamp < -1:
                raise ValueError(f"the timestamp {timestamp} is negative")
            previous = timestamp
            delta = timestamp - first
            lead = _ATTRIBUTES_TIME[delta] if 0 <= delta < small else b"\x00" + varint(delta)
            lead_size = len(lead)

        if value is None:
            value_size = null
            value = b""
            size = 1
        else:
            size = len(value)
            value_size = table[size] if size < small else varint(size)
            size += len(value_size)
        if headers:
            tail = encode_headers(headers, names)
            size += len(tail)
        else:
            tail = no_headers
            size += 1

        if key is None:
            place = offsets_null_key[offset] if offset < small else varint(offset) + null
            size += lead_size + len(place)
            pieces += (
                table[size] if size < small else varint(size),
                lead,
                place,
                value_size,
                value,
                tail,
            )
        else:
            place = table[offset] if offset < small else varint(offset)
            length = len(key)
            key_size = table[length] if length < small else varint(length)
            size += lead_size + len(place) + len(key_size) + length
            pieces += (
                table[size] if size < small else varint(size),
                lead,
                place,
                key_size,
                key,
                value_size,
                value,
                tail,
            )
        offset += 1
    if maximum > _INT64_MAX:
        raise OverflowError(f"the timestamp {maximum} does not fit 64 bits")
    return b"".join(pieces), offset, first, maximum


def _nullable_size(data: bytes | None) -> int:
    """Return how many bytes a key, value or header value takes with its length prefix."""
    if data is None:
        return 1
    size = len(data)
    return size + (1 if size < 64 else 2 if size < 8192 else varint_size(size))


def payload_size(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Return the encoded size of key, value and headers, which is the same anywhere in a batch.

    Arguments with wrong types or values raise TypeError, ValueError or AttributeError.
    """
    if not (key is None or isinstance(key, bytes)) or not (
        value is None or isinstance(value, bytes)
    ):
        raise TypeError(f"key and value are bytes or None, not {type(key)} and {type(value)}")
    size = _nullable_size(key) + _nullable_size(value)
    if not headers:
        return size + 1
    size += varint_size(len(headers))
    for name, header_value in headers:
        if not (header_value is None or isinstance(header_value, bytes)):
            raise TypeError(f"a header's value is bytes or None, not {type(header_value)}")
        size += _nullable_size(name.encode()) + _nullable_size(header_value)
    return size


def record_size(payload: int, offset_delta: int, timestamp_delta_ms: int) -> int:
    """Return the exact size in bytes of an encoded record, its own length field included.

    ``payload`` is the result of `payload_size`.
    """
    size = 1 + varint_size(timestamp_delta_ms) + varint_size(offset_delta) + payload
    return size + varint_size(size)
