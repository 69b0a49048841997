"""Record batches are cut by topic and partition, and summed up, wherever Spark has cut them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._spark.columns import RowSum, parts
from aioidem._spark.marker import Marker
from aioidem.errors import ConfigError, RecordError

SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
HEADER = st.fixed_dictionaries({"key": st.just("h"), "value": st.none() | st.binary(max_size=2)})
WHEN = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
ROW = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["a", "b"]),
        "partition": st.none() | st.integers(0, 3),
        "timestamp": st.none() | WHEN,
        "key": st.none() | st.binary(max_size=3),
        "value": st.none() | st.binary(max_size=3),
        "headers": st.none() | st.lists(HEADER, max_size=2),
    }
)
ROWS = st.lists(ROW, max_size=12)
Rows = list[dict[str, Any]]


def made(rows: Rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def summed(*batches: pa.RecordBatch, topic: str | None = None) -> RowSum:
    total = RowSum()
    for batch in batches:
        total.add(batch, topic)
    return total


@given(rows=ROWS, data=st.data())
def test_a_sum_depends_on_the_rows_and_not_on_their_order_and_batches(
    rows: Rows, data: st.DataObject
) -> None:
    """The sum over a task's rows is the same in any order and any batches."""
    shuffled = made(data.draw(st.permutations(rows)))
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    places = sorted([0, *cuts, len(rows)])
    other = summed(*(shuffled.slice(begin, end - begin) for begin, end in pairwise(places)))
    one = summed(made(rows))
    assert one == other
    assert one.rows == len(rows)
    assert Marker(1, one.rows, one.digest).holds(other)


@given(rows=ROWS.filter(bool), row=ROW, data=st.data())
def test_a_sum_differs_for_other_rows(rows: Rows, row: dict[str, Any], data: st.DataObject) -> None:
    """A row that is changed, added or left out changes the sum; no headers are as empty ones."""
    at = data.draw(st.integers(0, len(rows) - 1))
    one = summed(made(rows))
    assert one != summed(made(rows), made([row]))
    assert one != summed(made(rows[1:]))
    before = {**rows[at], "headers": rows[at]["headers"] or None}
    after = {**row, "headers": row["headers"] or None}
    other = summed(made([*rows[:at], row, *rows[at + 1 :]]))
    assert (after == before) == (one == other)


def test_bytes_that_move_from_one_column_to_another_change_the_sum() -> None:
    """The digest of a row says which column has which bytes."""
    rows: Rows = [
        {"key": b"ab", "value": b"c"},
        {"key": b"a", "value": b"bc"},
        {"key": None},
        {"key": b""},
    ]
    sums = [summed(made([{"topic": "t", **row}])).digest for row in rows]
    assert len(set(sums)) == len(sums)


def test_a_header_that_is_null_is_left_to_the_producer_to_refuse() -> None:
    """The producer's error names the column; the sum, which comes first, has none of its own."""
    row, other = {"value": b"v", "headers": [None]}, {"value": b"v", "headers": []}
    assert summed(made([row])) != summed(made([other]))


def test_the_layout_of_a_column_changes_no_sum() -> None:
    """Text or bytes, 32 or 64 bits, an absent column or one of nulls: the sum is the same."""
    values = ["a", None, "", "bc"]
    plain = pa.record_batch({"value": pa.array(values, pa.string())})
    wide = pa.record_batch(
        {"value": pa.array(values, pa.large_binary()), "key": pa.nulls(4, pa.binary())}
    )
    named = pa.record_batch({"value": pa.array(values), "topic": pa.array(["t"] * 4)})
    assert summed(plain, topic="t") == summed(wide, topic="t") == summed(named)
    assert summed(plain, topic="t") != summed(plain, topic="u")
    # The option `topic` replaces the column.
    assert summed(named, topic="u") == summed(plain, topic="u")


@given(rows=ROWS)
def test_parts_keep_the_order_of_each_partition_s_rows(rows: Rows) -> None:
    """Each row is in one part, with its topic and partition, in the order of its partition.

    A row without a partition may get any, so it stays in its place among all rows of its topic.
    """
    numbered = [{**row, "value": b"%d" % number} for number, row in enumerate(rows)]
    seen: dict[str, list[tuple[int | None, int]]] = {"a": [], "b": []}
    for topic, partition, batch in parts(made(numbered), None):
        for row in batch.to_pylist():
            assert (row["topic"], row["partition"]) == (topic, partition)
            seen[topic].append((partition, int(row["value"])))
    assert sorted(number for each in seen.values() for _, number in each) == list(range(len(rows)))
    for each in seen.values():
        for before, (partition, number) in enumerate(each):
            for other, earlier in each[:before]:
                assert earlier < number or None not in (partition, other)
                assert earlier < number or partition != other


def test_a_row_without_a_topic_is_refused() -> None:
    """A row needs a topic, in its column or as the option."""
    batch = made([{"topic": None, "value": b""}])
    with pytest.raises(RecordError, match="topic is null"):
        list(parts(batch, None))
    assert [part.topic for part in parts(batch, "t")] == ["t"]


def test_a_worker_without_xxhash_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    batch = pa.RecordBatch.from_pydict({"value": [b"x"]})
    with pytest.raises(ConfigError, match=r"xxhash: pip install 'aioidem\[spark\]'"):
        RowSum().add(batch, "t")
