"""A producer whose bootstrap name moves to another cluster, or whose producer id is used twice.

Both clusters hand out the same producer ids, as real clusters do. `Name` is the name by which the
producer knows its bootstrap server: it leads to one cluster, and later to the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import anyio
import pytest
from anyio.abc import ByteStream

from aioidem import DeliveryStatus, Producer, errors
from aioidem._broker.intercept import Action, Drop, RequestSeen
from aioidem._producer.delivery import Delivery
from aioidem._records import build_batch
from aioidem.broker import EmbeddedCluster

from .tools import PRODUCE, ask, bounded, numbered, producer_for, stored_values, virtual_time

pytestmark = pytest.mark.anyio

QUICK: dict[str, Any] = {"request_timeout": 2.0, "delivery_timeout": 20.0}


class Datum(NamedTuple):
    """One record for `build_batch`."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


class Name:
    """A connector that acts like a host name: `cluster` is where it leads, and can be changed."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster

    async def connect(self, host: str, port: int) -> ByteStream:
        return await self.cluster.connector.connect(host, port)


@asynccontextmanager
async def two_clusters(**options: Any) -> AsyncIterator[tuple[EmbeddedCluster, EmbeddedCluster]]:
    """Run two clusters that differ in nothing but their ids."""
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                EmbeddedCluster(transport="memory", seed=seed, **options)
            )
            for seed in (1, 2)
        ]
        assert first.state.cluster_id != second.state.cluster_id
        for cluster in (first, second):
            cluster.create_topic("t")
        yield first, second


async def move(name: Name, to: EmbeddedCluster) -> None:
    """Let the host name lead to another cluster, and stop the brokers of the previous cluster."""
    before, name.cluster = name.cluster, to
    for broker in list(before.state.brokers):
        await before.stop_broker(broker)
    await virtual_time(0.001)


async def acknowledged(producer: Producer, value: bytes) -> bool:
    """Send a value, and return whether it was acknowledged."""
    delivery = producer.send_nowait("t", value)
    try:
        await delivery
    except errors.KafkaError:
        return False
    return delivery.status is DeliveryStatus.ACKED


async def write(cluster: EmbeddedCluster, value: bytes, identity: tuple[int, int, int]) -> None:
    """Write one record as another client; `identity` is its producer id, epoch and sequence."""
    producer_id, epoch, sequence = identity
    batch = build_batch(
        [Datum(value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    answer = await ask(
        cluster,
        PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=timedelta(seconds=5),
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch.data}]}],
    )
    assert answer.responses[0].partition_responses[0].error_code == 0


def missing(cluster: EmbeddedCluster, values: list[bytes]) -> list[bytes]:
    """Return the acknowledged values that the log does not hold."""
    return sorted(set(values) - set(stored_values(cluster)))


def lose_the_answers(seen: RequestSeen) -> Action | None:
    """Let Produce requests be appended, and lose their answers."""
    return Drop(processed=True) if seen.api_key == PRODUCE else None


@bounded(600)
async def test_a_producer_carried_to_another_cluster_harms_no_producer_there() -> None:
    async with two_clusters() as (first, second):
        name = Name(first)
        async with (
            producer_for(first, connector=name, **QUICK) as carried,
            producer_for(second, **QUICK) as native,
        ):
            assert all([await acknowledged(carried, value) for value in numbered(5)])
            written = [v for v in numbered(3, 100) if await acknowledged(native, v)]
            await move(name, second)
            for turn in range(3):
                for producer, value in ((carried, b"a%d" % turn), (native, b"b%d" % turn)):
                    if await acknowledged(producer, value):
                        written.append(value)
            assert missing(second, written) == []
            assert len(written) == 9
            assert carried.statistics().producer_id != native.statistics().producer_id
            assert missing(first, numbered(5)) == []
            assert stored_values(second) == written


@bounded(600)
async def test_a_fenced_producer_takes_another_producer_id() -> None:
    """A producer that is fenced without a transactional id requests another producer id.

    The client that fences it came from another cluster, and kept the same producer id.
    """
    async with two_clusters() as (_, second), producer_for(second, **QUICK) as native:
        written = [v for v in numbered(3) if await acknowledged(native, v)]
        before = native.statistics().producer_id
        assert before is not None
        await write(second, b"stranger 0", (before, 1, 0))
        await write(second, b"stranger 1", (before, 1, 1))
        written += [v for v in numbered(4, 10) if await acknowledged(native, v)]
        assert len(written) == 7
        assert missing(second, written) == []
        assert native.statistics().producer_id != before


async def in_doubt_at(first: EmbeddedCluster, producer: Producer) -> list[Delivery]:
    """Send one record that is acknowledged, three whose answers are lost, and two that wait.

    Returns the deliveries of the last five.
    """
    assert await acknowledged(producer, b"first")
    first.intercept(lose_the_answers)
    deliveries = [producer.send_nowait("t", value) for value in numbered(3)]
    await virtual_time(0.1)
    deliveries += [producer.send_nowait("t", value) for value in numbered(2, 3)]
    return deliveries


@bounded(600)
async def test_what_is_in_doubt_ends_unknown_and_what_waits_goes_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_clusters() as (first, second):
        name = Name(first)
        options = QUICK | {"max_in_flight_requests_per_connection": 1, "late_sealing": False}
        async with producer_for(first, connector=name, **options) as carried:
            deliveries = await in_doubt_at(first, carried)
            await move(name, second)
            await carried.flush()
            doubtful, waiting = deliveries[:3], deliveries[3:]
            assert [each.status for each in doubtful] == [DeliveryStatus.UNKNOWN] * 3
            assert [each.status for each in waiting] == [DeliveryStatus.ACKED] * 2
            for each in doubtful:
                with pytest.raises(errors.ClusterChangedError, match=second.state.cluster_id):
                    await each
            assert stored_values(first) == [b"first", *numbered(3)]
            assert stored_values(second) == numbered(2, 3)
            assert carried.statistics().data_loss_events == 0
    told = [line for line in caplog.messages if "Batches in doubt end UNKNOWN" in line]
    assert len(told) == 1
    assert "the cluster changed from" in told[0]


@bounded(600)
async def test_under_fail_nothing_goes_along_and_the_producer_ends() -> None:
    async with two_clusters() as (first, second):
        name = Name(first)
        options: dict[str, Any] = QUICK | {
            "max_in_flight_requests_per_connection": 1,
            "late_sealing": False,
            "on_cluster_change": "fail",
        }
        async with producer_for(first, connector=name, **options) as carried:
            deliveries = await in_doubt_at(first, carried)
            await move(name, second)
            for each in deliveries:
                with pytest.raises(errors.ClusterChangedError):
                    await each
            statuses = [each.status for each in deliveries]
            assert statuses == [DeliveryStatus.UNKNOWN] * 3 + [DeliveryStatus.NOT_WRITTEN] * 2
            with pytest.raises(errors.ClusterChangedError):
                await carried.send("t", b"more")
            assert stored_values(second) == []


class Region(Name):
    """A host name (`Name`) whose brokers can become silent: connecting to them never ends."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        super().__init__(cluster)
        self.asked = 0
        self.silent = False

    async def connect(self, host: str, port: int) -> ByteStream:
        if host == "bootstrap":
            self.asked += 1
            host, _, at = self.cluster.bootstrap_servers.split(",")[0].rpartition(":")
            port = int(at)
        elif self.silent and self.asked == 1:
            await anyio.sleep_forever()
        return await super().connect(host, port)


@pytest.mark.parametrize("brokers", [1, 3])
@bounded(600)
async def test_a_region_that_falls_silent_is_left_though_records_wait_for_all_of_its_brokers(
    brokers: int,
) -> None:
    """The producer asks its bootstrap server again when all known brokers are silent.

    Records wait for each broker, so an attempt to connect to one is always under way; this does not
    keep the producer from asking the bootstrap server.
    """
    async with two_clusters(brokers=brokers) as (first, second):
        if brokers > 1:
            for cluster in (first, second):
                cluster.add_partitions("t", brokers)
        name = Region(first)
        options = QUICK | {"request_timeout": 10.0, "delivery_timeout": 100.0}
        async with Producer("bootstrap:1", connector=name, **options) as producer:
            for partition in range(brokers):
                await producer.send("t", b"first", partition=partition)
            first.intercept(lambda _: Drop())
            name.cluster, name.silent = second, True
            deliveries = []
            for tick in range(60):
                # Sending to the partitions begins at different times, so that their connections
                # time out one by one.
                deliveries += [
                    producer.send_nowait("t", b"%d" % tick, partition=partition)
                    for partition in range(min(brokers, 1 + tick // 2))
                ]
                await virtual_time(1.0)
            await producer.flush()
            assert name.asked > 1
            assert deliveries[-1].status is DeliveryStatus.ACKED
            statuses = [each.status for each in deliveries]
            assert DeliveryStatus.NOT_WRITTEN not in statuses
