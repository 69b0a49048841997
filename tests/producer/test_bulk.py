"""Calls with many records: `send_many` with values or `Record` objects, and its ranges."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from aioidem import Deliveries, DeliveryCounts, DeliveryStatus, Producer, Record, errors
from aioidem.broker import EmbeddedCluster
from aioidem.partitioner import DefaultPartitioner
from tests.waiting import until

from .tools import EVERY_WORLD, REAL_LOOPS, bounded, numbered, producer_for, stored_values

pytestmark = [pytest.mark.anyio]

Transport = Literal["tcp", "memory"]

ACKED, NOT_WRITTEN = DeliveryStatus.ACKED, DeliveryStatus.NOT_WRITTEN


def stored(cluster: EmbeddedCluster, partition: int = 0) -> list[Any]:
    """Return the records of a partition of "t"."""
    return [r for batch in cluster.batches("t", partition) for r in batch.records()]


@EVERY_WORLD
@bounded(10)
async def test_records_have_their_own_keys_headers_and_timestamps(transport: Transport) -> None:
    """A record without a key, headers or a timestamp of its own has those given to `send_many`."""
    records = [
        Record(b"0", b"k0", [("a", b"1")], 1.5),
        Record(b"1"),
        Record(None, b"k2", timestamp=2),
        Record(b"3", headers=(("b", None), ("c", b""))),
    ]
    async with EmbeddedCluster(transport=transport, wall_clock=lambda: 9.0) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            deliveries = await producer.send_many(
                "t", iter(records), key=b"k", headers=[("h", b"v")], timestamp=7.0
            )
            assert [d.metadata.timestamp for d in deliveries] == [1500, 7000, 2000, 7000]
        assert [(r.value, r.key, list(r.headers), r.timestamp_ms) for r in stored(cluster)] == [
            (b"0", b"k0", [("a", b"1")], 1500),
            (b"1", b"k", [("h", b"v")], 7000),
            (None, b"k2", [("h", b"v")], 2000),
            (b"3", b"k", [("b", None), ("c", b"")], 7000),
        ]


@bounded(20)
async def test_keys_decide_the_partitions_as_in_single_sends() -> None:
    """Each key's records are on its partition in call order; `ranges` has each record's offset."""
    keys = [b"key %d" % (n % 7) if n % 5 else None for n in range(500)]
    async with EmbeddedCluster(transport="memory", default_partitions=4) as cluster:
        async with producer_for(cluster) as producer:
            records = [Record(b"%d" % n, key) for n, key in enumerate(keys)]
            deliveries = await producer.send_many("t", records)
        choose = DefaultPartitioner()
        for number, (key, delivery) in enumerate(zip(keys, deliveries, strict=True)):
            where = delivery.metadata
            assert stored(cluster, where.partition)[where.offset].value == b"%d" % number
            if key is not None:
                assert where.partition == choose(key, range(4), range(4))
        for each in deliveries.ranges:
            assert list(each.positions) == sorted(each.positions)
            for index, position in enumerate(each.positions):
                assert deliveries[position].metadata.offset == each.first_offset + index
        for partition in range(4):
            with_keys = [int(r.value) for r in stored(cluster, partition) if r.key]
            assert with_keys == sorted(with_keys)


@bounded(20)
async def test_outcomes_are_ranges_of_batches() -> None:
    """Records that share a batch are one range, and ranges are in call order."""
    async with EmbeddedCluster(transport="memory", default_partitions=1) as cluster:
        async with producer_for(cluster, batch_size=500, late_sealing=False) as producer:
            deliveries = await producer.send_many("t", numbered(100))
        ranges = deliveries.ranges
        assert len(ranges) == len(cluster.batches("t"))
        assert [p for each in ranges for p in each.positions] == list(range(100))
        offset = 0
        for each in ranges:
            assert (each.topic, each.partition, each.status, each.error) == ("t", 0, ACKED, None)
            assert each.first_offset == offset
            offset += each.count
        assert deliveries.counts == DeliveryCounts(acked=100, not_written=0, unknown=0)
        assert list(deliveries.failures()) == []
        assert deliveries[3] is deliveries[3]
        assert [d.metadata.offset for d in deliveries[97:]] == [97, 98, 99]
        assert deliveries[-1].metadata.offset == 99
        with pytest.raises(IndexError):
            deliveries[100]


@bounded(20)
async def test_failures_are_told_one_by_one() -> None:
    """A record that the broker names in a refusal fails alone, and the others are stored."""
    async with EmbeddedCluster(transport="memory", wall_clock=lambda: 1e9) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            records = [
                Record(b"%d" % n, timestamp=2e9 if n in (3, 4, 8) else 1e9) for n in range(9)
            ]
            with pytest.raises(
                errors.PartialDeliveryError, match="3 of 9 records failed"
            ) as caught:
                await producer.send_many("t", records)
            deliveries = caught.value.deliveries
            assert isinstance(deliveries, Deliveries)
            failures = list(deliveries.failures())
            assert [position for position, _ in failures] == [3, 4, 8]
            assert all(isinstance(error, errors.InvalidTimestampError) for _, error in failures)
            assert failures[0][1] is deliveries[3].exception()
            assert deliveries.counts == DeliveryCounts(acked=6, not_written=3, unknown=0)
            assert [d.status is ACKED for d in deliveries] == [n not in (3, 4, 8) for n in range(9)]
            assert await producer.send("t", b"9", timestamp=1e9)
        assert stored_values(cluster) == [b"%d" % n for n in (0, 1, 2, 5, 6, 7, 9)]


@bounded(20)
async def test_a_batch_that_the_topic_refuses_as_too_large_is_split() -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t", configs={"max.message.bytes": "700"})
        async with producer_for(cluster, batch_size=5000) as producer:
            values = [b"%d" % n + bytes(90) for n in range(200)]
            deliveries = await producer.send_many("t", values)
            assert [d.metadata.offset for d in deliveries] == list(range(200))
            assert producer.statistics().batches_split > 0
            assert producer.statistics().records_queued == 0
        assert stored_values(cluster) == values


@EVERY_WORLD
@bounded(20)
async def test_a_long_call_goes_on_as_room_becomes_free(transport: Transport) -> None:
    """More records than the buffer holds are queued piece by piece, and none is lost."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, buffer_memory=3000, batch_size=400) as producer:
            values = [b"%d" % n for n in range(1000)]
            deliveries = await producer.send_many("t", values)
            assert deliveries.count(ACKED) == 1000
            assert producer.statistics().buffer_bytes_used == 0
        assert stored_values(cluster) == values


@bounded(20)
async def test_an_iterable_is_read_no_further_than_there_is_room() -> None:
    """`send_many` takes values from an iterable as there is room, about a megabyte at a time."""
    made = 0

    def values() -> Iterator[bytes]:
        nonlocal made
        for _ in range(5000):
            made += 1
            yield bytes(100_000)

    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        cluster.hold_high_watermark("t")
        async with producer_for(cluster, buffer_memory=20_000_000) as producer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send_many, "t", values())
                await until(lambda: producer.statistics().buffer_waiters == 1)
                assert 133 <= made <= 220  # two thirds of the buffer are for records
                tasks.cancel_scope.cancel()
            cluster.release_high_watermark("t")


@pytest.mark.parametrize("shared", [False, True])
@bounded(20)
async def test_headers_are_room_that_records_wait_for(shared: bool) -> None:
    """Records with many headers take no more of `buffer_memory` than others may."""
    headers = [("name", b"")] * 50
    values: list[Any] = [b"v"] * 400 if shared else [Record(b"v", headers=headers)] * 400
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        cluster.hold_high_watermark("t")
        async with (
            producer_for(cluster, buffer_memory=600_000) as producer,
            anyio.create_task_group() as tasks,
        ):
            send = partial(producer.send_many, headers=headers if shared else ())
            tasks.start_soon(send, "t", values)
            await until(lambda: producer.statistics().buffer_bytes_used > 380_000)
            used = producer.statistics().buffer_bytes_used
            cluster.release_high_watermark("t")
    assert used <= 600_000
    assert stored_values(cluster) == [b"v"] * 400


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (b"value", TypeError, None),
        (Record("text"), TypeError, "value must be bytes"),  # type: ignore[arg-type]
        (Record(b"v", "text"), TypeError, "key must be bytes"),  # type: ignore[arg-type]
        (Record(b"v", headers=[("a", 5)]), TypeError, "header 'a'"),  # type: ignore[list-item]
        (Record(b"v", headers=[("\ud800", b"")]), errors.RecordError, "encoded"),
        (Record(b"v", timestamp=-1), errors.RecordError, "not negative"),
        (Record(b"v", timestamp=float("nan")), errors.RecordError, "timestamp"),
        (Record(bytes(2_000_000)), errors.MessageSizeTooLargeError, "max_request_size"),
    ],
)
@bounded(20)
async def test_a_bad_record_ends_the_call_after_those_before_it(
    bad: Any, error: Any, message: str | None
) -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            if message is not None:
                with pytest.raises(error, match=message):
                    await producer.send_many("t", [bad])
                with pytest.raises(errors.PartialDeliveryError, match="stopped after 2") as caught:
                    await producer.send_many("t", [Record(b"0"), Record(b"1", b"k"), bad])
                assert isinstance(caught.value.__cause__, error)
                assert [d.status for d in caught.value.deliveries] == [ACKED] * 2
            else:  # values and records may be mixed, at some cost
                assert len(await producer.send_many("t", [Record(b"0"), bad])) == 2
        assert stored_values(cluster)[:1] == [b"0"]


@pytest.mark.parametrize("value", [b"1", bytearray(b"1")])
@bounded(20)
async def test_headers_that_can_be_read_only_once_are_written(value: Any) -> None:
    """Also if another record of the call needs a conversion, and the records are read again."""
    headers: Any = iter([("a", b"x"), ("b", None)])
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            await producer.send_many("t", [Record(b"0", headers=headers), Record(value)])
        assert [list(r.headers) for r in stored(cluster)] == [[("a", b"x"), ("b", None)], []]


@bounded(20)
async def test_bytes_like_values_are_copied() -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            values: list[Any] = [bytearray(b"0"), memoryview(b"1"), b"2"]
            await producer.send_many("t", values)
        assert stored_values(cluster) == [b"0", b"1", b"2"]


@bounded(20)
async def test_a_partitioner_of_the_users_is_asked_for_each_record() -> None:
    """It may fail in the middle of a call, which then stops there."""
    asked: list[bytes | None] = []

    def choose(key: bytes | None, everything: Any, available: Any) -> int:
        del available
        asked.append(key)
        if len(asked) == 5:
            raise LookupError("enough")
        return int(everything[len(asked) % 2])

    async with EmbeddedCluster(transport="memory", default_partitions=2) as cluster:
        async with producer_for(cluster, partitioner=choose) as producer:
            await producer.partitions_for("t")
            with pytest.raises(errors.PartialDeliveryError, match="stopped after 4") as caught:
                await producer.send_many("t", numbered(9), key=b"k")
            assert isinstance(caught.value.__cause__, errors.RecordError)
            assert caught.value.deliveries.count(ACKED) == 4
        assert asked == [b"k"] * 5
        assert stored_values(cluster, "t", 0) == [b"1", b"3"]


@REAL_LOOPS
@bounded(20)
async def test_a_topic_that_is_not_known_yet_gets_its_records_in_order() -> None:
    """Records of a `send_many` that begins before the topic is known are stored in order."""
    async with (
        EmbeddedCluster(transport="memory", default_partitions=1) as cluster,
        producer_for(cluster) as producer,
    ):
        results: list[int] = []

        async def call(first: int) -> None:
            await anyio.lowlevel.checkpoint()
            results.append(len(await producer.send_many("t", numbered(300, first))))

        for first in (0, 300, 600):
            await call(first)
        assert results == [300] * 3
        assert stored_values(cluster) == numbered(900)


@bounded(20)
async def test_small_calls_share_batches() -> None:
    """Calls with few records do not make small batches."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, linger=0.05) as producer:
            await producer.partitions_for("t")
            async with anyio.create_task_group() as tasks:
                for first in range(0, 300, 3):
                    tasks.start_soon(producer.send_many, "t", numbered(3, first))
        assert len(cluster.batches("t")) <= 3
        assert len(stored_values(cluster)) == 300


@bounded(20)
async def test_a_missing_partition_refuses_the_whole_call() -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            with pytest.raises(errors.PartialDeliveryError, match="7 of 7") as caught:
                await producer.send_many("t", numbered(7), partition=3)
            deliveries = caught.value.deliveries
            assert isinstance(deliveries, Deliveries)
            (only,) = deliveries.ranges
            assert (only.partition, only.count, only.first_offset) == (-1, 7, -1)
            assert isinstance(only.error, errors.UnknownTopicOrPartitionError)
            assert deliveries.count(NOT_WRITTEN) == 7


@bounded(20)
async def test_what_an_observer_hears_counts_the_records() -> None:
    """An observer gets the number of records of a batch, although they are queued as one item.

    It also gets the time at which the batch was sent.
    """
    heard: list[Any] = []

    class Watch:
        def on_batch_sent(self, batch: Any, /) -> None:
            heard.append(("sent", batch.records))

        def on_batch_settled(self, batch: Any, /) -> None:
            heard.append(("settled", batch.records))
            assert batch.sent_at is not None

        def on_waited(self, topic: str, partition: int | None, seconds: float, /) -> None:
            del topic, partition, seconds

    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        async with Producer(
            cluster.bootstrap_servers, connector=cluster.connector, observer=Watch()
        ) as producer:
            await producer.send_many("t", numbered(50))
    assert heard == [("sent", 50), ("settled", 50)]


@pytest.mark.parametrize("kind", [ValueError, OSError, TypeError])
@bounded(20)
async def test_an_iterable_that_raises_half_way_leaves_the_deliveries_in_the_error(
    kind: type[Exception],
) -> None:
    """Whatever it raises is the cause; if nothing was queued, it is raised as it is."""

    def values(count: int) -> Iterator[bytes]:
        yield from numbered(count)
        raise kind("mine")

    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            with pytest.raises(errors.PartialDeliveryError, match="after 250 records: ") as caught:
                await producer.send_many("t", values(250))
            assert [each.status for each in caught.value.deliveries] == [ACKED] * 250
            assert isinstance(caught.value.__cause__, kind)
            with pytest.raises(kind, match="mine"):
                await producer.send_many("t", values(0))
        assert stored_values(cluster) == numbered(250)
