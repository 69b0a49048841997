"""FlushCount: counts, by outcome, the records that one flush waits for."""

from __future__ import annotations

from collections.abc import Mapping

from aioidem.structs import DeliveryCounts, DeliveryStatus

__all__ = ["FlushCount"]


class FlushCount:
    """Counts, by outcome, the records that one flush waits for.

    Args:
        generation: the generation (records queued between two flushes) that the flush closed, see
        `RecordAccumulator.begin_flush`; records of earlier generations are counted too.
    """

    __slots__ = ("_by_status", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._by_status = dict.fromkeys(DeliveryStatus, 0)

    def add(self, generations: Mapping[int, int], status: DeliveryStatus) -> None:
        """Count records that have just got the same outcome, if this flush waits for them.

        Args:
            generations: for each generation (the time between two flushes), how many of these
            records were queued in it.
            status: the outcome.
        """
        self._by_status[status] += sum(
            count for generation, count in generations.items() if generation <= self.generation
        )

    @property
    def counts(self) -> DeliveryCounts:
        """How many records have had each outcome so far."""
        by_status = self._by_status
        return DeliveryCounts(
            by_status[DeliveryStatus.ACKED],
            by_status[DeliveryStatus.NOT_WRITTEN],
            by_status[DeliveryStatus.UNKNOWN],
        )
