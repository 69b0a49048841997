"""The compiled form of each hot loop does the same as its form in pure Python, and both are right.

The hot loops encode records and compute hashes. Both forms give the same result, or raise an error
of the same class with the same message. The pure form looks up the varints of small numbers in
tables, so numbers around a table's end are tested.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import example, given
from hypothesis import strategies as st

NOW = 1_795_250_000_000
SIZES = sorted({n + i for n in (0, 64, 4096, 8192, 2**20) for i in range(-12, 13) if n + i >= 0})
"""Sizes in bytes around each one at which a varint grows by a byte or a table ends."""


class Record(NamedTuple):
    """A record as the encoder reads it."""

    key: Any = None
    value: Any = None
    headers: Any = ()
    timestamp_ms: Any = NOW


class Bytes(bytes):
    """A subclass of bytes whose `len` is not the number of its bytes."""

    def __len__(self) -> int:
        return 3


class Number(int):
    """A subclass of int."""


# Larger data is in tests without Hypothesis, because Hypothesis prints its examples.
_DATA = st.one_of(st.none(), st.binary(max_size=80), st.integers(0, 300).map(lambda n: b"d" * n))
_HEADERS = st.lists(st.tuples(st.text(max_size=80), _DATA), max_size=4).map(tuple)
_TIME = st.one_of(
    st.sampled_from([-1, 0, NOW, NOW + 63, NOW + 64, NOW - 64, NOW - 65, 2**63 - 1]),
    st.integers(-1, 2**63 - 1),
)
_RECORD = st.builds(Record, _DATA, _DATA, _HEADERS, _TIME)

_ODD_DATA = st.sampled_from(
    [7, "text", 1.5, [1], bytearray(b"ab"), memoryview(b"abc"), Bytes(b"abc"), Bytes(b"abcd"), True]
)
_ODD_HEADERS = st.sampled_from([
    None, 5, "ab", [], [("a", b"1")], (("a", b"1", 2),), (["a", b"1"],), ((b"a", b"1"),),
    (("a", "b"),), (("\ud800", b""),), (("a", bytearray(b"x")),), {"ab": 1}, (None,),
    ((None, b""),), (("a", Bytes(b"xyz")),),
])  # fmt: skip
_ODD_TIME = st.sampled_from(
    [None, "1", 1.0, float("nan"), -2, -(2**63), 2**63, 2**80, True, Number(NOW), Number(-5)]
)
_ANY_DATA = _DATA | _ODD_DATA
_ODD_RECORD = st.one_of(
    st.builds(Record, _ANY_DATA, _ANY_DATA, _HEADERS | _ODD_HEADERS, _TIME | _ODD_TIME),
    st.sampled_from([None, object(), 5]),
)


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[Any, ...]:
    """Return what a call gives: its result and the result's type, or its error's class and text."""
    try:
        result = call(*arguments, **named)
    except Exception as error:  # noqa: BLE001 - whichever it is, the twin must raise it too
        return type(error), str(error)
    return type(result), result


@given(records=st.lists(_RECORD, max_size=12))
@example(records=[Record(timestamp_ms=t) for t in (NOW, NOW - 1, NOW - 70, NOW + 8192, NOW)])
def test_records_are_encoded_alike(compiled: Any, pure: Any, records: list[Record]) -> None:
    """Both forms give records of every legal kind the same bytes, counts and timestamps."""
    assert outcome(compiled.encode_records, records) == outcome(pure.encode_records, records)


@pytest.mark.parametrize("field", ["key", "value", "header", "header name"])
def test_records_are_encoded_alike_at_each_boundary(compiled: Any, pure: Any, field: str) -> None:
    """Both forms give the same bytes around each size at which a varint grows."""
    for size in SIZES:
        data = b"d" * size
        record = {
            "key": Record(data, b"v"),
            "value": Record(None, data),
            "header": Record(None, None, (("h", data),)),
            "header name": Record(None, None, (("h" * size, None),)),
        }[field]
        assert compiled.encode_records([record, record]) == pure.encode_records([record, record])


def test_a_batch_of_more_records_than_the_tables_have_is_encoded_alike(
    compiled: Any, pure: Any
) -> None:
    """Both forms encode offset deltas of one, two and three bytes alike."""
    records = [Record(None, b"v")] * 8200
    assert compiled.encode_records(records) == pure.encode_records(records)


@given(records=st.lists(st.one_of(_RECORD, _ODD_RECORD), max_size=4))
def test_bad_records_are_refused_alike(compiled: Any, pure: Any, records: list[Any]) -> None:
    """Records with wrong types or values raise the same error, or are encoded the same."""
    assert outcome(compiled.encode_records, records) == outcome(pure.encode_records, records)


@pytest.mark.parametrize("records", [None, 5, [None], (), iter(()), "ab", {}])
def test_what_is_no_sequence_of_records_is_refused_alike(
    compiled: Any, pure: Any, records: Any
) -> None:
    """Arguments other than records raise the same error in both forms, or give the same bytes."""
    assert outcome(compiled.encode_records, records) == outcome(pure.encode_records, records)


def test_records_may_come_from_an_iterator(form: Any) -> None:
    """Records from an iterator are encoded like records from a list.

    If a record's headers are a list, the compiled form lets the pure form encode all records, also
    those that were already taken from the iterator.
    """
    for odd in ((), [("a", b"1")]):
        records = [Record(b"k", b"v"), Record(None, b"w", odd), Record(None, b"x")]
        given_one_by_one: Iterator[Record] = iter(records)
        assert form.encode_records(given_one_by_one) == form.encode_records(records)


def test_an_error_of_an_iterator_reaches_the_caller(form: Any) -> None:
    """An exception while records are read is raised as it is."""

    def failing() -> Iterator[Record]:
        yield Record()
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        form.encode_records(failing())


def test_no_reference_is_kept_or_lost(form: Any) -> None:
    """A record's values have as many references after encoding as before."""
    value, name = b"v" * 100, "n" * 100
    records = [Record(value, value, ((name, value),)) for _ in range(50)]
    before = sys.getrefcount(value), sys.getrefcount(name)
    form.encode_records(records)
    form.measure_columns((value,) * 50, value, ((name, value),))
    form.encode_columns((value,) * 50, value, ((name, value),), 0, None, 0, 50, 0, 0)
    form.payload_size(value, value, ((name, value),))
    form.partitions_of([value], 3)
    assert (sys.getrefcount(value), sys.getrefcount(name)) == before


@given(key=_ANY_DATA, value=_ANY_DATA, headers=_HEADERS | _ODD_HEADERS)
def test_a_payload_has_the_same_size_or_error(
    compiled: Any, pure: Any, key: Any, value: Any, headers: Any
) -> None:
    """Both forms of `payload_size` return the same size, or raise the same error."""
    arguments = (key, value, headers)
    assert outcome(compiled.payload_size, *arguments) == outcome(pure.payload_size, *arguments)


@given(record=_RECORD, offset=st.integers(0, 70) | st.sampled_from([8191, 8192, 2**31 - 1]))
def test_a_record_takes_the_bytes_that_its_size_says(
    form: Any, record: Record, offset: int
) -> None:
    """`record_size` returns the length of the bytes that the record has at an offset of a batch."""
    stamp = record.timestamp_ms % 2**62
    payload = form.payload_size(record.key, record.value, record.headers)
    column = form.encode_columns(
        (record.value,), record.key, record.headers, stamp, None, 0, 1, offset, 0
    )
    assert form.record_size(payload, offset, stamp) == len(column)


_ANY_NUMBER = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**k + i for k in (6, 13, 31, 62, 63, 64) for i in (-2, -1, 0, 1)]),
    st.sampled_from([None, "1", 1.0, True, Number(7)]),
)


@given(payload=_ANY_NUMBER, offset=_ANY_NUMBER, delta=_ANY_NUMBER)
def test_record_sizes_of_any_numbers_are_alike(
    compiled: Any, pure: Any, payload: Any, offset: Any, delta: Any
) -> None:
    """Both forms give the same size or error, even for numbers beyond 64 bits and other types."""
    arguments = (payload, offset, delta)
    assert outcome(compiled.record_size, *arguments) == outcome(pure.record_size, *arguments)


@given(key=st.binary(max_size=600))
def test_murmur2_is_that_of_other_clients(form: Any, key: bytes) -> None:
    """Both forms give aiokafka's hash, which is Java's without the sign."""
    assert form.murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key)
    assert -(2**31) <= form.murmur2(key) < 2**31


@given(key=_ANY_DATA)
def test_murmur2_of_anything_is_alike(compiled: Any, pure: Any, key: Any) -> None:
    """Both forms return the same hash of any object, or raise the same error."""
    assert outcome(compiled.murmur2, key) == outcome(pure.murmur2, key)


@given(
    keys=st.lists(_DATA, max_size=8)
    | st.lists(_ANY_DATA, max_size=3)
    | st.sampled_from([None, 5, "ab", b"ab", (b"a", b"b")]),
    count=st.integers(-3, 10_000)
    | st.sampled_from([2**31, 2**31 + 1, 2**80, None, "1", 1.5, True]),
)
def test_partitions_of_a_column_are_alike(compiled: Any, pure: Any, keys: Any, count: Any) -> None:
    """Both forms choose the same partitions for a list of keys, or raise the same error."""
    assert outcome(compiled.partitions_of, keys, count) == outcome(pure.partitions_of, keys, count)


def test_a_column_is_hashed_key_by_key(form: Any) -> None:
    """Each key gets the partition of its own hash, and a missing key (None) gets -1."""
    keys = [b"", b"a", None, b"abcd" * 100, None]
    expected = [-1 if key is None else (form.murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert form.partitions_of(keys, 7) == array("i", expected)
    assert form.partitions_of(iter(keys), 7) == array("i", expected)
    assert form.partitions_of([], 0) == array("i")


@given(
    partitions=st.lists(st.integers(-1, 5), max_size=30)
    | st.lists(st.sampled_from([0, 3, 999_999, 1_000_000, 2**31 - 1]), max_size=3),
    rows=st.lists(st.integers(0, 29) | st.sampled_from([-1, -30, -31, 2**40]), max_size=30)
    | st.builds(range, st.integers(-2, 31), st.integers(-2, 31), st.sampled_from([1, 2, -1])),
)
def test_rows_of_partitions_are_alike(
    compiled: Any, pure: Any, partitions: list[int], rows: Sequence[int]
) -> None:
    """Both forms return the same rows in the same order, or raise the same error."""

    def items(form: Any, column: Any, chosen: Any) -> Any:
        found = form.rows_of_partitions(column, chosen)
        return None if found is None else list(found.items())  # with the order

    for chosen in (rows, array("q", rows), tuple(rows)):
        for column in (array("i", partitions), array("q", partitions), partitions):
            found = outcome(items, compiled, column, chosen)
            assert found == outcome(items, pure, column, chosen)


def test_the_rows_of_a_partition_keep_their_order(form: Any) -> None:
    """Each partition gets its rows in order; a row without a partition (-1) leaves it to Python."""
    partitions = array("i", [2, 0, 2, -1, 0])
    expected = {0: array("q", [4, 1]), 2: array("q", [0, 2])}
    found = form.rows_of_partitions(partitions, array("q", [4, 0, 2, 1]))
    assert found == expected
    assert list(found) == [0, 2]
    assert form.rows_of_partitions(partitions, range(3)) == {
        2: array("q", [0, 2]),
        0: array("q", [1]),
    }
    assert form.rows_of_partitions(partitions, range(5)) is None
    with pytest.raises(IndexError):
        form.rows_of_partitions(partitions, range(4, 6))
    with pytest.raises(IndexError):
        form.rows_of_partitions(partitions, array("q", [0, 5]))
