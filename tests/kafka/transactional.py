"""Helpers of the tests of transactions on real brokers: other clients' consumers, frame hooks.

aiokafka's and Java's consumers read what was committed, and Kafka's dump tool shows how each
transaction ended. A value names its topic and its transaction, so that one run of Java's consumer
can read all topics of a test file.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

import aiokafka

from aioidem import Producer
from aioidem._producer.delivery import Delivery
from aioidem.testing import Action, FrameHook, FrameSeen, KafkaCluster
from tests.kafka.world import until

PRODUCE, FIND, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 10, 22, 24, 25, 26, 28
_LIST_OFFSETS, _OFFSET_FETCH, _DESCRIBE_TRANSACTIONS = (2, 7), (9, 8), (65, 0)
_UNCOMMITTED, _COMMITTED = 0, 1
_SENTINEL: Final = "the end"


def values(topic: str, transaction: str, count: int) -> list[bytes]:
    """Return the values of the records that `send` sends for the same arguments."""
    return [f"{topic}/{transaction}/{number}".encode() for number in range(count)]


def send(
    producer: Producer, topic: str, transaction: str, count: int, partition: int = 0
) -> list[Delivery]:
    """Queue `count` records, whose values name their transaction."""
    return [
        producer.send_nowait(topic, each, partition=partition)
        for each in values(topic, transaction, count)
    ]


# -- hooks -----------------------------------------------------------------------------------------


def next_of(api_key: int, action: Action) -> FrameHook:
    """Return a hook that applies the action to the next frame of this API only."""
    left = iter((action,))
    return lambda seen: next(left, None) if seen.api_key == api_key else None


def each_of(api_key: int, action: Action) -> FrameHook:
    """Return a hook that applies the action to every frame of this API."""
    return lambda seen: action if seen.api_key == api_key else None


def seen_of(cluster: KafkaCluster, api_key: int, *, answer: bool = False) -> list[FrameSeen]:
    """Return the requests of an API, or their answers, that the first broker's proxy saw.

    `forget` clears the list.
    """
    return [
        each for each, _ in cluster.proxy.trace if each.api_key == api_key and each.answer is answer
    ]


def forget(cluster: KafkaCluster) -> None:
    """Clear what `seen_of` returns."""
    cluster.proxy.trace.clear()


# -- consumers -------------------------------------------------------------------------------------


async def _end(cluster: KafkaCluster, topic: str, partition: int, isolation: int) -> int:
    """Return the end of a log for this isolation level, or -1 while no broker knows it."""
    broker = await cluster.leader(topic, partition)
    if broker < 0 or not cluster.brokers[broker].running:
        return -1
    place = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
    answer = await cluster.ask(
        *_LIST_OFFSETS,
        broker=broker,
        replica_id=-1,
        isolation_level=isolation,
        topics=[{"name": topic, "partitions": [place]}],
        timeout=timedelta(seconds=10),
    )
    [part] = answer.topics[0].partitions
    return -1 if int(part.error_code) else int(part.offset)


async def end_of(cluster: KafkaCluster, topic: str, partition: int = 0) -> int:
    """Return the last stable offset, where readers of committed data stop."""
    return await _end(cluster, topic, partition, _COMMITTED)


async def decided(cluster: KafkaCluster, topic: str, partition: int = 0) -> int:
    """Wait until no transaction is open in the partition, and return the log's end."""
    stable = end = -1

    async def same() -> bool:
        nonlocal stable, end
        end = await _end(cluster, topic, partition, _UNCOMMITTED)
        stable = await _end(cluster, topic, partition, _COMMITTED)
        return stable == end >= 0

    await until(same)
    return end


async def committed(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[bytes]:
    """Return what aiokafka's consumer reads with read_committed once no transaction is open."""
    end = await decided(cluster, topic, partition)
    place = aiokafka.TopicPartition(topic, partition)
    found: list[bytes] = []
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=cluster.inner_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        while await consumer.position(place) < end:
            for records in (await consumer.getmany(place, timeout_ms=200)).values():
                found += [record.value or b"" for record in records]
    return found


async def ends(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[str]:
    """Return how each transaction in a log ended, COMMIT or ABORT, by Kafka's dump tool."""
    return [
        record.marker
        for batch in await cluster.dump_log(topic, partition)
        if batch.control
        for record in batch.records
        if record.marker is not None
    ]


async def group_offset(
    cluster: KafkaCluster, group: str, topic: str, *, stable: bool = True
) -> int:
    """Return the committed offset of a group.

    With `stable`, wait until no open transaction can change the offset.
    """
    places = [{"name": topic, "partition_indexes": [0]}]
    wanted = {"group_id": group, "topics": places}
    offset = -1

    async def told() -> bool:
        nonlocal offset
        # `__consumer_offsets` has one partition in these clusters; its leader coordinates all
        # groups.
        coordinator = await cluster.leader("__consumer_offsets")
        if coordinator < 0 or not cluster.brokers[coordinator].running:
            return False
        answer = await cluster.ask(
            *_OFFSET_FETCH,
            broker=coordinator,
            group_id=group,
            topics=places,
            groups=[wanted],
            require_stable=stable,
        )
        [found] = answer.groups
        if int(found.error_code):
            return False
        [part] = found.topics[0].partitions
        offset = int(part.committed_offset)
        return not int(part.error_code)

    await until(told)
    return offset


async def markers_written(cluster: KafkaCluster, transactional_id: str) -> None:
    """Wait until the markers of a transaction are written, if the broker has received its EndTxn.

    Call this before killing the only broker of a cluster. If Kafka 4.3.1 is restarted before it has
    written the markers, it finds no leader for its own partitions, takes them for deleted, and
    never writes the markers: the transaction is committed, but stays open for readers. No client
    can prevent that.
    """

    async def written() -> bool:
        answer = await cluster.ask(*_DESCRIBE_TRANSACTIONS, transactional_ids=[transactional_id])
        [found] = answer.transaction_states
        return not found.transaction_state.startswith("Prepare")

    await until(written)


class Witness:
    """Compares the records that a test expects to be committed with what other consumers read.

    aiokafka's consumer reads them at once, and Java's reads the topics of all tests at the end.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._expected: dict[str, list[bytes]] = {}

    async def reads(
        self, topic: str, *transactions: tuple[str, int], for_good: bool = True
    ) -> None:
        """Assert that the committed records are those of these transactions (name, count).

        With `for_good`, `java_reads_the_same` expects that Java's consumer reads them, too.
        """
        expected = [each for name, count in transactions for each in values(topic, name, count)]
        assert await committed(self._cluster, topic) == expected
        if for_good:
            self._expected[topic] = expected

    async def java_reads_the_same(self) -> None:
        """Check that Java's console consumer reads the expected records, in one run for all topics.

        Each topic gets one last record, so that a surplus record would show: the console consumer
        reads a given number of records, and not up to the end of a log.
        """
        if not self._expected:
            return  # the tests whose records it would read ran in another process
        async with Producer(
            self._cluster.bootstrap_servers, transactional_id="the-last-one"
        ) as producer:
            await producer.begin_transaction()
            for topic, expected in self._expected.items():
                [last] = values(topic, "the end", 1)
                producer.send_nowait(topic, last, partition=0)
                expected.append(last)
            await producer.commit_transaction()
        printed = await self._cluster.consume(
            "|".join(map(re.escape, self._expected)),
            sum(map(len, self._expected.values())),
            read_committed=True,
        )
        found: dict[str, list[bytes]] = {topic: [] for topic in self._expected}
        for line in printed:
            found[line.decode().partition("/")[0]].append(line)
        assert found == self._expected
