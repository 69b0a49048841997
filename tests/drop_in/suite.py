"""The behaviour of aiokafka's producer as one suite, run with aiokafka and with the drop-in.

A behaviour is a coroutine function that takes a `World`. Every behaviour must pass with both
clients, on the embedded broker and on real Kafka; test_differences.py has what the two clients do
differently on purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiokafka
import pytest

PARTITIONS = 3
Behaviour = Callable[["World"], Awaitable[None]]
BEHAVIOURS: list[Behaviour] = []


@dataclass
class World:
    """A broker, a topic with `PARTITIONS` partitions, and the class of the client under test."""

    client: Any
    bootstrap_servers: str
    topic: str

    def producer(self, **arguments: Any) -> Any:
        """Return a producer of the client under test; the caller has to start it."""
        return self.client(bootstrap_servers=self.bootstrap_servers, **arguments)

    async def read(self, partition: int = 0) -> list[Any]:
        """Return every record of a partition, as aiokafka's consumer reads them."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            place = aiokafka.TopicPartition(self.topic, partition)
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            records: list[Any] = []
            while not records or records[-1].offset < end - 1:
                if not end:
                    break
                found = await consumer.getmany(place, timeout_ms=1000)
                records += [record for batch in found.values() for record in batch]
            return records
        finally:
            await consumer.stop()

    async def values(self, partition: int = 0) -> list[Any]:
        """Return the values of a partition's records, as aiokafka's consumer reads them."""
        return [record.value for record in await self.read(partition)]


def behaviour(function: Behaviour) -> Behaviour:
    """Add a function to the suite."""
    BEHAVIOURS.append(function)
    return function


def name_of(behaviour: Behaviour) -> str:
    """Return the function's name, for pytest."""
    return str(getattr(behaviour, "__name__", behaviour))


async def raised(awaitable: Awaitable[Any]) -> Exception:
    """Return the exception that ``await awaitable`` raises; fail the test if there is none."""
    try:
        await awaitable
    except Exception as error:  # noqa: BLE001 - that is the question
        return error
    return pytest.fail("the awaitable raised nothing")


@behaviour
async def send_and_wait_tells_where_the_record_is(world: World) -> None:
    async with world.producer() as producer:
        sent = await producer.send_and_wait(
            world.topic, b"value", b"key", 1, 1_700_000_000_123, [("a", b"1"), ("none", None)]
        )
    assert tuple(sent) == (
        world.topic,
        1,
        (world.topic, 1),
        0,
        1_700_000_000_123,
        0,
        0,
    )
    assert sent._fields == (
        *("topic", "partition", "topic_partition", "offset", "timestamp", "timestamp_type"),
        "log_start_offset",
    )
    assert sent.topic_partition.partition == 1
    [record] = await world.read(1)
    assert (record.key, record.value, record.timestamp) == (b"key", b"value", 1_700_000_000_123)
    # The consumer returns a header without a value as None or as empty, depending on its version.
    assert [(name, value or b"") for name, value in record.headers] == [("a", b"1"), ("none", b"")]


@behaviour
async def send_returns_a_future_of_the_loop(world: World) -> None:
    async with world.producer() as producer:
        future = await producer.send(world.topic, b"x", partition=0)
        assert isinstance(future, asyncio.Future)
        told: list[Any] = []
        future.add_done_callback(told.append)
        done, pending = await asyncio.wait([future], timeout=10)
        assert (done, pending) == ({future}, set())
        assert told == [future]
        assert future.result().offset == 0
        assert future.exception() is None
        again = await asyncio.gather(*[await producer.send(world.topic, b"y", partition=0)])
        assert again[0].offset == 1


@behaviour
async def records_of_a_partition_are_in_order_and_so_are_their_futures(world: World) -> None:
    order: list[int] = []
    async with world.producer(linger_ms=5) as producer:
        futures = []
        for number in range(200):
            future = await producer.send(world.topic, b"%d" % number, partition=0)
            future.add_done_callback(lambda _done, number=number: order.append(number))
            futures.append(future)
        offsets = [(await future).offset for future in futures]
    assert offsets == list(range(200))
    assert order == list(range(200))
    assert await world.values() == [b"%d" % number for number in range(200)]


@behaviour
async def a_key_decides_the_partition_as_in_java(world: World) -> None:
    async with world.producer() as producer:
        placed = {
            key: (await producer.send_and_wait(world.topic, b"", key)).partition
            for key in (b"", b"a", b"foobar", b"a-little-bit-long-string", b"\xff\x00")
        }
    # These are Java's murmur2 hashes of the keys, without the sign, modulo 3.
    assert placed == {
        b"": 275646681 % 3,
        b"a": (-1563381124 & 0x7FFFFFFF) % 3,
        b"foobar": (-790332482 & 0x7FFFFFFF) % 3,
        b"a-little-bit-long-string": (-985981536 & 0x7FFFFFFF) % 3,
        b"\xff\x00": placed[b"\xff\x00"],
    }


@behaviour
async def records_without_a_key_go_to_every_partition(world: World) -> None:
    async with world.producer() as producer:
        used = {(await producer.send_and_wait(world.topic, b"x")).partition for _ in range(60)}
    assert used == set(range(PARTITIONS))


@behaviour
async def a_partitioner_is_asked_with_serialised_key_and_partitions(world: World) -> None:
    asked: list[Any] = []

    def partitioner(key: bytes | None, everything: Any, available: Any) -> int:
        asked.append((key, list(everything), sorted(available)))
        return 2

    async with world.producer(partitioner=partitioner, key_serializer=str.encode) as producer:
        sent = await producer.send_and_wait(world.topic, b"x", "key")
    assert sent.partition == 2
    assert [(key, sorted(everything), available) for key, everything, available in asked] == [
        (b"key", [0, 1, 2], [0, 1, 2])
    ]


@behaviour
async def partitions_for_names_them(world: World) -> None:
    async with world.producer() as producer:
        assert await producer.partitions_for(world.topic) == set(range(PARTITIONS))
        assert producer.client.cluster.partitions_for_topic(world.topic) == set(range(PARTITIONS))
        assert len(producer.client.cluster.brokers()) == 1


@behaviour
async def serialisers_are_called_for_none_too(world: World) -> None:
    seen: list[Any] = []

    def serialise(value: Any) -> bytes | None:
        seen.append(value)
        return None if value is None else repr(value).encode()

    async with world.producer(value_serializer=serialise, key_serializer=serialise) as producer:
        await producer.send_and_wait(world.topic, {"a": 1}, partition=0)
        await producer.send_and_wait(world.topic, key=7, partition=0)
        batch = producer.create_batch()
        assert batch.append(timestamp=None, key=None, value=[1]) is not None
        await (await producer.send_batch(batch, world.topic, partition=0))
    assert [(record.key, record.value) for record in await world.read()] == [
        (None, b"{'a': 1}"),
        (b"7", None),
        (None, b"[1]"),
    ]
    assert seen.count(None) == 3


@behaviour
async def every_codec_reads_back(world: World) -> None:
    codecs = [None, "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        async with world.producer(compression_type=codec) as producer:
            await producer.send_and_wait(world.topic, b"squeeze " * 100, partition=0)
    assert await world.values() == [b"squeeze " * 100] * len(codecs)


@behaviour
async def every_acks_is_accepted(world: World) -> None:
    for acks in (1, -1, "all"):
        async with world.producer(acks=acks) as producer:
            await producer.send_and_wait(world.topic, b"x", partition=0)
    async with world.producer(acks=0) as producer:
        # With acks=0 no RecordMetadata (offset, timestamp) is known. aiokafka's tests expect None,
        # too.
        assert await producer.send_and_wait(world.topic, b"x", partition=0) is None
    # By the time that this producer has started, the broker has read the record with acks=0.
    async with world.producer() as producer:
        last = await producer.send_and_wait(world.topic, b"x", partition=0)
    assert last.offset == 4


@behaviour
async def without_acks_every_future_ends_with_none(world: World) -> None:
    async with world.producer(acks=0) as producer:
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"in a batch")
        futures = [
            await producer.send(world.topic, b"x", partition=0),
            await producer.send(world.topic, b"x", partition=1),
            await producer.send_batch(batch, world.topic, partition=0),
        ]
        done, _ = await asyncio.wait(futures)
        assert [future.result() for future in done] == [None, None, None]


@behaviour
async def idempotence_is_accepted(world: World) -> None:
    async with world.producer(enable_idempotence=True) as producer:
        futures = [await producer.send(world.topic, b"x", partition=0) for _ in range(50)]
        assert [(await future).offset for future in futures] == list(range(50))


@behaviour
async def bad_constructor_arguments_are_value_and_type_errors(world: World) -> None:
    for bad in (
        {"acks": 5},
        {"acks": "some"},
        {"compression_type": "rar"},
        {"enable_idempotence": True, "acks": 1},
        {"enable_idempotence": True, "acks": 0},
        {"security_protocol": "CARRIER_PIGEON"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "TELEPATHY"},
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"},
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - the texts differ
            world.producer(**bad)
    with pytest.raises(ValueError, match="`security_protocol` should be SSL or PLAINTEXT"):
        world.producer(security_protocol="SOME")
    with pytest.raises(TypeError):
        world.producer(retries=3)
    with pytest.raises(TypeError):
        world.client(world.bootstrap_servers)  # keywords only


@behaviour
async def deprecated_arguments_warn(world: World) -> None:
    with pytest.warns(DeprecationWarning, match="loop"):
        producer = world.producer(loop=asyncio.get_running_loop())
    await producer.start()
    await producer.stop()
    with pytest.warns(DeprecationWarning, match="api_version"):
        await world.producer(api_version="auto").stop()


@behaviour
async def what_is_no_bytes_is_a_type_error(world: World) -> None:
    async with world.producer() as producer:
        for bad in (
            {"value": "text"},
            {"value": 5},
            {"value": b"", "key": "text"},
            {"value": b"", "headers": [(b"name", b"value")]},
            {"value": b"", "headers": [("name", "value")]},
            {"value": b"", "timestamp_ms": "now"},
        ):
            assert isinstance(await raised(producer.send(world.topic, **bad)), TypeError)
        batch = producer.create_batch()
        with pytest.raises(TypeError):
            batch.append(timestamp=None, key="text", value=b"")
        fine = await producer.send_and_wait(world.topic, bytearray(b"fine"), partition=0)
        assert fine.offset == 0


@behaviour
async def a_fraction_of_a_millisecond_is_dropped(world: World) -> None:
    async with world.producer() as producer:
        sent = await producer.send_and_wait(
            world.topic, b"x", partition=0, timestamp_ms=1_700_000_000_123.9
        )
    assert sent.timestamp == 1_700_000_000_123


@behaviour
async def a_record_that_is_too_large_is_refused_by_send(world: World) -> None:
    async with world.producer(max_request_size=1000) as producer:
        error = await raised(producer.send(world.topic, b"x" * 1001))
        assert type(error).__name__ == "MessageSizeTooLargeError"
        assert getattr(error, "errno", None) == 10
        await producer.send_and_wait(world.topic, b"x" * 800)


@behaviour
async def a_tombstone_needs_a_key(world: World) -> None:
    async with world.producer() as producer:
        await producer.send_and_wait(world.topic, None, b"key", partition=0)
        await raised(producer.send(world.topic, None, None))
    [record] = await world.read()
    assert (record.key, record.value) == (b"key", None)


@behaviour
async def a_batch_goes_out_as_its_owner_made_it(world: World) -> None:
    async with world.producer(max_batch_size=1000) as producer:
        batch = producer.create_batch()
        empty = batch.size()
        added = batch.append(
            timestamp=1_700_000_000_000, key=b"k", value=b"v", headers=[("h", b"")]
        )
        assert (added.offset, added.timestamp) == (0, 1_700_000_000_000)
        assert added.size == batch.size() - empty
        assert batch.append(timestamp=None, key=None, value=b"w").offset == 1
        assert (batch.record_count(), batch.closed()) == (2, False)
        batch.close()
        assert batch.closed()
        assert batch.append(timestamp=None, key=None, value=b"late") is None
        future = await producer.send_batch(batch, world.topic, partition=0)
        assert isinstance(future, asyncio.Future)
        sent = await future
        assert (sent.topic, sent.partition, sent.offset) == (world.topic, 0, 0)
    assert await world.values() == [b"v", b"w"]


@behaviour
async def a_full_batch_closes_itself(world: World) -> None:
    async with world.producer(max_batch_size=1000) as producer:
        batch = producer.create_batch()
        count = 0
        while batch.append(timestamp=None, key=None, value=b"x" * 100) is not None:
            count += 1
        assert (count, batch.record_count(), batch.closed()) == (8, 8, True)
        assert 800 < batch.size() <= 1000
        large = producer.create_batch()
        assert large.append(timestamp=None, key=None, value=b"x" * 2000) is not None
        await (await producer.send_batch(batch, world.topic, partition=0))
    assert len(await world.values()) == 8


@behaviour
async def batches_and_sends_share_a_partition_in_order(world: World) -> None:
    async with world.producer() as producer:
        futures = []
        for number in range(10):
            futures.append(await producer.send(world.topic, b"s%d" % number, partition=0))
            batch = producer.create_batch()
            for letter in b"ab":
                batch.append(timestamp=None, key=None, value=b"b%d%c" % (number, letter))
            batch.close()
            futures.append(await producer.send_batch(batch, world.topic, partition=0))
        await asyncio.gather(*futures)
    wanted = [v % n for n in range(10) for v in (b"s%d", b"b%da", b"b%db")]
    assert await world.values() == wanted


@behaviour
async def cancelling_the_future_does_not_stop_the_record(world: World) -> None:
    async with world.producer(linger_ms=50) as producer:
        future = await producer.send(world.topic, b"goes on", partition=0)
        assert future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        after = await producer.send_and_wait(world.topic, b"after", partition=0)
        assert after.offset == 1
    assert await world.values() == [b"goes on", b"after"]


@behaviour
async def cancelling_a_batchs_future_does_not_stop_the_batch(world: World) -> None:
    async with world.producer(linger_ms=50) as producer:
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"goes on")
        (await producer.send_batch(batch, world.topic, partition=0)).cancel()
    assert await world.values() == [b"goes on"]


@behaviour
async def flush_resolves_what_was_sent_before(world: World) -> None:
    async with world.producer(linger_ms=10) as producer:
        futures = [await producer.send(world.topic, b"x", partition=n % 3) for n in range(30)]
        await producer.flush()
        assert all(future.done() for future in futures)
        await producer.flush()  # nothing to wait for


@behaviour
async def stop_delivers_what_is_queued_and_may_be_called_again(world: World) -> None:
    producer = world.producer(linger_ms=50)
    await producer.start()
    futures = [await producer.send(world.topic, b"x", partition=0) for _ in range(10)]
    await producer.stop()
    assert all(future.done() for future in futures)
    await producer.stop()
    assert type(await raised(producer.send(world.topic, b"late"))).__name__ == "ProducerClosed"
    assert len(await world.values()) == 10


@behaviour
async def a_producer_that_never_started_can_be_stopped(world: World) -> None:
    await world.producer().stop()


@behaviour
async def start_fails_where_there_is_no_broker(world: World) -> None:
    producer = world.client(bootstrap_servers="127.0.0.1:1")
    error = await raised(producer.start())
    assert type(error).__name__ == "KafkaConnectionError"
    assert getattr(error, "retriable", False)
    assert "Unable to bootstrap from" in str(error)
    again = await raised(producer.start())  # as in a loop that waits for the broker
    assert type(again).__name__ == "KafkaConnectionError"
    await producer.stop()


@behaviour
async def many_tasks_send_at_once(world: World) -> None:
    async with world.producer(max_batch_size=500) as producer:
        sent = await asyncio.gather(
            *[producer.send_and_wait(world.topic, b"x" * 50, partition=0) for _ in range(300)]
        )
    assert sorted(each.offset for each in sent) == list(range(300))


@behaviour
async def transactions_need_a_transactional_id(world: World) -> None:
    async with world.producer() as producer:
        for call in (
            producer.begin_transaction(),
            producer.commit_transaction(),
            producer.abort_transaction(),
            producer.send_offsets_to_transaction({}, "group"),
            producer.transaction().__aenter__(),
        ):
            assert type(await raised(call)).__name__ == "IllegalOperation"


@behaviour
async def the_context_manager_gives_the_producer_and_stops_it(world: World) -> None:
    producer = world.producer()
    async with producer as same:
        assert same is producer
        await producer.send_and_wait(world.topic, b"x")
    assert type(await raised(producer.send(world.topic, b"late"))).__name__ == "ProducerClosed"


@behaviour
async def flush_has_nothing_to_wait_for_before_the_start_and_after_the_stop(world: World) -> None:
    producer = world.producer()
    await producer.flush()
    await producer.start()
    await producer.send_and_wait(world.topic, b"x")
    await producer.stop()
    await producer.flush()


@behaviour
async def a_service_sees_whether_a_producer_is_closed(world: World) -> None:
    """Show in aiokafka's attribute `_closed` whether a producer is closed: FastStream reads it."""
    producer = world.producer()
    assert producer._closed is False  # noqa: SLF001
    await producer.start()
    assert producer._closed is False  # noqa: SLF001
    await producer.stop()
    assert producer._closed is True  # noqa: SLF001
