"""Send a record, and export what it moved in Prometheus' format."""

from __future__ import annotations

import anyio
from prometheus_client import CollectorRegistry, generate_latest

from aioidem import Producer
from aioidem.broker import EmbeddedCluster
from aioidem.integrations.prometheus import ProducerCollector


async def main() -> None:
    """Send, and look for the record in the exported text."""
    registry = CollectorRegistry()
    async with (
        EmbeddedCluster() as cluster,
        Producer(cluster.bootstrap_servers, client_id="me") as producer,
    ):
        ProducerCollector(producer, registry=registry)
        await producer.send("orders", b"one")
        text = (await anyio.to_thread.run_sync(generate_latest, registry)).decode()
    assert 'kafka_producer_producer_metrics_record_send_total{client_id="me"} 1.0' in text


anyio.run(main)
