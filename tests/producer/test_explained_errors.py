"""Errors of timeouts name the partition, what was waited for, since when, why, and what to do.

The tests run in virtual time, so the durations in the messages are exact to a tenth of a second.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryCounts, DeliveryStatus, Producer, errors
from aioidem._broker.intercept import Action, Drop, Refuse, RequestSeen
from aioidem.broker import EmbeddedCluster

from .tools import PRODUCE, bounded, producer_for, virtual_time

pytestmark = pytest.mark.anyio

TIMES: dict[str, Any] = {"delivery_timeout": 30.0, "request_timeout": 5.0, "max_block": 10.0}


def without_answers(seen: RequestSeen) -> Action | None:
    """Drop Produce requests, so that they are neither carried out nor answered."""
    return Drop() if seen.api_key == PRODUCE else None


def too_few_replicas(seen: RequestSeen) -> Action | None:
    """Refuse every batch for a reason that may pass."""
    return Refuse(ErrorCode.not_enough_replicas) if seen.api_key == PRODUCE else None


async def failures_of(producer: Producer, count: int = 412) -> list[errors.KafkaError]:
    """Send records to partition 3 that all fail, and return their errors."""
    deliveries = [producer.send_nowait("orders", b"x", partition=3) for _ in range(count)]
    counts = await producer.flush()
    assert counts.acked == 0
    assert counts.not_written + counts.unknown == count
    failures = [delivery.exception() for delivery in deliveries]
    assert None not in failures
    return [failure for failure in failures if failure is not None]


@bounded(200)
async def test_without_a_leader_the_error_says_since_when_and_what_the_last_leader_did() -> None:
    """Without a leader the error counts the records and names the last broker and its error."""
    async with EmbeddedCluster(brokers=2, rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        gone = cluster.leader("orders", 3)
        async with producer_for(cluster, **TIMES) as producer:
            await producer.send("orders", b"connected", partition=3)
            await cluster.stop_broker(gone)
            await virtual_time(2.0)
            [error, *others] = await failures_of(producer)
            told = str(error)
            assert told.startswith(
                "DeliveryTimeoutError: orders-3: 412 records not written in delivery_timeout (30 s)"
                ": no leader for "
            )
            assert f"last tried broker {gone} (" in told
            assert "the broker hung up" in told
            assert told.endswith(
                "no replica of the partition can lead it, or raise delivery_timeout"
            )
            assert error.status is DeliveryStatus.NOT_WRITTEN
            assert isinstance(error.__cause__, errors.KafkaConnectionError)
            assert {str(each) for each in others} == {told}
            assert str(copy.copy(error)) == told
            assert copy.copy(error).__cause__ is error.__cause__


@bounded(200)
async def test_without_any_broker_the_error_names_the_leader_and_counts_the_attempts() -> None:
    """A leader that cannot be reached is named with its address, the attempts and their error."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        async with producer_for(cluster, **TIMES) as producer:
            await producer.send("orders", b"connected", partition=3)
            address = cluster.bootstrap_servers
            await cluster.stop_broker(0)
            [error, *_] = await failures_of(producer)
            told = str(error)
            assert f"no connection to the leader, broker 0 ({address}), for 30.0 s and " in told
            assert " attempts: " in told
            assert f"Check whether broker 0 ({address}) runs and can be reached" in told
            assert isinstance(error.__cause__, errors.KafkaConnectionError)


@bounded(200)
async def test_a_leader_that_refuses_is_named_with_its_last_answer() -> None:
    """The error of refused batches has the last answer in its text and as its cause."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        async with producer_for(cluster, **TIMES) as producer:
            await producer.send("orders", b"connected", partition=3)
            cluster.intercept(too_few_replicas)
            [error, *_] = await failures_of(producer)
            told = str(error)
            assert "no acknowledgement of the leader, broker 0 (" in told
            assert "failures: [Error 19] NotEnoughReplicasError: orders-3" in told
            assert "Check the log of broker 0 (" in told
            assert isinstance(error.__cause__, errors.NotEnoughReplicasError)
            cluster.intercept(None)
            await producer.send("orders", b"again", partition=3)


@bounded(200)
async def test_a_coordinator_that_does_not_add_a_partition_is_named_and_not_the_leader() -> None:
    """In transactions v1 nothing is sent to a leader before the coordinator has added it."""
    async with EmbeddedCluster(brokers=2, transport="memory", transaction_version=0) as cluster:
        cluster.create_topic("orders", partitions=4)
        cluster.move_coordinator("x", 1 - cluster.leader("orders", 3))
        async with producer_for(cluster, transactional_id="x", **TIMES) as producer:
            await producer.begin_transaction()
            cluster.fail_coordinator("x", ErrorCode.coordinator_load_in_progress)
            record = producer.send_nowait("orders", b"1", partition=3)
            with pytest.raises(errors.KafkaTimeoutError) as waited:
                await producer.flush(5)
            with pytest.raises(errors.DeliveryTimeoutError) as caught:
                await record
        for told in (str(waited.value), str(caught.value)):
            assert "the coordinator of transactional id 'x' has not added the partition" in told
            assert "the last answer: [Error 14]" in told
            assert "the leader" not in told
        assert str(caught.value).endswith("log of that coordinator, or raise delivery_timeout")


@bounded(200)
async def test_a_leader_that_is_silent_leaves_records_that_may_be_written() -> None:
    """Records that were sent and not answered are "perhaps written" in the error, too."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        async with producer_for(cluster, **TIMES) as producer:
            await producer.send("orders", b"connected", partition=3)
            cluster.intercept(without_answers)
            [error] = await failures_of(producer, 1)
            assert error.status is DeliveryStatus.UNKNOWN
            told = str(error)
            assert (
                "orders-3: 1 record not acknowledged, perhaps written, in delivery_timeout" in told
            )
            assert "an attempt got no answer" in told
            assert "producer.resolve(error) or delivery.resolve() looks in the log" in told


@bounded(200)
async def test_records_that_a_close_leaves_in_doubt_name_their_partition_and_resolve() -> None:
    """The reason is the producer's; the error of a record has the partition and what to do."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        producer = producer_for(cluster, **TIMES)
        await producer.start()
        await producer.send("orders", b"connected", partition=3)
        cluster.intercept(without_answers)
        delivery = producer.send_nowait("orders", b"x", partition=3)
        await virtual_time(1.0)
        await producer.close(timeout=0)
        error = delivery.exception()
        assert isinstance(error, errors.ProducerClosed)
        assert error.status is DeliveryStatus.UNKNOWN
        assert str(error).startswith("ProducerClosed: orders-3: ")
        assert "producer.resolve(error)" in str(error)


@bounded(200)
async def test_calls_that_wait_too_long_say_what_the_records_wait_for() -> None:
    """`flush` and a `send` without room name the partition that waits, and since when."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        async with producer_for(cluster, buffer_memory=1200, **TIMES) as producer:
            await producer.send("orders", b"connected", partition=3)
            cluster.intercept(too_few_replicas)
            delivery = producer.send_nowait("orders", bytes(300), partition=3)
            with pytest.raises(errors.KafkaTimeoutError) as flushing:
                await producer.flush(timeout=4.0)
            with pytest.raises(errors.KafkaTimeoutError) as sending:
                await producer.send("orders", bytes(300), partition=3)
            for raised, age in (flushing, 4), (sending, 14):
                told = str(raised.value)
                assert f"orders-3: 1 record without an outcome, the oldest queued {age}.0 s" in told
                assert "no acknowledgement of the leader, broker 0 (" in told
                assert raised.value.__cause__ is not None
                assert isinstance(raised.value.__cause__.__cause__, errors.NotEnoughReplicasError)
            cluster.intercept(None)
            await delivery


@bounded(200)
async def test_metadata_that_does_not_come_is_explained() -> None:
    """A topic without metadata fails with the reason why no broker can be reached."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        async with producer_for(cluster, **TIMES) as producer:
            await producer.send("orders", b"connected", partition=3)
            await cluster.stop_broker(0)
            with pytest.raises(errors.KafkaTimeoutError) as raised:
                await producer.send("payments", b"x")
            told = str(raised.value)
            assert "no metadata came within max_block (10 s): no broker can be reached for " in told
            assert "attempts: cannot connect to " in told
            assert isinstance(raised.value.__cause__, errors.KafkaConnectionError)
            assert raised.value.status is DeliveryStatus.NOT_WRITTEN


@bounded(200)
async def test_a_flush_summarises_what_nobody_looks_at() -> None:
    """A caller who looks at nothing but `flush` learns how many records had each outcome."""
    async with EmbeddedCluster(rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        async with producer_for(cluster, **TIMES) as producer:
            for partition in (0, 1, 2, 3, 4, 5):
                producer.send_nowait("orders", b"x", partition=partition)
            counts = await producer.flush()
            assert counts == DeliveryCounts(acked=4, not_written=2, unknown=0)
