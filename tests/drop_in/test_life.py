"""The drop-in from start to stop: other tasks, a paused loop, cancellation, collection, fork."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from typing import Any

import aiokafka
import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, errors
from aioidem._broker.entities import ZERO_MS, respond
from aioidem._broker.intercept import Action, Delay, Drop, Refuse, RequestSeen, Respond
from aioidem.broker import EmbeddedCluster
from tests.commands import ALONE

from .suite import raised

INIT_PRODUCER_ID = 22

pytestmark = pytest.mark.anyio
BOTH_LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)


def stored(cluster: EmbeddedCluster, topic: str = "t") -> list[Any]:
    return [record.value for batch in cluster.batches(topic) for record in batch.records()]


def hold_produce(cluster: EmbeddedCluster, action: Action) -> asyncio.Event:
    """Answer every Produce request with this action; the returned event is set at the first one."""
    arrived = asyncio.Event()

    def hook(seen: RequestSeen) -> Action | None:
        if seen.api_key != 0:
            return None
        arrived.set()
        return action

    cluster.intercept(hook)
    return arrived


@BOTH_LOOPS
async def test_start_send_and_stop_from_different_tasks(cluster: EmbeddedCluster) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    await asyncio.create_task(producer.start())
    future = await asyncio.create_task(producer.send("t", b"x"))
    assert (await asyncio.wait_for(future, 10)).offset == 0
    await asyncio.create_task(producer.stop())
    assert stored(cluster) == [b"x"]


@BOTH_LOOPS
async def test_a_send_during_the_start_returns_a_future_of_the_loop(
    cluster: EmbeddedCluster,
) -> None:
    """Its failure is reported by the loop, as of any future that nobody awaits."""
    cluster.create_topic("t")
    started = asyncio.Event()

    def hook(seen: RequestSeen) -> Action | None:
        if seen.api_key != INIT_PRODUCER_ID:
            return None
        started.set()
        return Delay(0.2)

    cluster.intercept(hook)
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    starting = asyncio.create_task(producer.start())
    await started.wait()
    future = await producer.send("t", b"x")
    assert isinstance(future, asyncio.Future)
    assert future.get_loop() is asyncio.get_running_loop()
    await starting
    assert (await future).offset == 0
    await producer.stop()


def test_the_loop_may_run_in_slices() -> None:
    """A producer works although the event loop runs only during calls, as in a notebook."""
    loop = asyncio.new_event_loop()
    try:
        cluster = EmbeddedCluster(transport="tcp")
        stop = asyncio.Event()

        async def serve() -> None:
            async with cluster:
                ready.set()
                await stop.wait()

        ready = asyncio.Event()
        serving = loop.create_task(serve())
        loop.run_until_complete(asyncio.wait_for(ready.wait(), 10))
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        loop.run_until_complete(producer.start())
        for number in range(3):
            sent = loop.run_until_complete(producer.send_and_wait("t", b"%d" % number))
            assert sent.offset == number
        future = loop.run_until_complete(producer.send("t", b"3"))
        loop.run_until_complete(producer.stop())
        assert future.result().offset == 3
        stop.set()
        loop.run_until_complete(asyncio.wait_for(serving, 10))
    finally:
        loop.close()


@BOTH_LOOPS
async def test_a_send_cancelled_while_it_waits_for_room_sends_nothing(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("t")
    arrived = hold_produce(cluster, Delay(0.2))
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, buffer_memory=1000
    ) as producer:
        first = await producer.send("t", b"a" * 900)
        await arrived.wait()
        waiting = asyncio.create_task(producer.send("t", b"b" * 900))
        behind = asyncio.create_task(producer.send("t", b"c" * 900))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await first
        await (await behind)
    assert stored(cluster) == [b"a" * 900, b"c" * 900]


@BOTH_LOOPS
async def test_a_send_cancelled_while_it_waits_for_metadata_sends_nothing(
    cluster: EmbeddedCluster,
) -> None:
    asked = asyncio.Event()

    def hook(seen: RequestSeen) -> Action | None:
        topics = seen.request.topics if seen.api_key == 3 else None
        if not topics:
            return None
        asked.set()
        return Delay(0.1)

    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        cluster.intercept(hook)
        waiting = asyncio.create_task(producer.send("t", b"cancelled"))
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await producer.send_and_wait("t", b"sent")
    assert stored(cluster) == [b"sent"]


@BOTH_LOOPS
async def test_wait_for_around_send_and_wait_leaves_the_record(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t")
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        arrived = hold_produce(cluster, Delay(0.2))
        task = asyncio.create_task(producer.send_and_wait("t", b"goes on"))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert stored(cluster) == [b"goes on"]


@BOTH_LOOPS
async def test_a_started_producer_that_is_dropped_is_collected_and_warns(
    cluster: EmbeddedCluster,
) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    await producer.start()
    future = await producer.send("t", b"x")
    await future
    gone = weakref.ref(producer)
    with pytest.warns(ResourceWarning, match="Unclosed AIOKafkaProducer.* open") as caught:
        del producer
    assert len(caught) == 1  # the native producer inside does not warn as well
    assert [context["message"] for context in told] == ["Unclosed AIOKafkaProducer"]
    for holder in (told, caught):
        holder.clear()
    gc.collect()
    assert gone() is None
    with anyio.fail_after(10):
        while cluster.state.connections:
            await anyio.lowlevel.checkpoint()


async def test_a_future_keeps_no_producer_alive(cluster: EmbeddedCluster) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    cluster.create_topic("t")
    hold_produce(cluster, Drop())
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    await producer.start()
    future = await producer.send("t", b"x")
    gone = weakref.ref(producer)
    with pytest.warns(ResourceWarning, match="Unclosed"):
        del producer
    gc.collect()
    assert gone() is None
    with pytest.raises(errors.ProducerClosed):
        await asyncio.wait_for(future, 10)


async def test_a_producer_that_was_not_started_or_was_stopped_is_forgotten_in_silence(
    cluster: EmbeddedCluster,
) -> None:
    AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    async with producer:
        await producer.send_and_wait("t", b"x")
    del producer
    gc.collect()  # a ResourceWarning would be an error


async def test_debug_mode_says_where_it_was_made(
    cluster: EmbeddedCluster,
) -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context))
    loop.set_debug(True)
    try:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        await producer.start()
    finally:
        loop.set_debug(False)
    with pytest.warns(ResourceWarning, match="Unclosed"):
        del producer
    assert told[0]["source_traceback"][-1].name == "test_debug_mode_says_where_it_was_made"


async def test_a_start_that_failed_may_be_tried_again() -> None:
    async with EmbeddedCluster(transport="tcp") as cluster:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        await cluster.stop_broker(0)
        for _ in range(2):
            assert isinstance(await raised(producer.start()), errors.KafkaConnectionError)
        assert isinstance(await raised(producer.send("t", b"x")), errors.ProducerClosed)
        await cluster.start_broker(0)
        await producer.start()
        await producer.send_and_wait("t", b"x")
        assert isinstance(await raised(producer.start()), errors.ProducerClosed)
        await producer.send_and_wait("t", b"y")  # the refused second start did no harm
        await producer.stop()
        assert isinstance(await raised(producer.start()), errors.ProducerClosed)
        assert stored(cluster) == [b"x", b"y"]


@pytest.mark.parametrize("client", [aiokafka.AIOKafkaProducer, AIOKafkaProducer])
async def test_a_topic_that_is_not_there_is_named_so_by_send(client: Any) -> None:
    async with (
        EmbeddedCluster(transport="tcp", auto_create_topics=False) as cluster,
        client(bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=1500) as producer,
    ):
        batch = producer.create_batch()
        for call in (
            producer.send("nowhere", b"x"),
            producer.send_batch(batch, "nowhere", partition=0),
            producer.partitions_for("nowhere"),
        ):
            error = await asyncio.wait_for(raised(call), 10)
            assert type(error).__name__ == "UnknownTopicOrPartitionError"


@pytest.mark.parametrize("client", [aiokafka.AIOKafkaProducer, AIOKafkaProducer])
async def test_a_topic_that_may_not_be_seen_is_named_so_by_send(
    client: Any, cluster: EmbeddedCluster
) -> None:
    def refuse(seen: RequestSeen) -> Action | None:
        if seen.api_key != 3 or not seen.request.topics:
            return None
        no_rights = {"topic_authorized_operations": 0, "topic_id": None}
        topic: dict[str, Any] = {"name": "t", "is_internal": False, "partitions": [], **no_rights}
        host, _, port = cluster.bootstrap_servers.partition(":")
        values = {
            "throttle_time": ZERO_MS,
            "brokers": [{"node_id": 0, "host": host, "port": int(port), "rack": None}],
            "cluster_id": "c",
            "controller_id": 0,
            "topics": [{"error_code": ErrorCode.topic_authorization_failed, **topic}],
            "cluster_authorized_operations": 0,
            "error_code": ErrorCode.none,
        }
        return Respond(respond(3, seen.api_version, values))

    async with client(bootstrap_servers=cluster.bootstrap_servers) as producer:
        cluster.intercept(refuse)
        error = await asyncio.wait_for(raised(producer.send("t", b"x")), 10)
        assert type(error).__name__ == "TopicAuthorizationFailedError"
        cluster.intercept(None)


async def test_a_flush_raises_no_errors_of_records(cluster: EmbeddedCluster) -> None:
    def refuse(seen: RequestSeen) -> Action | None:
        return Refuse(ErrorCode.invalid_timestamp) if seen.api_key == 0 else None

    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.partitions_for("t")
        cluster.intercept(refuse)
        future = await producer.send("t", b"x", partition=0)
        await producer.flush()
        assert isinstance(future.exception(), errors.InvalidTimestampError)


@pytest.mark.parametrize("partition", ["0", 0.0, True, b"0"])
async def test_a_partition_is_a_whole_number(cluster: EmbeddedCluster, partition: Any) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in ("not known yet", "known"):
            error = await raised(producer.send("t", b"x", partition=partition))
            assert isinstance(error, TypeError)
            await producer.partitions_for("t")


async def test_start_must_be_on_the_loop_that_was_given(cluster: EmbeddedCluster) -> None:
    other = asyncio.new_event_loop()
    try:
        with pytest.warns(DeprecationWarning, match="loop"):
            producer = AIOKafkaProducer(loop=other, bootstrap_servers=cluster.bootstrap_servers)
        assert isinstance(await raised(producer.start()), errors.ConfigError)
    finally:
        other.close()


async def test_the_cluster_can_be_asked_for_anew(cluster: EmbeddedCluster) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("t", b"x")
        seen: list[int] = []
        cluster.intercept(lambda request: seen.append(request.api_key))
        assert await producer.client.force_metadata_update()
        assert 3 in seen
        known = producer.client.cluster
        assert known.topics() == {"t"}
        assert known.available_partitions_for_topic("t") == {0}
        assert known.partitions_for_topic("other") is None
        assert known.available_partitions_for_topic("other") is None


_FORK = """
import os, sys, warnings
import anyio, aioidem
from aioidem.broker import EmbeddedCluster

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork() with threads

def in_child(producer):
    refused = 0
    batch = producer.create_batch()
    batch.append(timestamp=None, key=None, value=b"x")
    for call in (
        producer.send("t", b"child"),
        producer.send("new topic", b"child"),
        producer.send_and_wait("t", b"child"),
        producer.send_batch(batch, "t", partition=0),
        producer.partitions_for("t"),
        producer.flush(),
        producer.start(),
        producer.stop(),
    ):
        try:
            call.send(None)
        except aioidem.errors.ForkedProducerError:
            refused += 1
        finally:
            call.close()
    return refused

async def main():
    async with EmbeddedCluster() as cluster:
        servers = cluster.bootstrap_servers
        async with aioidem.AIOKafkaProducer(bootstrap_servers=servers) as producer:
            await producer.send_and_wait("t", b"parent 1")
            child = os.fork()
            if child == 0:
                os._exit(in_child(producer))
            _, status = os.waitpid(child, 0)
            await producer.send_and_wait("t", b"parent 2")
        values = [r.value for b in cluster.batches("t") for r in b.records()]
        print(os.waitstatus_to_exitcode(status), values)

anyio.run(main)
"""


def test_a_call_in_a_forked_child_fails_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE + _FORK],
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    assert done.stdout.strip() == "8 [b'parent 1', b'parent 2']", done.stderr


async def test_a_partition_that_was_just_added_is_found(cluster: EmbeddedCluster) -> None:
    """A send to a partition that the cached metadata lacks fetches metadata before it fails."""
    cluster.create_topic("t", partitions=1)
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        assert await producer.partitions_for("t") == {0}
        cluster.add_partitions("t", 3)
        assert (await producer.send_and_wait("t", b"x", partition=2)).partition == 2
        error = await raised(producer.send("t", b"x", partition=3))
        assert isinstance(error, errors.UnknownTopicOrPartitionError)
        assert "topic 't' has 3 partitions (0 to 2); there is no partition 3" in str(error)
