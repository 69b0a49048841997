"""What the change of the import is worth over a long link: the same code, the same batches."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiokafka
import pytest

import aioidem
from aioidem.broker import EmbeddedCluster

RTT = 0.2
RECORDS = 41
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def seconds(cluster: EmbeddedCluster, client: Any, topic: str, **arguments: Any) -> float:
    """For so many records of one partition, of which two do not fit into a batch."""
    cluster.create_topic(topic)
    async with client(
        bootstrap_servers=cluster.bootstrap_servers,
        enable_idempotence=True,
        max_batch_size=1500,
        **arguments,
    ) as producer:
        await producer.partitions_for(topic)
        began = time.perf_counter()
        futures = [await producer.send(topic, b"x" * 1000, partition=0) for _ in range(RECORDS)]
        sent = await asyncio.gather(*futures)
        took = time.perf_counter() - began
    assert [each.offset for each in sent] == list(range(RECORDS))
    return took


async def test_over_a_long_link_the_same_code_is_five_times_faster(
    cluster: EmbeddedCluster,
) -> None:
    """One batch a round trip becomes five, after the first alone: 41 of them become 9."""
    cluster.set_rtt(RTT)
    theirs = await seconds(cluster, aiokafka.AIOKafkaProducer, "theirs")
    ours = await seconds(cluster, aioidem.AIOKafkaProducer, "ours", late_sealing=False)
    larger = await seconds(cluster, aioidem.AIOKafkaProducer, "larger")
    print(  # noqa: T201 - pytest -s shows it
        f"aiokafka {theirs:.2f} s, aioidem {ours:.2f} s: {theirs / ours:.1f} times faster; "
        f"with batches that outgrow their size {larger:.2f} s: {theirs / larger:.1f} times"
    )
    assert (cluster.max_span("theirs"), cluster.max_span("ours")) == (1, 5)
    assert theirs / ours > 3  # 41 / 9 = 4.6, less what a busy machine takes
    assert theirs / larger > 5
