"""aioidem: an idempotent Kafka producer for asyncio, uvloop and trio that keeps partitions full.

This module holds the public names and nothing else. Importing it must stay cheap and free of side
effects: no event loop, no socket, and no optional dependency is touched before it is used.
"""

from __future__ import annotations

from aioidem._aiokafka import AIOKafkaProducer
from aioidem._config import ProducerConfig
from aioidem._producer.delivery import Deliveries, Delivery
from aioidem._producer.metrics import ConnectionStatistics, PartitionStatistics, ProducerStatistics
from aioidem._producer.native import Producer
from aioidem.abc import NullProducerMetricsCollector, ProducerMetricsCollector
from aioidem.errors import IllegalOperation
from aioidem.structs import (
    ConsumerGroupMetadata,
    DeliveryCounts,
    DeliveryStatus,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "AIOKafkaProducer",
    "ConnectionStatistics",
    "ConsumerGroupMetadata",
    "Deliveries",
    "Delivery",
    "DeliveryCounts",
    "DeliveryStatus",
    "IllegalOperation",
    "NullProducerMetricsCollector",
    "OffsetAndMetadata",
    "PartitionStatistics",
    "Producer",
    "ProducerConfig",
    "ProducerMetricsCollector",
    "ProducerStatistics",
    "RecordMetadata",
    "TopicPartition",
    "__version__",
]
