"""How users of the drop-in write code, for type checkers only: this file is never run.

`test_wheel.py` has mypy and pyright (both strict) check it against the installed wheel, as a user's
editor does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, assert_type

import aioidem.errors
from aioidem import (
    AIOKafkaProducer,
    ConsumerGroupMetadata,
    IllegalOperation,
    NullProducerMetricsCollector,
)
from aioidem.abc import AbstractTokenProvider
from aioidem.errors import KafkaError, KafkaTimeoutError, for_code
from aioidem.helpers import create_ssl_context
from aioidem.partitioner import DefaultPartitioner
from aioidem.producer import AIOKafkaProducer as FromPackage
from aioidem.producer.message_accumulator import BatchBuilder
from aioidem.producer.producer import AIOKafkaProducer as FromModule
from aioidem.structs import DeliveryStatus, OffsetAndMetadata, RecordMetadata, TopicPartition


class Provider(AbstractTokenProvider):
    """A token provider with aiokafka's interface."""

    async def token(self) -> str:
        """Return the token."""
        return "token"


class Collector(NullProducerMetricsCollector):
    """A collector that handles one of the events."""

    def on_buffer_wait(self, *, topic: str, partition: int, wait_seconds: float) -> None:
        """Print how long a send waited for room."""
        print(topic, partition, wait_seconds)  # noqa: T201 - a sample


def by_length(key: bytes | None, everything: Sequence[int], _available: Sequence[int]) -> int:
    """Choose a partition by the length of the key."""
    return everything[len(key or b"") % len(everything)]


def make() -> AIOKafkaProducer:
    """Make producers with every kind of argument."""
    AIOKafkaProducer()
    AIOKafkaProducer(bootstrap_servers=["a:9092", "b:9092"], acks="all", compression_type="zstd")
    AIOKafkaProducer(acks=1, partitioner=by_length, max_in_flight_requests_per_connection=1)
    AIOKafkaProducer(
        security_protocol="SASL_SSL",
        ssl_context=create_ssl_context(cafile="ca.pem"),
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
        metrics_collector=Collector(),
        delivery_timeout_ms=30_000,
        connections_max_idle_ms=None,
    )
    assert_type(FromPackage(), AIOKafkaProducer)
    assert_type(FromModule(), AIOKafkaProducer)
    return AIOKafkaProducer(
        value_serializer=lambda value: json.dumps(value).encode(),
        partitioner=DefaultPartitioner(),
        enable_idempotence=True,
        linger_ms=5,
    )


def refused() -> None:
    """Pass what a type checker must refuse; an ignore that is not needed is itself an error."""
    AIOKafkaProducer(retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AIOKafkaProducer(compression_type="zip")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AIOKafkaProducer(delivery_timeout_ms="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def produce(value: dict[str, Any]) -> None:
    """Use every call from sending a record to its outcome."""
    async with make() as producer:
        assert_type(producer, AIOKafkaProducer)
        future = await producer.send("t", value, key=b"k", headers=[("h", b"1"), ("none", None)])
        as_asyncio: asyncio.Future[RecordMetadata] = future
        metadata = await as_asyncio
        assert_type(metadata.topic_partition, TopicPartition)
        assert_type(await producer.send_and_wait("t", value, partition=1), RecordMetadata)
        assert_type(await producer.partitions_for("t"), set[int])
        batch = producer.create_batch()
        assert_type(batch, BatchBuilder)
        added = batch.append(timestamp=None, key=None, value=value)
        if added is not None:
            assert_type(added.offset, int)
        sent = await producer.send_batch(batch, "t", partition=0)
        assert_type((await sent).offset, int)
        done, _ = await asyncio.wait([future], timeout=1.0)
        assert_type(len(done), int)
        if future.delivery is not None:
            assert_type(future.delivery.status, DeliveryStatus)
        await producer.flush()


async def handle(producer: AIOKafkaProducer) -> bool:
    """Send, handle the errors, and read what is known of the record."""
    try:
        await producer.send_and_wait("t", b"x")
        async with producer.transaction():
            await producer.send_offsets_to_transaction(
                {TopicPartition("in", 0): OffsetAndMetadata(5, "")}, "group"
            )
            offsets = {TopicPartition("in", each): each for each in range(3)}
            place = ConsumerGroupMetadata("group", 1, "member")
            await producer.send_offsets_to_transaction(offsets, place)
            await producer.send_offsets_to_transaction({TopicPartition("in", 0): (5, "m")}, "group")
    except KafkaTimeoutError as error:
        assert_type(error.status, DeliveryStatus | None)
        return error.status is DeliveryStatus.NOT_WRITTEN
    except IllegalOperation:
        return False
    except aioidem.errors.RecordError:
        return False
    except KafkaError as error:
        return error.retriable or isinstance(error, for_code(7))
    return True
