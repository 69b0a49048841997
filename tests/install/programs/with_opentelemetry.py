"""Send a record with OpenTelemetry's API alone: without an SDK nothing is exported."""

from __future__ import annotations

import importlib.util

import anyio

from aioidem import Producer
from aioidem.broker import EmbeddedCluster
from aioidem.integrations.opentelemetry import ProducerMetrics


async def main() -> None:
    """Send, while metrics are offered to nobody."""
    assert importlib.util.find_spec("opentelemetry.sdk") is None
    async with (
        EmbeddedCluster() as cluster,
        Producer(cluster.bootstrap_servers) as producer,
    ):
        with ProducerMetrics(producer):
            await producer.send("orders", b"one")


anyio.run(main)
