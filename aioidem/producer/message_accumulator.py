"""Another name for `aioidem.aiokafka.batches`: where aiokafka has its class."""

from __future__ import annotations

from aioidem.aiokafka.batches import BatchBuilder

__all__ = ["BatchBuilder"]
