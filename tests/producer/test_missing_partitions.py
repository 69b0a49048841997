"""Records for a partition that their topic does not have fail at the next Metadata answer.

The error names the partition and the topic's range of partitions. Records for a partition that is
being added do not fail. Time is virtual, so the tests can assert that the error comes within two
round trips and two pauses between Metadata requests, and not after `max_block`.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aioidem import DeliveryStatus, errors
from aioidem._broker.intercept import Action, Delay, RequestSeen
from aioidem._producer.native import internals
from aioidem.broker import EmbeddedCluster

from .tools import METADATA, bounded, numbered, producer_for, stored_values, virtual_time

pytestmark = pytest.mark.anyio

RTT = 0.02
# How long the producer pauses after a Metadata answer before it requests metadata again, in seconds
# (`retry_backoff`, 20 % more or less at random).
PAUSE = 0.1
NO_SUCH = r"topic 'orders' has 3 partitions \(0 to 2\); there is no partition 7"


async def test_it_is_named_with_the_range_and_after_one_answer() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=3)
        async with producer_for(cluster) as producer:
            for _ in ("topic not known yet", "topic known"):
                began = anyio.current_time()
                with pytest.raises(errors.UnknownTopicOrPartitionError, match=NO_SUCH) as caught:
                    await producer.send("orders", b"x", partition=7)
                assert caught.value.status is DeliveryStatus.NOT_WRITTEN
                assert anyio.current_time() - began <= 2 * RTT + 2 * PAUSE
            assert (await producer.send("orders", b"x", partition=2)).offset == 0


async def test_one_partition_is_called_one() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("orders")
        async with producer_for(cluster) as producer:
            with pytest.raises(
                errors.UnknownTopicOrPartitionError,
                match=r"topic 'orders' has 1 partition \(0\); there is no partition 1",
            ):
                await producer.send("orders", b"x", partition=1)


@bounded(100)
async def test_tens_of_thousands_are_refused_by_one_answer() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=3)
        async with producer_for(cluster) as producer:
            await producer.partitions_for("orders")
            began = anyio.current_time()
            deliveries = [
                producer.send_nowait("orders", b"x", partition=3 + n % 40) for n in range(20_000)
            ]
            await producer.flush()
            assert anyio.current_time() - began <= 2 * RTT + 2 * PAUSE
            assert {d.status for d in deliveries} == {DeliveryStatus.NOT_WRITTEN}
            assert "there is no partition 42" in str(deliveries[39].exception())
            assert producer.statistics().buffer_bytes_used == 0


@bounded(100)
async def test_it_holds_up_no_record_for_a_partition_that_is_there() -> None:
    """A record for a missing partition holds up no record for a partition that is there.

    No order is promised between partitions, so only the record for the missing one waits.
    """
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=3)
        async with producer_for(cluster) as producer:
            await producer.partitions_for("orders")
            await producer.send("orders", b"connected", partition=0)
            cluster.intercept(delayed_metadata(5.0))
            missing = producer.send_nowait("orders", b"x", partition=7)
            there = producer.send_nowait("orders", b"y", partition=0)
            await virtual_time(1.0)
            assert there.status is DeliveryStatus.ACKED
            assert not missing.done()
            await producer.flush()
            assert missing.status is DeliveryStatus.NOT_WRITTEN


def delayed_metadata(seconds: float) -> Any:
    """Make an interceptor that delays Metadata requests; the broker serves them afterwards."""

    def hook(seen: RequestSeen) -> Action | None:
        return Delay(seconds) if seen.api_key == METADATA else None

    return hook


@bounded(100)
async def test_one_that_was_added_before_the_record_came_is_found() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=3)
        async with producer_for(cluster) as producer:
            await producer.partitions_for("orders")
            cluster.add_partitions("orders", 8)
            assert (await producer.send("orders", b"x", partition=7)).offset == 0
        assert stored_values(cluster, "orders", 7) == [b"x"]


@bounded(100)
async def test_an_answer_to_what_was_asked_before_the_record_came_refuses_nothing() -> None:
    """A Metadata answer to a request older than a record does not fail the record.

    The answer lacks the record's partition, because the partition was added, and the record queued,
    while the answer was on its way.
    """
    async with EmbeddedCluster(rtt=1.0, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=3)
        async with producer_for(cluster) as producer:
            await producer.partitions_for("orders")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(internals(producer).topics.refresh)
                await virtual_time(0.7)  # by now the broker's answer is on its way
                cluster.add_partitions("orders", 8)
                deliveries = [
                    producer.send_nowait("orders", value, partition=7) for value in numbered(3)
                ]
            for delivery in deliveries:
                await delivery
        assert stored_values(cluster, "orders", 7) == numbered(3)


@bounded(200)
async def test_a_topic_that_is_not_there_yet_may_come_with_any_number_of_partitions() -> None:
    async with (
        EmbeddedCluster(rtt=RTT, transport="memory", auto_create_topics=False) as cluster,
        producer_for(cluster) as producer,
    ):
        delivery = producer.send_nowait("orders", b"x", partition=7)
        await virtual_time(10.0)
        assert not delivery.done()
        cluster.create_topic("orders", partitions=8)
        assert (await delivery).partition == 7


async def test_a_topic_that_was_made_for_it_refuses_what_it_does_not_have() -> None:
    async with (
        EmbeddedCluster(rtt=RTT, transport="memory", default_partitions=3) as cluster,
        producer_for(cluster) as producer,
    ):
        began = anyio.current_time()
        with pytest.raises(errors.UnknownTopicOrPartitionError, match=NO_SUCH):
            await producer.send("orders", b"x", partition=7)
        assert anyio.current_time() - began < 2.0


@bounded(200)
async def test_a_topic_made_anew_with_fewer_partitions_refuses_what_waited_for_the_others() -> None:
    """If a recreated topic has fewer partitions, records for a missing partition fail.

    Records with a key but no partition go to the partitions that are there.
    """
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=8)
        async with producer_for(cluster, linger=5.0) as producer:
            await producer.send("orders", b"connected", partition=0)
            cluster.delete_topic("orders")
            cluster.create_topic("orders", partitions=3)
            named = producer.send_nowait("orders", b"x", partition=7)
            free = [producer.send_nowait("orders", value, key=value) for value in numbered(20)]
            await internals(producer).topics.refresh()
            with pytest.raises(errors.UnknownTopicOrPartitionError, match=NO_SUCH):
                await named
            await producer.flush()
            assert {d.status for d in free} == {DeliveryStatus.ACKED}


@bounded(200)
async def test_a_coordinator_that_misses_a_partition_has_metadata_asked_for() -> None:
    """In transactions v1 nothing is sent to a partition before the coordinator has added it.

    So no leader can say that the topic was recreated with fewer partitions.
    """
    async with EmbeddedCluster(rtt=RTT, transport="memory", transaction_version=0) as cluster:
        cluster.create_topic("orders", partitions=8)
        async with producer_for(cluster, transactional_id="x") as producer:
            await producer.partitions_for("orders")
            cluster.delete_topic("orders")
            cluster.create_topic("orders", partitions=3)
            began = anyio.current_time()
            async with producer.transaction():
                for value in numbered(20):
                    producer.send_nowait("orders", value, key=value)
            assert anyio.current_time() - began < 5.0
        stored = [value for each in range(3) for value in stored_values(cluster, "orders", each)]
        assert {value for value in stored if value.isdigit()} == set(numbered(20))


@bounded(200)
async def test_a_topic_that_is_new_to_the_producer_is_asked_for_without_a_pause() -> None:
    """As with Java's producer and aiokafka's, a topic's first record waits for two round trips."""
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        for name in ("orders", "payments"):
            cluster.create_topic(name)
        async with producer_for(cluster, retry_backoff=30.0, retry_backoff_max=30.0) as producer:
            for name in ("orders", "payments"):
                began = anyio.current_time()
                await producer.send(name, b"x")
                assert anyio.current_time() - began <= 4 * RTT
