"""Another name for `aioidem._aiokafka.batches`: where aiokafka has its class."""

from __future__ import annotations

from aioidem._aiokafka.batches import BatchBuilder

__all__ = ["BatchBuilder"]
