"""Consumers of other projects subscribe to the embedded cluster: they join, rebalance and resume.

Each client goes through the same life: a first member reads everything and commits, a second one
joins and takes over part of the partitions, leaves, and the first has all of them again; a new
member goes on where the group committed.
"""

from __future__ import annotations

import aiokafka
import anyio
import pytest

from aioidem import Producer
from aioidem.broker import EmbeddedCluster

pytestmark = pytest.mark.anyio

TOPIC = "readings"
GROUP = "readers"
PARTITIONS = 4
BOUND = 30.0


@pytest.fixture
def anyio_backend() -> str:
    """aiokafka knows no trio."""
    return "asyncio"


async def produce(cluster: EmbeddedCluster, values: range) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        for value in values:
            await producer.send(TOPIC, b"%d" % value, partition=value % PARTITIONS)


def aiokafka_member(servers: str) -> aiokafka.AIOKafkaConsumer:
    return aiokafka.AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=servers,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        metadata_max_age_ms=1000,
    )


async def read(consumer: aiokafka.AIOKafkaConsumer, count: int) -> set[int]:
    return {int((await consumer.getone()).value or b"") for _ in range(count)}


async def owns(consumer: aiokafka.AIOKafkaConsumer, count: int) -> None:
    while len(consumer.assignment()) != count:  # noqa: ASYNC110 - aiokafka tells nobody
        await anyio.sleep(0.02)


async def test_aiokafka_subscribes_rebalances_commits_and_resumes() -> None:
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2) as cluster:
            cluster.create_topic(TOPIC, partitions=PARTITIONS)
            await produce(cluster, range(20))
            one = aiokafka_member(cluster.bootstrap_servers)
            async with one:
                assert await read(one, 20) == set(range(20))
                await one.commit()
                async with aiokafka_member(cluster.bootstrap_servers) as two:
                    await owns(two, PARTITIONS // 2)
                    await owns(one, PARTITIONS // 2)
                    assert not one.assignment() & two.assignment()
                await owns(one, PARTITIONS)
                await produce(cluster, range(20, 28))
                assert await read(one, 8) == set(range(20, 28))
                await one.commit()
            await produce(cluster, range(28, 32))
            async with aiokafka_member(cluster.bootstrap_servers) as three:
                assert await read(three, 4) == set(range(28, 32))
