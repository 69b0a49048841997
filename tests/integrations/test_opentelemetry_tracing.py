"""Spans of records through OpenTelemetry's API, with its SDK, on asyncio and trio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import anyio
import pytest
import trio.testing
from kio.schema.errors import ErrorCode
from opentelemetry import baggage, context, trace
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from aioidem import DeliveryStatus, Record, errors
from aioidem._broker.intercept import Action, Drop, Refuse, RequestSeen
from aioidem.broker import EmbeddedCluster
from aioidem.integrations.opentelemetry import TracedProducer

pytestmark = pytest.mark.anyio

PRODUCE = 0
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SOON: dict[str, Any] = {"delivery_timeout": 1.0, "request_timeout": 0.1, "retry_backoff": 0.01}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param == "trio":
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
    return "asyncio", {}


class Tracing:
    """The SDK with an exporter that keeps the spans that have ended."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended."""
        return list(self._exporter.get_finished_spans())

    @property
    def span(self) -> ReadableSpan:
        """The only span that has ended."""
        [span] = self.spans
        return span


def told(span: ReadableSpan) -> Mapping[str, Any]:
    """Return a span's attributes."""
    return span.attributes or {}


def traced(cluster: EmbeddedCluster, provider: trace.TracerProvider, **more: Any) -> TracedProducer:
    """Make a producer whose spans come from this provider."""
    return TracedProducer(
        cluster.bootstrap_servers,
        connector=cluster.connector,
        client_id="me",
        tracer_provider=provider,
        **more,
    )


def cluster_in_memory() -> EmbeddedCluster:
    """Return a cluster that is reached without sockets."""
    return EmbeddedCluster(transport="memory")


def stored_headers(cluster: EmbeddedCluster, topic: str = "orders") -> list[list[Any]]:
    """Return the headers of each record in the log of partition 0."""
    return [
        list(record.headers) for batch in cluster.batches(topic, 0) for record in batch.records()
    ]


def context_in(headers: list[Any]) -> trace.SpanContext:
    """Return the context that a consumer gets from headers."""
    carrier = {name: value.decode() for name, value in headers}
    return trace.get_current_span(extract(carrier, context.Context())).get_span_context()


def refuse(code: ErrorCode, times: int = 1_000) -> Callable[[RequestSeen], Action | None]:
    """Return a hook that refuses the next batches."""
    left = iter(range(times))

    def hook(seen: RequestSeen) -> Action | None:
        if seen.api_key == PRODUCE and next(left, None) is not None:
            return Refuse(code)
        return None

    return hook


async def test_a_record_has_a_span_and_carries_its_context() -> None:
    """The span has what the conventions ask for; a consumer reads its context in the headers."""
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        headers = [("mine", b"1")]
        await producer.send("orders", b"before")
        with tracing.provider.get_tracer("test").start_as_current_span("request") as parent:
            await producer.send("orders", b"value", key=b"k-1", headers=headers, partition=0)
        found = stored_headers(cluster)
    assert headers == [("mine", b"1")]
    span = tracing.spans[1]
    assert (span.name, span.kind) == ("send orders", SpanKind.PRODUCER)
    assert span.parent == parent.get_span_context()
    assert span.status.status_code is StatusCode.UNSET
    assert dict(told(span)) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.client.id": "me",
        "messaging.kafka.message.key": "k-1",
        "messaging.kafka.offset": 1,
        "aioidem.outcome": "ACKED",
        "aioidem.retries": 0,
    }
    assert found[1][0] == ("mine", b"1")
    received = context_in(found[1])
    assert span.context is not None
    assert (received.trace_id, received.span_id) == (span.context.trace_id, span.context.span_id)


async def test_a_span_ends_at_the_acknowledgement() -> None:
    """`send_nowait` returns before the end of the span; a binary key and a value are not shown."""
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        delivery = producer.send_nowait("orders", None, key=b"\x00\x01")
        assert tracing.spans == []
        await delivery
    attributes = told(tracing.span)
    assert attributes["messaging.kafka.message.tombstone"] is True
    assert "messaging.kafka.message.key" not in attributes
    assert attributes["messaging.destination.partition.id"] == "0"


async def test_retries_are_counted() -> None:
    """The span of a record whose batch was refused twice tells of two retries."""
    tracing = Tracing()
    async with (
        cluster_in_memory() as cluster,
        traced(cluster, tracing.provider, retry_backoff=0.01) as producer,
    ):
        cluster.intercept(refuse(ErrorCode.not_enough_replicas, 2))
        await producer.send("orders", b"")
    assert told(tracing.span)["aioidem.retries"] == 2


async def test_a_refused_record_ends_its_span_with_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The span has the error; a failure that the caller does not look at is logged all the same."""
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        cluster.intercept(refuse(ErrorCode.topic_authorization_failed))
        producer.send_nowait("orders", b"")
        assert (await producer.flush()).not_written == 1
    span = tracing.span
    attributes = told(span)
    assert attributes["aioidem.outcome"] == "NOT_WRITTEN"
    assert attributes["error.type"] == "TopicAuthorizationFailedError"
    assert span.status.status_code is StatusCode.ERROR
    assert "orders" in (span.status.description or "")
    assert [event.name for event in span.events] == ["exception"]
    lines = [line for line in caplog.records if line.levelno >= logging.WARNING]
    assert any("TopicAuthorizationFailedError" in line.getMessage() for line in lines)


async def test_a_record_that_is_not_queued_ends_its_span() -> None:
    """A call that raises has the error in its span, and an argument of a wrong type no span."""
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send_nowait("orders", bytes(2_000_000))
        with pytest.raises(errors.MessageSizeTooLargeError):
            await producer.send("orders", bytes(2_000_000))
        with pytest.raises(TypeError, match="headers"):
            await producer.send("orders", b"", headers=[("a",)])  # type: ignore[list-item]
    for span in tracing.spans:
        assert told(span)["error.type"] == "MessageSizeTooLargeError"
        assert told(span)["aioidem.outcome"] == "NOT_WRITTEN"
    assert len(tracing.spans) == 2


async def test_a_record_without_an_answer_ends_unknown() -> None:
    """A record that may be in the log has the outcome UNKNOWN in its span."""
    tracing = Tracing()
    async with (
        cluster_in_memory() as cluster,
        traced(cluster, tracing.provider, **SOON) as producer,
    ):
        await producer.send("orders", b"connected")
        cluster.intercept(lambda seen: Drop() if seen.api_key == PRODUCE else None)
        with pytest.raises(errors.KafkaError) as failed:
            await producer.send("orders", b"")
        assert failed.value.status is DeliveryStatus.UNKNOWN
    span = tracing.spans[1]
    assert told(span)["aioidem.outcome"] == "UNKNOWN"
    assert told(span)["error.type"] == type(failed.value).__name__
    assert "messaging.kafka.offset" not in told(span)
    assert span.status.status_code is StatusCode.ERROR


async def test_a_cancelled_caller_leaves_a_span_that_tells_what_became_of_the_record() -> None:
    """A record whose caller has left is sent, and its span ends when it is acknowledged."""
    tracing = Tracing()
    async with (
        EmbeddedCluster(transport="memory", rtt=0.05) as cluster,
        traced(cluster, tracing.provider) as producer,
    ):
        await producer.send("orders", b"first")
        with anyio.move_on_after(0.01) as scope:
            await producer.send("orders", b"second")
        assert scope.cancelled_caught
        assert len(tracing.spans) == 1
        await producer.flush()
    span = tracing.spans[1]
    assert [event.name for event in span.events] == ["the caller stopped waiting"]
    assert told(span)["aioidem.outcome"] == "ACKED"
    assert told(span)["messaging.kafka.offset"] == 1
    assert span.status.status_code is StatusCode.UNSET


async def test_a_caller_that_is_cancelled_first_sends_nothing() -> None:
    """If the record was not queued, the span says so."""
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await producer.send("orders", b"")
    assert told(tracing.span)["aioidem.outcome"] == "NOT_WRITTEN"
    assert told(tracing.span)["error.type"] in {"CancelledError", "Cancelled"}
    assert tracing.span.status.status_code is StatusCode.ERROR


async def test_a_context_that_a_record_brings_is_kept() -> None:
    """A caller's own creation context stays in the headers, and the span has a link to it.

    What is no context is replaced.
    """
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        await producer.send("orders", b"", headers=[("traceparent", GIVEN.encode()), ("a", None)])
        await producer.send(
            "orders", b"", headers=[("traceparent", b"\xff"), ("traceparent", None)]
        )
        kept, replaced = stored_headers(cluster)
    assert kept == [("traceparent", GIVEN.encode()), ("a", None)]
    linked, plain = tracing.spans
    assert [f"{each.context.span_id:x}" for each in linked.links] == [GIVEN[36:52]]
    assert (linked.kind, plain.kind) == (SpanKind.CLIENT, SpanKind.PRODUCER)
    assert [name for name, _ in replaced] == ["traceparent"]
    assert plain.context is not None
    assert context_in(replaced).span_id == plain.context.span_id


async def test_the_configured_propagator_decides_what_is_carried() -> None:
    """Baggage is carried, too: it is a part of the propagator that is configured by default."""
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        token = context.attach(baggage.set_baggage("tenant", "7"))
        try:
            await producer.send("orders", b"")
        finally:
            context.detach(token)
        [headers] = stored_headers(cluster)
    assert dict(headers)["baggage"] == b"tenant=7"


async def test_a_call_with_many_records_is_one_span() -> None:
    """The records of `send_many` carry the context of one span, which counts their outcomes."""
    tracing = Tracing()
    records = [
        Record(b"1"),
        Record(b"2", headers=[("own", b"x")]),
        Record(b"3", headers=[("traceparent", GIVEN.encode())]),
    ]
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        deliveries = await producer.send_many("orders", records, headers=[("all", b"y")])
        assert deliveries.counts.acked == 3
        await producer.send_many("orders", [b"4", b"5"])
        found = stored_headers(cluster)
    assert records[1].headers == [("own", b"x")]
    first, second = tracing.spans
    assert (first.name, first.kind) == ("send orders", SpanKind.PRODUCER)
    attributes = told(first)
    assert attributes["messaging.batch.message_count"] == 3
    assert attributes["aioidem.records.acked"] == 3
    assert attributes["aioidem.records.unknown"] == 0
    assert attributes["aioidem.retries"] == 0
    assert attributes["messaging.destination.partition.id"] == "0"
    assert [f"{each.context.span_id:x}" for each in first.links] == [GIVEN[36:52]]
    assert [[name for name, _ in headers] for headers in found] == [
        ["all", "traceparent"],
        ["own", "traceparent"],
        ["traceparent"],
        ["traceparent"],
        ["traceparent"],
    ]
    assert first.context is not None
    assert second.context is not None
    assert [context_in(each[-1:]).span_id for each in found] == [
        first.context.span_id,
        first.context.span_id,
        int(GIVEN[36:52], 16),
        second.context.span_id,
        second.context.span_id,
    ]


async def test_headers_that_can_be_read_only_once_are_written_and_checked() -> None:
    """They are read for the trace's context first, and again when the record is queued."""

    def ends_in_an_error() -> Iterator[tuple[str, bytes]]:
        yield "id", b"7"
        raise TypeError("broken")

    tracing = Tracing()
    own: Any = iter([("id", b"7")])
    given: Any = iter([("traceparent", GIVEN.encode()), ("id", b"8")])
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        await producer.send_many("orders", [Record(b"1", headers=own), Record(b"2", headers=given)])
        for bad in (iter([("id", 5)]), ends_in_an_error(), 5):
            with pytest.raises(TypeError, match=r"header 'id'|broken|headers must be"):
                await producer.send_many("orders", [Record(b"", headers=bad)])  # type: ignore[arg-type]
        found = stored_headers(cluster)
    assert [[name for name, _ in headers] for headers in found] == [
        ["id", "traceparent"],
        ["traceparent", "id"],
    ]


async def test_the_span_of_a_call_tells_how_many_records_failed() -> None:
    """A record that is too large ends the call; its span has the error and the counts."""
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        with pytest.raises(errors.PartialDeliveryError):
            await producer.send_many("orders", [b"1", bytes(2_000_000)])
        with pytest.raises(TypeError):
            await producer.send_many("orders", [Record(b"", headers=[5])])  # type: ignore[list-item]
    partial, empty = tracing.spans
    attributes = told(partial)
    assert attributes["error.type"] == "PartialDeliveryError"
    assert attributes["messaging.batch.message_count"] == 1
    assert attributes["aioidem.records.acked"] == 1
    assert partial.status.status_code is StatusCode.ERROR
    assert told(empty)["messaging.batch.message_count"] == 0
    assert told(empty)["error.type"] == "TypeError"


async def test_a_call_on_a_closed_producer_says_that_nothing_was_written() -> None:
    """The error has the status that an untraced producer's has, and the span has the error."""
    tracing = Tracing()
    table = import_module("pyarrow").table({"value": [b"1"]})
    async with cluster_in_memory() as cluster:
        async with traced(cluster, tracing.provider) as producer:
            pass
        for call in (producer.send_many("orders", [b"1"]), producer.send_table("orders", table)):
            with pytest.raises(errors.ProducerClosed) as refused:
                await call
            assert refused.value.status is DeliveryStatus.NOT_WRITTEN
    assert [told(span)["error.type"] for span in tracing.spans] == ["ProducerClosed"] * 2


async def test_one_record_in_the_place_of_many_is_refused() -> None:
    """Its key is not written as a value, and the span has the error."""
    tracing = Tracing()
    one: Any = Record(b"v", key=b"k")
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        with pytest.raises(TypeError, match=r"not one Record: write \[record\]"):
            await producer.send_many("orders", one)
        await producer.send("orders", b"")
        assert len(stored_headers(cluster)) == 1
    assert told(tracing.spans[0])["error.type"] == "TypeError"


async def test_the_span_of_a_cancelled_call_waits_for_the_outcomes() -> None:
    """The records that a cancelled `send_many` has queued are sent, and its span counts them."""
    tracing = Tracing()
    async with (
        EmbeddedCluster(transport="memory", rtt=0.05) as cluster,
        traced(cluster, tracing.provider) as producer,
    ):
        await producer.send("orders", b"first")
        with anyio.move_on_after(0.01):
            await producer.send_many("orders", [b"1", b"2"])
        assert len(tracing.spans) == 1
        await producer.flush()
    attributes = told(tracing.spans[1])
    assert attributes["aioidem.records.acked"] == 2
    assert attributes["error.type"] in {"CancelledError", "Cancelled"}


class Broken(SpanProcessor):
    """Raises at the end of each span; a `CancelledError` may come from a cancelled future."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def on_end(self, span: ReadableSpan) -> None:
        del span
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError("broken"), asyncio.CancelledError()])
async def test_a_span_processor_that_raises_is_logged(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The outcomes reach the callers, also that of a record that is refused at once."""
    tracing = Tracing()
    tracing.provider.add_span_processor(Broken(error))
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        await producer.send("orders", b"1")
        await producer.send_nowait("orders", b"2")
        assert (await producer.send_many("orders", [b"3", b"4"])).counts.acked == 2
        with pytest.raises(errors.MessageSizeTooLargeError):
            await producer.send("orders", bytes(2_000_000))
        with pytest.raises(errors.MessageSizeTooLargeError):
            await producer.send_many("orders", [bytes(2_000_000)])
    assert [
        record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR
    ] == ["a span processor raised [observer-raised]"] * 5


async def test_a_span_processor_that_raises_after_the_call_does_not_end_the_producer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The span of a cancelled call ends where the records of all callers are settled."""
    tracing = Tracing()
    tracing.provider.add_span_processor(Broken(RuntimeError("broken")))
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        await producer.partitions_for("orders")
        cluster.hold_high_watermark("orders")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send_many, "orders", [b"1", b"2"])
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        other = producer.send_nowait("orders", b"3")
        await anyio.wait_all_tasks_blocked()
        cluster.release_high_watermark("orders")
        assert (await other).offset == 2
        assert (await producer.send("orders", b"4")).offset == 3
    assert "a span processor raised [observer-raised]" in caplog.messages


async def test_rows_of_a_table_are_traced() -> None:
    """The rows of a table carry the context of one span."""
    pyarrow = import_module("pyarrow")
    tracing = Tracing()
    table = pyarrow.table(
        {"value": [b"1", b"2"], "h": [[("own", b"x")], []]},
        schema=pyarrow.schema(
            [("value", pyarrow.binary()), ("h", pyarrow.map_(pyarrow.string(), pyarrow.binary()))]
        ),
    )
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        await producer.send_table("orders", table, timestamp=7)
        await producer.send_table("orders", table, headers="h")
        names = [[name for name, _ in each] for each in stored_headers(cluster)]
    assert names == [["traceparent"], ["traceparent"], ["own"], []]
    for span in tracing.spans:
        assert told(span)["messaging.batch.message_count"] == 2


async def test_without_an_sdk_nothing_is_added() -> None:
    """With the API alone there is no span and no header, and everything else works."""
    async with cluster_in_memory() as cluster, traced(cluster, NoOpTracerProvider()) as producer:
        await producer.send("orders", b"1")
        await producer.send_nowait("orders", b"2", headers=[("a", b"")])
        await producer.send_many("orders", [b"3"])
        with pytest.raises(errors.MessageSizeTooLargeError):
            await producer.send("orders", bytes(2_000_000))
        assert stored_headers(cluster) == [[], [("a", b"")], []]


async def test_a_record_that_is_not_sampled_carries_that() -> None:
    """A consumer learns from the headers that the trace is not recorded."""
    tracing = Tracing(sampler=ALWAYS_OFF)
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        await producer.send("orders", b"1")
        await producer.send_many("orders", [b"1"])
        found = stored_headers(cluster)
    assert [context_in(each).trace_flags.sampled for each in found] == [False, False]
    assert tracing.spans == []


async def test_an_aborted_record_ends_its_span() -> None:
    """A record of a transaction that is aborted before it was sent is NOT_WRITTEN."""
    tracing = Tracing()
    async with (
        cluster_in_memory() as cluster,
        traced(cluster, tracing.provider, transactional_id="t", linger=10) as producer,
    ):
        await producer.begin_transaction()
        producer.send_nowait("orders", b"1")
        await producer.abort_transaction()
    attributes = told(tracing.span)
    assert attributes["aioidem.outcome"] == "NOT_WRITTEN"
    assert attributes["error.type"] == "TransactionAborted"


async def test_a_collector_is_sent_the_spans() -> None:
    """The encoder of the SDK's exporters encodes a span as OTLP."""
    otlp = import_module("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    tracing = Tracing()
    async with cluster_in_memory() as cluster, traced(cluster, tracing.provider) as producer:
        await producer.send_many("orders", [b"1"])
    [span] = otlp.encode_spans(tracing.spans).resource_spans[0].scope_spans[0].spans
    assert span.name == "send orders"
    assert span.kind == span.SPAN_KIND_PRODUCER
    assert {each.key for each in span.attributes} == set(told(tracing.span))
