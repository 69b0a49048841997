"""Use the public names as users do, for type checkers only: this file is never run.

mypy and pyright (strict) check it with the rest of the source. If a name loses its type, or a
checker no longer accepts an option, `make check` fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

import aioidem
from aioidem import errors
from aioidem._config import ProducerConfig, ProducerOptions
from aioidem.partitioner import DefaultPartitioner, Partitioner, murmur2
from aioidem.structs import DeliveryStatus, RecordMetadata, TopicPartition


def first_partition(
    _key: bytes | None, all_partitions: Sequence[int], _available: Sequence[int]
) -> int:
    """Choose the first partition: any function with these positional types is a partitioner."""
    return all_partitions[0]


def configure() -> ProducerConfig:
    """Build configurations from each form of address, with options one by one or together."""
    ProducerConfig.build([("broker-1", 9092), ("broker-2", 9092)], acks="all", linger=0.005)
    ProducerConfig.build(["broker-1:9092"], partitioner=first_partition, connections_max_idle=None)
    options: ProducerOptions = {"compression_type": "zstd", "batch_size": 1 << 20}
    ProducerConfig.from_properties({"bootstrap.servers": "broker:9092", "linger.ms": "5"})
    config = ProducerConfig.build("broker:9092,[::1]:9092", **options)
    assert_type(config.bootstrap_servers, tuple[tuple[str, int], ...])
    assert_type(config.linger, float)
    assert_type(config.transactional_id, str | None)
    return config


def refused() -> None:
    """Make calls that a checker must reject: it reports an ignore comment that has no effect."""
    ProducerConfig.build("b", linger_ms=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ProducerConfig.build("b", compression_type="zip")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ProducerConfig.build("b", max_block="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def partition() -> int:
    """Call a partitioner directly."""
    partitioner: Partitioner = DefaultPartitioner()
    assert_type(murmur2(b"key"), int)
    return partitioner(b"key", [0, 1], [0])


async def produce() -> None:
    """Send records in each way, and use their outcomes."""
    async with aioidem.Producer("broker:9092", linger=0.005, acks="all") as producer:
        metadata = await producer.send("t", b"v", key=b"k", headers=[("h", b"1"), ("none", None)])
        assert_type(metadata, RecordMetadata)
        delivery = producer.send_nowait("t", None, partition=0, timestamp=1.5)
        assert_type(delivery.status, DeliveryStatus)
        assert_type(await delivery, RecordMetadata)
        try:
            many = await producer.send_many("t", [b"1", b"2"])
            assert_type([one.status for one in many], list[DeliveryStatus])
        except errors.PartialDeliveryError as error:
            assert_type([one.status for one in error.deliveries], list[DeliveryStatus])
        await producer.flush(timeout=5)
        assert_type(await producer.partitions_for("t"), set[int])
        assert_type(producer.statistics(), aioidem.ProducerStatistics)
        await producer.close(timeout=5)


def outcome(error: errors.KafkaError, metadata: RecordMetadata) -> DeliveryStatus | None:
    """Return all that is known of a record, from its error or its metadata."""
    if isinstance(error, errors.BrokerResponseError):
        assert_type(error.errno, int)
        assert_type(error.message, str)
    if isinstance(error, errors.NotLeaderForPartitionError | errors.DeliveryTimeoutError):
        return error.status
    assert_type(errors.error_for_code(6), type[errors.BrokerResponseError])
    assert_type(error.retriable, bool)
    assert_type(metadata.topic_partition, TopicPartition)
    assert_type(metadata.has_offset, bool)
    return error.status
