"""`AIOKafkaProducer` under the name of the module in which aiokafka defines it."""

from __future__ import annotations

from aioidem._aiokafka.options import OMITTED as _missing  # noqa: N811 - aiokafka's name
from aioidem._aiokafka.producer import AIOKafkaProducer, TransactionContext

__all__ = ["AIOKafkaProducer", "TransactionContext", "_missing"]
