"""The drop-in for aiokafka's producer: `aioidem.Producer` behind aiokafka's interface.

This package only translates arguments, results and errors; every rule of sending is in the native
producer. docs/aiokafka.md lists what differs from aiokafka on purpose, with a test for each row.
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
