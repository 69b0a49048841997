"""`metrics_collector`: what a collector receives, and that its exceptions have no effect."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, NullProducerMetricsCollector, errors
from aioidem._broker.intercept import Action, CloseConnection, Delay, Refuse, RequestSeen
from aioidem.abc import ProducerMetricsCollector
from aioidem.broker import EmbeddedCluster

pytestmark = pytest.mark.anyio


class Told(ProducerMetricsCollector):
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on_batch_dispatched(self, **facts: Any) -> None:
        self.events.append(("dispatched", facts))

    def on_batch_completed(self, **facts: Any) -> None:
        self.events.append(("completed", facts))

    def on_batch_failed(self, **facts: Any) -> None:
        self.events.append(("failed", facts))

    def on_buffer_wait(self, **facts: Any) -> None:
        self.events.append(("waited", facts))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [facts for event, facts in self.events if event == name]


def scripted(cluster: EmbeddedCluster, *actions: Action) -> None:
    left = list(actions)

    def hook(seen: RequestSeen) -> Action | None:
        return left.pop(0) if seen.api_key == 0 and left else None

    cluster.intercept(hook)


async def test_the_collector_hears_when_a_batch_is_sent_and_when_it_is_stored(
    cluster: EmbeddedCluster,
) -> None:
    told = Told()
    cluster.set_rtt(0.05)
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, linger_ms=30, metrics_collector=told
    ) as producer:
        for _ in range(3):
            await producer.send("t", b"x" * 100, partition=0)
    [sent], [done] = told.of("dispatched"), told.of("completed")
    assert [event for event, _ in told.events] == ["dispatched", "completed"]
    queued = sent.pop("queue_time_seconds")
    assert 0.03 <= queued < 10
    assert 361 < sent.pop("batch_size_bytes") < 500
    assert sent == {"topic": "t", "partition": 0, "record_count": 3, "attempt": 1}
    took, age = done.pop("send_to_completion_seconds"), done.pop("batch_age_seconds")
    assert 0.05 <= took < 10
    assert age == pytest.approx(queued + took)
    assert done == {"topic": "t", "partition": 0, "record_count": 3, "acknowledged": True}


async def test_the_collector_hears_of_each_attempt_and_of_the_end_once(
    cluster: EmbeddedCluster,
) -> None:
    told = Told()
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, metrics_collector=told
    ) as producer:
        await producer.partitions_for("t")
        scripted(cluster, Refuse(ErrorCode.not_enough_replicas), CloseConnection(processed=True))
        await producer.send_and_wait("t", b"x", partition=0)
    assert [facts["attempt"] for facts in told.of("dispatched")] == [1, 2, 3]
    assert [facts["queue_time_seconds"] for facts in told.of("dispatched")][1:] == [0, 0]
    assert len(told.of("completed")) == 1


async def test_the_collector_gets_a_failure_with_its_exception(cluster: EmbeddedCluster) -> None:
    told = Told()
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, metrics_collector=told
    ) as producer:
        await producer.partitions_for("t")
        scripted(cluster, Refuse(ErrorCode.invalid_timestamp))
        with pytest.raises(errors.InvalidTimestampError):
            await producer.send_and_wait("t", b"x", partition=0)
    [failed] = told.of("failed")
    assert isinstance(failed["exception"], errors.InvalidTimestampError)
    assert (failed["topic"], failed["partition"], failed["record_count"]) == ("t", 0, 1)
    assert 0 <= failed["batch_age_seconds"] < 10


async def test_under_acks_0_a_batch_completes_without_being_acknowledged(
    cluster: EmbeddedCluster,
) -> None:
    told = Told()
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, acks=0, metrics_collector=told
    ) as producer:
        await producer.send_and_wait("t", b"x", partition=0)
    assert [facts["acknowledged"] for facts in told.of("completed")] == [False]


async def test_the_collector_hears_of_a_wait_for_room_that_fails_too(
    cluster: EmbeddedCluster,
) -> None:
    told = Told()
    cluster.create_topic("t")
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        buffer_memory=1000,
        max_block_ms=500,
        metrics_collector=told,
    ) as producer:
        await producer.partitions_for("t")
        scripted(cluster, Delay(1.0))
        await producer.send("t", b"x" * 900, partition=0)
        with pytest.raises(errors.KafkaTimeoutError):
            await producer.send("t", b"y" * 900, partition=0)
        cancelled = asyncio.create_task(producer.send("t", b"z" * 900))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
    first, second = told.of("waited")
    assert (first["topic"], first["partition"]) == ("t", 0)
    assert 0.4 <= first["wait_seconds"] < 10
    assert second["partition"] == -1


async def test_a_collector_that_raises_is_logged_and_ignored(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(NullProducerMetricsCollector):
        def on_batch_dispatched(self, **_facts: Any) -> None:
            raise ValueError("mine")

    with caplog.at_level(logging.ERROR, "aioidem"):
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, metrics_collector=Broken()
        ) as producer:
            assert (await producer.send_and_wait("t", b"x")).offset == 0
    assert [r.message for r in caplog.records if r.name == "aioidem"] == [
        "a metrics collector raised [observer-raised]"
    ]


async def test_the_null_collector_heeds_nothing(cluster: EmbeddedCluster) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        metrics_collector=NullProducerMetricsCollector(),
        buffer_memory=1000,
    ) as producer:
        await producer.partitions_for("t")
        scripted(cluster, Refuse(ErrorCode.invalid_timestamp))
        first = await producer.send("t", b"x" * 900, partition=0)
        await (await producer.send("t", b"y" * 900, partition=0))
        assert isinstance(first.exception(), errors.InvalidTimestampError)


class Half:
    """What somebody writes who has read half of the interface."""

    def on_batch_dispatched(self, **facts: Any) -> None:
        """Take no note."""

    on_batch_completed = on_batch_dispatched


@pytest.mark.parametrize(
    ("collector", "why"),
    [
        (5, "it has no method on_batch_completed and no on_batch_dispatched and no on_batch_f"),
        (Half(), "it has no method on_batch_failed and no on_buffer_wait"),
        (Told, "expected an object, not its class"),
    ],
)
async def test_what_is_no_collector_is_refused_when_the_producer_is_made(
    collector: Any, why: str
) -> None:
    with pytest.raises(errors.ConfigError, match=f"metrics_collector=.*{why}"):
        AIOKafkaProducer(metrics_collector=collector)
