"""A call that ends before its record is queued says that the record is not written."""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress
from typing import Any

import pytest

from aioidem import DeliveryStatus, Producer, errors
from aioidem._broker.intercept import Drop
from aioidem.broker import EmbeddedCluster
from aioidem.resolution import Verdict

from .tools import PRODUCE, bounded, producer_for

pytestmark = pytest.mark.anyio

LIMITS: dict[str, Any] = {"max_request_size": 1000, "buffer_memory": 1000, "max_block": 0.5}
BAD = [
    pytest.param({"topic": "no topic"}, errors.RecordError, id="topic"),
    pytest.param({"partition": -1}, errors.RecordError, id="partition"),
    pytest.param({"timestamp": -1.0}, errors.RecordError, id="timestamp"),
    pytest.param({"value": bytes(2000)}, errors.MessageSizeTooLargeError, id="size"),
]


@pytest.mark.parametrize("call", ["send", "send_nowait", "send_many"])
@pytest.mark.parametrize(("record", "expected"), BAD)
@bounded(60)
async def test_a_bad_record_is_not_written(
    call: str, record: dict[str, Any], expected: type[errors.KafkaError]
) -> None:
    """The error of a bad record says NOT_WRITTEN, and `resolve` knows it without a request."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("orders")
        async with producer_for(cluster, **LIMITS) as producer:
            given = {"topic": "orders", "value": b"x", **record}
            if call == "send_many":
                given["values"] = [given.pop("value")]
            with pytest.raises(expected) as refused:
                await called(producer, call, given)
            assert refused.value.status is DeliveryStatus.NOT_WRITTEN
            [found] = await producer.resolve(refused.value)
            assert found.verdict is Verdict.ABSENT


async def called(producer: Producer, call: str, given: dict[str, Any]) -> None:
    """Call a method that sends, and await what it returns if it is async."""
    returned = getattr(producer, call)(**given)
    if call != "send_nowait":
        await returned


async def fill(producer: Producer) -> None:
    """Queue records until there is no room for another one."""
    with suppress(errors.BufferFullError):
        for _ in range(100):
            producer.send_nowait("orders", bytes(100))
    with pytest.raises(errors.BufferFullError) as full:
        producer.send_nowait("orders", bytes(100))
    assert full.value.status is DeliveryStatus.NOT_WRITTEN


@bounded(60)
async def test_a_record_that_got_no_room_is_not_written() -> None:
    """So says the error of `send_nowait`, and that of a `send` that has waited for `max_block`."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("orders")
        async with producer_for(cluster, **LIMITS) as producer:
            await producer.send("orders", b"x")
            cluster.intercept(lambda seen: Drop() if seen.api_key == PRODUCE else None)
            await fill(producer)
            with pytest.raises(errors.KafkaTimeoutError, match="no room") as late:
                await producer.send("orders", bytes(100))
            assert late.value.status is DeliveryStatus.NOT_WRITTEN
            cluster.intercept(None)


@bounded(60)
async def test_a_closed_producer_writes_nothing_and_its_own_error_stays_as_it_is() -> None:
    """The error that ended a producer is no record's outcome; that of a later call is."""
    async with EmbeddedCluster(transport="memory") as cluster:
        producer = producer_for(cluster)
        async with producer:
            pass
        for _ in range(2):
            with pytest.raises(errors.ProducerClosed) as closed:
                await producer.send("orders", b"x")
            assert closed.value.status is DeliveryStatus.NOT_WRITTEN
            with pytest.raises(errors.ProducerClosed) as other:
                await producer.flush()
            assert other.value.status is None


@pytest.mark.parametrize("call", ["send", "send_nowait", "send_many"])
@pytest.mark.parametrize("key", [None, b"k"])
@pytest.mark.parametrize("anyio_backend", ["virtual", "asyncio"], indirect=True)
@bounded(60)
async def test_a_record_without_an_open_transaction_is_not_written(
    call: str, key: bytes | None
) -> None:
    """So says the error, also of a record that only has a value and could be queued at once."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("orders")
        async with producer_for(cluster, transactional_id="x") as producer:
            async with producer.transaction():
                await producer.send("orders", b"x")
            given: dict[str, Any] = {"topic": "orders", "value": b"x", "key": key}
            if call == "send_many":
                given["values"] = [given.pop("value")]
            with pytest.raises(errors.IllegalOperation) as refused:
                await called(producer, call, given)
            assert refused.value.status is DeliveryStatus.NOT_WRITTEN


def test_a_copy_keeps_the_status() -> None:
    """Errors of records are copied, with their status."""
    assert copy.copy(errors.RecordError("bad")).status is DeliveryStatus.NOT_WRITTEN
    assert copy.copy(errors.RecordError("bad", status=None)).status is None


@pytest.mark.parametrize("anyio_backend", ["virtual", "asyncio"], indirect=True)
@pytest.mark.parametrize(
    ("raised", "told"),
    [(KeyboardInterrupt, KeyboardInterrupt), (asyncio.CancelledError, errors.KafkaError)],
)
@bounded(20)
async def test_a_partitioner_that_raises_what_is_no_exception_takes_no_room(
    raised: type[BaseException], told: type[BaseException]
) -> None:
    """The bytes that were taken for its record are free again.

    A CancelledError may come from `result()` of a cancelled future, and cancels no task.
    """

    def partitioner(*_: object) -> int:
        raise raised

    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("orders")
        async with producer_for(cluster, partitioner=partitioner) as producer:
            await producer.partitions_for("orders")
            for key in (None, b"k"):
                with pytest.raises(told):
                    producer.send_nowait("orders", b"x", key=key)
            with pytest.raises(told):
                await producer.send_many("orders", [b"x"])
            assert producer.statistics().buffer_bytes_used == 0
