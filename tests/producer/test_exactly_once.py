"""Consume, transform, produce: records are copied exactly once, whatever is killed meanwhile.

A copier reads with aiokafka's consumer, writes with `Producer`, and commits its source offsets in
the same transaction as its records, over TCP. A seed decides at which requests a copier or broker
is killed: a copier is cancelled and closes nothing in order; a broker ends as by SIGKILL, and comes
back some requests later. The next copier has the same transactional id, which ends the transaction
that its predecessor left open. aiokafka's consumer reads the result in read_committed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiokafka
import anyio
import pytest
from aiokafka.errors import KafkaError as ReaderError

from aioidem import Producer, TopicPartition
from aioidem._broker.intercept import RequestSeen
from aioidem.broker import EmbeddedCluster
from aioidem.errors import KafkaError

from .tools import ASYNCIO, bounded, producer_for

pytestmark = [pytest.mark.anyio, ASYNCIO]

SOURCE, TARGET, GROUP = "source", "target", "copiers"
BROKERS, PARTITIONS, RECORDS, AT_ONCE, KILLS = 3, 2, 240, 10, 12


def changed(value: bytes) -> bytes:
    """Return the value that a copier writes for a value that it has read."""
    return b"copied " + value


def reader_of(cluster: EmbeddedCluster, **options: Any) -> aiokafka.AIOKafkaConsumer:
    """Make aiokafka's consumer of committed records."""
    return aiokafka.AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
        request_timeout_ms=2000,
        **options,
    )


class Killers:
    """A fault injector: every 10 to 40 requests it kills a copier or broker, or starts a broker."""

    def __init__(self, cluster: EmbeddedCluster, seed: int, tasks: Any) -> None:
        self.copier: asyncio.Task[None] | None = None
        self.kills = {"copier": 0, "broker": 0}
        self._cluster = cluster
        self._random = random.Random(seed)
        self._tasks = tasks
        self._down: int | None = None
        self._left = self._gap()
        cluster.intercept(self._count)

    def _gap(self) -> int:
        return self._random.randint(10, 40)

    def _count(self, _seen: RequestSeen) -> None:
        self._left -= 1
        if self._left:
            return
        self._left = self._gap()
        if self._down is not None:
            self._tasks.start_soon(self._cluster.start_broker, self._down)
            self._down = None
        elif sum(self.kills.values()) < KILLS:
            self._kill(self._random.choice(("copier", "broker")))

    def _kill(self, what: str) -> None:
        self.kills[what] += 1
        if what == "copier":
            if self.copier is not None:
                self.copier.cancel()
            return
        self._down = self._random.randrange(BROKERS)
        self._tasks.start_soon(self._stop, self._down)

    def start(self, cluster: EmbeddedCluster) -> asyncio.Task[None]:
        """Start a copier in a plain asyncio task, and not in a task group of anyio.

        aiokafka's consumer does not support anyio's cancel scopes. When the consumer's own tasks
        are cancelled, the cancellation may reach the tasks that await them.
        """
        self.copier = asyncio.create_task(copy(cluster))
        return self.copier

    async def _stop(self, broker: int) -> None:
        await self._cluster.stop_broker(broker, clean=False)


@asynccontextmanager
async def copying(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    """Start the producer of a task that copies a topic; end it as if its process were killed."""
    producer = producer_for(cluster, transactional_id=GROUP, retry_backoff_max=0.1)
    try:
        await producer.start()
        yield producer
    finally:
        with anyio.CancelScope(shield=True):
            await producer.close(timeout=0)


async def copy(cluster: EmbeddedCluster) -> None:
    """Copy until every record of the source is copied."""
    places = [aiokafka.TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
    # The producer starts first, because its start ends the transaction that the last copier left
    # open; then the committed offsets are final.
    async with copying(cluster) as producer, reader_of(cluster, group_id=GROUP) as reader:
        reader.assign(places)
        for place in places:
            reader.seek(place, await reader.committed(place) or 0)
        while any([await reader.position(place) < RECORDS for place in places]):
            found = await reader.getmany(timeout_ms=100, max_records=AT_ONCE)
            async with producer.transaction():
                for place, records in found.items():
                    for record in records:
                        producer.send_nowait(
                            TARGET, changed(record.value), partition=place.partition
                        )
                after = {
                    TopicPartition(*place): records[-1].offset + 1
                    for place, records in found.items()
                }
                await producer.send_offsets_to_transaction(after, GROUP)


async def ended(copier: asyncio.Task[None]) -> bool:
    """Return whether the copier copied everything.

    A copier that was killed, or that failed because brokers died, did not.
    """
    try:
        await asyncio.wait([copier])
    finally:
        copier.cancel()
    if copier.cancelled() or isinstance(copier.exception(), KafkaError | ReaderError):
        return False
    copier.result()
    return True


async def fill(cluster: EmbeddedCluster) -> None:
    """Write the records to be copied."""
    async with producer_for(cluster) as producer:
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                producer.send_nowait(SOURCE, b"%d" % number, partition=partition)


async def read(cluster: EmbeddedCluster, partition: int) -> list[bytes]:
    """Return every committed value of a partition, once every transaction is ended."""
    place = aiokafka.TopicPartition(TARGET, partition)
    found: list[bytes] = []
    async with reader_of(cluster) as reader:
        reader.assign([place])
        await reader.seek_to_beginning(place)
        [end] = (await reader.end_offsets([place])).values()
        while await reader.position(place) < end:
            for records in (await reader.getmany(place, timeout_ms=100)).values():
                found += [record.value for record in records]
    return found


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.timeout(120)
@bounded(110)
async def test_copied_exactly_once_under_kills_of_copiers_and_brokers(
    version: Literal[0, 2], seed: int
) -> None:
    async with (
        EmbeddedCluster(brokers=BROKERS, transaction_version=version) as cluster,
        anyio.create_task_group() as tasks,
    ):
        for topic in (SOURCE, TARGET):
            cluster.create_topic(topic, partitions=PARTITIONS, replication=BROKERS)
        await fill(cluster)
        killers = Killers(cluster, seed, tasks)
        while not await ended(killers.start(cluster)):
            pass  # a process that is killed or fails is started again
        cluster.intercept(None)
        for broker in range(BROKERS):
            await cluster.start_broker(broker)
        for partition in range(PARTITIONS):
            expected = [changed(b"%d" % number) for number in range(RECORDS)]
            assert await read(cluster, partition) == expected, f"seed {seed}"
            assert cluster.last_stable_offset(TARGET, partition) == cluster.log_end_offset(
                TARGET, partition
            )
            place = cluster.state.groups.committed(GROUP)[SOURCE, partition]
            assert place.offset == RECORDS
        assert min(killers.kills.values()) >= 2, killers.kills
