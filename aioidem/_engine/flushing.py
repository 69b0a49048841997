"""FlushCount: what became of the records that one flush waits for."""

from __future__ import annotations

from aioidem._engine.record import Settlement
from aioidem.structs import DeliveryCounts, DeliveryStatus

__all__ = ["FlushCount"]


class FlushCount:
    """Counts the outcomes of records up to a generation, from now on.

    Args:
        generation: see `ProducerCore.begin_flush`.
    """

    __slots__ = ("_by_status", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._by_status = dict.fromkeys(DeliveryStatus, 0)

    def add(self, settlement: Settlement) -> None:
        """Count the records in that this flush waits for."""
        self._by_status[settlement.status] += sum(
            record.generation <= self.generation for record in settlement.records
        )

    @property
    def counts(self) -> DeliveryCounts:
        """What there is so far."""
        by_status = self._by_status
        return DeliveryCounts(
            by_status[DeliveryStatus.ACKED],
            by_status[DeliveryStatus.NOT_WRITTEN],
            by_status[DeliveryStatus.UNKNOWN],
        )
