"""`AIOKafkaProducer.metrics()`: those of `Producer`, in the shape that kafka-python has."""

from __future__ import annotations

import pytest

from aioidem import AIOKafkaProducer
from aioidem.broker import EmbeddedCluster

pytestmark = pytest.mark.anyio


async def test_metrics_have_kafka_pythons_shape(cluster: EmbeddedCluster) -> None:
    """Groups are named as in kafka-python, and can be read before `start` and after `stop`."""
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    assert producer.metrics()["producer-metrics"]["record-send-total"] == 0
    async with producer:
        await producer.send_and_wait("orders", b"x")
        during = producer.metrics()
    assert during["producer-metrics"]["record-send-total"] == 1
    assert during["producer-topic-metrics.orders"]["record-send-total"] == 1
    assert producer.metrics()["producer-metrics"]["record-send-total"] == 1
