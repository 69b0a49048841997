"""aioidem: an idempotent Kafka producer for asyncio, uvloop and trio.

It sends a partition's batches without waiting for the answers to earlier batches (pipelining).

This module only re-exports the public names; docs/api.md lists the names of all public modules.
Importing the module is cheap and has no side effects: it needs no event loop, opens no socket, and
loads no optional dependency. The drop-in for aiokafka's producer (`AIOKafkaProducer`) is loaded
when one of its names is used first, so that programs without it need not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aioidem._build import BuildInfo, __version__, build_info
from aioidem._config import (
    BrokerDedup,
    CompressionType,
    InDoubt,
    OnClusterChange,
    ProducerConfig,
    ProducerOptions,
    SaslMechanism,
    Secret,
    SecurityProtocol,
    TokenProvider,
    WindowDiscovery,
)
from aioidem._network.transport import Connector
from aioidem._producer.arguments import Headers
from aioidem._producer.deliveries import Deliveries, DeliveryRange
from aioidem._producer.delivery import Delivery
from aioidem._producer.native import Producer
from aioidem._producer.observer import Observer, SentBatch, SettledBatch
from aioidem.abc import NullProducerMetricsCollector, ProducerMetricsCollector
from aioidem.errors import IllegalOperation, KafkaError
from aioidem.partitioner import Partitioner
from aioidem.structs import (
    ConsumerGroupMetadata,
    DeliveryCounts,
    DeliveryStatus,
    OffsetAndMetadata,
    Record,
    RecordMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    from aioidem._aiokafka import AIOKafkaProducer, DeliveryFuture
    from aioidem._aiokafka.client import ClusterMetadata, ProducerClient
    from aioidem._aiokafka.options import MoreOptions
    from aioidem._producer.metrics import (
        ConnectionStatistics,
        LatencyStatistics,
        PartitionStatistics,
        ProducerStatistics,
    )

__all__ = [
    "AIOKafkaProducer",
    "BrokerDedup",
    "BuildInfo",
    "ClusterMetadata",
    "CompressionType",
    "ConnectionStatistics",
    "Connector",
    "ConsumerGroupMetadata",
    "Deliveries",
    "Delivery",
    "DeliveryCounts",
    "DeliveryFuture",
    "DeliveryRange",
    "DeliveryStatus",
    "Headers",
    "IllegalOperation",
    "InDoubt",
    "KafkaError",
    "LatencyStatistics",
    "MoreOptions",
    "NullProducerMetricsCollector",
    "Observer",
    "OffsetAndMetadata",
    "OnClusterChange",
    "PartitionStatistics",
    "Partitioner",
    "Producer",
    "ProducerClient",
    "ProducerConfig",
    "ProducerMetricsCollector",
    "ProducerOptions",
    "ProducerStatistics",
    "Record",
    "RecordMetadata",
    "SaslMechanism",
    "Secret",
    "SecurityProtocol",
    "SentBatch",
    "SettledBatch",
    "TokenProvider",
    "TopicPartition",
    "WindowDiscovery",
    "__version__",
    "build_info",
]

_LOADED_ON_USE = {
    "AIOKafkaProducer": "aioidem._aiokafka",
    "ClusterMetadata": "aioidem._aiokafka.client",
    "ConnectionStatistics": "aioidem._producer.metrics",
    "DeliveryFuture": "aioidem._aiokafka",
    "LatencyStatistics": "aioidem._producer.metrics",
    "MoreOptions": "aioidem._aiokafka.options",
    "PartitionStatistics": "aioidem._producer.metrics",
    "ProducerClient": "aioidem._aiokafka.client",
    "ProducerStatistics": "aioidem._producer.metrics",
}
"""For each public name, the module that is imported when the name is used for the first time."""


def __getattr__(name: str) -> Any:
    """Return the object with a public name; import its module on first use (PEP 562)."""
    module = _LOADED_ON_USE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    """Return the names in this module, including those that are imported on first use."""
    return sorted({*globals(), *__all__})
