"""Sizes and bytes of records whose parts are columns, so that no object is made per record.

These are the pure-Python forms of functions in ``_compiled.pyx``, a Cython module. The columns are:

- values: a tuple of bytes and None, or a `BinaryColumn`;
- keys: the same, or one key (bytes or None) for all rows;
- headers: a list with the headers of each row, or one tuple of headers for all rows;
- stamps: an array of int64, or one timestamp for all rows, in milliseconds since the epoch;
- rows: an array of the indices of the rows to use, in this order; None means all rows, in order.

Invariant: `encode_columns` gives the bytes that `encode_records` gives for the same records at the
same positions in a batch. What `measure_columns` has accepted can be encoded.

Rejected: objects that iterate over columns, and one record object that is filled again for each
row (both cost as much as a record object).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from aioidem._hot.encoding import (
    MAX_RECORD_OVERHEAD,
    TABLE_SIZE,
    VARINT,
    encode_headers,
    payload_size,
    varint,
    varint_size,
)

__all__ = ["BinaryColumn", "encode_columns", "measure_columns"]

Headers = Sequence[tuple[str, bytes | None]]
SharedHeaders = tuple[tuple[str, bytes | None], ...]


class BinaryColumn:
    """A column of bytes in Arrow's layout: all bytes in one buffer, and where each row begins.

    Args:
        data: The bytes of all rows.
        offsets: Where each row begins in `data`, and where the last one ends; int32 or int64.
        valid: A bit for each row, from the lowest bit of each byte on: 0 if the row is None. If
            `valid` is not given (None), no row is None.
        start: The number of the first row in `offsets` and `valid`.
        length: How many rows the column has.

    Raises:
        ValueError: The buffers are too short for so many rows.
    """

    __slots__ = ("data", "length", "offsets", "start", "valid")

    def __init__(
        self,
        data: memoryview,
        offsets: memoryview,
        valid: memoryview | None,
        start: int,
        length: int,
    ) -> None:
        end = start + length
        if start < 0 or length < 0 or (length and len(offsets) <= end):
            raise ValueError(f"{len(offsets)} offsets for {end} rows")
        if valid is not None and len(valid) * 8 < end:
            raise ValueError(f"{len(valid) * 8} bits of validity for {end} rows")
        if offsets.itemsize not in (4, 8):
            raise ValueError(f"offsets of {offsets.itemsize} bytes")
        self.data = data
        self.offsets = offsets
        self.valid = valid
        self.start = start
        self.length = length

    def __len__(self) -> int:
        return self.length

    def before(self, row: int) -> BinaryColumn:
        """Return the column of the rows before this one."""
        return BinaryColumn(self.data, self.offsets, self.valid, self.start, row)

    def _bounds(self, row: int) -> tuple[int, int]:
        """Return where a row begins and ends in `data`; (0, -1) if the row is None."""
        if not 0 <= row < self.length:
            raise IndexError(f"row {row} of {self.length}")
        row += self.start
        valid = self.valid
        if valid is not None and not valid[row >> 3] >> (row & 7) & 1:
            return 0, -1
        begin, end = self.offsets[row], self.offsets[row + 1]
        if not 0 <= begin <= end <= len(self.data):
            raise ValueError(f"row {row} is at {begin} to {end} of {len(self.data)} bytes")
        return begin, end

    def size(self, row: int) -> int:
        """Return how many bytes a row has; -1 if it is None.

        Raises:
            IndexError: There is no such row.
            ValueError: The row lies outside of the data.
        """
        begin, end = self._bounds(row)
        return end - begin

    def __getitem__(self, row: int) -> bytes | None:
        begin, end = self._bounds(row)
        return None if end < 0 else bytes(self.data[begin:end])

    def __iter__(self) -> Iterator[bytes | None]:
        return map(self.__getitem__, range(self.length))


Values = tuple[bytes | None, ...] | BinaryColumn
Keys = Values | bytes | None


def measure_columns(
    values: Values,
    keys: Keys = None,
    headers: list[Headers] | SharedHeaders = (),
    rows: array[int] | None = None,
) -> tuple[array[int], int]:
    """Return running totals of the records' sizes in bytes, and the size of the largest record.

    Args:
        values: The values.
        keys: The keys, or one key that all records have.
        headers: A list of each record's headers, or the headers that all records have.
        rows: The rows that are measured, in their order; None measures all.

    Returns:
        An array with one element more than there are records, whose element N is the sum of the
        sizes of the first N records; and the size of the largest record. Sizes are in bytes,
        uncompressed and without the batch's header.

    Raises:
        TypeError: A part of a record is not exactly bytes or None, or a header is no pair.
        ValueError: A header key cannot be encoded in UTF-8, or a row lies outside of its data.
        IndexError: A column lacks a row.
    """
    sizes = array("q", [0])
    total = largest = 0
    fixed = MAX_RECORD_OVERHEAD + 1
    every: list[Headers] | None = None
    if isinstance(headers, list):
        every = headers
    else:
        fixed += payload_size(None, None, headers) - 2
    several = isinstance(keys, tuple | BinaryColumn)
    if not several:
        fixed += _field_size(_size_of(keys)) - 1
    for row in range(len(values)) if rows is None else rows:
        size = fixed + _field_size(_size_at(values, row))
        if several:
            size += _field_size(_size_at(keys, row)) - 1
        if every is not None:
            size += payload_size(None, None, every[row]) - 2
        total += size
        if size > largest:
            largest = size
        sizes.append(total)
    return sizes, largest


def _size_of(data: object) -> int:
    """Return the length of bytes; -1 for None."""
    if data is None:
        return -1
    if type(data) is not bytes:
        raise TypeError(f"a key or value is bytes or None, not {type(data).__name__}")
    return len(data)


def _size_at(column: object, row: int) -> int:
    if isinstance(column, BinaryColumn):
        return column.size(row)
    if not isinstance(column, tuple):
        raise TypeError(f"a column is a tuple or a BinaryColumn, not {type(column).__name__}")
    return _size_of(column[row])


def _field_size(size: int) -> int:
    """Return how many bytes a field of `size` bytes takes with its length prefix; -1 is None.

    The field is a record's key or value. For None only the prefix is encoded, as -1.
    """
    if size < 64:
        return size + 1 if size >= 0 else 1
    return size + (2 if size < 8192 else varint_size(size))


def encode_columns(
    values: Values,
    keys: Keys,
    headers: list[Headers] | SharedHeaders,
    stamps: array[int] | int,
    rows: array[int] | None,
    begin: int,
    end: int,
    first_offset: int,
    first_ms: int,
) -> bytes:
    """Encode some records, given as columns, as a part of the record section of a batch.

    Args:
        values: The values.
        keys: The keys, or one key that all records have.
        headers: A list of each record's headers, or the headers that all records have.
        stamps: The timestamps, or one timestamp that all records have, in milliseconds since the
            epoch.
        rows: The rows in their order; None means all rows, in order.
        begin: The index in `rows` of the first record to encode.
        end: The index in `rows` after the last record to encode.
        first_offset: The offset delta of the first encoded record; each later one is higher by 1.
        first_ms: The timestamp of the batch's first record, in milliseconds since the epoch.

    Raises:
        TypeError: A part of a record has a wrong type.
        ValueError: `first_offset` is negative, or a header key cannot be encoded in UTF-8.
        IndexError: `begin` or `end` is outside of the rows, or a column has no entry for a row.
        OverflowError: A timestamp is too far from the first one.
    """
    if first_offset < 0:
        raise ValueError(f"the offset delta {first_offset} is negative")
    count = len(values) if rows is None else len(rows)
    if not 0 <= begin <= end <= count:
        raise IndexError(f"records {begin} to {end} of {count}")
    chosen: Iterable[int] = range(begin, end) if rows is None else rows[begin:end]
    names: dict[str, bytes] = {}
    one_key = one_tail = one_lead = None
    if not isinstance(keys, tuple | BinaryColumn):
        one_key = _field(keys)
    if not isinstance(headers, list):
        one_tail = encode_headers(headers, names)
    if isinstance(stamps, int):
        one_lead = b"\x00" + varint(stamps - first_ms)
    small, table = TABLE_SIZE, VARINT
    pieces: list[bytes] = []
    for offset, row in enumerate(chosen, first_offset):
        lead = one_lead
        if lead is None:
            lead = b"\x00" + varint(stamps[row] - first_ms)  # type: ignore[index]
        key = one_key
        if key is None:
            key = _field(keys[row])  # type: ignore[index, arg-type]
        tail = one_tail
        if tail is None:
            tail = encode_headers(headers[row], names)  # type: ignore[arg-type]
        place = table[offset] if offset < small else varint(offset)
        value = values[row]
        if value is None:
            length, value = _NULL, b""
        else:
            size = len(value)
            length = table[size] if size < small else varint(size)
        size = len(lead) + len(place) + len(key) + len(length) + len(value) + len(tail)
        size_field = table[size] if size < small else varint(size)
        pieces += (size_field, lead, place, key, length, value, tail)
    return b"".join(pieces)


_NULL = varint(-1)


def _field(data: bytes | None) -> bytes:
    """Return a key with its length before it."""
    return _NULL if data is None else varint(len(data)) + data
