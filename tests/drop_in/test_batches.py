"""Batches of a BatchBuilder: a closed one is sent unmixed; an open one may get other records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, DeliveryStatus, errors
from aioidem._aiokafka import BatchBuilder
from aioidem._aiokafka.batches import being_sent
from aioidem._broker.intercept import Action, Delay, Refuse, RequestSeen
from aioidem._records import build_batch
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

pytestmark = pytest.mark.anyio


def made(cluster: EmbeddedCluster, **arguments: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **arguments)


def on_the_wire(cluster: EmbeddedCluster) -> list[list[Any]]:
    return [[record.value for record in batch.records()] for batch in cluster.batches("t")]


def meet_first_produce(cluster: EmbeddedCluster, action: Action) -> None:
    left = [action]

    def hook(seen: RequestSeen) -> Action | None:
        return left.pop() if seen.api_key == 0 and left else None

    cluster.intercept(hook)


def filled(producer: AIOKafkaProducer, *values: bytes, close: bool) -> BatchBuilder:
    batch = producer.create_batch()
    for value in values:
        assert batch.append(timestamp=None, key=None, value=value) is not None
    if close:
        batch.close()
    return batch


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize("close", [True, False], ids=["closed", "open"])
async def test_a_closed_batch_is_neither_mixed_nor_torn(
    cluster: EmbeddedCluster, close: bool, codec: Any
) -> None:
    cluster.create_topic("t")
    async with made(cluster, compression_type=codec) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        # While the first batch is in flight, later records wait, and could be sent as one batch.
        meet_first_produce(cluster, Delay(0.2))
        futures = [await producer.send("t", b"opens", partition=0)]
        await asyncio.sleep(0)
        for number in range(10):
            futures.append(await producer.send("t", b"s%d" % number, partition=0))
            batch = filled(producer, b"a%d" % number, b"b%d" % number, close=close)
            futures.append(await producer.send_batch(batch, "t", partition=0))
        await asyncio.gather(*futures)
    batches = on_the_wire(cluster)
    assert [value for batch in batches for value in batch] == [
        *(b"first", b"opens"),
        *(v % n for n in range(10) for v in (b"s%d", b"a%d", b"b%d")),
    ]
    whole = [[b"a%d" % number, b"b%d" % number] in batches for number in range(10)]
    assert all(whole) if close else not all(whole)


@pytest.mark.parametrize("codec", [None, "gzip", "lz4"])
async def test_a_full_batch_is_not_torn(cluster: EmbeddedCluster, codec: str | None) -> None:
    """A full BatchBuilder is sent as one batch, although the producer's queue overestimates it.

    The BatchBuilder counts bytes exactly; the queue calculates an upper bound of a batch's size.
    How much a codec saves is a guess before the first batches.
    """
    cluster.create_topic("t")
    async with made(cluster, max_batch_size=1000, compression_type=codec) as producer:
        for length in (1, 10, 57, 100, 470):
            batch = producer.create_batch()
            while batch.append(timestamp=None, key=None, value=b"x" * length) is not None:
                pass
            await (await producer.send_batch(batch, "t", partition=0))
            assert len(on_the_wire(cluster)[-1]) == batch.record_count()


async def test_the_records_of_a_closed_batch_have_one_deadline(cluster: EmbeddedCluster) -> None:
    """So the batch is not torn if the leader comes back between two deadlines."""
    cluster.create_topic("t")
    async with made(cluster) as producer:
        inside = producer._inside  # noqa: SLF001 - a loop's clock does not move meanwhile
        clock, looks = inside.life.clock, count()
        with being_sent(filled(producer, b"1", b"2", b"3", close=True)) as records:
            inside.life.clock = lambda: clock() + next(looks)
            queued = await inside.intake.enqueue_batch("t", records, partition=0, size=1000)
            inside.life.clock = clock
        assert len({record.deadline for record in queued}) == 1


async def test_a_batch_counts_its_bytes_exactly() -> None:
    batch = BatchBuilder(100_000)
    for number in range(300):
        stamp = 1_700_000_000_000 + (number * 7919) % 1000
        headers: list[tuple[str, bytes | None]] = [("n", b"%d" % number), ("none", None)]
        batch.append(
            timestamp=stamp, key=b"k" * number if number % 3 else None, value=b"v", headers=headers
        )
    with being_sent(batch) as records:
        assert batch.size() == len(build_batch(records).data)


async def test_a_batch_that_the_topic_finds_too_large_is_split_all_the_same(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("t", configs={"max.message.bytes": "600"})
    async with made(cluster, max_batch_size=5000) as producer:
        batch = filled(producer, *[b"%d" % n * 50 for n in range(9)], close=True)
        sent = await (await producer.send_batch(batch, "t", partition=0))
        assert sent.offset == 0
    assert [value for each in on_the_wire(cluster) for value in each] == [
        b"%d" % n * 50 for n in range(9)
    ]


async def test_a_batch_that_is_stored_in_part_is_not_said_to_be_not_written(
    cluster: EmbeddedCluster,
) -> None:
    """Who sends it again, because its future said NOT_WRITTEN, would duplicate records."""
    cluster.create_topic("t", configs={"cleanup.policy": "compact"})
    async with made(cluster) as producer:
        batch = producer.create_batch()
        for key, value in ((b"k", b"a"), (None, b"b"), (b"k", b"c")):
            assert batch.append(key=key, value=value, timestamp=None) is not None
        future = await producer.send_batch(batch, "t", partition=0)
        with pytest.raises(
            errors.InvalidRecord, match="2 of the batch's 3 records are stored"
        ) as e:
            await future
        assert e.value.status is DeliveryStatus.UNKNOWN
        assert future.delivery is not None
        assert future.delivery.status is DeliveryStatus.NOT_WRITTEN
    assert [value for each in on_the_wire(cluster) for value in each] == [b"a", b"c"]


async def test_a_batch_fails_as_its_records_do(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    async with made(cluster) as producer:
        await producer.partitions_for("t")
        meet_first_produce(cluster, Refuse(ErrorCode.invalid_timestamp))
        future = await producer.send_batch(
            filled(producer, b"a", b"b", close=True), "t", partition=0
        )
        with pytest.raises(errors.InvalidTimestampError):
            await future
        again = filled(producer, b"c", close=True)
        await (await producer.send_batch(again, "t", partition=0))


@pytest.mark.parametrize("close", [True, False], ids=["closed", "open"])
async def test_a_send_batch_that_was_refused_leaves_the_batch_to_be_sent(
    cluster: EmbeddedCluster, close: bool
) -> None:
    cluster.create_topic("t")
    async with made(cluster) as producer:
        batch = filled(producer, b"a", close=close)
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            await producer.send_batch(batch, "t", partition=7)
        assert batch.closed() is close
        assert "sent" not in repr(batch)
        await (await producer.send_batch(batch, "t", partition=0))
        assert "sent" in repr(batch)


@asynccontextmanager
async def waiting_for_room(
    cluster: EmbeddedCluster,
) -> AsyncIterator[tuple[AIOKafkaProducer, BatchBuilder, asyncio.Task[Any]]]:
    """Yield a producer, a batch, and the call that sends it and waits for room in the buffer.

    The room becomes free when the high watermark of topic "full" is released.
    """
    cluster.create_topic("t")
    cluster.create_topic("full")
    cluster.hold_high_watermark("full")
    small = {"buffer_memory": 6000, "max_request_size": 3000, "max_batch_size": 2500}
    async with made(cluster, **small) as producer:
        await producer.partitions_for("t")
        full = await producer.send("full", bytes(2500))
        batch = filled(producer, bytes(1000), close=False)
        sending = asyncio.create_task(producer.send_batch(batch, "t", partition=0))
        await until(lambda: producer.metrics()["producer-metrics"]["waiting-threads"] == 1)
        try:
            yield producer, batch, sending
        finally:
            cluster.release_high_watermark("full")
            await full


async def test_a_batch_takes_no_record_while_send_batch_waits_for_room(
    cluster: EmbeddedCluster,
) -> None:
    """What `append` accepts is sent: from the beginning of `send_batch` on, it accepts nothing."""
    async with waiting_for_room(cluster) as (_, batch, sending):
        assert batch.append(timestamp=None, key=None, value=b"late") is None
        assert batch.closed()
        cluster.release_high_watermark("full")
        await (await sending)
    assert on_the_wire(cluster) == [[bytes(1000)]]
    assert batch.record_count() == 1


async def test_a_batch_takes_no_record_while_send_batch_waits_for_metadata(
    cluster: EmbeddedCluster,
) -> None:
    """The same while the partitions of the topic are not known yet."""
    cluster.create_topic("t")
    async with made(cluster) as producer:
        batch = filled(producer, b"a", close=False)
        sending = asyncio.create_task(producer.send_batch(batch, "t", partition=0))
        late: list[object] = []
        while not sending.done():
            await asyncio.sleep(0)
            late.append(batch.append(timestamp=None, key=None, value=b"late"))
        await (await sending)
    assert len(late) > 1
    assert set(late) == {None}
    assert on_the_wire(cluster) == [[b"a"]]


@pytest.mark.parametrize("close", [True, False], ids=["closed", "open"])
async def test_of_several_calls_at_once_one_sends_the_batch(
    cluster: EmbeddedCluster, close: bool
) -> None:
    """A batch is written once; the other calls raise RecordError, although the first one waits."""
    cluster.create_topic("t")
    async with made(cluster) as producer:
        batch = filled(producer, b"once", close=close)
        calls = [producer.send_batch(batch, "t", partition=0) for _ in range(3)]
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in others] == [errors.RecordError] * 2
        assert not isinstance(first, BaseException)
        await first
    assert on_the_wire(cluster) == [[b"once"]]


async def test_a_send_batch_that_is_cancelled_leaves_the_batch_as_it_was(
    cluster: EmbeddedCluster,
) -> None:
    """Nothing was queued, so the batch takes records again and can be sent."""
    async with waiting_for_room(cluster) as (producer, batch, sending):
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert not batch.closed()
        assert batch.append(timestamp=None, key=None, value=b"more") is not None
        cluster.release_high_watermark("full")
        await (await producer.send_batch(batch, "t", partition=0))
    assert on_the_wire(cluster) == [[bytes(1000), b"more"]]


async def test_without_a_partition_the_partitioner_chooses_one_for_all(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("t", partitions=3)
    used = set()
    async with made(cluster) as producer:
        for _ in range(40):
            batch = filled(producer, b"a", b"b", close=True)
            sent = await (await producer.send_batch(batch, "t", partition=None))
            used.add(sent.partition)
    assert used == {0, 1, 2}
    assert sum(cluster.log_end_offset("t", partition) for partition in used) == 80
    assert all(cluster.log_end_offset("t", partition) % 2 == 0 for partition in used)


async def test_what_is_no_batch_is_a_type_error(cluster: EmbeddedCluster) -> None:
    async with made(cluster) as producer:
        thing: Any = "batch"
        with pytest.raises(TypeError, match="batch must be a BatchBuilder, not str"):
            await producer.send_batch(thing, "t", partition=0)


@pytest.mark.parametrize("chosen", [LookupError("mine"), 99, "0", None, -1], ids=repr)
async def test_a_batch_whose_partitioner_fails_is_refused_as_a_record_is(
    cluster: EmbeddedCluster, chosen: Any
) -> None:
    """A partitioner that fails is a RecordError of the call, and nothing of the batch is queued."""
    cluster.create_topic("t", 3)
    answers = [chosen, 1, 2, 0]

    def partitioner(_key: bytes | None, _everything: Any, _available: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with made(cluster, partitioner=partitioner) as producer:
        batch = filled(producer, b"a", b"b", close=False)
        with pytest.raises(errors.RecordError, match="partitioner") as caught:
            await producer.send_batch(batch, "t", partition=None)
        assert caught.value.__cause__ is (chosen if isinstance(chosen, Exception) else None)
        sent = await (await producer.send_batch(batch, "t", partition=None))
    assert sent.partition == 1
    assert [record.value for record in cluster.records("t")] == [b"a", b"b"]


async def test_an_empty_batch_is_refused_where_a_record_is(cluster: EmbeddedCluster) -> None:
    """A producer that was stopped, and one of another event loop, takes no batch at all."""
    cluster.create_topic("t")
    async with made(cluster) as producer:
        await producer.send_and_wait("t", b"known", partition=0)

        def elsewhere() -> None:
            asyncio.run(producer.send_batch(producer.create_batch(), "t", partition=0))

        with pytest.raises(errors.WrongLoopError) as wrong:
            await asyncio.to_thread(elsewhere)
    with pytest.raises(errors.ProducerClosed) as closed:
        await producer.send_batch(producer.create_batch(), "t", partition=0)
    assert wrong.value.status is closed.value.status is DeliveryStatus.NOT_WRITTEN


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
async def test_a_timestamp_that_is_no_number_of_milliseconds_is_told_as_it_is(odd: float) -> None:
    batch = AIOKafkaProducer().create_batch()
    with pytest.raises(errors.RecordError, match=rf"timestamp_ms {odd!r}: expected milliseconds"):
        batch.append(timestamp=odd, key=None, value=b"x")
    assert batch.record_count() == 0
