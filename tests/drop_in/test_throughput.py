"""The same program over a long link, with aiokafka and with the drop-in.

The embedded broker counts how many batches share a round trip; `make bench` measures seconds.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
import pytest

import aioidem
from aioidem.broker import EmbeddedCluster

RTT = 0.05
RECORDS = 41
pytestmark = pytest.mark.anyio


async def batches(cluster: EmbeddedCluster, client: Any, topic: str, **arguments: Any) -> int:
    """Write `RECORDS` records to one partition, and return how many batches they took.

    A record of 1000 bytes fills a batch, because `max_batch_size` is 1500.
    """
    cluster.create_topic(topic)
    async with client(
        bootstrap_servers=cluster.bootstrap_servers,
        enable_idempotence=True,
        max_batch_size=1500,
        **arguments,
    ) as producer:
        await producer.partitions_for(topic)
        futures = [await producer.send(topic, b"x" * 1000, partition=0) for _ in range(RECORDS)]
        sent = await asyncio.gather(*futures)
    assert [each.offset for each in sent] == list(range(RECORDS))
    return len(cluster.batches(topic))


async def test_over_a_long_link_five_batches_share_a_round_trip(
    cluster: EmbeddedCluster,
) -> None:
    """The drop-in has five batches in flight where aiokafka has one, or makes batches larger."""
    cluster.set_rtt(RTT)
    assert await batches(cluster, aiokafka.AIOKafkaProducer, "theirs") == RECORDS
    assert await batches(cluster, aioidem.AIOKafkaProducer, "ours", late_sealing=False) == RECORDS
    assert (cluster.max_span("theirs"), cluster.max_span("ours")) == (1, 5)
    # With late sealing the records that wait for the first answer become one batch, which may
    # exceed `max_batch_size`. So 41 records take two or three batches.
    assert await batches(cluster, aioidem.AIOKafkaProducer, "larger") <= 3
