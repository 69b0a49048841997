"""`metrics()` beside the metrics of Java's producer, on one real broker and with the same load."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator

import pytest

from aioidem import Producer
from aioidem.testing import KafkaCluster
from tests.kafka.tools import bounded

pytestmark = pytest.mark.anyio

RECORDS = 4000
SIZE = 500
PER_REQUEST = 20
"""Records that fit into a batch: both clients then seal the same batches."""

BATCH = 61 + PER_REQUEST * (SIZE + 21 + 4)
ALIKE = {
    "producer-metrics": (
        *("batch-size-avg", "batch-size-max", "batch-split-total", "buffer-available-bytes"),
        *("buffer-exhausted-total", "buffer-total-bytes", "bufferpool-wait-time-ns-total"),
        *("compression-rate-avg", "failed-authentication-total", "outgoing-byte-total"),
        *("produce-throttle-time-avg", "produce-throttle-time-max", "record-error-total"),
        *("record-retry-total", "record-send-total", "record-size-avg", "record-size-max"),
        *("records-per-request-avg", "requests-in-flight", "request-size-max", "request-total"),
        *("response-total", "successful-authentication-total", "txn-prepare-time-ns-total"),
        "waiting-threads",
    ),
    "producer-topic-metrics.load": (
        *("byte-total", "compression-rate", "record-error-total", "record-retry-total"),
        "record-send-total",
    ),
    "producer-node-metrics.node-0": ("outgoing-byte-total", "request-size-max"),
}
"""The metrics that the load determines. The others depend on the time that something takes, on how
many connections a client opens, or on what else it asks brokers."""

_LINE = re.compile(r"^([\w-]+):([\w-]+):\{([^}]*)\} *: (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
async def kafka(
    anyio_backend: object,  # noqa: ARG001 - a cluster lives in one loop
) -> AsyncIterator[KafkaCluster]:
    async with KafkaCluster() as running:
        yield running


async def javas(kafka: KafkaCluster) -> dict[str, dict[str, float]]:
    """Return the metrics of Java's producer after the load, in the shape of `metrics()`."""
    await kafka.create_topic("load", partitions=1)
    printed = await kafka.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", kafka.bootstrap_servers, "--topic", "load", "--print-metrics"),
        *("--num-records", str(RECORDS), "--record-size", str(SIZE), "--throughput", "2000"),
        *("--command-property", f"batch.size={BATCH}", "linger.ms=1000", "client.id=java"),
    )
    found: dict[str, dict[str, float]] = {}
    for group, name, tags, value in _LINE.findall(printed.decode()):
        own = [tag.partition("=")[2] for tag in tags.split(", ") if not tag.startswith("client-id")]
        if group != "app-info":
            found.setdefault(".".join([group, *own]), {})[name] = float(value)
    return found


async def ours(kafka: KafkaCluster) -> dict[str, dict[str, float]]:
    """Return the metrics of aioidem's producer after the same load."""
    async with Producer(
        kafka.bootstrap_servers, batch_size=BATCH, linger=1.0, late_sealing=False, client_id="java"
    ) as producer:
        for _ in range(0, RECORDS, 400):
            for _ in range(400):
                producer.send_nowait("load", b"x" * SIZE)
            await producer.flush()
        return producer.metrics()


@bounded(120)
async def test_the_values_are_javas_where_the_load_determines_them(kafka: KafkaCluster) -> None:
    """Both have every name in Java's groups, and values within 5 % where the load decides them."""
    java = await javas(kafka)
    own = await ours(kafka)

    def names(metrics: dict[str, dict[str, float]]) -> set[str]:
        return {
            f"{group.partition('.')[0]}:{name}"
            for group, values in metrics.items()
            for name in values
            if not group.startswith("aioidem")
        }

    assert names(own) == names(java)
    apart = {}
    for group, each in ALIKE.items():
        for name in each:
            theirs, value = java[group][name], own[group][name]
            if not math.isclose(theirs, value, rel_tol=0.05, abs_tol=0.005):
                apart[f"{group}:{name}"] = (theirs, value)
    assert apart == {}
