"""`BatchBuilder` under the name of the module in which aiokafka defines it."""

from __future__ import annotations

from aioidem._aiokafka.batches import BatchBuilder

__all__ = ["BatchBuilder"]
