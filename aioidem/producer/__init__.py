"""aiokafka's names: what is here is defined elsewhere.

A package because aiokafka's is one, and code imports from within it: `aiokafka.producer`,
`aiokafka.producer.producer` and `aiokafka.producer.message_accumulator` stay importable after
s/aiokafka/aioidem/.
"""

from __future__ import annotations

from aioidem._aiokafka import AIOKafkaProducer
from aioidem._producer.native import Producer

__all__ = ["AIOKafkaProducer", "Producer"]
