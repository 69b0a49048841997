"""Compiled code and pure Python measure and encode columns like the same records one by one.

A column holds the values, keys, headers or timestamps of many records, one row per record. It is a
tuple or an array, or, in Arrow's layout, a `BinaryColumn`.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioidem._hot import BinaryColumn

from .test_twins import _ANY_DATA, _DATA, _HEADERS, _ODD_HEADERS, SIZES, Record, outcome

NOW = 1_795_250_000_000


def binary(values: list[bytes | None], *, start: int, wide: bool, nullable: bool) -> BinaryColumn:
    """Return a column of `values` in Arrow's layout; its buffers begin with `start` other rows."""
    rows = [b"before"] * start + values
    offsets, valid, data = array("q" if wide else "i", [0]), bytearray(len(rows) // 8 + 1), b""
    for row, value in enumerate(rows):
        data += value or b""
        offsets.append(len(data))
        if value is not None:
            valid[row >> 3] |= 1 << (row & 7)
    bits = memoryview(valid) if nullable or None in values else None
    return BinaryColumn(memoryview(data), memoryview(offsets), bits, start, len(values))


@st.composite
def columns(draw: st.DrawFn) -> tuple[Any, Any, Any, Any, Any, list[Record]]:
    """Draw values, keys, headers, timestamps (ms) and row numbers, and the records from them."""
    values = draw(st.lists(_DATA, min_size=1, max_size=9))
    count = len(values)

    def column(data: list[bytes | None]) -> Any:
        if draw(st.booleans()):
            return tuple(data)
        start, wide, nullable = draw(st.integers(0, 9)), draw(st.booleans()), draw(st.booleans())
        return binary(data, start=start, wide=wide, nullable=nullable)

    keys: Any = draw(st.one_of(_DATA, st.lists(_DATA, min_size=count, max_size=count)))
    headers: Any = draw(st.one_of(_HEADERS, st.lists(_HEADERS, min_size=count, max_size=count)))
    stamp = st.integers(0, 9000).map(lambda n: NOW + n)
    stamps: Any = draw(st.one_of(stamp, st.lists(stamp, min_size=count, max_size=count)))
    rows = draw(st.none() | st.lists(st.integers(0, count - 1), min_size=1, max_size=12))
    records = [
        Record(
            keys[row] if isinstance(keys, list) else keys,
            values[row],
            headers[row] if isinstance(headers, list) else headers,
            stamps[row] if isinstance(stamps, list) else stamps,
        )
        for row in (range(count) if rows is None else rows)
    ]
    return (
        column(values),
        column(keys) if isinstance(keys, list) else keys,
        headers,
        array("q", stamps) if isinstance(stamps, list) else stamps,
        None if rows is None else array("q", rows),
        records,
    )


@given(drawn=columns(), before=st.integers(0, 3))
def test_columns_have_the_bytes_of_their_records(form: Any, drawn: Any, before: int) -> None:
    """`encode_columns` continues a batch with the bytes that `encode_records` would write."""
    values, keys, headers, stamps, rows, records = drawn
    first = [Record(b"k", b"v", (), NOW)] * (before + 1)
    lead = form.encode_records(first)[0]
    for middle in {0, 1, len(records)}:
        section = lead
        for begin, end in ((0, middle), (middle, len(records))):
            section += form.encode_columns(
                values, keys, headers, stamps, rows, begin, end, len(first) + begin, NOW
            )
        assert section == form.encode_records([*first, *records])[0]


@given(drawn=columns())
def test_columns_have_the_sizes_of_their_records(form: Any, drawn: Any) -> None:
    """`measure_columns` adds up upper bounds of the records' sizes, and finds the largest bound."""
    values, keys, headers, _, rows, records = drawn
    sizes, largest = form.measure_columns(values, keys, headers, rows)
    bounds = [21 + form.payload_size(each.key, each.value, each.headers) for each in records]
    assert sizes.typecode == "q"
    assert list(sizes) == [sum(bounds[:count]) for count in range(len(bounds) + 1)]
    assert largest == max(bounds)


_COLUMN = st.lists(_ANY_DATA, max_size=3).map(tuple)
_ODD_ROWS = st.sampled_from([
    array("q", [0, 9]), array("q", [-1]), array("i", [0]), [0], 5, "ab", array("q", [2**62]),
])  # fmt: skip


@given(
    values=_COLUMN | st.sampled_from([None, 5, "ab", b"ab", [b"a"]]),
    keys=_COLUMN | _ANY_DATA,
    headers=_HEADERS | _ODD_HEADERS | st.lists(_HEADERS | _ODD_HEADERS, max_size=3),
    rows=st.none() | _ODD_ROWS,
)
@example(values=(b"a",), keys=(), headers=(), rows=None)
@example(values=(b"a",), keys=None, headers=[], rows=None)
def test_bad_columns_are_refused_alike(
    compiled: Any, pure: Any, values: Any, keys: Any, headers: Any, rows: Any
) -> None:
    """Both forms measure a bad column alike: with the same sizes, or with the same error."""
    arguments = values, keys, headers, rows
    assert outcome(compiled.measure_columns, *arguments) == outcome(
        pure.measure_columns, *arguments
    )


@pytest.mark.parametrize(
    ("offsets", "length"),
    [([0, 5], 1), ([3, 2], 1), ([-1, 2], 1), ([0, 1, 2**40], 2), ([2**40, 2**40], 1)],
)
def test_rows_outside_of_their_data_are_refused(form: Any, offsets: list[int], length: int) -> None:
    """Offsets that do not fit the data raise ValueError, wherever the column is used."""
    column = BinaryColumn(memoryview(b"data"), memoryview(array("q", offsets)), None, 0, length)
    with pytest.raises(ValueError, match="of 4 bytes"):
        form.measure_columns(column)
    with pytest.raises(ValueError, match="of 4 bytes"):
        form.measure_columns((b"v",) * length, column)
    with pytest.raises(ValueError, match="of 4 bytes"):
        form.encode_columns(column, None, (), 0, None, 0, length, 0, 0)
    with pytest.raises(ValueError, match="of 4 bytes"):
        form.partitions_of(column, 3)


@pytest.mark.parametrize(
    ("offsets", "valid", "start", "length"),
    [([0], None, 0, 1), ([0, 1, 2], None, 1, 2), ([0] * 10, b"\xff", 0, 9), ([0], None, -1, 0)],
)
def test_buffers_that_are_too_short_are_refused(
    offsets: list[int], valid: bytes | None, start: int, length: int
) -> None:
    """A `BinaryColumn` whose buffers are too short for its rows raises ValueError."""
    with pytest.raises(ValueError, match="rows"):
        BinaryColumn(
            memoryview(b""),
            memoryview(array("i", offsets)),
            None if valid is None else memoryview(valid),
            start,
            length,
        )


def test_a_column_is_read_row_by_row() -> None:
    """A `BinaryColumn` gives each row as bytes or None, and IndexError for any other row."""
    column = binary([b"a", None, b"", b"cd"], start=7, wide=False, nullable=True)
    assert list(column) == [b"a", None, b"", b"cd"]
    assert [column.size(row) for row in range(len(column))] == [1, -1, 0, 2]
    for row in (-1, 4):
        with pytest.raises(IndexError):
            column[row]


def test_keys_of_a_binary_column_are_hashed_alike(form: Any) -> None:
    """The keys of a `BinaryColumn` get the same partitions as the same keys in a list."""
    keys = [b"", b"a", None, b"abcd" * 100, None]
    for wide in (False, True):
        column = binary(keys, start=3, wide=wide, nullable=True)
        assert form.partitions_of(column, 7) == form.partitions_of(keys, 7)
        assert form.partitions_of(binary([], start=0, wide=wide, nullable=False), 7) == array("i")


def test_long_columns_are_encoded_alike(compiled: Any, pure: Any) -> None:
    """Both forms encode columns with values of each size in `SIZES`, or with 8200 rows, alike.

    The pure form looks numbers below `TABLE_SIZE` up in a table of varints; 8200 is above it.
    """
    values = (None, *(b"d" * size for size in SIZES))
    for column in (values, (b"v",) * 8200):
        arguments = column, b"k", (("h", b"v"),), NOW, None, 0, len(column), 0, NOW
        assert compiled.encode_columns(*arguments) == pure.encode_columns(*arguments)


@pytest.mark.parametrize(
    ("begin", "end", "offset", "error"),
    [(0, 4, 0, IndexError), (2, 1, 0, IndexError), (-1, 1, 0, IndexError), (0, 1, -1, ValueError)],
)
def test_records_that_are_not_there_are_refused(
    form: Any, begin: int, end: int, offset: int, error: type[Exception]
) -> None:
    """Row numbers outside of the columns, and offsets below 0, raise an error."""
    with pytest.raises(error):
        form.encode_columns((b"a", b"b", b"c"), None, (), 0, None, begin, end, offset, 0)


@pytest.mark.parametrize("stamps", [[], [NOW]], ids=["none", "one of two"])
def test_a_row_without_a_timestamp_is_refused(form: Any, stamps: list[int]) -> None:
    """An empty array of timestamps is not one timestamp for all rows."""
    arguments = (b"a", b"b"), None, (), array("q", stamps), None, 0
    with pytest.raises(IndexError):
        form.encode_columns(*arguments, 2, 0, NOW)
    assert form.encode_columns(*arguments, 0, 0, NOW) == b""
