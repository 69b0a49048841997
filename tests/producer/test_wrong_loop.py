"""A producer may be called only on the event loop, and in the thread, on which it was started.

A call from elsewhere would wait for ever, or find the engine in the middle of a decision. So such a
call raises at once, and the error says what to do. The tests call a producer on each kind of loop
from a loop of each kind in another thread, from a thread without a loop, and from another loop in
the same thread. A producer whose loop has ended, as in a second `asyncio.run`, is closed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from aioidem import AIOKafkaProducer, Delivery, DeliveryStatus, Producer, errors
from aioidem._engine.record_block import Columns
from aioidem._producer.deliveries import BulkDeliveries
from aioidem._producer.native import internals
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

from .tools import REAL_LOOPS, bounded, producer_for, stored_values

pytestmark = pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")

Awaiting = Callable[[Producer, Delivery], Awaitable[object]]

AWAITED: dict[str, Awaiting] = {
    "send": lambda p, _: p.send("t", b"x"),
    "send_many": lambda p, _: p.send_many("t", [b"x"]),
    "send_table": lambda p, _: p.send_table("t", object()),
    "flush": lambda p, _: p.flush(),
    "close": lambda p, _: p.close(),
    "stop": lambda p, _: p.stop(),
    "wait_for_room": lambda p, _: p.wait_for_room(),
    "partitions_for": lambda p, _: p.partitions_for("t"),
    "refresh_metadata": lambda p, _: internals(p).topics.refresh(),
    "init_transactions": lambda p, _: p.init_transactions(),
    "begin_transaction": lambda p, _: p.begin_transaction(),
    "commit_transaction": lambda p, _: p.commit_transaction(),
    "abort_transaction": lambda p, _: p.abort_transaction(),
    "send_offsets": lambda p, _: p.send_offsets_to_transaction({}, "g"),
    "a delivery": lambda _, delivery: _wait(delivery),
}
PLAIN: dict[str, Callable[[Producer, Delivery], object]] = {
    "send_nowait": lambda p, _: p.send_nowait("t", b"x"),
    "add_done_callback": lambda _, delivery: delivery.add_done_callback(print),
}
LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


async def _wait(delivery: Delivery) -> object:
    return await delivery


async def _refused(call: Awaitable[object]) -> errors.KafkaError:
    """Return the error that `call` raises; a call that waits instead fails the test after 5 s."""
    with anyio.fail_after(5):
        with pytest.raises(errors.KafkaError) as caught:
            await call
    return caught.value


@contextmanager
def pending(cluster: EmbeddedCluster, producer: Producer) -> Iterator[Delivery]:
    """Yield a delivery (awaitable outcome of a record) that is settled only after the block."""
    cluster.hold_high_watermark("t")
    yield producer.send_nowait("t", b"first")
    cluster.release_high_watermark("t")


@pytest.mark.anyio
@REAL_LOOPS
@pytest.mark.parametrize("elsewhere", LOOPS)
@bounded(60)
async def test_every_call_from_another_running_loop_raises_at_once(elsewhere: str) -> None:
    if elsewhere == "uvloop":
        pytest.importorskip("uvloop")
    backend, options = LOOPS[elsewhere]

    async def there(producer: Producer, delivery: Delivery) -> dict[str, errors.KafkaError]:
        told = {name: await _refused(call(producer, delivery)) for name, call in AWAITED.items()}
        for name, plain in PLAIN.items():
            with pytest.raises(errors.KafkaError) as caught:
                plain(producer, delivery)
            told[name] = caught.value
        return told

    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, transactional_id="x") as producer:
            await producer.begin_transaction()
            with pending(cluster, producer) as delivery:
                told = await anyio.to_thread.run_sync(
                    lambda: anyio.run(
                        there, producer, delivery, backend=backend, backend_options=options
                    )
                )
            for name, error in told.items():
                assert isinstance(error, errors.WrongLoopError), name
                assert isinstance(error, RuntimeError)
                assert "was started in thread" in str(error)
                assert "anyio.from_thread.run(producer.send, ...)" in str(error)
            assert (await delivery).offset == 0
            await producer.send("t", b"second")
            await producer.commit_transaction()
        assert [v for v in stored_values(cluster) if v in (b"first", b"second", b"x")] == [
            b"first",
            b"second",
        ]


@pytest.mark.anyio
@REAL_LOOPS
@bounded(60)
async def test_a_plain_call_from_another_thread_raises() -> None:
    def there(producer: Producer, delivery: Delivery) -> None:
        for plain in PLAIN.values():
            with pytest.raises(errors.WrongLoopError, match=r"called from thread 'elsewhere'"):
                plain(producer, delivery)
        # These may be read in any thread, such as that of an exporter.
        assert producer.statistics().records_queued == 1
        assert producer.metrics()["producer-metrics"]["record-error-total"] == 0
        assert delivery.status is DeliveryStatus.PENDING

    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            with pending(cluster, producer) as delivery:
                failed: list[BaseException] = []

                def run() -> None:
                    try:
                        there(producer, delivery)
                    except BaseException as error:  # noqa: BLE001 - asserted below
                        failed.append(error)

                thread = threading.Thread(target=run, name="elsewhere")
                thread.start()
                await anyio.to_thread.run_sync(thread.join)
                assert not failed, failed
            await delivery
        assert stored_values(cluster) == [b"first"]


@pytest.mark.anyio
@REAL_LOOPS
@bounded(60)
async def test_another_thread_sends_by_handing_the_call_to_the_loop() -> None:
    """Another thread can send with `anyio.from_thread.run`, as the error's message says."""
    async with EmbeddedCluster() as cluster, producer_for(cluster) as producer:
        metadata = await anyio.to_thread.run_sync(
            lambda: anyio.from_thread.run(producer.send, "t", b"x")
        )
        assert metadata.offset == 0


def test_asyncio_threads_send_with_run_coroutine_threadsafe() -> None:
    async def main() -> int:
        async with EmbeddedCluster() as cluster, producer_for(cluster) as producer:
            loop = asyncio.get_running_loop()

            def there() -> int:
                sending = asyncio.run_coroutine_threadsafe(producer.send("t", b"x"), loop)
                return sending.result(10).offset

            return await asyncio.to_thread(there)

    assert asyncio.run(main()) == 0


def test_two_loops_in_one_thread() -> None:
    """While the producer's loop is not running, its thread may call send_nowait.

    Calls on another loop in the same thread raise WrongLoopError.
    """
    home = asyncio.new_event_loop()
    try:
        cluster = EmbeddedCluster(transport="memory")
        ready, stop = asyncio.Event(), asyncio.Event()

        async def serve() -> None:
            async with cluster:
                ready.set()
                await stop.wait()

        serving = home.create_task(serve())
        home.run_until_complete(ready.wait())
        producer = producer_for(cluster)
        home.run_until_complete(producer.start())
        delivery = producer.send_nowait("t", b"between two slices")
        for call in AWAITED.values():
            error = asyncio.run(_refused(call(producer, delivery)))
            assert isinstance(error, errors.WrongLoopError)
            assert "called from another event loop" in str(error)
            assert "await it there, or make a Producer for this loop" in str(error)
        home.run_until_complete(producer.flush())
        assert delivery.status is DeliveryStatus.ACKED
        home.run_until_complete(producer.close())
        stop.set()
        home.run_until_complete(serving)
    finally:
        home.close()


# --- the loop has ended ---------------------------------------------------------------------------

ENDED = (
    r"the event loop that the producer was started on has ended.*: make a new Producer inside the "
    r"function that you give to asyncio\.run\(\)"
)


@pytest.mark.parametrize("kind", LOOPS)
def test_after_a_second_run_each_call_says_what_happened(kind: str) -> None:
    if kind == "uvloop":
        pytest.importorskip("uvloop")
    backend, options = LOOPS[kind]

    async def first() -> tuple[Producer, Delivery]:
        async with EmbeddedCluster(transport="memory") as cluster:
            cluster.create_topic("t")
            producer = producer_for(cluster, linger=60.0)
            await producer.start()
            return producer, producer.send_nowait("t", b"x")

    async def second() -> None:
        for name, call in AWAITED.items():
            if name not in ("close", "stop", "a delivery"):
                error = await _refused(call(producer, delivery))
                assert isinstance(error, errors.ProducerClosed), name
        with pytest.raises(errors.ProducerClosed, match=ENDED):
            producer.send_nowait("t", b"x")
        with pytest.raises(errors.ProducerClosed, match=ENDED):
            await producer.send("t", b"x")
        with pytest.raises(errors.ProducerClosed):
            await delivery
        await producer.close()
        await producer.close()
        with pytest.raises(errors.ProducerClosed, match="the producer is closed"):
            await producer.flush()

    producer, delivery = anyio.run(first, backend=backend, backend_options=options)
    assert delivery.status is DeliveryStatus.NOT_WRITTEN
    anyio.run(second, backend=backend, backend_options=options)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_what_a_closed_loop_left_behind_gets_its_outcome_from_close(kind: str) -> None:
    """Deliveries that a closed loop left behind get their outcome from close() on another loop.

    A loop that is closed without cancelling its tasks runs no code that could settle deliveries.
    """
    if kind == "uvloop":
        home: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
    else:
        home = asyncio.new_event_loop()

    async def first() -> tuple[Producer, Delivery]:
        cluster = EmbeddedCluster(transport="memory")
        await cluster.__aenter__()
        cluster.create_topic("t")
        producer = producer_for(cluster, linger=60.0, client_id="left")
        await producer.start()
        delivery = producer.send_nowait("t", b"x")
        waits.append(asyncio.ensure_future(_wait(delivery)))
        await asyncio.sleep(0)
        await cluster.__aexit__(None, None, None)
        return producer, delivery

    waits: list[asyncio.Future[object]] = []
    producer, delivery = home.run_until_complete(first())
    called: list[Delivery] = []
    delivery.add_done_callback(called.append)
    home.close()
    with pytest.raises(errors.ProducerClosed, match=ENDED):
        producer.send_nowait("t", b"y")
    assert not delivery.done()
    error = asyncio.run(_refused(_wait(delivery)))
    assert isinstance(error, errors.ProducerClosed)
    asyncio.run(producer.close())
    assert delivery.status is DeliveryStatus.NOT_WRITTEN
    assert called == [delivery]
    assert producer.statistics().records_queued == 0
    asyncio.run(producer.close())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_close_elsewhere_also_settles_records_that_were_sent_together(kind: str) -> None:
    """The closed loop's task that waits for them cannot be woken, and keeps no record from that."""
    if kind == "uvloop":
        home: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
    else:
        home = asyncio.new_event_loop()
    waits: list[asyncio.Future[Any]] = []

    async def first() -> tuple[Producer, Delivery, AIOKafkaProducer, Delivery | None]:
        producer = Producer(cluster.bootstrap_servers, linger=60.0)
        await producer.start()
        await producer.partitions_for("t")
        many = producer.send_many("t", [b"1", b"2"])
        waits.append(asyncio.ensure_future(many))
        await until(lambda: producer.statistics().records_queued == 2)
        drop_in = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=60_000)
        await drop_in.start()
        batch = drop_in.create_batch()
        batch.append(timestamp=None, key=None, value=b"3")
        waits.append(asyncio.ensure_future(await drop_in.send_batch(batch, "t", partition=0)))
        last = await drop_in.send("t", b"4", partition=0)
        return producer, producer.send_nowait("t", b"5"), drop_in, last.delivery

    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t")
        producer, delivery, drop_in, other = home.run_until_complete(first())
        home.close()
        asyncio.run(producer.close())
        asyncio.run(drop_in.stop())
    assert other is not None
    assert {delivery.status, other.status} == {DeliveryStatus.NOT_WRITTEN}
    assert producer.statistics().records_queued == 0


def test_the_drop_in_says_the_same() -> None:
    async def first() -> AIOKafkaProducer:
        async with EmbeddedCluster() as cluster:
            producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
            await producer.start()
            await producer.send_and_wait("t", b"x")

            async def there() -> None:
                for call in (
                    producer.send("t", b"x"),
                    producer.send_and_wait("t", b"x"),
                    producer.partitions_for("t"),
                    producer.flush(),
                    producer.stop(),
                ):
                    assert isinstance(await _refused(call), errors.WrongLoopError)

            await asyncio.to_thread(asyncio.run, there())
            await producer.flush()
            assert (await producer.send_and_wait("t", b"y")).offset == 1
            return producer

    async def second() -> None:
        with pytest.raises(errors.ProducerClosed, match=ENDED):
            await producer.send("t", b"x")
        await producer.stop()

    producer = asyncio.run(first())
    asyncio.run(second())


@pytest.mark.anyio
@REAL_LOOPS
@bounded(60)
async def test_a_group_of_deliveries_is_awaited_at_home_only() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster) as producer:
            with pending(cluster, producer):
                intake = internals(producer).intake
                group = BulkDeliveries(intake.context)
                columns = Columns((b"x",), None, (), round(time.time() * 1000))
                await intake.queue_piece("t", columns, 0, group)

                async def there() -> errors.KafkaError:
                    return await _refused(group.settled())

                told = await anyio.to_thread.run_sync(lambda: anyio.run(there))
            assert isinstance(told, errors.WrongLoopError)
            await group.settled()
