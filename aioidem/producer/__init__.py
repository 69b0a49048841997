"""The producers: `Producer`, the native one, and by its own name the drop-in for aiokafka's.

A package because aiokafka's is one, and code imports from within it: `aiokafka.producer`,
`aiokafka.producer.producer` and `aiokafka.producer.message_accumulator` stay importable after
s/aiokafka/aioidem/. What they name is defined in `aioidem.aiokafka`, above the native producer, so
it is looked up when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioidem.producer.native import Producer

if TYPE_CHECKING:
    from aioidem.aiokafka import AIOKafkaProducer

__all__ = ["AIOKafkaProducer", "Producer"]


def __getattr__(name: str) -> object:
    if name == "AIOKafkaProducer":
        from aioidem.aiokafka import AIOKafkaProducer

        return AIOKafkaProducer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
