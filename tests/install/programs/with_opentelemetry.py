"""Send records with OpenTelemetry's API alone: without an SDK nothing is exported or added."""

from __future__ import annotations

import importlib.util

import anyio

from aioidem.broker import EmbeddedCluster
from aioidem.integrations.opentelemetry import ProducerMetrics, TracedProducer


async def main() -> None:
    """Send, while metrics and spans are offered to nobody."""
    assert importlib.util.find_spec("opentelemetry.sdk") is None
    async with (
        EmbeddedCluster() as cluster,
        TracedProducer(cluster.bootstrap_servers) as producer,
    ):
        with ProducerMetrics(producer):
            await producer.send("orders", b"one")
            await producer.send_many("orders", [b"two"])
        headers = [
            header
            for batch in cluster.batches("orders", 0)
            for record in batch.records()
            for header in record.headers
        ]
    assert headers == []


anyio.run(main)
