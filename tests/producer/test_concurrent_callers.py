"""Tasks that send, flush, close or are cancelled at the same time do not disturb one another.

Each test is about a bug that another producer had, which its docstring names.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Literal

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, Producer, errors
from aioidem._broker.intercept import Refuse
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

from .test_cancellation import ONE_RECORD, VALUE, running, stored
from .tools import (
    ASYNCIO,
    ASYNCIO_LOOPS,
    EVERY_WORLD,
    ONE_EACH,
    PRODUCE,
    bounded,
    numbered,
    producer_for,
    stored_values,
    virtual_time,
)

pytestmark = pytest.mark.anyio

Transport = Literal["tcp", "memory"]
NOT_WRITTEN, UNKNOWN = DeliveryStatus.NOT_WRITTEN, DeliveryStatus.UNKNOWN


@ASYNCIO
@bounded(20)
async def test_no_send_hangs_after_the_background_task_was_cancelled(
    transport: Transport,
) -> None:
    """No send hangs after the producer's task was cancelled from outside (aiokafka #1039).

    An application that cancels all asyncio tasks when it ends cancels the producer's task too.
    """
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.hold_high_watermark("t")
        producer = producer_for(cluster, buffer_memory=1500)
        await producer.start()
        pending = producer.send_nowait("t", bytes(1000))
        async with anyio.create_task_group() as tasks:
            ended: list[Exception] = []

            async def wait_for_room() -> None:
                with pytest.raises(errors.KafkaError) as caught:
                    await producer.send("t", bytes(1000))
                ended.append(caught.value)

            tasks.start_soon(wait_for_room)
            while producer.statistics().buffer_waiters == 0:
                await anyio.lowlevel.checkpoint()
            [background] = [
                task for task in asyncio.all_tasks() if task.get_name().startswith("aioidem sender")
            ]
            background.cancel()
            with pytest.raises(errors.KafkaError):
                await pending
        assert pending.status in {NOT_WRITTEN, UNKNOWN}
        assert len(ended) == 1
        with pytest.raises(errors.ProducerClosed):
            await producer.send("t", b"later")
        with pytest.raises(errors.ProducerClosed):
            await producer.flush()
        await producer.stop()


@bounded(10)
async def test_each_of_many_failed_records_has_an_error_of_its_own() -> None:
    """Three thousand failed records have three thousand exceptions (aiokafka #246 and #444).

    One exception that is raised a thousand times has a traceback that grows, and callbacks that are
    nested in one another overflow the stack (aiokafka #711 and #409).
    """
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        cluster.intercept(
            lambda seen: Refuse(ErrorCode.invalid_record) if seen.api_key == PRODUCE else None
        )
        async with producer_for(cluster) as producer:
            deliveries = [producer.send_nowait("t", b"x") for _ in range(3000)]
            lengths = []
            for delivery in deliveries:
                with pytest.raises(errors.InvalidRecord) as caught:
                    await delivery
                assert caught.value.status is NOT_WRITTEN
                lengths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        assert len({id(delivery.exception()) for delivery in deliveries}) == 3000
        assert len(set(lengths)) == 1


@EVERY_WORLD
@bounded(20)
async def test_a_caller_cancelled_inside_a_done_callback_does_not_end_the_sender(
    transport: Transport,
) -> None:
    """A caller that is cancelled inside a done callback does not end the sender (aiokafka #710).

    In aiokafka a CancelledError came out of the callback, and the sender died of it.
    """
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.hold_high_watermark("t")
        async with producer_for(cluster) as producer:
            first = producer.send_nowait("t", b"0")
            async with anyio.create_task_group() as tasks:
                first.add_done_callback(lambda _: tasks.cancel_scope.cancel())
                for number in range(1, 10):
                    tasks.start_soon(producer.send, "t", b"%d" % number)
                while producer.statistics().records_queued < 10:
                    await anyio.lowlevel.checkpoint()
                cluster.release_high_watermark("t")
                await anyio.sleep_forever()
            await producer.send("t", b"last")
            await producer.flush()
            assert producer.statistics().buffer_bytes_used == 0
        stored = stored_values(cluster)
        assert (stored[0], stored[-1]) == (b"0", b"last")
        assert sorted(stored[1:-1]) == numbered(9, 1), (
            "the waiter left, and every record was stored"
        )


@EVERY_WORLD
@bounded(20)
async def test_twenty_tasks_that_send_at_once_get_twenty_offsets(transport: Transport) -> None:
    """Twenty tasks that send at once get twenty different offsets, and all records are stored.

    In platformatic/kafka #326 twenty were acknowledged with one offset and one was stored; see also
    KafkaJS #598.
    """
    async with EmbeddedCluster(transport=transport, rtt=0.01, retain=20) as cluster:
        cluster.create_topic("t")
        offsets: list[int] = []
        async with producer_for(
            cluster, max_in_flight_requests_per_connection=20, **ONE_EACH
        ) as producer:

            async def send(value: bytes) -> None:
                metadata = await producer.send("t", value)
                assert stored_values(cluster)[metadata.offset] == value
                offsets.append(metadata.offset)

            async with anyio.create_task_group() as tasks:
                for value in numbered(20):
                    tasks.start_soon(send, value)
        assert sorted(offsets) == list(range(20))


@pytest.mark.parametrize("impatient", [10, 0])
@bounded(60)
async def test_a_flush_ends_while_the_buffer_is_always_full_and_waiters_come_and_go(
    impatient: int,
) -> None:
    """A flush ends although the buffer is always full.

    franz-go had a deadlock when the buffer was full, and lost wake-ups of a flush (#832, v1.17.1,
    #1348).
    """
    async with EmbeddedCluster(transport="memory", rtt=0.05) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, buffer_memory=3000, **ONE_EACH) as producer:

            async def send_for_ever() -> None:
                while True:
                    await producer.send("t", bytes(900))

            async def give_up() -> None:
                while True:
                    with anyio.move_on_after(0.02):
                        await producer.send("t", bytes(900))

            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(send_for_ever)
                for _ in range(impatient):
                    tasks.start_soon(give_up)
                await virtual_time(1.0)
                assert producer.statistics().buffer_waiters > 0
                for _ in range(10):
                    before = cluster.log_end_offset("t")
                    with anyio.fail_after(1.0):
                        await producer.flush()
                    await virtual_time(0.2)
                    assert cluster.log_end_offset("t") > before, "tasks that wait for room get it"
                tasks.cancel_scope.cancel()
            with anyio.fail_after(10.0):
                # No task sends after these 20. Those that wait for room in the buffer get it only
                # if the records before them give their room back.
                async with anyio.create_task_group() as last:
                    for _ in range(20):
                        last.start_soon(producer.send, "t", bytes(900))
            await producer.flush()
            assert producer.statistics().buffer_waiters == 0
            assert producer.statistics().buffer_bytes_used == 0


@bounded(60)
async def test_after_close_a_send_and_a_flush_say_so_and_hang_nowhere() -> None:
    """After close, send and flush raise; in franz-go #1348 such a send made flush hang."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        producer: Producer = producer_for(cluster)
        async with producer:
            await producer.send("t", b"x")
        for topic in ("t", "unknown"):
            with pytest.raises(errors.ProducerClosed):
                producer.send_nowait(topic, b"y")
            with pytest.raises(errors.ProducerClosed):
                await producer.send(topic, b"y")
        with anyio.fail_after(1.0):
            with pytest.raises(errors.ProducerClosed):
                await producer.flush()
            await producer.stop()
        assert stored_values(cluster) == [b"x"]


@ASYNCIO_LOOPS
@bounded(10)
async def test_task_cancel_of_asyncio_takes_back_only_what_was_not_queued(
    transport: Transport,
) -> None:
    """A record whose `send` is cancelled by asyncio's own `Task.cancel` is sent only if queued.

    The record that was queued before its cancellation is delivered; the two others are never sent.
    In test_cancellation.py anyio's scopes cancel, with the same results.
    """
    async with running(transport, **ONE_RECORD) as (cluster, producer):
        before = asyncio.ensure_future(producer.send("t", b"never"))
        before.cancel()
        first = asyncio.ensure_future(producer.send("t", VALUE))
        await until(lambda: cluster.log_end_offset("t") == 1)
        waits = asyncio.ensure_future(producer.send("t", b"x" * 1000))
        await until(lambda: producer.statistics().buffer_waiters == 1)
        first.cancel()
        waits.cancel()
        results = await asyncio.gather(before, first, waits, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 3
        assert await stored(cluster, producer) == [VALUE]
