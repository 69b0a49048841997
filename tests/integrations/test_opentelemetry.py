"""Metrics through OpenTelemetry's API, collected by its SDK and encoded for a collector."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import Counter
from importlib import import_module
from typing import Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData

from aioidem import Producer, errors
from aioidem._producer.metric_table import GROUPS, MetricKind
from aioidem.broker import EmbeddedCluster
from aioidem.integrations.opentelemetry import ProducerMetrics, instrument_name

pytestmark = pytest.mark.anyio

Points = dict[str, list[tuple[dict[str, str], float]]]

EXPORTED = {
    instrument_name(group.name, metric.name): (group, metric)
    for group in GROUPS
    for metric in group.metrics
}
"""The metric that each instrument exports: of two with one name, the finer one."""

JAVA = """
batch_size_avg batch_size_max batch_split_rate batch_split_total buffer_available_bytes
buffer_exhausted_rate buffer_exhausted_total buffer_total_bytes bufferpool_wait_ratio
compression_rate_avg connection_close_rate connection_close_total connection_count
connection_creation_rate connection_creation_total failed_authentication_rate
failed_authentication_total failed_reauthentication_rate failed_reauthentication_total
incoming_byte_rate incoming_byte_total io_ratio io_time_ns_avg io_wait_ratio io_wait_time_ns_avg
metadata_age network_io_rate network_io_total outgoing_byte_rate outgoing_byte_total
produce_throttle_time_avg produce_throttle_time_max record_error_rate record_error_total
record_queue_time_avg record_queue_time_max record_retry_rate record_retry_total record_send_rate
record_send_total record_size_avg record_size_max records_per_request_avg request_latency_avg
request_latency_max request_rate request_size_avg request_size_max request_total
requests_in_flight response_rate response_total select_rate select_total
successful_authentication_no_reauth_total successful_authentication_rate
successful_authentication_total successful_reauthentication_rate successful_reauthentication_total
waiting_threads byte_rate byte_total compression_rate
"""
"""What OpenTelemetry's instrumentation of Java's clients is known to export of a producer, without
the prefix `kafka.producer.`.
"""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


class Collector:
    """The SDK with a reader that keeps what it has collected."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])
        self.collected: MetricsData | None = None
        self.instruments: dict[str, Any] = {}

    def collect(self) -> Points:
        """Collect in this thread; return the attributes and values, by instrument."""
        self.collected = self._reader.get_metrics_data()
        shown = "{}" if self.collected is None else self.collected.to_json()
        self.instruments = {
            metric["name"]: metric
            for resource in json.loads(shown).get("resource_metrics", ())
            for scope in resource["scope_metrics"]
            for metric in scope["metrics"]
        }
        return {
            name: [(each["attributes"], each["value"]) for each in metric["data"]["data_points"]]
            for name, metric in self.instruments.items()
        }

    async def collect_elsewhere(self) -> Points:
        """Collect in another thread, as an exporter does."""
        return await anyio.to_thread.run_sync(self.collect)


async def test_every_metric_is_exported(caplog: pytest.LogCaptureFixture) -> None:
    """Every metric of the table arrives with its kind, unit and attributes, without a warning.

    Only what is NaN is left out: nothing was authenticated again here.
    """
    collector = Collector()
    async with (
        EmbeddedCluster() as cluster,
        Producer(cluster.bootstrap_servers, client_id="me") as producer,
    ):
        ProducerMetrics(producer, meter_provider=collector.provider)
        await producer.send_many("orders", [b"1", b"2", b"3"])
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send_nowait("orders", bytes(2_000_000))
        points = await collector.collect_elsewhere()
    me = {"client-id": "me"}
    assert points["aioidem.answers"] == [(me, 1)]
    assert points["aioidem.record_acked_total"] == [(me, 3)]
    assert points["kafka.producer.record_send_total"] == [({**me, "topic": "orders"}, 3)]
    of_partition = {**me, "topic": "orders", "partition": "0"}
    assert points["aioidem.partition.window_limit"] == [(of_partition, 5)]
    of_error = {**me, "error": "MessageSizeTooLargeError"}
    assert points["aioidem.error.record_error_total"] == [(of_error, 1)]

    assert {name for name in EXPORTED if "reauthentication_latency" not in name} < set(points)
    for name in set(points) - {"aioidem.answers"}:
        group, metric = EXPORTED[name]
        instrument = collector.instruments[name]
        assert (instrument["unit"], instrument["description"]) == (metric.unit, metric.text)
        assert ("is_monotonic" in instrument["data"]) is (metric.kind is MetricKind.COUNTER)
        assert {"client-id", *group.tags} == set(points[name][0][0])
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_collector_is_sent_every_instrument() -> None:
    """The encoder of the SDK's exporters encodes each instrument as OTLP."""
    otlp = import_module("opentelemetry.exporter.otlp.proto.common.metrics_encoder")
    collector = Collector()
    with ProducerMetrics(Producer("nowhere:1"), meter_provider=collector.provider):
        points = collector.collect()
    [scope] = otlp.encode_metrics(collector.collected).resource_metrics[0].scope_metrics
    assert {metric.name for metric in scope.metrics} == set(points)
    kinds = {metric.name: metric.WhichOneof("data") for metric in scope.metrics}
    assert kinds["aioidem.record_acked_total"] == "sum"
    assert kinds["kafka.producer.buffer_total_bytes"] == "gauge"


def test_dashboards_for_javas_producer_work() -> None:
    """What OpenTelemetry's instrumentation of Java's clients exports has the same name here."""
    assert {f"kafka.producer.{name}" for name in JAVA.split()} < set(EXPORTED)


async def test_a_sum_over_an_instrument_counts_nothing_twice() -> None:
    """What Java has of the producer and of each topic or broker is exported once, the finer."""
    collector = Collector()
    async with (
        EmbeddedCluster(brokers=2) as cluster,
        Producer(cluster.bootstrap_servers) as producer,
    ):
        ProducerMetrics(producer, meter_provider=collector.provider)
        for topic in ("a", "b"):
            await producer.send_many(topic, [b"1", b"2"])
        points = collector.collect()  # on the producer's own loop
        whole = producer.metrics()["producer-metrics"]
    twice = Counter(name for group in GROUPS[:3] for name in {m.name for m in group.metrics})
    totals = [name for name, n in twice.items() if n > 1 and name.endswith("-total")]
    assert len(totals) == 7
    for name in totals:
        summed = sum(value for _, value in points[instrument_name("producer-metrics", name)])
        assert summed == whole[name], name


async def test_a_loop_that_does_not_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A blocked event loop is waited for once; the collection goes on and says so."""
    monkeypatch.setattr("aioidem.integrations._readings.LOOP_SECONDS", 0.2)
    collector = Collector()
    async with (
        EmbeddedCluster() as cluster,
        Producer(cluster.bootstrap_servers, client_id="blocked") as producer,
    ):
        idle = Producer("nowhere:1", client_id="idle")
        ProducerMetrics(producer, idle, meter_provider=collector.provider)
        found: list[Points] = []
        thread = threading.Thread(target=lambda: found.append(collector.collect()))
        thread.start()
        thread.join(10)  # blocks the loop; a wait for each instrument would take longer
        again = await collector.collect_elsewhere()
    answers = [({"client-id": "blocked"}, 0), ({"client-id": "idle"}, 1)]
    assert found[0]["aioidem.answers"] == answers
    assert [attributes for attributes, _ in found[0]["aioidem.record_acked_total"]] == [
        {"client-id": "idle"}
    ]
    assert [value for _, value in again["aioidem.answers"]] == [1, 1]
    assert "opentelemetry" not in {each.name.partition(".")[0] for each in caplog.records}


async def test_what_is_closed_is_exported_no_longer() -> None:
    """After `close` a producer is gone, others stay, and one of the same name can follow."""
    collector = Collector()
    one, other, next_one = (Producer("nowhere:1", client_id=name) for name in ("a", "b", "a"))
    metrics = ProducerMetrics(one, meter_provider=collector.provider)
    ProducerMetrics(other, meter_provider=collector.provider)
    with pytest.raises(errors.ConfigError, match="client_id"):
        ProducerMetrics(next_one, meter_provider=collector.provider)

    def exported() -> list[str]:
        return [each["client-id"] for each, _ in collector.collect().get("aioidem.answers", ())]

    assert exported() == ["a", "b"]
    metrics.close()
    metrics.close()
    assert exported() == ["b"]
    with ProducerMetrics(next_one, meter_provider=collector.provider):
        assert sorted(exported()) == ["a", "b"]
    assert exported() == ["b"]


def test_two_readers_get_the_same() -> None:
    """Each collection of each reader has all instruments."""
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    producer = Producer("nowhere:1")
    ProducerMetrics(producer, meter_provider=MeterProvider(readers))
    counts = []
    for reader in [*readers, *reversed(readers)]:
        data = reader.get_metrics_data()
        assert data is not None
        counts.append(len(data.resource_metrics[0].scope_metrics[0].metrics))
    assert min(counts) == max(counts) > 50


def test_without_an_sdk_nothing_happens() -> None:
    """A provider that collects nothing gets the instruments, and asks for no value."""
    with ProducerMetrics(Producer("nowhere:1"), meter_provider=NoOpMeterProvider()):
        pass


_GLOBAL = """
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from aioidem import Producer
from aioidem.integrations.opentelemetry import ProducerMetrics

reader = InMemoryMetricReader()
ProducerMetrics(Producer("nowhere:1", client_id="before"))
provider = MeterProvider([reader])
set_meter_provider(provider)
ProducerMetrics(Producer("nowhere:1", client_id="after"))
ProducerMetrics(Producer("nowhere:1", client_id="named"), meter_provider=provider)
metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
[answers] = [each for each in metrics if each.name == "aioidem.answers"]
print(sorted(point.attributes["client-id"] for point in answers.data.data_points))
"""


def test_the_global_provider_may_come_later() -> None:
    """Producers are exported that were given before the application configured its provider."""
    done = subprocess.run(
        [sys.executable, "-c", _GLOBAL], capture_output=True, check=True, text=True, timeout=50
    )
    assert done.stdout == "['after', 'before', 'named']\n"
