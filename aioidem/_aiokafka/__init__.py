"""The drop-in for aiokafka's producer: its names, arguments and futures on aioidem's producer.

A face and nothing else: arguments, results and errors are translated here, and every rule of
sending lives below. What differs from aiokafka on purpose is a table in docs/aiokafka.md, and each
row of it a test.
"""

from __future__ import annotations

from aioidem._aiokafka.batches import BatchBuilder, BatchRecordMetadata
from aioidem._aiokafka.futures import DeliveryFuture, LooseFuture
from aioidem._aiokafka.producer import AIOKafkaProducer, TransactionContext
from aioidem._aiokafka.translation import Translation

__all__ = [
    "AIOKafkaProducer",
    "BatchBuilder",
    "BatchRecordMetadata",
    "DeliveryFuture",
    "LooseFuture",
    "TransactionContext",
    "Translation",
]
