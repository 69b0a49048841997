"""CollectorObserver: passes facts about batches to the user's `ProducerMetricsCollector`.

`ProducerMetricsCollector` is aiokafka's interface for metrics. Invariant: an exception that the
user's collector raises is logged and does not reach the producer.
"""

from __future__ import annotations

from collections.abc import Callable

from aioidem._aiokafka.translation import Translation
from aioidem._log import LogLine, write_raised
from aioidem._producer.observer import SentBatch, SettledBatch
from aioidem.abc import ProducerMetricsCollector
from aioidem.errors import ConfigError
from aioidem.structs import DeliveryStatus

__all__ = ["CollectorObserver", "check_collector"]


def check_collector(collector: object) -> None:
    """Check that a metrics collector has every method of `ProducerMetricsCollector`, or is None.

    Raises:
        ConfigError: A method is missing, or the collector is a class.
    """
    if collector is None:
        return
    if isinstance(collector, type):
        raise ConfigError(f"metrics_collector={collector!r}: expected an object, not its class")
    methods = sorted(ProducerMetricsCollector.__abstractmethods__)
    missing = [name for name in methods if not callable(getattr(collector, name, None))]
    if missing:
        raise ConfigError(
            f"metrics_collector={collector!r}: expected an aioidem.abc.ProducerMetricsCollector or"
            f" None; it has no method {' and no '.join(missing)}"
        )


class CollectorObserver:
    """An `Observer` of `aioidem.Producer` that calls the user's metrics collector.

    Args:
        collector: The user's collector.
        translation: Translates the errors that the collector receives.
    """

    def __init__(self, collector: ProducerMetricsCollector, translation: Translation) -> None:
        self._collector = collector
        self._translation = translation

    def on_batch_sent(self, batch: SentBatch, /) -> None:
        """Report a batch that was sent.

        A batch waits in the queue only before it is first sent, so the queue time of a retry is 0.
        """
        _call(
            self._collector.on_batch_dispatched,
            topic=batch.topic,
            partition=batch.partition,
            queue_time_seconds=batch.sent_at - batch.queued_at if batch.attempt == 1 else 0.0,
            batch_size_bytes=batch.size,
            record_count=batch.records,
            attempt=batch.attempt,
        )

    def on_batch_settled(self, batch: SettledBatch, /) -> None:
        """Report a batch whose outcome is known: completed (with acks=0: sent), or failed."""
        if batch.error is None:
            sent_at = batch.settled_at if batch.sent_at is None else batch.sent_at
            _call(
                self._collector.on_batch_completed,
                topic=batch.topic,
                partition=batch.partition,
                send_to_completion_seconds=batch.settled_at - sent_at,
                record_count=batch.records,
                acknowledged=batch.status is DeliveryStatus.ACKED,
                batch_age_seconds=batch.settled_at - batch.queued_at,
            )
            return
        _call(
            self._collector.on_batch_failed,
            topic=batch.topic,
            partition=batch.partition,
            exception=self._translation.error(batch.error),
            record_count=batch.records,
            batch_age_seconds=batch.settled_at - batch.queued_at if batch.queued_at else 0.0,
        )

    def on_waited(self, topic: str, partition: int | None, seconds: float, /) -> None:
        """Report a call that waited for room in the buffer, with partition -1 if it named none."""
        _call(
            self._collector.on_buffer_wait,
            topic=topic,
            partition=-1 if partition is None else partition,
            wait_seconds=seconds,
        )


def _call(method: Callable[..., None], **facts: object) -> None:
    try:
        method(**facts)
    except BaseException as error:  # noqa: BLE001 - it is logged
        write_raised(LogLine.OBSERVER_RAISED, "a metrics collector raised", error)
