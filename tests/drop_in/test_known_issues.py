"""Open issues of aiokafka, by number, none of which happens with aioidem's `AIOKafkaProducer`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, DeliveryStatus, errors
from aioidem._broker.intercept import (
    Action,
    CloseConnection,
    Delay,
    Drop,
    Refuse,
    RequestSeen,
)
from aioidem.broker import EmbeddedCluster

from .suite import raised

pytestmark = pytest.mark.anyio
PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22


def made(cluster: EmbeddedCluster, **arguments: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **arguments)


def stored(cluster: EmbeddedCluster) -> list[Any]:
    return [record.value for batch in cluster.batches("t") for record in batch.records()]


def scripted(cluster: EmbeddedCluster, api_key: int, *actions: Action) -> list[Action]:
    """Answer requests of one API with these actions in turn; return the list of actions left."""
    left = list(actions)

    def hook(seen: RequestSeen) -> Action | None:
        return left.pop(0) if seen.api_key == api_key and left else None

    cluster.intercept(hook)
    return left


@pytest.mark.parametrize(
    "trouble",
    [
        [Refuse(ErrorCode.out_of_order_sequence_number)],
        [CloseConnection(processed=True), Refuse(ErrorCode.out_of_order_sequence_number)],
        [Refuse(ErrorCode.unknown_producer_id)],
        [Refuse(ErrorCode.invalid_producer_epoch)],
        [Refuse(ErrorCode.invalid_timestamp)],
    ],
    ids=["out of order", "lost, out of order", "unknown id", "old epoch", "refused"],
)
async def test_1017_out_of_order_is_not_for_ever(
    cluster: EmbeddedCluster, trouble: list[Action]
) -> None:
    """#1017: after an OUT_OF_ORDER or similar answer the same producer delivers again."""
    cluster.create_topic("t")
    async with made(cluster, enable_idempotence=True, request_timeout_ms=2000) as producer:
        await producer.send_and_wait("t", b"before", partition=0)
        left = scripted(cluster, PRODUCE, *trouble)
        futures = [await producer.send("t", b"%d" % n, partition=0) for n in range(20)]
        with anyio.fail_after(20):
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            after = await producer.send_and_wait("t", b"after", partition=0)
        assert not left
    values = stored(cluster)
    assert values[0] == b"before"
    assert values[after.offset] == b"after"
    sent = {b"%d" % n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)}
    assert sent == set(values) - {b"before", b"after"}
    assert len(values) == len(set(values))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, errors.InvalidTimestampError)


async def test_1101_send_and_stop_end_when_kafka_is_down() -> None:
    """#1101: send and stop end when Kafka is down, also with idempotence."""
    async with EmbeddedCluster(transport="tcp") as cluster:
        producer = made(
            cluster,
            enable_idempotence=True,
            request_timeout_ms=500,
            delivery_timeout_ms=1000,
            max_block_ms=20_000,
        )
        await producer.start()
        await producer.send_and_wait("t", b"before")
        await cluster.stop_broker(0)
        with anyio.fail_after(20):
            error = await raised(producer.send_and_wait("t", b"lost"))
            waiting = await producer.send("t", b"lost too")
            await producer.stop()
        assert isinstance(error, errors.KafkaTimeoutError)
        assert error.status in {DeliveryStatus.NOT_WRITTEN, DeliveryStatus.UNKNOWN}
        assert isinstance(waiting.exception(), errors.KafkaError)


async def test_1101_a_broker_that_goes_silent_ends_nothing_but_the_record(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("t")
    async with made(
        cluster, request_timeout_ms=500, delivery_timeout_ms=1000, max_block_ms=20_000
    ) as producer:
        await producer.send_and_wait("t", b"before", partition=0)
        cluster.intercept(lambda seen: Drop() if seen.api_key == PRODUCE else None)
        with anyio.fail_after(20):
            error = await raised(producer.send_and_wait("t", b"silence", partition=0))
        assert isinstance(error, errors.KafkaTimeoutError)
        assert error.status is DeliveryStatus.UNKNOWN
        cluster.intercept(None)
        with anyio.fail_after(20):
            await producer.send_and_wait("t", b"after", partition=0)
    assert stored(cluster) == [b"before", b"after"]


async def test_1133_a_start_with_a_broker_that_cannot_give_an_id_yet(
    cluster: EmbeddedCluster,
) -> None:
    """#1133: `start` asks again if the broker closes the connection instead of giving an id."""
    left = scripted(cluster, INIT_PRODUCER_ID, CloseConnection(), CloseConnection(processed=True))
    with anyio.fail_after(20):
        async with made(cluster) as producer:
            assert not left
            assert (await producer.send_and_wait("t", b"x")).offset == 0


async def test_1133_a_start_that_failed_says_so_and_leaves_a_producer_that_can_start(
    cluster: EmbeddedCluster,
) -> None:
    left = scripted(cluster, METADATA, CloseConnection(), CloseConnection())
    producer = made(cluster)
    with anyio.fail_after(20):
        while left:
            assert isinstance(await raised(producer.start()), errors.KafkaConnectionError)
        await producer.start()
        assert (await producer.send_and_wait("t", b"x")).offset == 0
        await producer.stop()


async def test_1133_a_broker_that_hangs_up_is_asked_again(
    cluster: EmbeddedCluster,
) -> None:
    def hook(seen: RequestSeen) -> Action | None:
        return Delay(0.05, then=CloseConnection()) if seen.api_key == PRODUCE else None

    async with made(cluster) as producer:
        await producer.partitions_for("t")
        cluster.intercept(hook)
        future = await producer.send("t", b"x", partition=0)
        await asyncio.wait([future], timeout=0.5)
        assert not future.done()
        cluster.intercept(None)
        with anyio.fail_after(20):
            assert (await future).offset == 0
            await producer.send_and_wait("t", b"y", partition=0)


async def test_642_a_restart_of_the_broker_does_not_reach_the_caller() -> None:
    """#642: send_and_wait never raises NodeNotReadyError."""
    async with EmbeddedCluster(transport="tcp") as cluster, made(cluster) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        for restart in range(3):
            await cluster.stop_broker(0)
            sending = [
                asyncio.create_task(producer.send_and_wait("t", b"%d %d" % (restart, n)))
                for n in range(5)
            ]
            await asyncio.wait(sending, timeout=0.1)
            await cluster.start_broker(0)
            with anyio.fail_after(20):
                await asyncio.gather(*sending)
        assert len(stored(cluster)) == 16


class Counted(Coroutine[Any, Any, Any]):
    """An awaitable around a coroutine that counts how often it is resumed."""

    resumed = 0

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        Counted.resumed += 1
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_528_ten_thousand_waiting_senders_are_woken_a_few_times_each(
    cluster: EmbeddedCluster,
) -> None:
    """#528: buffer room that a batch frees wakes only the waiting senders that fit into it."""
    senders = 10_000
    cluster.create_topic("t")
    async with made(cluster, max_batch_size=2000, buffer_memory=20_000) as producer:
        await producer.partitions_for("t")
        Counted.resumed = 0
        tasks = [
            asyncio.ensure_future(Counted(producer.send("t", b"x" * 100, partition=0)))
            for _ in range(senders)
        ]
        with anyio.fail_after(150):
            futures = await asyncio.gather(*tasks)
            sent = await asyncio.gather(*futures)
        # Records are stored in the order of the calls, so no waiting sender was overtaken.
        assert [each.offset for each in sent] == list(range(senders))
    # A sender is resumed once to start, and once when there is room.
    print(f"{Counted.resumed} wake-ups of {senders} senders")  # noqa: T201 - pytest -s shows it
    assert Counted.resumed <= 3 * senders


async def test_1039_a_background_task_that_is_cancelled_fails_loudly(
    cluster: EmbeddedCluster,
) -> None:
    """#1039: a pending send fails if a shutdown cancels the background task, and never hangs."""
    cluster.create_topic("t")
    producer = made(cluster)
    await producer.start()
    cluster.intercept(lambda seen: Drop() if seen.api_key == PRODUCE else None)
    waiting = await producer.send("t", b"x")
    [background] = [
        task for task in asyncio.all_tasks() if task.get_name().startswith("aioidem sender")
    ]
    background.cancel()
    with anyio.fail_after(10):
        assert isinstance(await raised(waiting), errors.KafkaError)
        assert isinstance(await raised(producer.send("t", b"y")), errors.ProducerClosed)
        await producer.stop()


@pytest.mark.parametrize("wait", [True, False], ids=["send_and_wait", "send"])
async def test_1065_send_retries_as_send_and_wait_does(
    cluster: EmbeddedCluster, wait: bool
) -> None:
    """#1065: send and send_and_wait both retry, and the future says what became of the record."""
    cluster.create_topic("t")
    async with made(cluster) as producer:
        await producer.partitions_for("t")
        left = scripted(
            cluster,
            PRODUCE,
            Refuse(ErrorCode.not_enough_replicas),
            CloseConnection(processed=True),
            CloseConnection(),
        )
        with anyio.fail_after(20):
            if wait:
                await producer.send_and_wait("t", b"x", partition=0)
            else:
                await producer.send("t", b"x", partition=0)  # and nobody awaits the future
                await producer.flush()
        assert not left
    assert stored(cluster) == [b"x"]
