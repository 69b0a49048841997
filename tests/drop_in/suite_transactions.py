"""The transactional half of the suite: the behaviour of aiokafka's producer in transactions.

As in suite.py, a behaviour passes with both clients, in both transaction protocols, on the embedded
broker and on real Kafka. The records are read by aiokafka's consumer in read_committed mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiokafka
import pytest

from .suite import PARTITIONS, Behaviour, World, raised

TRANSACTIONAL: list[Behaviour] = []


def behaviour(function: Behaviour) -> Behaviour:
    """Add a function to this half of the suite."""
    TRANSACTIONAL.append(function)
    return function


def producer_of(world: World, **arguments: Any) -> Any:
    """Return a producer whose transactional id is made from the name of the topic."""
    return world.producer(**{"transactional_id": f"of-{world.topic}"} | arguments)


@asynccontextmanager
async def reader(world: World, topic: str, **arguments: Any) -> AsyncIterator[Any]:
    """Yield a consumer of committed records that is assigned to every partition of a topic."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=world.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **arguments,
    )
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition(topic, each) for each in range(PARTITIONS)])
        yield consumer
    finally:
        await consumer.stop()


async def committed(world: World, partition: int = 0) -> list[bytes]:
    """Return the values in a partition that a read_committed consumer reads."""
    async with reader(world, world.topic) as consumer:
        place = aiokafka.TopicPartition(world.topic, partition)
        # For a read_committed consumer, end_offsets returns the last stable offset.
        end = (await consumer.end_offsets([place]))[place]
        values: list[bytes] = []
        while await consumer.position(place) < end:
            found = await consumer.getmany(place, timeout_ms=200)
            values += [record.value for records in found.values() for record in records]
        return values


async def offsets_of(world: World, group: str, *partitions: int) -> list[int | None]:
    """Return the offsets that a group has committed for these partitions."""
    async with reader(world, world.topic, group_id=group) as consumer:
        places = [aiokafka.TopicPartition(world.topic, each) for each in partitions]
        return [await consumer.committed(place) for place in places]


async def reads(world: World, partition: int = 0, *, wanted: list[bytes]) -> None:
    """Wait until read_committed consumers see exactly these values.

    Markers are written after a commit is answered, so the values may come a little later.
    """
    found: list[bytes] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            while (found := await committed(world, partition)) != wanted:
                pass
    assert found == wanted


async def has_committed(world: World, group: str, *, wanted: dict[int, int]) -> None:
    """Wait until a group has committed exactly these offsets."""
    found: list[int | None] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            while (found := await offsets_of(world, group, *wanted)) != list(wanted.values()):
                pass
    assert found == list(wanted.values())


def seen_to(producer: Any) -> None:
    """Retrieve the error of aiokafka's transaction; else asyncio would log it in a later test."""
    waiter = getattr(getattr(producer, "_txn_manager", None), "_transaction_waiter", None)
    if waiter is not None and waiter.done():
        waiter.exception()


def name_of_class(error: BaseException) -> str:
    """Return the name of an error's class, which is the same in aiokafka and aioidem."""
    return type(error).__name__


@behaviour
async def a_transaction_is_read_when_it_is_committed(world: World) -> None:
    async with producer_of(world) as producer:
        async with producer.transaction():
            sent = await producer.send_and_wait(world.topic, b"hello", partition=0)
            assert sent.offset == 0
            assert await committed(world) == []
        await reads(world, wanted=[b"hello"])


@behaviour
async def the_context_of_a_transaction_may_be_entered_again(world: World) -> None:
    async with producer_of(world) as producer:
        transaction = producer.transaction()
        for value in (b"1", b"2"):
            async with transaction as same:
                assert same is transaction
                await producer.send(world.topic, value, partition=0)
    await reads(world, wanted=[b"1", b"2"])


@behaviour
async def what_is_aborted_is_never_read(world: World) -> None:
    async with producer_of(world) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(world.topic, b"aborted", partition=0)
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_and_wait(world.topic, b"committed", partition=0)
        await producer.commit_transaction()
    await reads(world, wanted=[b"committed"])


@behaviour
async def a_block_that_raises_aborts(world: World) -> None:
    async with producer_of(world) as producer:

        async def block() -> None:
            async with producer.transaction():
                await producer.send_and_wait(world.topic, b"aborted", partition=0)
                raise LookupError("mine")

        assert str(await raised(block())) == "mine"
        async with producer.transaction():
            await producer.send(world.topic, b"committed", partition=0)
    await reads(world, wanted=[b"committed"])


@behaviour
async def a_block_that_is_cancelled_aborts(world: World) -> None:
    sent = asyncio.Event()

    async def block() -> None:
        async with producer.transaction():
            await producer.send_and_wait(world.topic, b"aborted", partition=0)
            sent.set()
            await asyncio.Event().wait()

    async with producer_of(world) as producer:
        task = asyncio.ensure_future(block())
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with producer.transaction():
            await producer.send(world.topic, b"committed", partition=0)
    await reads(world, wanted=[b"committed"])


@behaviour
async def empty_transactions_end(world: World) -> None:
    async with producer_of(world) as producer:
        await producer.begin_transaction()
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            pass


@behaviour
async def many_transactions_over_many_partitions(world: World) -> None:
    async with producer_of(world, linger_ms=1) as producer:
        for number in range(12):
            await producer.begin_transaction()
            for partition in range(PARTITIONS):
                await producer.send(world.topic, b"%d" % number, partition=partition)
            await producer.flush()
            if number % 3:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
    wanted = [b"%d" % number for number in range(12) if number % 3]
    for partition in range(PARTITIONS):
        await reads(world, partition, wanted=wanted)


@behaviour
async def a_newer_producer_fences_the_older(world: World) -> None:
    async with producer_of(world) as old, producer_of(world) as new:
        async with new.transaction():
            await new.send_and_wait(world.topic, b"new", partition=0)

        async def goes_on() -> None:
            async with old.transaction():
                await old.send_and_wait(world.topic, b"old", partition=0)

        assert name_of_class(await raised(goes_on())) == "ProducerFenced"
        await raised(goes_on())  # it stays fenced
        seen_to(old)
        async with new.transaction():
            await new.send_and_wait(world.topic, b"newer", partition=0)
    await reads(world, wanted=[b"new", b"newer"])


@behaviour
async def a_newer_producer_ends_what_the_older_left_open(world: World) -> None:
    async with producer_of(world) as old:
        await old.begin_transaction()
        await old.send_and_wait(world.topic, b"left", partition=0)
        async with producer_of(world) as new, new.transaction():
            await new.send_and_wait(world.topic, b"new", partition=0)
        await reads(world, wanted=[b"new"])
        await raised(old.commit_transaction())
        seen_to(old)
    await reads(world, wanted=[b"new"])


@behaviour
async def a_producer_goes_on_under_the_id_of_the_last(world: World) -> None:
    for value in (b"1", b"2", b"3"):
        async with producer_of(world) as producer, producer.transaction():
            await producer.send(world.topic, value, partition=0)
    await reads(world, wanted=[b"1", b"2", b"3"])


@behaviour
async def a_commit_delivers_first(world: World) -> None:
    async with producer_of(world, linger_ms=20) as producer:
        await producer.begin_transaction()
        futures = [await producer.send(world.topic, b"x") for _ in range(10)]
        for value in (b"1", b"2"):
            batch = producer.create_batch()
            batch.append(timestamp=None, key=None, value=value)
            batch.close()
            futures.append(await producer.send_batch(batch, world.topic, partition=0))
        await producer.commit_transaction()
        assert all(future.done() and future.result().offset >= 0 for future in futures)


@behaviour
async def flush_delivers_and_does_not_commit(world: World) -> None:
    async with producer_of(world) as producer:
        await producer.begin_transaction()
        future = await producer.send(world.topic, b"x", partition=0)
        await producer.flush()
        assert future.done()
        assert await committed(world) == []
        await producer.commit_transaction()
    await reads(world, wanted=[b"x"])


@behaviour
async def records_belong_into_a_transaction(world: World) -> None:
    async with producer_of(world) as producer:
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"batch")
        batch.close()

        async def both_are_refused() -> None:
            for sending in (
                producer.send(world.topic, b"x", partition=0),
                producer.send_batch(batch, world.topic, partition=0),
                producer.send_batch(producer.create_batch(), world.topic, partition=0),
            ):
                assert name_of_class(await raised(sending)) == "IllegalOperation"

        await both_are_refused()
        await producer.begin_transaction()
        await producer.send(world.topic, b"in", partition=0)
        committing = asyncio.ensure_future(producer.commit_transaction())
        await asyncio.sleep(0)
        await both_are_refused()
        await committing
        await both_are_refused()
        async with producer.transaction():  # the refused calls queued nothing
            await producer.send_batch(batch, world.topic, partition=0)
    await reads(world, wanted=[b"in", b"batch"])


@behaviour
async def calls_that_are_cancelled_leave_a_usable_producer(world: World) -> None:
    async def cancelled(call: Any) -> bool:
        task: asyncio.Future[None] = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return task.cancelled()

    async with producer_of(world) as producer:
        await producer.partitions_for(world.topic)
        assert await cancelled(producer.begin_transaction())
        await producer.begin_transaction()  # allowed, because the cancelled call began nothing
        await producer.send_and_wait(world.topic, b"committed", partition=0)
        assert await cancelled(producer.commit_transaction())
        async with asyncio.timeout(10):
            while await committed(world) != [b"committed"]:  # the commit goes on
                pass
        await begun(producer)
        await producer.send_and_wait(world.topic, b"aborted", partition=0)
        assert await cancelled(producer.abort_transaction())
        await begun(producer)
        assert await cancelled(producer.send_offsets_to_transaction({at(world, 0): 1}, "group"))
        await producer.send_and_wait(world.topic, b"last", partition=0)
        await producer.commit_transaction()
    await reads(world, wanted=[b"committed", b"last"])


async def begun(producer: Any) -> None:
    """Begin a transaction; try again while aiokafka refuses because the last one has not ended."""

    async def begins() -> bool:
        with suppress(AssertionError, RuntimeError):
            await producer.begin_transaction()
            return True
        return False

    async with asyncio.timeout(10):
        while not await begins():  # noqa: ASYNC110 - aiokafka has no event
            await asyncio.sleep(0.01)


def at(world: World, partition: int) -> aiokafka.TopicPartition:
    """Return a partition of the topic under test as aiokafka's `TopicPartition`."""
    return aiokafka.TopicPartition(world.topic, partition)


@behaviour
async def offsets_are_committed_with_the_transaction(world: World) -> None:
    group = f"group-{world.topic}"
    async with producer_of(world) as producer:
        async with producer.transaction():
            await producer.send(world.topic, b"out", partition=0)
            offsets = {
                at(world, 0): 5,
                at(world, 1): (6, "with metadata"),
                at(world, 2): aiokafka.OffsetAndMetadata(7, "likewise"),
            }
            await producer.send_offsets_to_transaction(offsets, group)
            assert await offsets_of(world, group, 0, 1, 2) == [None, None, None]
        await has_committed(world, group, wanted={0: 5, 1: 6, 2: 7})
        async with producer.transaction():
            await producer.send_offsets_to_transaction({at(world, 0): 8}, group)
            await producer.send_offsets_to_transaction({at(world, 0): 9}, group)
        await has_committed(world, group, wanted={0: 9, 1: 6})


@behaviour
async def offsets_are_aborted_with_the_transaction(world: World) -> None:
    group = f"group-{world.topic}"
    async with producer_of(world) as producer:

        async def block() -> None:
            async with producer.transaction():
                await producer.send_offsets_to_transaction({at(world, 0): 5}, group)
                raise LookupError

        assert isinstance(await raised(block()), LookupError)
        assert await offsets_of(world, group, 0) == [None]
        async with producer.transaction():
            await producer.send_offsets_to_transaction({at(world, 0): 6}, group)
    await has_committed(world, group, wanted={0: 6})


@behaviour
async def what_are_no_offsets_is_refused_and_the_transaction_goes_on(world: World) -> None:
    async with producer_of(world) as producer:
        early = await raised(producer.send_offsets_to_transaction({}, None))
        assert name_of_class(early) == "IllegalOperation"
        async with producer.transaction():
            place = at(world, 0)
            for offsets, group, expected in (
                ({place: 1}, None, ValueError),
                ({place: 1}, "", ValueError),
                ({place: 1}, 5, ValueError),
                ({}, "group", ValueError),
                (None, "group", ValueError),
                ([(place, 1)], "group", ValueError),
                ({place: (1, "two", 3)}, "group", ValueError),
                ({place: "1"}, "group", ValueError),
                ({place: None}, "group", ValueError),
                ({place: (1, None)}, "group", TypeError),
                ({place: (1, b"text")}, "group", TypeError),
                ({(world.topic, 0): 1}, "group", TypeError),
                ({"topic": 1}, "group", TypeError),
            ):
                refused = await raised(producer.send_offsets_to_transaction(offsets, group))
                assert type(refused) is expected, (offsets, group)
            await producer.send(world.topic, b"goes on", partition=0)
    await reads(world, wanted=[b"goes on"])


@behaviour
async def consume_transform_produce(world: World) -> None:
    group = f"group-{world.topic}"
    async with world.producer() as producer:
        for number in range(90):
            await producer.send(world.topic, b"%d" % number, partition=number % 2)

    async def copied(*, fail: bool) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=world.bootstrap_servers,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            consumer.assign([at(world, 0), at(world, 1)])
            while found := await consumer.getmany(timeout_ms=500, max_records=20):
                async with producer.transaction():
                    for records in found.values():
                        for record in records:
                            await producer.send(world.topic, record.value, partition=2)
                    await producer.send_offsets_to_transaction(
                        {place: records[-1].offset + 1 for place, records in found.items()}, group
                    )
                    if fail:
                        raise LookupError
        finally:
            await consumer.stop()

    async with producer_of(world) as producer:
        with pytest.raises(LookupError):
            await copied(fail=True)
        assert await offsets_of(world, group, 0, 1) == [None, None]
        await copied(fail=False)
    await has_committed(world, group, wanted={0: 45, 1: 45})
    async with asyncio.timeout(10):
        while sorted(map(int, await committed(world, 2))) != list(range(90)):
            pass


@behaviour
async def a_transactional_id_means_idempotence(world: World) -> None:
    arguments = {"transactional_id": "t", "acks": 1}
    with pytest.raises(ValueError):  # noqa: PT011 - the texts differ
        world.producer(**arguments)
    producer = producer_of(world, enable_idempotence=False, acks="all")
    async with producer, producer.transaction():
        await producer.send(world.topic, b"x", partition=0)
    await reads(world, wanted=[b"x"])


@behaviour
async def a_timeout_that_the_broker_does_not_allow_is_told_by_start(world: World) -> None:
    producer = producer_of(world, transaction_timeout_ms=2**31 - 1)
    assert name_of_class(await raised(producer.start())) == "InvalidTransactionTimeout"
    await producer.stop()
