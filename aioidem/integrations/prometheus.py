"""Prometheus: export a producer's metrics through prometheus_client (`aioidem[prometheus]`).

    from prometheus_client import start_http_server
    from aioidem.integrations.prometheus import ProducerCollector

    collector = ProducerCollector(producer)  # in the default registry
    start_http_server(9100)

The names of Java's metrics are those that Prometheus' JMX exporter gives them, so that dashboards
for Java's producer work: `kafka_producer_producer_metrics_record_send_total{client_id="..."}`.
aioidem's own begin with `aioidem_`. `docs/metrics.md` says what each metric is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aioidem._aiokafka.producer import AIOKafkaProducer
from aioidem._producer.metric_table import GROUPS, Group, Metric, MetricKind
from aioidem._producer.native import Producer
from aioidem.integrations import _readings
from aioidem.integrations._extras import missing_library

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise missing_library(error, "prometheus") from error

__all__ = ["ProducerCollector", "metric_name"]


def metric_name(group: str, name: str) -> str:
    """Return the name that Prometheus knows a metric by.

    Args:
        group: The group in `Producer.metrics()`, without a broker's, topic's or partition's name.
        name: The metric's name in that group.
    """
    if group.startswith("aioidem-"):
        prefix = group.removesuffix("metrics").removesuffix("-")
    else:
        prefix = f"kafka-producer-{group}"
    return f"{prefix}-{name}".replace("-", "_")


class ProducerCollector(Collector):
    """Collects the metrics of producers whenever Prometheus asks for them.

    It may be asked in any thread: the numbers are read on each producer's own event loop. If a loop
    does not answer within five seconds, the metrics of its producer are left out, and
    `aioidem_answers{client_id="..."}` is 0 instead of 1.

    Args:
        producers: The producers, of either API, each with a `client_id` of its own: it is a label.
        registry: Where to register the collector; None registers it nowhere.

    Raises:
        ConfigError: Two producers have the same `client_id`.
        ValueError: The registry has a collector of the same metrics: use one collector.
    """

    def __init__(
        self, *producers: Producer | AIOKafkaProducer, registry: CollectorRegistry | None = REGISTRY
    ) -> None:
        _readings.check_client_ids(producers)
        self._producers = producers
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[Family]:
        """Yield the metrics without values, so that a registry finds two of the same name."""
        for group in GROUPS:
            for metric in group.metrics:
                yield _family(group, metric)

    def collect(self) -> Iterator[Family]:
        """Read all metrics of all producers."""
        answers = GaugeMetricFamily(
            "aioidem_answers", "whether the producer's event loop answered", labels=["client_id"]
        )
        families = {
            (group.name, metric.name): _family(group, metric)
            for group in GROUPS
            for metric in group.metrics
        }
        for client_id, readings in _readings.read(self._producers, _readings.LOOP_SECONDS):
            answers.add_metric([client_id], readings is not None)
            for group, tags, metric, value in readings or ():
                families[group.name, metric.name].add_metric([client_id, *tags], value)
        yield answers
        for family in families.values():
            if family.samples:
                yield family


def _family(group: Group, metric: Metric[object]) -> CounterMetricFamily | GaugeMetricFamily:
    name = metric_name(group.name, metric.name)
    labels = ["client_id", *(tag.replace("-", "_") for tag in group.tags)]
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    return kind(name, metric.text, labels=labels)
