"""FlushCount: counts, by outcome, the records that one flush waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioidem.structs import DeliveryCounts, DeliveryStatus

__all__ = ["FlushCount"]

_NONE: Final[Mapping[DeliveryStatus, int]] = {}


class FlushCount:
    """Counts, by outcome, the records that one flush waits for.

    Args:
        generation: the generation (records queued between two flushes) that the flush closed, see
        `RecordAccumulator.begin_flush`; records of earlier generations are counted too.
        untold: how many records had an outcome when the flush began that their callers had not been
        told; they are counted, because for their callers they had none.
    """

    __slots__ = ("_by_status", "generation")

    def __init__(self, generation: int, untold: Mapping[DeliveryStatus, int] = _NONE) -> None:
        self.generation = generation
        self._by_status = dict.fromkeys(DeliveryStatus, 0) | dict(untold)

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
