"""`send_table` writes each row of an Arrow table as one record."""

from __future__ import annotations

import builtins
import datetime as dt
import struct
from typing import Any

import pyarrow as pa
import pytest

from aioidem import DeliveryStatus, errors
from aioidem.broker import EmbeddedCluster
from aioidem.partitioner import DefaultPartitioner

from .tools import EVERY_WORLD, bounded, producer_for, stored_values

pytestmark = [pytest.mark.anyio]

ACKED = DeliveryStatus.ACKED
VALUES = [b"zero", None, b"", b"three", b"4" * 300]


def stored(cluster: EmbeddedCluster, partition: int = 0) -> list[Any]:
    """Return the records of a partition of "t"."""
    return [r for batch in cluster.batches("t", partition) for r in batch.records()]


@EVERY_WORLD
@bounded(10)
async def test_columns_become_values_keys_headers_and_timestamps(transport: Any) -> None:
    table = pa.table({
        "other": [1, 2, 3],
        "body": pa.array([b"0", None, b"2"], pa.binary()),
        "id": pa.array(["k0", "k1", None], pa.string()),
        "at": pa.array([1500, None, 2500], pa.timestamp("ms", "UTC")),
        "extra": pa.array(
            [[("a", b"1")], None, [("b", None), ("c", b"")]],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    })  # fmt: skip
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            deliveries = await producer.send_table(
                "t", table, value="body", key="id", headers="extra", timestamp="at"
            )
            stamps = [delivery.metadata.timestamp for delivery in deliveries]
        assert (stamps[0], stamps[2]) == (1500, 2500)
        assert stamps[1] is not None
        assert stamps[1] > 1_700_000_000_000, "a timestamp of null is now"
        assert [(r.value, r.key, list(r.headers), r.timestamp_ms) for r in stored(cluster)] == [
            (b"0", b"k0", [("a", b"1")], 1500),
            (None, b"k1", [], stamps[1]),
            (b"2", None, [("b", None), ("c", b"")], 2500),
        ]


@bounded(10)
async def test_all_records_may_share_a_key_headers_and_a_timestamp() -> None:
    table = pa.table({"value": pa.array(VALUES, pa.binary())})
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            await producer.send_table("t", table, key=b"k", headers=[("h", b"v")], timestamp=2.5)
        assert [(r.value, r.key, list(r.headers), r.timestamp_ms) for r in stored(cluster)] == [
            (value, b"k", [("h", b"v")], 2500) for value in VALUES
        ]


KINDS = [
    pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(),
    pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("how", ["table", "chunks", "batch", "slice"])
@bounded(10)
async def test_every_layout_of_bytes_and_text(kind: Any, how: str) -> None:
    """`send_table` takes tables, batches and slices with bytes or text in any layout of Arrow."""
    texts = [None if value is None else value.decode() for value in VALUES]
    column = pa.array(texts, pa.string())
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
    table: Any = pa.table({"value": column})
    expected = list(VALUES)
    if how == "chunks":
        table = pa.concat_tables([table, table.slice(1, 0), table.slice(2)])
        expected += VALUES[2:]
    elif how == "batch":
        (table,) = table.to_batches()
    elif how == "slice":
        table, expected = table.slice(1, 3), VALUES[1:4]
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            deliveries = await producer.send_table("t", table)
            assert [d.metadata.offset for d in deliveries] == list(range(len(expected)))
        assert stored_values(cluster) == expected


@bounded(10)
async def test_columns_of_nulls_and_of_bytes_of_one_length() -> None:
    for column, expected in (
        (pa.nulls(2), [None, None]),
        (pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
    ):
        async with EmbeddedCluster(transport="memory") as cluster:
            async with producer_for(cluster) as producer:
                await producer.send_table("t", pa.table({"value": column}))
            assert stored_values(cluster) == expected


@bounded(20)
async def test_a_long_table_is_written_whole_and_by_its_keys() -> None:
    values = [b"%d" % n for n in range(25_000)]
    keys = [b"key %d" % (n % 50) for n in range(25_000)]
    table = pa.table({"value": values, "key": keys})
    async with EmbeddedCluster(transport="memory", default_partitions=3) as cluster:
        async with producer_for(cluster) as producer:
            deliveries = await producer.send_table("t", table, key="key")
            assert deliveries.count(ACKED) == len(deliveries) == 25_000
            assert sum(each.count for each in deliveries.ranges) == 25_000
        choose = DefaultPartitioner()
        for partition in range(3):
            mine = [v for v, k in zip(values, keys, strict=True)
                    if choose(k, range(3), range(3)) == partition]  # fmt: skip
            assert stored_values(cluster, "t", partition) == mine
        where = deliveries[12_345].metadata
        assert stored(cluster, where.partition)[where.offset].value == b"12345"


@bounded(10)
async def test_maps_are_headers_and_what_speaks_arrow_is_a_table() -> None:
    class Frame:
        """A data frame of another library."""

        def __init__(self, table: Any) -> None:
            self._table = table

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return self._table.__arrow_c_stream__(requested_schema)

    headers = pa.array([[("a", b"1"), ("b", b"2")], []], pa.map_(pa.string(), pa.binary()))
    frame = Frame(pa.table({"value": [b"0", b"1"], "headers": headers}))
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            await producer.send_table("t", frame, headers="headers")
        found = [list(r.headers) for r in stored(cluster)]
        assert found == [[("a", b"1"), ("b", b"2")], []]


EARLY = dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC)
FINE = {"value": [b"0", b"1"]}
DOUBLE = pa.Table.from_arrays([pa.array([b"0"]), pa.array([b"1"])], names=["value", "value"])
OFFSETS = pa.py_buffer(struct.pack("<3i", 0, 9, 2))  # the second is beyond the data
MALFORMED = pa.Table.from_arrays(
    [pa.Array.from_buffers(pa.binary(), 2, [None, OFFSETS, pa.py_buffer(b"ab")])], names=["value"]
)


@pytest.mark.parametrize(
    ("table", "named", "error", "message"),
    [
        (FINE, {"value": "body"}, errors.RecordError, "no column 'body'"),
        (DOUBLE, {}, errors.RecordError, "2 columns 'value'"),
        (FINE, {"key": "k"}, errors.RecordError, "no column 'k'"),
        (FINE, {"headers": "h"}, errors.RecordError, "no column 'h'"),
        (FINE, {"timestamp": "at"}, errors.RecordError, "no column 'at'"),
        ({"value": [1, 2]}, {}, TypeError, "column 'value' is int64"),
        (FINE | {"k": [1.5, 2]}, {"key": "k"}, TypeError, "column 'k' is double"),
        (FINE | {"h": ["a", "b"]}, {"headers": "h"}, TypeError, "column 'h' is string"),
        (FINE | {"at": [1, 2]}, {"timestamp": "at"}, TypeError, "column 'at' is int64"),
        (FINE | {"at": [None, EARLY]}, {"timestamp": "at"}, errors.RecordError, "column 'at': "),
        (FINE, {"value": 5}, TypeError, "value must be a column's name"),
        (FINE, {"key": 5}, TypeError, "key must be bytes"),
        (FINE, {"timestamp": -1.0}, errors.RecordError, "not negative"),
        (FINE, {"partition": -1}, errors.RecordError, "partition -1"),
        (FINE, {"headers": [("a", 5)]}, TypeError, "header 'a'"),
        ([b"0"], {}, TypeError, "table must be an Arrow table"),
        ({"value": [bytes(2_000_000)]}, {}, errors.MessageSizeTooLargeError, "2000"),
        (MALFORMED, {}, errors.RecordError, "malformed"),
    ],
)
@bounded(10)
async def test_what_cannot_be_sent_is_refused_at_the_call(
    table: Any, named: Any, error: Any, message: str
) -> None:
    """`send_table` raises an error that names the wrong column or argument, and queues nothing."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            given = pa.table(table) if isinstance(table, dict) else table
            with pytest.raises(error, match=message):
                await producer.send_table("t", given, **named)
            assert producer.statistics().records_queued == 0
        assert stored_values(cluster) == []


@bounded(10)
async def test_a_row_that_is_too_large_ends_the_call_after_those_before_it() -> None:
    table = pa.table({"value": [b"0", b"1", bytes(2_000_000), b"3"]})
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            with pytest.raises(errors.PartialDeliveryError, match="stopped after 2") as caught:
                await producer.send_table("t", table, key=b"k")
            assert [each.status for each in caught.value.deliveries] == [ACKED] * 2
        assert stored_values(cluster) == [b"0", b"1"]


@bounded(10)
async def test_without_pyarrow_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "pyarrow":
            raise ImportError(name)
        return imported(name, *arguments, **named)

    async with (
        EmbeddedCluster(transport="memory") as cluster,
        producer_for(cluster) as producer,
    ):
        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ImportError, match=r"aioidem\[arrow\]"):
            await producer.send_table("t", object())
        monkeypatch.undo()
