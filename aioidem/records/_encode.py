"""The hot loop of the producer: records in, the record section of a batch (magic 2) out.

Self-contained on purpose: nothing but builtins, plain functions and module-level tables, so that
mypyc or Cython can compile this file unchanged (``records/_select.py`` prefers ``_encode_compiled``
when it is there).

Invariants: the offset delta of record ``i`` is ``i``; timestamps are deltas to the *first* record's
timestamp and may be negative; a table lookup is never done with a negative index.

Rejected: one growing ``bytearray`` (17 to 25 % slower in CPython: every ``+=`` is a call that
re-checks the buffer, ``join`` sizes its result once); ``b"%b%b" %`` formatting (30 to 60 % slower);
a ``try``/``IndexError`` around the tables instead of a comparison (same speed, and hides errors).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

# At most, beside key, value and headers: length 5, attributes 1, timestamp 10, offset 5.
MAX_RECORD_OVERHEAD = 21
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_TABLE_SIZE = 4096


class NewRecord(Protocol):
    """What the encoder needs of a record; ``timestamp_ms`` is milliseconds since the epoch."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...
    @property
    def timestamp_ms(self) -> int: ...


def unsigned_varint(number: int) -> bytes:
    """Base-128 little-endian groups of a number that is not negative."""
    if number < 0x80:
        return bytes((number,))
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def varint(number: int) -> bytes:
    """Zigzag varint; serves as varlong too. Raises OverflowError beyond 64 bits signed."""
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise OverflowError(f"{number} does not fit 64 bits")
    return unsigned_varint(number << 1 if number >= 0 else ~number << 1 | 1)


def varint_size(number: int) -> int:
    """Bytes that `varint(number)` takes: 1 to 10."""
    zigzag = number << 1 if number >= 0 else ~number << 1 | 1
    return (zigzag.bit_length() + 6) // 7 or 1


# _VARINT[n] is varint(n); _PREFIX[i] is what precedes the key of record i with timestamp delta 0
# (attributes, timestamp delta, offset delta); _PREFIX_NO_KEY[i] goes on with the null key.
_VARINT: list[bytes] = [unsigned_varint(number << 1) for number in range(_TABLE_SIZE)]
_PREFIX: list[bytes] = [b"\x00\x00" + offset for offset in _VARINT]
_PREFIX_NO_KEY: list[bytes] = [prefix + b"\x01" for prefix in _PREFIX]


def encode_nullable(data: bytes | None) -> bytes:
    """Length and bytes; length -1 for None."""
    if data is None:
        return b"\x01"
    size = len(data)
    return (_VARINT[size] if size < _TABLE_SIZE else varint(size)) + data


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The header count and the headers of one record."""
    pieces: list[bytes] = [varint(len(headers))]
    for name, value in headers:
        pieces.append(encode_nullable(name.encode()))
        pieces.append(encode_nullable(value))
    return b"".join(pieces)


def encode_prefix(offset: int, delta: int) -> bytes:
    """Attributes, timestamp delta and offset delta: the way for what the tables do not hold."""
    return b"\x00" + varint(delta) + varint(offset)


def encode_records(records: Iterable[NewRecord]) -> tuple[bytes, int, int, int]:
    """(record section, count, first timestamp, maximum timestamp), timestamps in milliseconds.

    Without records: (b"", 0, -1, -1). Raises TypeError, ValueError, OverflowError or AttributeError
    on a record that is not one; nothing is returned then.
    """
    small = _TABLE_SIZE
    table = _VARINT
    prefixes = _PREFIX
    prefixes_no_key = _PREFIX_NO_KEY
    pieces: list[bytes] = []
    first = maximum = -1
    offset = 0
    for record in records:
        key = record.key
        value = record.value
        headers = record.headers
        timestamp = record.timestamp_ms
        if offset == 0:
            first = maximum = timestamp

        if timestamp == first and offset < small:
            prefix = prefixes_no_key[offset] if key is None else prefixes[offset]
        else:
            if timestamp > maximum:
                maximum = timestamp
            delta = timestamp - first
            if 0 <= delta < small and offset < small:
                prefix = b"\x00" + table[delta] + table[offset]
            else:
                prefix = encode_prefix(offset, delta)
            if key is None:
                prefix += b"\x01"

        if headers or value is None:
            tail = encode_nullable(value) + encode_headers(headers)
            if key is None:
                size = len(prefix) + len(tail)
                pieces += (table[size] if size < small else varint(size), prefix, tail)
            else:
                whole_key = encode_nullable(key)
                size = len(prefix) + len(whole_key) + len(tail)
                pieces += (table[size] if size < small else varint(size), prefix, whole_key, tail)
        else:
            size = len(value)
            value_size = table[size] if size < small else varint(size)
            size += len(prefix) + len(value_size) + 1
            if key is None:
                pieces += (
                    table[size] if size < small else varint(size),
                    prefix,
                    value_size,
                    value,
                    b"\x00",
                )
            else:
                length = len(key)
                key_size = table[length] if length < small else varint(length)
                size += length + len(key_size)
                pieces += (
                    table[size] if size < small else varint(size),
                    prefix,
                    key_size,
                    key,
                    value_size,
                    value,
                    b"\x00",
                )
        offset += 1
    return b"".join(pieces), offset, first, maximum


def nullable_size(data: bytes | None) -> int:
    """Bytes that a key, value or header value takes with its length."""
    if data is None:
        return 1
    size = len(data)
    return size + (1 if size < 64 else 2 if size < 8192 else varint_size(size))


def payload_size(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Bytes of key, value and headers as encoded: what does not depend on the place in a batch."""
    size = nullable_size(key) + nullable_size(value)
    if not headers:
        return size + 1
    size += varint_size(len(headers))
    for name, header_value in headers:
        size += nullable_size(name.encode()) + nullable_size(header_value)
    return size


def record_size(payload: int, offset_delta: int, timestamp_delta_ms: int) -> int:
    """Exact bytes, with the length, of a record of that `payload_size` at that place of a batch."""
    size = 1 + varint_size(timestamp_delta_ms) + varint_size(offset_delta) + payload
    return size + varint_size(size)
