"""The spans of calls that send, after OpenTelemetry's conventions for messaging and for Kafka.

A call is one span, with the operation "send". Its context is the creation context of the records,
which is put into their headers. A record that comes with a creation context keeps it, and the span
has a link to that.

A span ends with the outcome, also if the caller has stopped waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from aioidem._build import __version__
from aioidem._engine.record import Outcome
from aioidem._log import LogLine, write_raised
from aioidem._producer.arguments import Headers, check_records, checked_headers, checked_payload
from aioidem._producer.deliveries import BulkDeliveries
from aioidem._producer.delivery import Delivery, DeliveryContext
from aioidem._producer.queued import QueuedDelivery
from aioidem.structs import DeliveryStatus, Record

__all__ = ["CallSpan", "RecordSpan", "SendSpans", "TracedDeliveries"]

_PARTITION: Final = "messaging.destination.partition.id"
_OUTCOME: Final = "aioidem.outcome"


class SendSpans:
    """Begins the spans of one producer's calls.

    Args:
        client_id: The producer's `client_id`.
        provider: Makes the spans; None is the provider that is configured globally.
    """

    def __init__(self, client_id: str, provider: TracerProvider | None) -> None:
        self._tracer = get_tracer("aioidem", __version__, provider)
        self._common: dict[str, AttributeValue] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.client.id": client_id,
        }

    def of_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
    ) -> RecordSpan:
        """Begin the span of a call that sends one record.

        Raises:
            TypeError: The key or a header has the wrong type.
        """
        headers = checked_headers(headers)
        given = _creation_context(headers)
        span = self._begin(topic, partition, given)
        if value is None:
            span.set_attribute("messaging.kafka.message.tombstone", True)
        text = _text(checked_payload("key", key))
        if text is not None:
            span.set_attribute("messaging.kafka.message.key", text)
        return RecordSpan(span, _with(headers, _injected(span)) if given is None else headers)

    def of_call(self, topic: str, headers: Headers, partition: int | None) -> CallSpan:
        """Begin the span of a call that sends several records.

        Args:
            topic: The topic's name.
            headers: The headers of the records that have none of their own.
            partition: The partition, if the call names one.

        Raises:
            TypeError: A header has the wrong type.
        """
        headers = checked_headers(headers)
        given = _creation_context(headers)
        span = self._begin(topic, partition, given)
        injected = _injected(span)
        return CallSpan(span, injected, _with(headers, injected) if given is None else headers)

    def _begin(self, topic: str, partition: int | None, given: SpanContext | None) -> Span:
        attributes = {**self._common, "messaging.destination.name": topic}
        if partition is not None:
            attributes[_PARTITION] = str(partition)
        return self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER if given is None else SpanKind.CLIENT,
            attributes=attributes,
            links=None if given is None else [Link(given)],
        )


class RecordSpan:
    """The span of a call that sends one record.

    Attributes:
        headers: The record's headers, with the creation context.
    """

    def __init__(self, span: Span, headers: Headers) -> None:
        self._span = span
        self.headers = headers

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """Return a context in which the record is queued; if that raises, the span ends."""
        try:
            yield
        except BaseException as error:
            with _raising_is_logged():
                self._span.set_attribute(_OUTCOME, DeliveryStatus.NOT_WRITTEN.name)
                _fail(self._span, error)
                self._span.end()
            raise

    def follow(self, delivery: Delivery) -> None:
        """End the span when the record, which was just queued, has its outcome."""
        if self._span.is_recording() and isinstance(delivery, QueuedDelivery):
            delivery.report(self._end)

    def leave(self) -> None:
        """Note that the caller was cancelled, and does not wait for the outcome any more."""
        self._span.add_event("the caller stopped waiting")

    def _end(self, outcome: Outcome, place: int) -> None:
        with _raising_is_logged():
            if outcome.base_offset >= 0:
                self._span.set_attribute("messaging.kafka.offset", outcome.base_offset + place)
            self._span.set_attribute(_OUTCOME, outcome.status.name)
            _describe(self._span, [outcome])
            if outcome.error is not None:
                _fail(self._span, outcome.error)
            self._span.end()


class CallSpan:
    """The span of a call that sends several records.

    Attributes:
        headers: The headers of the records that have none of their own, with the creation context.
    """

    def __init__(self, span: Span, injected: Headers, headers: Headers) -> None:
        self._span = span
        self._injected = injected
        self.headers = headers

    def records(self, values: Iterable[Any]) -> Iterator[Any]:
        """Return the call's records, with the context in the headers that are a record's own.

        Raises:
            TypeError: The value is one record.
        """
        check_records(values)
        return (
            self._traced(each) if isinstance(each, Record) and each.headers else each
            for each in values
        )

    def _traced(self, record: Record) -> Record:
        own: object = record.headers
        if not isinstance(own, Iterable):
            return record  # it is refused when it is queued
        record = record._replace(headers=tuple(own))  # an iterator can be read only once
        try:
            headers = checked_headers(record.headers)
        except TypeError:
            return record  # it is refused when it is queued, too
        given = _creation_context(headers)
        if given is None:
            return record._replace(headers=_with(headers, self._injected))
        self._span.add_link(given)
        return record

    @contextmanager
    def sending(self, context: DeliveryContext) -> Iterator[TracedDeliveries]:
        """Return a context for the call, which yields what is to receive the outcomes.

        The span ends once the call is over and every record that it has queued has its outcome.
        """
        deliveries = TracedDeliveries(context, self._span)
        try:
            yield deliveries
        except BaseException as error:
            with _raising_is_logged():
                _fail(self._span, error)
            raise
        finally:
            deliveries.call_over()


class TracedDeliveries(BulkDeliveries):
    """The outcomes of a traced call; the last one ends the call's span.

    Args:
        context: What all deliveries of the producer have in common.
        span: The span.
    """

    __slots__ = ("_call_over", "_span")

    def __init__(self, context: DeliveryContext, span: Span) -> None:
        super().__init__(context)
        self._span = span
        self._call_over = False

    def settle(self, positions: Sequence[int], outcome: Outcome, place: int) -> None:
        """Set the outcome of some records (see `BulkDeliveries.settle`)."""
        super().settle(positions, outcome, place)
        if self._call_over and not self._pending:
            self._end_span()

    def call_over(self) -> None:
        """Note that no more records are queued: the span ends once all have their outcome."""
        self._call_over = True
        if not self._pending:
            self._end_span()

    def _end_span(self) -> None:
        with _raising_is_logged():
            span, counts = self._span, self.counts
            span.set_attribute("messaging.batch.message_count", len(self))
            for outcome, count in counts._asdict().items():
                span.set_attribute(f"aioidem.records.{outcome}", count)
            _describe(span, [run.outcome for run in self._runs])
            span.end()


@contextmanager
def _raising_is_logged() -> Iterator[None]:
    """Return a context for the end of a span, in which an exception is logged.

    The program's span processors run when a span ends. What they raise would replace the outcome
    that the caller is to get, or end the producer, whose loop settles the records.
    """
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - it is logged
        write_raised(LogLine.OBSERVER_RAISED, "a span processor raised", error)


def _describe(span: Span, outcomes: Sequence[Outcome]) -> None:
    """Note what all outcomes have in common: the partition, and the most retries."""
    partitions = {outcome.partition for outcome in outcomes}
    if len(partitions) == 1 and min(partitions) >= 0:
        span.set_attribute(_PARTITION, str(min(partitions)))
    attempts = max((outcome.attempts for outcome in outcomes), default=0)
    span.set_attribute("aioidem.retries", max(0, attempts - 1))


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


class _HeadersGetter(Getter[Headers]):
    """Reads headers for the propagator."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """Return the values of a header that are text; None if there are none."""
        return [
            text for name, value in carrier if name == key and (text := _text(value)) is not None
        ] or None

    def keys(self, carrier: Headers) -> list[str]:
        """Return the names of all headers."""
        return [name for name, _ in carrier]


_getter = _HeadersGetter()


def _creation_context(headers: Headers) -> SpanContext | None:
    """Return the creation context that the caller has put into headers; None if there is none."""
    if not headers:
        return None
    found = get_current_span(extract(headers, Context(), _getter)).get_span_context()
    return found if found.is_valid else None


def _injected(span: Span) -> Headers:
    """Return the headers that carry a span's context; none without an SDK and without a parent."""
    carrier: dict[str, str] = {}
    inject(carrier, set_span_in_context(span))
    return tuple((name, text.encode()) for name, text in carrier.items())


def _with(headers: Headers, injected: Headers) -> Headers:
    """Return headers with others in them, which replace those of the same name."""
    replaced = {name for name, _ in injected}
    return (*(each for each in headers if each[0] not in replaced), *injected)


def _text(data: bytes | None) -> str | None:
    """Return bytes as text; None if they are none that a person can read."""
    try:
        text = None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
    return text if text is not None and text.isprintable() else None
