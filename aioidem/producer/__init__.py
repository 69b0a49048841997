"""The producers: `Producer`, the native one, and by its own name the drop-in for aiokafka's.

A package because aiokafka's is one, and code imports from within it: `aiokafka.producer`,
`aiokafka.producer.producer` and `aiokafka.producer.message_accumulator` stay importable after
s/aiokafka/aioidem/. What they name is defined in `aioidem.aiokafka`.
"""

from __future__ import annotations

from aioidem.producer.native import Producer

__all__ = ["Producer"]
