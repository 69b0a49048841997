"""An integer of another type than int, such as numpy's, is taken wherever an int is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aioidem import AIOKafkaProducer, ConsumerGroupMetadata, Record, TopicPartition, errors
from aioidem._producer.arguments import checked_partition, checked_timestamp, milliseconds
from aioidem.broker import EmbeddedCluster

from .tools import ASYNCIO, bounded, producer_for

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000


class Whole:
    """An integer that is no int, and is neither equal to one nor has its hash."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


class Broken:
    """An object that raises when it is asked which integer it is."""

    def __index__(self) -> int:
        raise ValueError("no integer")


def of_numpy(number: int) -> Any:
    return pytest.importorskip("numpy").int64(number)


OTHER_INTEGERS = pytest.mark.parametrize("integer", [Whole, of_numpy])


def stored(cluster: EmbeddedCluster) -> list[tuple[int, int]]:
    """Return the partition and the timestamp of each record of topic "t"."""
    return [
        (partition, record.timestamp_ms)
        for partition in range(2)
        for batch in cluster.batches("t", partition)
        for record in batch.records()
    ]


@OTHER_INTEGERS
@bounded(20)
async def test_a_partition_and_a_timestamp_may_be_of_another_integer_type(
    integer: Callable[[int], Any],
) -> None:
    """What is told of the record afterwards has an int."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t", partitions=2)
        async with producer_for(cluster) as producer:
            where = {"partition": integer(1), "timestamp": integer(NOW)}
            metadata = [
                await producer.send("t", b"a", **where),
                await producer.send_nowait("t", b"b", **where),
            ]
            deliveries = await producer.send_many("t", [b"c"], **where)
            [told] = deliveries.ranges
            own: Any = Record(b"d", timestamp=integer(NOW))
            await producer.send_many("t", [own], partition=integer(1))
            assert [type(each) for each in (metadata[0].partition, told.partition)] == [int, int]
            assert {(each.partition, each.timestamp) for each in metadata} == {(1, NOW * 1000)}
            with pytest.raises(errors.UnknownTopicOrPartitionError, match="is no partition 7"):
                await producer.send("t", b"x", partition=integer(7))
            with pytest.raises(errors.RecordError, match="partition -1: expected 0 to"):
                await producer.send("t", b"x", partition=integer(-1))
        assert stored(cluster) == [(1, NOW * 1000)] * 4


@OTHER_INTEGERS
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@ASYNCIO
@bounded(20)
async def test_the_drop_in_takes_the_integers_that_aiokafka_takes(
    integer: Callable[[int], Any], known: bool
) -> None:
    """The same whether or not the topic's partitions are known when the record is sent."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            if known:
                await producer.partitions_for("t")
            where = {"partition": integer(1), "timestamp_ms": integer(NOW)}
            await producer.send_and_wait("t", b"a", **where)
            batch = producer.create_batch()
            stamp: Any = integer(NOW)
            batch.append(timestamp=stamp, key=None, value=b"b")
            place: Any = integer(1)
            told = await (await producer.send_batch(batch, "t", partition=place))
            assert type(told.partition) is int
            empty = await (await producer.send_batch(producer.create_batch(), "t", partition=place))
            assert type(empty.partition) is int
        assert stored(cluster) == [(1, NOW)] * 2


@OTHER_INTEGERS
@bounded(20)
async def test_offsets_of_a_transaction_may_be_of_another_integer_type(
    integer: Callable[[int], Any],
) -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        cluster.set_group("g", 3, {"m": None})
        place = ConsumerGroupMetadata("g", integer(3), "m")
        async with producer_for(cluster, transactional_id="x") as producer, producer.transaction():
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): integer(7)}, place)
        assert cluster.state.groups.committed("g")["t", 0].offset == 7


@OTHER_INTEGERS
@ASYNCIO
@bounded(20)
async def test_a_partitioner_may_choose_an_integer_of_another_type(
    integer: Callable[[int], Any],
) -> None:
    """A partitioner that computes with numpy need not convert its choice."""

    def choose(*_: object) -> Any:
        return integer(1)

    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        async with producer_for(cluster, partitioner=choose) as producer:
            metadata = await producer.send("t", b"a", key=b"k")
            assert (metadata.partition, type(metadata.partition)) == (1, int)
            assert (await producer.send_many("t", [b"b", b"c"])).counts.acked == 2
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, partitioner=choose
        ) as other:
            assert (await other.send_and_wait("t", b"d")).partition == 1
            batch = other.create_batch()
            batch.append(timestamp=None, key=None, value=b"e")
            assert (await (await other.send_batch(batch, "t", partition=None))).partition == 1
        assert [partition for partition, _ in stored(cluster)] == [1] * 5


@pytest.mark.parametrize("chosen", [Whole(2), Broken(), 1.0, "1"], ids=["2", "broken", "1.0", "s"])
@bounded(20)
async def test_a_partitioner_must_choose_an_integer_that_is_a_partition(chosen: object) -> None:
    async with (
        EmbeddedCluster(transport="memory", default_partitions=2) as cluster,
        producer_for(cluster, partitioner=lambda *_: chosen) as producer,
    ):
        with pytest.raises(errors.RecordError, match="which is none of the 2 partitions"):
            await producer.send("t", b"x", key=b"k")


@pytest.mark.parametrize("check", [checked_partition, checked_timestamp, milliseconds])
@pytest.mark.parametrize("wrong", [True, "1", None, [1]], ids=repr)
def test_a_bool_is_no_number(check: Callable[[Any], int], wrong: object) -> None:
    """Nor are a text, None and a list."""
    with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
        check(wrong)


@pytest.mark.parametrize("check", [checked_partition, checked_timestamp])
@pytest.mark.parametrize("kind", ["float64", "float32", "bool"])
def test_numbers_of_numpy_that_are_no_integers_are_refused(
    check: Callable[[Any], int], kind: str
) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=f"not {kind}"):
        check(numpy.dtype(kind).type(1))


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "int64", "uint64"])
def test_every_integer_of_numpy_goes_on_as_an_int(kind: str) -> None:
    integer = pytest.importorskip("numpy").dtype(kind).type(7)
    for check, expected in ((checked_partition, 7), (checked_timestamp, 7), (milliseconds, 7000)):
        assert (check(integer), type(check(integer))) == (expected, int)
