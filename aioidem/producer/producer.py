"""Another name for `aioidem.aiokafka.producer`: where aiokafka has its class."""

from __future__ import annotations

from aioidem.aiokafka.options import OMITTED as _missing  # noqa: N811 - aiokafka's name
from aioidem.aiokafka.producer import AIOKafkaProducer, TransactionContext

__all__ = ["AIOKafkaProducer", "TransactionContext", "_missing"]
