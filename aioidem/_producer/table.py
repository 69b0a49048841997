"""Tables: the records of a `send_table`, as columns of an Arrow table.

Records are encoded straight from the buffers of a table's columns, and no object is made for a row.
Only a column of headers needs an object for each row, because headers are checked name by name.
pyarrow, from the extra `arrow`, is imported when a table is sent.

Invariant: names and types of all columns, and all timestamps, are checked before the first record
is queued.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from aioidem import errors
from aioidem._engine.record_block import Columns, SharedHeaders
from aioidem._producer.arguments import Headers, checked_headers, checked_timestamp
from aioidem._producer.pieces import before_too_large, most_rows
from aioidem._records import BinaryColumn, record_size_bound

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableColumns"]


class TableColumns:
    """The columns of a table that are sent; their names and types are checked when it is made.

    Args:
        table: A `pyarrow.Table` or `RecordBatch`, or an object with `__arrow_c_stream__`.
        value: The name of the column of payloads.
        key: A str is the name of the column of keys; bytes are the key of all records.
        headers: A str is the name of the column of headers; a tuple has the headers of all records,
            which the caller has checked.
        timestamp: A str is the name of the column of timestamps; an int is the timestamp of all
            records in milliseconds since the epoch; None is the current time.

    Raises:
        ImportError: pyarrow is not installed.
        RecordError: The table lacks a column, or a timestamp is out of range.
        TypeError: `table` is not a table, or a column has a type that cannot be sent.
    """

    def __init__(
        self,
        table: object,
        *,
        value: str,
        key: str | bytes | None,
        headers: str | SharedHeaders,
        timestamp: str | int | None,
    ) -> None:
        self._table = _arrow_table(table)
        self._value = _check_name("value", value)
        self._key = key
        self._headers = headers
        self._timestamp = timestamp
        named = {name: _binary for name in (value, key) if isinstance(name, str)}
        casts: dict[str, Callable[[str, pa.ChunkedArray], pa.ChunkedArray]] = dict(named)
        if isinstance(headers, str):
            casts[headers] = _header_pairs
        if isinstance(timestamp, str):
            casts[timestamp] = _milliseconds
        columns = {name: cast(name, self._column(name)) for name, cast in casts.items()}
        self._table = _pyarrow().table(columns)

    def _column(self, name: str) -> pa.ChunkedArray:
        names = self._table.column_names
        if names.count(name) != 1:
            how = "no column" if name not in names else f"{names.count(name)} columns"
            raise errors.RecordError(f"the table has {how} {name!r}; its columns are {names}")
        return self._table.column(name)

    def pieces(
        self, most: int, too_large: Callable[[int], errors.KafkaError], asks: bool = False
    ) -> Iterator[Columns]:
        """Yield the records in pieces of at most `most_rows` rows.

        Args:
            most: The most bytes that one record may take.
            too_large: Makes the error of a record that takes more, given the number of its bytes.
            asks: Whether a partitioner of the user's is asked for each record.

        Raises:
            TypeError: A header has a wrong type.
            KafkaError: A header's name cannot be encoded, a record is too large, or a column's
                buffers contradict each other.
        """
        in_python = asks or isinstance(self._headers, str)
        rows = most_rows(keys=isinstance(self._key, str), in_python=in_python)
        for batch in self._table.to_batches(max_chunksize=rows):
            if not batch.num_rows:
                continue
            try:
                columns = self._columns(batch)
            except (ValueError, IndexError) as error:
                raise errors.RecordError(f"the table is malformed: {error}") from error
            bad: Exception | None = None
            rest: Columns | None = columns
            if columns.largest > most:
                rest, bad = before_too_large(columns, most, too_large)
            if rest is not None:
                yield rest
            if bad is not None:
                raise bad

    def _columns(self, batch: pa.RecordBatch) -> Columns:
        key, headers, timestamp = self._key, self._headers, self._timestamp
        now = round(time.time() * 1000)
        stamps: array[int] | int = now if timestamp is None else 0
        if isinstance(timestamp, str):
            stamps = _stamps(batch.column(timestamp), now)
        elif timestamp is not None:
            stamps = timestamp
        return Columns(
            _buffers(batch.column(self._value)),
            _buffers(batch.column(key)) if isinstance(key, str) else key,
            _headers(headers, batch.column(headers)) if isinstance(headers, str) else headers,
            stamps,
        )


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError("send_table needs pyarrow: pip install 'aioidem[arrow]'") from None
    return pa


def _check_name(argument: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a column's name, not {type(name).__name__}")
    return name


def _arrow_table(given: Any) -> pa.Table:
    pa = _pyarrow()
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if hasattr(given, "__arrow_c_stream__"):
        return pa.table(given)
    raise TypeError(f"table must be an Arrow table or record batch, not {type(given).__name__}")


def _binary(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of bytes or text in one of the four layouts that `BinaryColumn` reads."""
    pa = _pyarrow()
    is_a, kind = pa.types, column.type
    if is_a.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if is_a.is_binary(kind) or is_a.is_string(kind):
        return column
    if is_a.is_large_binary(kind) or is_a.is_large_string(kind):
        return column
    if is_a.is_null(kind) or is_a.is_fixed_size_binary(kind):
        return column.cast(pa.large_binary())
    if is_a.is_binary_view(kind) or is_a.is_string_view(kind):
        return column.cast(pa.large_binary())
    raise TypeError(f"column {name!r} is {kind}, and must be binary or string")


def _header_pairs(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Check that a column has headers, as lists of (name, bytes) or as maps, and return it."""
    is_a, kind = _pyarrow().types, column.type
    pair = None
    if is_a.is_map(kind):
        pair = kind.key_type, kind.item_type
    elif is_a.is_list(kind) or is_a.is_large_list(kind):
        struct = kind.value_type
        if is_a.is_struct(struct) and struct.num_fields == 2:
            pair = struct.field(0).type, struct.field(1).type
    if pair is None or not _is_text(pair[0]) or not _is_bytes(pair[1]):
        raise TypeError(
            f"column {name!r} is {kind}, and must be a list of pairs (a struct of string and "
            "binary) or a map of string to binary"
        )
    return column


def _is_text(kind: pa.DataType) -> bool:
    is_a = _pyarrow().types
    return bool(is_a.is_string(kind) or is_a.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    is_a = _pyarrow().types
    return bool(is_a.is_binary(kind) or is_a.is_large_binary(kind) or is_a.is_null(kind))


def _milliseconds(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of timestamps as milliseconds since the epoch."""
    import pyarrow.compute as pc

    pa = _pyarrow()
    if not pa.types.is_timestamp(column.type):
        raise TypeError(f"column {name!r} is {column.type}, and must be a timestamp")
    stamps = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    found = pc.call_function("min_max", [stamps]).as_py()
    for extreme in (found["min"], found["max"]):
        if extreme is not None:
            try:
                checked_timestamp(extreme)
            except errors.RecordError as error:
                raise errors.RecordError(f"column {name!r}: {error}") from error
    return stamps


def _buffers(column: pa.Array) -> BinaryColumn:
    pa = _pyarrow()
    valid, offsets, data = column.buffers()
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    places = memoryview(offsets).cast("B")
    itemsize = 8 if wide else 4
    return BinaryColumn(
        memoryview(b"" if data is None else data).cast("B"),
        places[: len(places) // itemsize * itemsize].cast("q" if wide else "i"),
        None if valid is None or not column.null_count else memoryview(valid).cast("B"),
        column.offset,
        len(column),
    )


def _stamps(column: pa.Array, now: int) -> array[int]:
    if column.null_count:
        column = column.fill_null(now)
    begin = column.offset * 8
    stamps = array("q")
    stamps.frombytes(memoryview(column.buffers()[1]).cast("B")[begin : begin + len(column) * 8])
    return stamps


def _headers(name: str, column: pa.Array) -> list[Headers]:
    made: list[Headers] = []
    for row in column.to_pylist():
        pairs = [tuple(pair.values()) if isinstance(pair, dict) else pair for pair in row or ()]
        try:
            headers = checked_headers(pairs)
            record_size_bound(None, None, headers)  # raises if a name cannot be encoded
        except TypeError as error:
            raise TypeError(f"column {name!r}: {error}") from error
        made.append(headers)
    return made
