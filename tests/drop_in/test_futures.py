"""The drop-in's futures: `asyncio.Future` on asyncio; on trio an awaitable with its methods."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, DeliveryStatus, errors
from aioidem._aiokafka import DeliveryFuture, LooseFuture
from aioidem._broker.intercept import Action, Refuse, RequestSeen
from aioidem.broker import EmbeddedCluster
from aioidem.structs import RecordMetadata, TopicPartition

pytestmark = pytest.mark.anyio
TRIO = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
SENT = RecordMetadata("t", 0, TopicPartition("t", 0), 7, 1, 0, 0)


def refuse_produce(cluster: EmbeddedCluster) -> None:
    def hook(seen: RequestSeen) -> Action | None:
        return Refuse(ErrorCode.invalid_timestamp) if seen.api_key == 0 else None

    cluster.intercept(hook)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)
async def test_each_record_has_an_error_of_its_own_with_a_verdict(cluster: EmbeddedCluster) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, linger_ms=20
    ) as producer:
        await producer.partitions_for("t")
        refuse_produce(cluster)
        futures = [await producer.send("t", b"x", partition=0) for _ in range(3)]
        raised = []
        for future in futures:
            with pytest.raises(errors.InvalidTimestampError) as caught:
                await future
            raised.append(caught.value)
        assert len({id(error) for error in raised}) == 3
        assert {error.status for error in raised} == {DeliveryStatus.NOT_WRITTEN}
        assert futures[0].delivery is not None
        assert futures[0].delivery.status is DeliveryStatus.NOT_WRITTEN
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"x")
        with pytest.raises(errors.InvalidTimestampError):
            await (await producer.send_batch(batch, "t", partition=0))


@TRIO
async def test_the_drop_in_works_on_trio(cluster: EmbeddedCluster) -> None:
    told: list[Any] = []
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, linger_ms=20
    ) as producer:
        future: Any = await producer.send("t", b"a", partition=0)
        assert isinstance(future, LooseFuture)
        assert not future.done()
        future.add_done_callback(told.append)
        assert (await future).offset == 0
        assert future.result().offset == 0
        assert future.exception() is None
        assert told == [future]
        cancelled: Any = await producer.send("t", b"goes on", partition=0)
        assert cancelled.cancel()
        assert cancelled.cancelled()
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"b")
        assert (await (await producer.send_batch(batch, "t", partition=0))).offset == 2
        assert (await producer.send_and_wait("t", b"c", partition=0)).offset == 3
    values = [record.value for each in cluster.batches("t") for record in each.records()]
    assert values == [b"a", b"goes on", b"b", b"c"]


@TRIO
async def test_a_forgotten_drop_in_on_trio_warns(cluster: EmbeddedCluster) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    await producer.start()
    with pytest.warns(ResourceWarning, match="Unclosed AIOKafkaProducer"):
        del producer


async def test_a_loose_future_is_as_asyncios() -> None:
    for future in (LooseFuture(), asyncio.get_running_loop().create_future()):
        told: list[Any] = []
        one, other = told.append, print
        future.add_done_callback(one)
        future.add_done_callback(other)
        assert future.remove_done_callback(other) == 1
        assert future.remove_done_callback(other) == 0
        with pytest.raises(asyncio.InvalidStateError):
            future.result()
        with pytest.raises(asyncio.InvalidStateError):
            future.exception()
        assert (future.done(), future.cancelled()) == (False, False)
        future.set_result(SENT)
        assert (future.done(), future.cancelled(), future.cancel()) == (True, False, False)
        assert await future == future.result() == SENT
        assert future.exception() is None
        with pytest.raises(asyncio.InvalidStateError):
            future.set_result(SENT)
        with pytest.raises(asyncio.InvalidStateError):
            future.set_exception(ValueError())
        future.add_done_callback(one)
        await anyio.lowlevel.checkpoint()
        assert told == [future, future]


def test_a_loose_future_has_every_method_of_asyncios() -> None:
    def methods(cls: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(getattr(cls, name)).parameters)
            for name in dir(cls)
            if not name.startswith("_")
        }

    # This is asyncio's future in pure Python, because the one in C has no signatures.
    plain: type = asyncio.futures._PyFuture  # type: ignore[attr-defined]  # noqa: SLF001
    for name, parameters in methods(plain).items():
        mine = list(inspect.signature(getattr(LooseFuture, name)).parameters)
        assert len(mine) == len(parameters), name


@TRIO
async def test_a_loose_futures_callback_that_reads_a_cancelled_one_harms_no_record(
    cluster: EmbeddedCluster,
) -> None:
    told: list[Any] = []
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        first: Any = await producer.send("t", b"a", partition=0)
        second: Any = await producer.send("t", b"b", partition=0)
        first.cancel()
        second.add_done_callback(lambda _: first.result())
        second.add_done_callback(told.append)
        with anyio.fail_after(10):
            assert (await second).offset == 1
            assert (await producer.send_and_wait("t", b"c", partition=0)).offset == 2
    assert told == [second]


@TRIO
async def test_a_loose_futures_callbacks_are_called_each_in_its_context(
    caplog: pytest.LogCaptureFixture,
) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    told: list[tuple[str, Any]] = []
    context = contextvars.copy_context()
    context.run(who.set, "somebody")

    def boom(_future: Any) -> None:
        raise ValueError("mine")

    future = LooseFuture()
    future.add_done_callback(boom)
    future.add_done_callback(lambda done: told.append((who.get(), done)), context=context)
    future.set_result(SENT)
    future.add_done_callback(lambda done: told.append((who.get(), done)))
    assert told == [("somebody", future), ("nobody", future)]
    assert [each.message for each in caplog.records] == [
        "a callback of a record's future raised [callback-raised]"
    ]
    with pytest.raises(RuntimeError, match="no asyncio event loop"):
        future.get_loop()


async def test_a_loose_future_fails_and_is_cancelled_as_asyncios() -> None:
    for make in (LooseFuture, asyncio.get_running_loop().create_future):
        failed = make()
        failed.set_exception(errors.ProducerClosed())
        assert isinstance(failed.exception(), errors.ProducerClosed)
        with pytest.raises(errors.ProducerClosed):
            await failed
        cancelled = make()
        assert cancelled.cancel()
        for ask in (cancelled.result, cancelled.exception):
            with pytest.raises(asyncio.CancelledError):
                ask()
        with pytest.raises(asyncio.CancelledError):
            await cancelled


@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)
async def test_the_outcome_of_a_cancelled_future_is_no_trouble(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, linger_ms=20
    ) as producer:
        future = await producer.send("t", b"x", partition=0)
        assert future.cancel()
        assert future.delivery is not None
        assert (await future.delivery).offset == 0
        assert future.cancelled()
    assert "raised" not in caplog.text


async def test_a_failure_that_is_not_awaited_is_reported_by_asyncio_and_not_at_the_close(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.partitions_for("t")
        refuse_produce(cluster)
        future = await producer.send("t", b"x", partition=0)
        await asyncio.wait([future])
        future.exception()
    assert "never looked at" not in caplog.text


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_futures_whose_loop_is_closed_get_their_outcomes_in_silence(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Their callbacks cannot be called any more, which is not told as an error of a callback."""

    async def first() -> tuple[AIOKafkaProducer, list[DeliveryFuture]]:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000)
        await producer.start()
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"1")
        futures = [
            await producer.send("t", b"0", partition=0),
            await producer.send_batch(batch, "t", partition=0),
        ]
        for future in futures:
            future.add_done_callback(called.append)
        return producer, futures

    called: list[Any] = []
    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t")
        home: asyncio.AbstractEventLoop = pytest.importorskip(kind).new_event_loop()
        producer, futures = home.run_until_complete(first())
        home.close()
        asyncio.run(producer.stop())
    for future in futures:
        assert isinstance(future.exception(), errors.ProducerClosed)
    assert called == []
    assert "raised" not in caplog.text
