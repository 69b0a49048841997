"""The producers under the module names that aiokafka has; they are defined elsewhere.

aiokafka's `producer` is a package, and code imports from its modules: `aiokafka.producer`,
`aiokafka.producer.producer` and `aiokafka.producer.message_accumulator` stay importable
after aiokafka is replaced by aioidem in the import.
"""

from __future__ import annotations

from aioidem._aiokafka import AIOKafkaProducer
from aioidem._producer.native import Producer

__all__ = ["AIOKafkaProducer", "Producer"]
