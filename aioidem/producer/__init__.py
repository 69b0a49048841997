"""The producers, under the same module names as in aiokafka; other packages define them.

Code may import from `aiokafka.producer`, `aiokafka.producer.producer` or
`aiokafka.producer.message_accumulator`. These imports still work if `aiokafka` is replaced by
`aioidem` in them.
"""

from __future__ import annotations

from aioidem._aiokafka import AIOKafkaProducer
from aioidem._producer.native import Producer

__all__ = ["AIOKafkaProducer", "Producer"]
