"""From the engine's batches to a `ProducerMetricsCollector`'s calls.

Invariants: a collector's exception ends here; what is remembered of a batch is forgotten when it is
settled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aioidem._aiokafka.translation import Translation
from aioidem._engine.accumulator import PendingRecord, Settlement
from aioidem._engine.links import Entry
from aioidem.abc import ProducerMetricsCollector
from aioidem.errors import InternalError, KafkaError
from aioidem.structs import DeliveryStatus

__all__ = ["CollectorObserver"]

logger = logging.getLogger("aioidem")


class CollectorObserver:
    """An `aioidem._producer.sender.Observer` that tells a collector."""

    def __init__(self, collector: ProducerMetricsCollector, translation: Translation) -> None:
        self._collector = collector
        self._translation = translation
        # When the batch that begins with this record was sent last.
        self._sent_at: dict[PendingRecord, float] = {}

    def on_dispatched(self, entry: Entry) -> None:
        """See `Observer`."""
        state, batch = entry
        first = batch.records[0]
        if batch.attempt is None:
            return
        self._sent_at[first] = batch.attempt.sent_at
        _call(
            self._collector.on_batch_dispatched,
            topic=state.topic,
            partition=state.partition,
            queue_time_seconds=(
                batch.attempt.sent_at - first.queued_at if batch.attempts == 1 else 0.0
            ),
            batch_size_bytes=len(batch.data),
            record_count=batch.count,
            attempt=batch.attempts,
        )

    def on_settled(self, settlement: Settlement, now: float) -> None:
        """See `Observer`."""
        first = settlement.records[0]
        sent_at = self._sent_at.pop(first, now)
        if settlement.error is None:
            _call(
                self._collector.on_batch_completed,
                topic=settlement.topic,
                partition=settlement.partition,
                send_to_completion_seconds=now - sent_at,
                record_count=len(settlement.records),
                acknowledged=settlement.status is DeliveryStatus.ACKED,
                batch_age_seconds=now - first.queued_at,
            )
            return
        error = settlement.error
        if not isinstance(error, KafkaError):
            error = InternalError(error)
        _call(
            self._collector.on_batch_failed,
            topic=settlement.topic,
            partition=settlement.partition,
            exception=self._translation.error(error),
            record_count=len(settlement.records),
            batch_age_seconds=now - first.queued_at if first.queued_at else 0.0,
        )

    def on_waited(self, topic: str, partition: int | None, seconds: float) -> None:
        """See `Observer`."""
        _call(
            self._collector.on_buffer_wait,
            topic=topic,
            partition=-1 if partition is None else partition,
            wait_seconds=seconds,
        )


def _call(method: Callable[..., None], **facts: object) -> None:
    try:
        method(**facts)
    except Exception:
        logger.exception("a metrics collector raised")
