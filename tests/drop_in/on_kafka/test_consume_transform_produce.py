"""examples/consume_transform_produce.py on real Kafka, in a group whose members come and go."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import aiokafka.errors
import pytest

from aioidem import AIOKafkaProducer
from aioidem.testing import KafkaCluster
from tests.drop_in.suite import World
from tests.drop_in.suite_transactions import committed
from tests.drop_in.test_consume_transform_produce import loaded
from tests.kafka.tools import STOCK, bounded

NUMBERS, PARTITIONS = 3000, 3
WANTED = Counter(number**2 for number in range(NUMBERS))


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:.*AIOKafkaConnection:pytest.PytestUnraisableExceptionWarning")
@bounded(150)
async def test_members_of_a_group_copy_each_record_once() -> None:
    """The members of a group copy each record once although each is killed again and again.

    When a member starts or ends, the group assigns the partitions to its members anew.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    rng = random.Random(seed)
    example = loaded()
    async with KafkaCluster(STOCK[0]) as cluster:
        servers = cluster.bootstrap_servers
        for topic in ("numbers", "squares"):
            await cluster.create_topic(topic, partitions=PARTITIONS)

        async def copied() -> Counter[int]:
            world = World(None, servers, "squares")
            parts = [await committed(world, each) for each in range(PARTITIONS)]
            return Counter(int(value) for part in parts for value in part)

        async def member(number: int) -> None:
            """Run one member that is killed and started again, until every record is copied."""
            while not done.is_set():
                running = asyncio.ensure_future(
                    example.run(servers, "numbers", "squares", group="g", number=number)
                )
                await asyncio.wait([running], timeout=rng.uniform(2, 8))
                running.cancel()
                with suppress(asyncio.CancelledError, aiokafka.errors.KafkaError):
                    await running

        done = asyncio.Event()
        members = [asyncio.ensure_future(member(number)) for number in (1, 2)]
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for number in range(NUMBERS):
                await producer.send("numbers", b"%d" % number, partition=number % PARTITIONS)
                if number % 100 == 0:  # slowly, so that members are killed while copying
                    await asyncio.wait(members, timeout=0.6)
        while sum((found := await copied()).values()) < NUMBERS:
            await asyncio.wait(members, timeout=1)
        done.set()
        await asyncio.gather(*members)
        assert await copied() == found == WANTED
