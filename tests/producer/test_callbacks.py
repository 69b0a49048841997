"""Callbacks that raise what is no `Exception`: they harm no record, and not the producer.

A callback that reads `result()` of a cancelled future raises `CancelledError`, for example.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

import anyio
import pytest
import trio

from aioidem import Delivery, DeliveryStatus, Producer, errors
from aioidem.broker import EmbeddedCluster

from .tools import EVERY_WORLD, bounded, numbered, producer_for, stored_values

Transport = Literal["tcp", "memory"]
ACKED, UNKNOWN = DeliveryStatus.ACKED, DeliveryStatus.UNKNOWN
ENDINGS: list[type[BaseException]] = [KeyboardInterrupt, SystemExit]


def raising(kind: type[BaseException]) -> Callable[[Delivery], None]:
    def callback(_: Delivery) -> None:
        raise kind

    return callback


def with_callbacks(producer: Producer, kind: type[BaseException]) -> list[Delivery]:
    """Send four records; the callbacks of the first three raise an exception of this class."""
    deliveries = [producer.send_nowait("t", value, partition=0) for value in numbered(4)]
    for delivery in deliveries[:3]:
        delivery.add_done_callback(raising(kind))
    return deliveries


def raised(caplog: pytest.LogCaptureFixture) -> list[type[BaseException] | None]:
    """Return the classes of the exceptions of callbacks that were logged."""
    lines = [each for each in caplog.records if getattr(each, "incident", "") == "callback-raised"]
    return [each.exc_info[0] for each in lines if each.exc_info]


@pytest.mark.anyio
@EVERY_WORLD
@bounded(20)
async def test_a_callback_that_raises_cancelled_error_harms_no_record(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        async with producer_for(cluster) as producer:
            deliveries = with_callbacks(producer, asyncio.CancelledError)
            await producer.send("t", b"4", partition=0)
            assert [each.status for each in deliveries] == [ACKED] * 4
            deliveries[0].add_done_callback(raising(asyncio.CancelledError))
            await producer.send("t", b"5", partition=0)
        assert stored_values(cluster) == numbered(6)
    assert raised(caplog) == [asyncio.CancelledError] * 4


@pytest.mark.anyio
@EVERY_WORLD
@bounded(20)
async def test_it_does_not_end_the_producer_when_its_record_expires(transport: Transport) -> None:
    """Then the callback is called in the producer's own task, which is not cancelled by it."""
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t", partitions=2)
        options: dict[str, Any] = {"delivery_timeout": 1.0, "request_timeout": 0.2, "linger": 0.0}
        async with producer_for(cluster, **options) as producer:
            await producer.send("t", b"x", partition=1)
            cluster.hold_high_watermark("t", 0)
            deliveries = with_callbacks(producer, asyncio.CancelledError)
            with pytest.raises(errors.DeliveryTimeoutError):
                await deliveries[3]
            assert [each.status for each in deliveries] == [UNKNOWN] * 4
            await producer.send("t", b"y", partition=1)
            cluster.release_high_watermark("t", 0)


@pytest.mark.anyio
@EVERY_WORLD
@bounded(20)
async def test_a_close_gives_every_record_its_outcome_whatever_callbacks_raise(
    transport: Transport,
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        cluster.create_topic("t")
        producer = producer_for(cluster)
        await producer.start()
        await producer.send("t", b"x")
        cluster.hold_high_watermark("t")
        deliveries = with_callbacks(producer, asyncio.CancelledError)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails, deliveries[3])
            await producer.close(0)
        assert all(each.done() for each in deliveries)


async def send_on(producer: Producer) -> None:
    while True:
        await producer.send("t", b"x")


async def fails(delivery: Delivery) -> None:
    with pytest.raises(errors.ProducerClosed):
        await delivery


@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("way", ["answer", "close"])
def test_what_ends_a_program_on_asyncio_does_so_once_each_record_has_its_outcome(
    kind: type[BaseException], way: str
) -> None:
    deliveries: list[Delivery] = []

    async def main() -> None:
        async with EmbeddedCluster(transport="tcp") as cluster:
            cluster.create_topic("t")
            async with producer_for(cluster) as producer:
                await producer.send("t", b"x")
                if way == "close":
                    cluster.hold_high_watermark("t")
                deliveries.extend(with_callbacks(producer, kind))
                await producer.close(0 if way == "close" else 10)

    with pytest.raises(kind):
        asyncio.run(main())
    assert all(each.done() for each in deliveries)


@pytest.mark.parametrize("kind", ENDINGS)
def test_on_trio_it_ends_the_producer_and_not_the_loop(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of a system task would end all of trio with TrioInternalError."""

    async def main() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            producer = producer_for(cluster)
            await producer.start()
            deliveries = with_callbacks(producer, kind)
            await deliveries[3]
            assert [each.status for each in deliveries] == [ACKED] * 4
            with pytest.raises(errors.InternalError, match="background task failed"):
                await send_on(producer)
            await producer.close()

    async def limited() -> None:
        with trio.fail_after(20):
            await main()

    with caplog.at_level(logging.ERROR):
        trio.run(limited)
    assert "background-failed" in {getattr(each, "incident", "") for each in caplog.records}
