"""TracedProducer: a `Producer` with a span for each call that sends.

It is a class of its own, so that a producer without tracing pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack

from opentelemetry.trace import TracerProvider

from aioidem._config import ProducerConfig, ProducerOptions
from aioidem._config.secret import without_frames
from aioidem._network.transport import Connector
from aioidem._producer.arguments import Headers, milliseconds
from aioidem._producer.deliveries import Deliveries
from aioidem._producer.delivery import Delivery
from aioidem._producer.native import Producer
from aioidem._producer.observer import Observer
from aioidem.integrations.opentelemetry._spans import SendSpans
from aioidem.structs import Record, RecordMetadata

__all__ = ["TracedProducer"]


class TracedProducer(Producer):
    """A `Producer` whose records carry the context of a trace, with a span for each call.

    `send` and `send_nowait` make a span for the record, `send_many` and `send_table` one for all
    records of the call. The span's context is put into the records' headers by the propagator that
    is configured globally (`traceparent` and `tracestate` by default). Records whose headers have a
    context already keep it, and the span has a link to it; so do the rows of a table whose headers
    come from a column.

    The span ends when the outcome is known, with the partition, the offset, the number of retries
    and the error. If the caller is cancelled before, the span is still that of the record. Without
    an SDK of OpenTelemetry there is no span, and nothing is put into the headers.

    Args:
        bootstrap_servers: See `Producer`.
        connector: See `Producer`.
        config: See `Producer`.
        observer: See `Producer`.
        tracer_provider: Makes the spans; None is the provider that is configured globally, now or
            later.
        options: The options of `Producer`, by name.

    Raises:
        ConfigError: An option is unknown, illegal or contradicts another one.
    """

    @without_frames
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Sequence[tuple[str, int]] = "localhost:9092",
        *,
        connector: Connector | None = None,
        config: ProducerConfig | None = None,
        observer: Observer | None = None,
        tracer_provider: TracerProvider | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(
            bootstrap_servers, connector=connector, config=config, observer=observer, **options
        )
        self._spans = SendSpans(self.config.client_id, tracer_provider)

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is acknowledged; see `Producer.send`."""
        span = self._spans.of_record(topic, value, key, headers, partition)
        with span.queueing():
            delivery = await self._intake.enqueue(
                topic,
                value,
                key=key,
                headers=span.headers,
                partition=partition,
                timestamp_ms=None if timestamp is None else milliseconds(timestamp),
            )
        span.follow(delivery)
        try:
            return await delivery
        except BaseException:
            if not delivery.done():
                span.leave()
            raise

    def send_nowait(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Delivery:
        """Queue one record and return its `Delivery` at once; see `Producer.send_nowait`."""
        span = self._spans.of_record(topic, value, key, headers, partition)
        with span.queueing():
            delivery = super().send_nowait(
                topic,
                value,
                key=key,
                headers=span.headers,
                partition=partition,
                timestamp=timestamp,
            )
        span.follow(delivery)
        return delivery

    async def send_many(
        self,
        topic: str,
        values: Iterable[bytes | None] | Iterable[Record],
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Deliveries:
        """Send many records, and wait for all outcomes; see `Producer.send_many`."""
        span = self._spans.of_call(topic, headers, partition)
        with span.sending(self._intake.context) as deliveries:
            self._check_open()
            pieces = self._intake.pieces(
                topic,
                span.records(values),
                key,
                span.headers,
                partition,
                None if timestamp is None else milliseconds(timestamp),
            )
            return await self._send_pieces(topic, pieces, partition, deliveries)

    async def send_table(
        self,
        topic: str,
        table: object,
        *,
        value: str = "value",
        key: str | bytes | None = None,
        headers: str | Headers = (),
        partition: int | None = None,
        timestamp: str | float | None = None,
    ) -> Deliveries:
        """Send each row of an Arrow table as a record; see `Producer.send_table`."""
        column = headers if isinstance(headers, str) else None
        span = self._spans.of_call(topic, () if isinstance(headers, str) else headers, partition)
        with span.sending(self._intake.context) as deliveries:
            self._check_open()
            if timestamp is not None and not isinstance(timestamp, str):
                timestamp = milliseconds(timestamp)
            pieces = self._intake.table_pieces(
                topic, table, value, key, column or span.headers, partition, timestamp
            )
            return await self._send_pieces(topic, pieces, partition, deliveries)
