"""Every wait of the producer ends within the time that it was given.

The tests run in virtual time, so they check a deadline of a minute to the millisecond at once. The
brokers are silent in every way: one swallows Produce requests, one reads and answers nothing, one
falls silent after bootstrap, one is not there any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import anyio
import pytest
from anyio.abc import ByteStream

from aioidem import AIOKafkaProducer, DeliveryStatus, Producer, errors
from aioidem._broker.intercept import Action, Drop, Interceptor, RequestSeen
from aioidem._broker.memory import MemoryStream, stream_pair
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

from .tools import PRODUCE, bounded, producer_for, virtual_time

pytestmark = pytest.mark.anyio

Transport = Literal["tcp", "memory"]

DELIVERY, REQUEST, MAX_BLOCK = 30.0, 5.0, 10.0
LIMITS: dict[str, Any] = {
    "delivery_timeout": DELIVERY,
    "request_timeout": REQUEST,
    "max_block": MAX_BLOCK,
}
# This is room for one record of 1000 bytes and its overhead, not for two records.
ONE_RECORD: dict[str, Any] = {"buffer_memory": 1200}
# How late a deadline may be seen, in seconds: loop turns and the rounding of the clock.
SLACK = 0.05


def swallow(seen: RequestSeen) -> Action | None:
    """Drop Produce requests, so that they are neither carried out nor answered."""
    return Drop() if seen.api_key == PRODUCE else None


def lose_the_answer(seen: RequestSeen) -> Action | None:
    """Carry Produce requests out, and drop their answers."""
    return Drop(processed=True) if seen.api_key == PRODUCE else None


def black_hole(_seen: RequestSeen) -> Action | None:
    """Drop every request, whatever it asks."""
    return Drop()


SILENCES = pytest.mark.parametrize(
    "silence", [swallow, lose_the_answer, black_hole], ids=lambda hook: hook.__name__
)


@asynccontextmanager
async def running(
    silence: Interceptor, **options: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """Run a producer; after its first acknowledged record, `silence` handles all its requests."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **LIMITS | options) as producer:
            await producer.send("t", b"known by name and connected")
            cluster.intercept(silence)
            yield cluster, producer


class Stopwatch:
    """A context manager that sets `took` to the seconds that its block took, in virtual time."""

    def __enter__(self) -> Self:
        self.began = anyio.current_time()
        self.took = -1.0
        return self

    def __exit__(self, *_: object) -> None:
        self.took = anyio.current_time() - self.began


# --- records --------------------------------------------------------------------------------------


@SILENCES
@pytest.mark.parametrize("count", [1, 500])
@bounded(100)
async def test_a_broker_that_never_answers_ends_every_delivery_within_the_delivery_timeout(
    silence: Interceptor, count: int
) -> None:
    async with running(silence) as (_, producer):
        with Stopwatch() as watch:
            deliveries = [producer.send_nowait("t", bytes(1000)) for _ in range(count)]
            for delivery in deliveries:
                with pytest.raises(errors.DeliveryTimeoutError):
                    await delivery
        assert watch.took <= DELIVERY + SLACK
        # Records that were sent may be in the log, and are UNKNOWN; the others are NOT_WRITTEN.
        statuses = [delivery.status for delivery in deliveries]
        assert statuses[0] is DeliveryStatus.UNKNOWN
        assert set(statuses) <= {DeliveryStatus.UNKNOWN, DeliveryStatus.NOT_WRITTEN}
        first_unsent = [*statuses, DeliveryStatus.NOT_WRITTEN].index(DeliveryStatus.NOT_WRITTEN)
        assert DeliveryStatus.UNKNOWN not in statuses[first_unsent:]
        assert [getattr(d.exception(), "status", None) for d in deliveries] == statuses
        # The batches in flight take memory until their connection is given up.
        await until(lambda: producer.statistics().buffer_bytes_used == 0, pause=0.1)


@SILENCES
@bounded(100)
async def test_without_idempotence_the_same_holds(silence: Interceptor) -> None:
    async with running(silence, enable_idempotence=False, acks=1) as (_, producer):
        with Stopwatch() as watch, pytest.raises(errors.DeliveryTimeoutError):
            await producer.send("t", b"x")
        assert watch.took <= DELIVERY + SLACK


@bounded(100)
async def test_a_record_of_a_stopped_cluster_ends_within_the_delivery_timeout() -> None:
    async with running(lambda _: None) as (cluster, producer):
        await cluster.stop_broker(0)
        await virtual_time(1.0)
        assert not any(link.connected for link in producer.statistics().connections)
        with Stopwatch() as watch, pytest.raises(errors.DeliveryTimeoutError) as caught:
            await producer.send("t", b"x")
        assert watch.took <= DELIVERY + SLACK
        assert caught.value.status is DeliveryStatus.NOT_WRITTEN


@bounded(100)
async def test_a_record_of_an_unknown_topic_ends_within_max_block() -> None:
    async with (
        EmbeddedCluster(transport="memory", auto_create_topics=False) as cluster,
        producer_for(cluster, **LIMITS) as producer,
    ):
        with Stopwatch() as watch, pytest.raises(errors.UnknownTopicOrPartitionError) as caught:
            await producer.send("nowhere", b"x")
        assert watch.took == pytest.approx(MAX_BLOCK, abs=SLACK)
        assert caught.value.status is DeliveryStatus.NOT_WRITTEN
        with Stopwatch() as watch, pytest.raises(errors.UnknownTopicOrPartitionError):
            await producer.partitions_for("elsewhere")
        assert watch.took == pytest.approx(MAX_BLOCK, abs=SLACK)


@bounded(100)
async def test_a_record_of_a_partition_without_a_leader_ends_within_the_delivery_timeout() -> None:
    async with EmbeddedCluster(brokers=2, transport="memory") as cluster:
        cluster.create_topic("t", partitions=2)
        async with producer_for(cluster, **LIMITS) as producer:
            await producer.partitions_for("t")
            await cluster.stop_broker(1)
            await producer.send("t", b"led", partition=0)
            with Stopwatch() as watch, pytest.raises(errors.DeliveryTimeoutError):
                await producer.send("t", b"x", partition=1)
            assert watch.took <= DELIVERY + SLACK


@bounded(100)
async def test_the_delivery_timeout_also_ends_what_lingers_behind_a_full_window() -> None:
    """Records that are not yet sealed, behind a full window, expire at their own deadlines."""
    async with running(swallow) as (_, producer):
        first = producer.send_nowait("t", b"x")
        await virtual_time(10.0)
        late = [producer.send_nowait("t", bytes(1000)) for _ in range(100)]
        with Stopwatch() as watch:
            for delivery in late:
                with pytest.raises(errors.DeliveryTimeoutError):
                    await delivery
        assert watch.took <= DELIVERY + SLACK
        with pytest.raises(errors.DeliveryTimeoutError):
            await first


# --- callers --------------------------------------------------------------------------------------


@SILENCES
@pytest.mark.parametrize("timeout", [0.0, 0.5, 7.0])
@bounded(100)
async def test_close_returns_within_its_timeout_and_settles_everything(
    silence: Interceptor, timeout: float
) -> None:
    async with running(silence) as (_, producer):
        deliveries = [producer.send_nowait("t", bytes(1000)) for _ in range(500)]
        with Stopwatch() as watch:
            await producer.close(timeout=timeout)
        assert watch.took <= timeout + SLACK
        for delivery in deliveries:
            assert isinstance(delivery.exception(), errors.ProducerClosed)
        assert {delivery.status for delivery in deliveries} <= {
            DeliveryStatus.UNKNOWN,
            DeliveryStatus.NOT_WRITTEN,
        }


@SILENCES
@bounded(100)
async def test_close_without_a_timeout_returns_within_the_delivery_timeout(
    silence: Interceptor,
) -> None:
    async with running(silence) as (_, producer):
        delivery = producer.send_nowait("t", b"x")
        with Stopwatch() as watch:
            await producer.close()
        assert watch.took <= DELIVERY + SLACK
        assert isinstance(delivery.exception(), errors.DeliveryTimeoutError)


@SILENCES
@bounded(100)
async def test_flush_with_a_timeout_raises_kafka_timeout_error_then(silence: Interceptor) -> None:
    async with running(silence) as (_, producer):
        delivery = producer.send_nowait("t", b"x")
        with Stopwatch() as watch, pytest.raises(errors.KafkaTimeoutError):
            await producer.flush(timeout=2.0)
        assert watch.took == pytest.approx(2.0, abs=SLACK)
        assert not delivery.done()
        with Stopwatch() as watch:
            await producer.flush()
        assert watch.took <= DELIVERY - 2.0 + SLACK
        assert delivery.exception() is not None


async def _send(producer: Producer) -> None:
    await producer.send("t", bytes(1000))


async def _send_many(producer: Producer) -> None:
    await producer.send_many("t", [bytes(1000)])


async def _wait_for_room(producer: Producer) -> None:
    await producer.wait_for_room()


WAITS = pytest.mark.parametrize(
    "wait", [_send, _send_many, _wait_for_room], ids=lambda wait: wait.__name__
)


@WAITS
@bounded(100)
async def test_whoever_finds_the_buffer_full_waits_for_max_block_and_queues_nothing(
    wait: Callable[[Producer], Awaitable[None]],
) -> None:
    async with running(swallow, **ONE_RECORD) as (_, producer):
        first = producer.send_nowait("t", bytes(1000))
        with pytest.raises(errors.BufferFullError):
            producer.send_nowait("t", bytes(1000))
        with Stopwatch() as watch, pytest.raises(errors.KafkaTimeoutError) as caught:
            await wait(producer)
        assert watch.took == pytest.approx(MAX_BLOCK, abs=SLACK)
        assert not isinstance(caught.value, errors.DeliveryTimeoutError)
        assert producer.statistics().records_queued == 1
        assert producer.statistics().buffer_waiters == 0
        with pytest.raises(errors.DeliveryTimeoutError):
            await first


@bounded(100)
async def test_a_hundred_senders_without_room_each_end_within_max_block() -> None:
    async with running(swallow, **ONE_RECORD) as (_, producer):
        first = producer.send_nowait("t", bytes(1000))
        ended: list[float] = []

        async def send() -> None:
            with pytest.raises(errors.KafkaTimeoutError):
                await producer.send("t", bytes(1000))
            ended.append(anyio.current_time())

        with Stopwatch() as watch:
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(send)
        assert len(ended) == 100
        assert watch.took == pytest.approx(MAX_BLOCK, abs=SLACK)
        with pytest.raises(errors.DeliveryTimeoutError):
            await first


@WAITS
@bounded(100)
async def test_close_ends_calls_that_wait_for_room(
    wait: Callable[[Producer], Awaitable[None]],
) -> None:
    async with running(swallow, **ONE_RECORD) as (_, producer):
        first = producer.send_nowait("t", bytes(1000))
        ended: list[float] = []

        async def blocked() -> None:
            with pytest.raises(errors.ProducerClosed):
                await wait(producer)
            ended.append(anyio.current_time())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(blocked)
            await anyio.wait_all_tasks_blocked()
            began = anyio.current_time()
            await producer.close(timeout=3.0)
        assert ended[0] - began <= SLACK
        assert isinstance(first.exception(), errors.ProducerClosed)


# --- bootstrap ------------------------------------------------------------------------------------


class Mute:
    """A connector whose peers accept connections and never send a byte."""

    def __init__(self) -> None:
        self.theirs: list[MemoryStream] = []

    async def connect(self, host: str, port: int) -> ByteStream:
        assert (host, port) == ("mute", 1)
        ours, theirs = stream_pair()
        self.theirs.append(theirs)
        return ours


class Nowhere:
    """A connector whose attempts to connect never end."""

    async def connect(self, host: str, port: int) -> ByteStream:
        assert (host, port) == ("mute", 1)
        await anyio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("connector", [Mute, Nowhere])
@bounded(100)
async def test_start_ends_within_the_setup_timeout_when_the_peer_says_nothing(
    connector: Callable[[], Mute | Nowhere],
) -> None:
    producer = Producer("mute:1", connector=connector(), connection_setup_timeout=3.0, **LIMITS)
    with Stopwatch() as watch, pytest.raises(errors.KafkaConnectionError, match="mute:1"):
        await producer.start()
    assert watch.took == pytest.approx(3.0, abs=SLACK)
    with pytest.raises(errors.ProducerClosed):
        await producer.start()


@pytest.mark.parametrize("connector", [Mute, Nowhere])
@bounded(100)
async def test_start_ends_within_max_block_when_that_is_shorter(
    connector: Callable[[], Mute | Nowhere],
) -> None:
    producer = Producer("mute:1", connector=connector(), connection_setup_timeout=60.0, **LIMITS)
    with Stopwatch() as watch, pytest.raises(errors.KafkaTimeoutError):
        await producer.start()
    assert watch.took == pytest.approx(MAX_BLOCK, abs=SLACK)


@pytest.mark.parametrize(
    ("api_key", "error", "after"),
    [
        pytest.param(3, errors.KafkaConnectionError, REQUEST, id="Metadata"),
        pytest.param(22, errors.KafkaTimeoutError, MAX_BLOCK, id="InitProducerId"),
    ],
)
@bounded(100)
async def test_start_ends_when_a_bootstrap_request_is_never_answered(
    api_key: int, error: type[errors.KafkaError], after: float
) -> None:
    """`start` raises if a bootstrap request is never answered.

    Without an answer to Metadata, `start` raises after `request_timeout`. InitProducerId is
    repeated until `max_block` is over.
    """
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.intercept(lambda seen: Drop() if seen.api_key == api_key else None)
        producer = producer_for(cluster, **LIMITS)
        with Stopwatch() as watch, pytest.raises(error):
            await producer.start()
        assert watch.took == pytest.approx(after, abs=SLACK)


# --- one deadline for a call ----------------------------------------------------------------------


@pytest.mark.parametrize("room_after", [0.5, 1.9])
@bounded(100)
async def test_room_and_metadata_are_waited_for_within_one_max_block(room_after: float) -> None:
    """Waiting for room and waiting for metadata take one max_block together."""
    options: dict[str, Any] = ONE_RECORD | {"max_block": 2.0, "delivery_timeout": 60.0}
    async with running(lambda _: None, **options) as (cluster, producer):
        cluster.state.configs["auto.create.topics.enable"] = "false"
        cluster.hold_high_watermark("t")
        first = producer.send_nowait("t", bytes(1000))
        with Stopwatch() as watch:
            async with anyio.create_task_group() as tasks:

                async def make_room() -> None:
                    await virtual_time(room_after)
                    cluster.release_high_watermark("t")

                tasks.start_soon(make_room)
                with pytest.raises(errors.UnknownTopicOrPartitionError) as caught:
                    await producer.send("nowhere", bytes(1000))
        assert watch.took == pytest.approx(2.0, abs=0.001)
        assert caught.value.status is DeliveryStatus.NOT_WRITTEN
        assert (await first).has_offset


@pytest.mark.parametrize("version", [0, 2])
@bounded(100)
async def test_the_end_of_a_transactional_block_takes_one_timeout(version: Literal[0, 2]) -> None:
    """The end of a transactional block takes its timeout once, for commit and abort together.

    The commit fails after 1.5 s, and the abort gets the half second that is left.
    """
    options = LIMITS | {"delivery_timeout": 1.5, "request_timeout": 1.0, "transactional_id": "x"}
    async with EmbeddedCluster(
        rtt=0.02, transport="memory", transaction_version=version
    ) as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, **options) as producer:
            async with producer.transaction():
                await producer.send("t", b"known by name and connected")

            async def doomed() -> None:
                async with producer.transaction(timeout=2.0):
                    cluster.intercept(black_hole)
                    producer.send_nowait("t", b"x")

            with Stopwatch() as watch, pytest.raises(errors.AbortableTransactionError):
                await doomed()
            assert watch.took == pytest.approx(2.0, abs=0.001)
            cluster.intercept(None)


@bounded(100)
async def test_a_second_close_keeps_its_own_timeout() -> None:
    """A second close() with a timeout does not wait for the first, which waits without one."""
    async with running(swallow) as (_, producer):
        delivery = producer.send_nowait("t", b"x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.close)
            await virtual_time(1.0)
            with Stopwatch() as watch:
                await producer.close(timeout=2.0)
            assert watch.took == pytest.approx(2.0, abs=SLACK)
            assert isinstance(delivery.exception(), errors.ProducerClosed)


@bounded(100)
async def test_the_delivery_timeout_begins_when_the_record_is_queued() -> None:
    """The delivery timeout begins when the record is queued, as in Java's producer.

    The wait for room before that is bounded by `max_block`.
    """
    async with running(swallow, **ONE_RECORD) as (_, producer):
        first = producer.send_nowait("t", bytes(1000))
        await virtual_time(DELIVERY - 4.0)
        with Stopwatch() as watch, pytest.raises(errors.DeliveryTimeoutError):
            await producer.send("t", bytes(1000))
        assert watch.took == pytest.approx(4.0 + DELIVERY, abs=SLACK)
        assert first.exception() is not None


@bounded(100)
async def test_the_drop_in_waits_for_metadata_and_room_within_one_max_block_ms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with EmbeddedCluster(brokers=2, transport="memory", auto_create_topics=False) as cluster:
        monkeypatch.setattr("aioidem._producer.native.TcpConnector", lambda: cluster.connector)
        cluster.create_topic("t", partitions=2)
        await cluster.stop_broker(1)
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, max_block_ms=2000, buffer_memory=1200
        ) as producer:
            first = await producer.send("t", bytes(1000), partition=1)  # without a leader
            with Stopwatch() as watch:
                async with anyio.create_task_group() as tasks:

                    async def make_topic() -> None:
                        await virtual_time(0.5)
                        cluster.create_topic("late")

                    tasks.start_soon(make_topic)
                    with pytest.raises(errors.KafkaTimeoutError, match="no room"):
                        await producer.send("late", bytes(1000))
            assert watch.took == pytest.approx(2.0, abs=0.001)
            await cluster.start_broker(1)
            await first
