"""A record cancelled before it is queued is not sent; cancelled after, it is still delivered.

The tests cancel at each await point of `send`, on every event loop, and leave nothing to timing:
the cluster holds the high watermark back, and a callback cancels at the very instant in question.
The producer must go on unharmed: its buffer is free again, and the next record is delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from aioidem import Delivery, DeliveryStatus, Producer
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

from .tools import REAL_LOOPS, bounded, producer_for, stored_values

pytestmark = [pytest.mark.anyio, REAL_LOOPS]

Transport = Literal["tcp", "memory"]

VALUE = bytes(1000)
# This is room for one record of 1000 bytes and its overhead, not for two.
ONE_RECORD: dict[str, Any] = {"buffer_memory": 2400}


@asynccontextmanager
async def running(
    transport: Transport, **options: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """Run a producer and a cluster that answers no Produce while the high watermark is held."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        cluster.hold_high_watermark("t")
        async with producer_for(cluster, **options) as producer:
            await producer.partitions_for("t")
            yield cluster, producer
            # The producer is unharmed: no record holds on to the buffer, and the next one is
            # delivered.
            cluster.release_high_watermark("t")
            await producer.flush()
            assert producer.statistics().buffer_bytes_used == 0
            assert producer.statistics().buffer_waiters == 0
            last = producer.send_nowait("t", b"next")
            await producer.flush()
            assert last.status is DeliveryStatus.ACKED
            assert stored_values(cluster)[-1] == b"next"


async def stored(cluster: EmbeddedCluster, producer: Producer) -> list[Any]:
    """Return the values in the log once every record is settled."""
    cluster.release_high_watermark("t")
    await producer.flush()
    return stored_values(cluster)


@bounded(10)
async def test_cancelled_before_the_call_nothing_is_sent(transport: Transport) -> None:
    async with running(transport) as (cluster, producer):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await producer.send("t", b"x")
        assert scope.cancelled_caught
        assert producer.statistics().records_queued == 0
        assert await stored(cluster, producer) == []


@bounded(10)
async def test_cancelled_before_the_call_send_many_sends_nothing(transport: Transport) -> None:
    async with running(transport) as (cluster, producer):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await producer.send_many("t", [b"x", b"y"])
        assert scope.cancelled_caught
        assert await stored(cluster, producer) == []


@bounded(10)
async def test_cancelled_while_it_waits_for_room_it_is_not_sent(transport: Transport) -> None:
    async with running(transport, **ONE_RECORD) as (cluster, producer):
        first = producer.send_nowait("t", VALUE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.send, "t", b"x" * 1000)
            await until(lambda: producer.statistics().buffer_waiters == 1)
            tasks.cancel_scope.cancel()
        assert producer.statistics().buffer_waiters == 0
        assert first.status is DeliveryStatus.PENDING
        assert await stored(cluster, producer) == [VALUE]


@bounded(10)
async def test_cancelled_at_the_instant_it_gets_room_it_is_not_sent(transport: Transport) -> None:
    """If a task gets room in the buffer but is cancelled before it runs, the room is given back."""
    async with running(transport, **ONE_RECORD) as (cluster, producer):
        first = producer.send_nowait("t", VALUE)
        async with anyio.create_task_group() as tasks:
            used: list[int] = []

            def cancel(_: Delivery) -> None:
                used.append(producer.statistics().buffer_bytes_used)
                tasks.cancel_scope.cancel()

            first.add_done_callback(cancel)
            tasks.start_soon(producer.send, "t", b"x" * 1000)
            await until(lambda: producer.statistics().buffer_waiters == 1)
            cluster.release_high_watermark("t")
        # At the cancellation, the room of the first record had already been given to the second.
        assert used[0] > 0
        assert await stored(cluster, producer) == [VALUE]


@bounded(10)
async def test_cancelled_while_it_waits_for_room_the_next_waiter_gets_it(
    transport: Transport,
) -> None:
    async with running(transport, **ONE_RECORD) as (cluster, producer):
        producer.send_nowait("t", VALUE)
        async with anyio.create_task_group() as tasks:
            leaves = anyio.CancelScope()

            async def leave() -> None:
                with leaves:
                    await producer.send("t", b"x" * 1000)

            tasks.start_soon(leave)
            await until(lambda: producer.statistics().buffer_waiters == 1)
            tasks.start_soon(producer.send, "t", b"y" * 1000)
            await until(lambda: producer.statistics().buffer_waiters == 2)
            leaves.cancel()
            cluster.release_high_watermark("t")
        assert await stored(cluster, producer) == [VALUE, b"y" * 1000]


async def _await_send(producer: Producer) -> None:
    await producer.send("t", b"x")


async def _await_send_nowait(producer: Producer) -> None:
    await producer.send_nowait("t", b"x")


async def _await_send_many(producer: Producer) -> None:
    await producer.send_many("t", [b"x"])


SENDS = pytest.mark.parametrize(
    "send", [_await_send, _await_send_nowait, _await_send_many], ids=lambda send: send.__name__
)


@SENDS
@bounded(10)
async def test_cancelled_while_it_lingers_it_still_arrives(
    transport: Transport, send: Callable[[Producer], Coroutine[Any, Any, None]]
) -> None:
    async with running(transport, linger=60.0) as (cluster, producer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, producer)
            await until(lambda: producer.statistics().records_queued == 1)
            tasks.cancel_scope.cancel()
        assert producer.statistics().batches_sent == 0
        assert await stored(cluster, producer) == [b"x"]
        assert producer.statistics().records_acked == 1


@SENDS
@bounded(10)
async def test_cancelled_while_it_is_in_flight_it_still_arrives(
    transport: Transport, send: Callable[[Producer], Coroutine[Any, Any, None]]
) -> None:
    """A record in flight keeps its sequence when its `send` is cancelled (franz-go #1217, #930)."""
    async with running(transport) as (cluster, producer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, producer)
            await until(lambda: cluster.log_end_offset("t") == 1)
            tasks.cancel_scope.cancel()
        assert producer.statistics().records_queued == 1
        assert await stored(cluster, producer) == [b"x"]
        assert producer.statistics().records_acked == 1


@SENDS
@bounded(10)
async def test_cancelled_while_its_topic_is_unknown_it_still_arrives(
    transport: Transport, send: Callable[[Producer], Coroutine[Any, Any, None]]
) -> None:
    async with EmbeddedCluster(transport=transport, auto_create_topics=False) as cluster:
        async with producer_for(cluster, retry_backoff=0.01) as producer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, producer)
                await until(lambda: producer.statistics().records_queued == 1)
                tasks.cancel_scope.cancel()
            cluster.create_topic("t")
            await producer.flush()
            assert producer.statistics().records_acked == 1
        assert stored_values(cluster) == [b"x"]


@bounded(10)
async def test_one_of_two_waiters_for_a_delivery_may_leave(transport: Transport) -> None:
    async with running(transport) as (cluster, producer):
        delivery = producer.send_nowait("t", b"x")
        offsets: list[int] = []
        async with anyio.create_task_group() as tasks:
            leaves = anyio.CancelScope()

            async def leave() -> None:
                with leaves:
                    await delivery

            async def stay() -> None:
                offsets.append((await delivery).offset)

            tasks.start_soon(leave)
            tasks.start_soon(stay)
            await until(lambda: cluster.log_end_offset("t") == 1)
            leaves.cancel()
            cluster.release_high_watermark("t")
        assert offsets == [0]


@bounded(10)
async def test_send_many_cancelled_halfway_sends_what_was_queued_and_no_more(
    transport: Transport,
) -> None:
    async with running(transport, **ONE_RECORD) as (cluster, producer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.send_many, "t", [VALUE, b"x" * 1000, b"y" * 1000])
            await until(lambda: producer.statistics().buffer_waiters == 1)
            tasks.cancel_scope.cancel()
        assert await stored(cluster, producer) == [VALUE]


@bounded(10)
async def test_cancelled_by_an_outer_scope_nothing_is_sent(transport: Transport) -> None:
    """A cancelled scope anywhere around the call stops it, unless a shield is in between."""
    async with running(transport) as (cluster, producer):
        with anyio.CancelScope() as outer, anyio.CancelScope():
            outer.cancel()
            await producer.send("t", b"never")
        assert outer.cancelled_caught
        assert producer.statistics().records_queued == 0
        cluster.release_high_watermark("t")
        with anyio.CancelScope() as outer:
            outer.cancel()
            with anyio.CancelScope(shield=True):
                await producer.send("t", b"shielded")
        assert await stored(cluster, producer) == [b"shielded"]


@bounded(10)
async def test_after_its_deadline_nothing_is_sent(transport: Transport) -> None:
    """A scope whose deadline was over when it was entered stops the call."""
    async with running(transport) as (cluster, producer):
        with anyio.CancelScope(deadline=-1.0) as scope:
            await producer.send("t", b"never")
        assert scope.cancelled_caught
        assert producer.statistics().records_queued == 0
        assert await stored(cluster, producer) == []


@bounded(10)
async def test_a_deadline_ends_the_wait_and_not_the_record(transport: Transport) -> None:
    """A call whose deadline comes while the record is in flight only stops waiting."""
    async with running(transport) as (cluster, producer):
        scope = anyio.CancelScope()

        async def send() -> None:
            with scope:
                await producer.send("t", b"x")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await until(lambda: cluster.log_end_offset("t") == 1)
            scope.deadline = -1.0
        assert scope.cancelled_caught
        assert await stored(cluster, producer) == [b"x"]


@bounded(10)
async def test_a_task_that_has_cancelled_itself_queues_and_does_not_wait(
    transport: Transport, anyio_backend_name: str
) -> None:
    """A task that cancels itself and then sends still queues its record.

    asyncio raises CancelledError only where the task waits next, which is after the queueing.
    """
    if anyio_backend_name != "asyncio":
        return
    async with running(transport) as (cluster, producer):

        async def cancel_and_send() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await producer.send("t", b"x")

        (result,) = await asyncio.gather(cancel_and_send(), return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError)
        assert await stored(cluster, producer) == [b"x"]


@bounded(10)
async def test_waiters_may_leave_and_return_in_any_order(transport: Transport) -> None:
    """A settled delivery wakes every task that waits for it, whoever came or left before."""
    async with running(transport) as (cluster, producer):
        delivery = producer.send_nowait("t", b"x")
        offsets: list[int] = []
        scopes = [anyio.CancelScope() for _ in range(4)]

        async def wait(scope: anyio.CancelScope) -> None:
            with scope:
                offsets.append((await delivery).offset)

        async with anyio.create_task_group() as tasks:
            for leaving in ((0,), (1, 2), ()):
                for number in leaving or (3,):
                    tasks.start_soon(wait, scopes[number])
                await anyio.wait_all_tasks_blocked()
                for number in leaving:
                    scopes[number].cancel()
                await anyio.wait_all_tasks_blocked()
            tasks.start_soon(wait, anyio.CancelScope())
            await anyio.wait_all_tasks_blocked()
            cluster.release_high_watermark("t")
        assert offsets == [0, 0]
        assert (await delivery).offset == 0
