"""Clients of other projects produce to the embedded cluster and read back from it.

aiokafka, kafka-python and confluent-kafka (librdkafka) were written independently. Each writes
keys, headers, tombstones and empty values in every codec, and another one reads them. So a
misreading of the protocol in the embedded cluster stays unnoticed only if these projects share it.
All three also read what aioidem writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import aiokafka
import anyio
import anyio.to_thread
import confluent_kafka
import pytest
from confluent_kafka import admin as confluent_admin

from aioidem import Producer, ProducerConfig
from aioidem.broker import EmbeddedCluster

with warnings.catch_warnings():
    # kafka-python loads its schemas through a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.anyio

TOPIC = "witness"
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
RING = [("aiokafka", "confluent"), ("confluent", "kafka-python"), ("kafka-python", "aiokafka")]
OURS = [("aioidem", "aiokafka"), ("aioidem", "confluent"), ("aioidem", "kafka-python")]
WITNESSES = [(writer, reader, codec) for codec in CODECS for writer, reader in [*RING, *OURS]]
BOUND = 30.0
T = TypeVar("T")


class Record(NamedTuple):
    """A record that is written and must be read back."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


RECORDS = [
    Record(b"k1", b"v1", (), 1_700_000_000_000),
    Record(b"k2", None, (("tombstone", b""),), 1_700_000_000_001),
    Record(None, b"", (("a", b"1"), ("a", b"2")), 1_700_000_000_005),
    Record(b"", b"x" * 5000, (("h\u00e9", "\u00fc".encode()),), 1_700_000_000_003),
    *(Record(b"k%d" % i, b"value %d" % i, (), 1_700_000_001_000 + i) for i in range(50)),
]


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run on asyncio only: aiokafka does not support trio."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking client in a thread, while the brokers run on the event loop."""
    return await anyio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True)


async def aiokafka_writes(servers: str, codec: str) -> list[int]:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
    )
    async with producer:
        waiting = [
            await producer.send(
                TOPIC, r.value, r.key, 0, r.timestamp_ms, [(k, v or b"") for k, v in r.headers]
            )
            for r in RECORDS
        ]
        return [(await future).offset for future in waiting]


def confluent_writes(servers: str, codec: str) -> list[int]:
    offsets: list[int] = []

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None
        offsets.append(message.offset())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 5,
        }
    )
    for r in RECORDS:
        producer.produce(
            TOPIC,
            value=r.value,
            key=r.key,
            partition=0,
            timestamp=r.timestamp_ms,
            headers=list(r.headers),
            on_delivery=on_delivery,
        )
    assert producer.flush(BOUND / 2) == 0
    return offsets


def kafka_python_writes(servers: str, codec: str) -> list[int]:
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        linger_ms=5,
    )
    try:
        waiting = [
            producer.send(TOPIC, r.value, r.key, list(r.headers), 0, r.timestamp_ms)
            for r in RECORDS
        ]
        return [future.get(timeout=BOUND / 2).offset for future in waiting]
    finally:
        producer.close(timeout=BOUND / 4)


async def aiokafka_reads(servers: str) -> list[Record]:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers)
    async with consumer:
        partition = aiokafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found = [await consumer.getone() for _ in RECORDS]
        assert [m.offset for m in found] == list(range(len(RECORDS)))
        return [Record(m.key, m.value, tuple(m.headers), m.timestamp) for m in found]


def confluent_reads(servers: str) -> list[Record]:
    consumer: Any = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "witness", "check.crcs": True}
    )
    try:
        start = confluent_kafka.TopicPartition(TOPIC, 0, confluent_kafka.OFFSET_BEGINNING)
        consumer.assign([start])
        found = consumer.consume(len(RECORDS), timeout=BOUND / 2)
        assert [m.error() for m in found] == [None] * len(RECORDS)
        consumer.commit(offsets=[confluent_kafka.TopicPartition(TOPIC, 0, 7)], asynchronous=False)
        (committed,) = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], BOUND / 4)
        assert committed.offset == 7
        return [
            Record(m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1]) for m in found
        ]
    finally:
        consumer.close()


def kafka_python_reads(servers: str) -> list[Record]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        consumer_timeout_ms=int(BOUND / 2 * 1000),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        consumer.assign([kafka.TopicPartition(TOPIC, 0)])
        found: Iterator[Any] = iter(consumer)
        taken = [next(found) for _ in RECORDS]
        return [Record(m.key, m.value, tuple(m.headers), m.timestamp) for m in taken]
    finally:
        consumer.close()


async def aioidem_writes(servers: str, codec: str) -> list[int]:
    config = ProducerConfig.from_properties(
        {"bootstrap.servers": servers, "compression.type": codec}
    )
    async with Producer(config=config) as producer:
        waiting = [
            producer.send_nowait(
                TOPIC,
                r.value,
                key=r.key,
                headers=r.headers,
                partition=0,
                timestamp=r.timestamp_ms / 1000,
            )
            for r in RECORDS
        ]
        return [(await delivery).offset for delivery in waiting]


async def write(client: str, servers: str, codec: str) -> list[int]:
    if client == "aiokafka":
        return await aiokafka_writes(servers, codec)
    if client == "aioidem":
        return await aioidem_writes(servers, codec)
    blocking = {"confluent": confluent_writes, "kafka-python": kafka_python_writes}
    return await in_thread(blocking[client], servers, codec)


async def read(client: str, servers: str) -> list[Record]:
    if client == "aiokafka":
        return await aiokafka_reads(servers)
    blocking = {"confluent": confluent_reads, "kafka-python": kafka_python_reads}
    return await in_thread(blocking[client], servers)


@pytest.mark.parametrize(("writer", "reader", "codec"), WITNESSES)
async def test_what_one_client_writes_another_reads_back_byte_for_byte(
    writer: str, reader: str, codec: str
) -> None:
    """Records that one client writes are read back unchanged by another one."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2) as cluster:
            cluster.create_topic(TOPIC, partitions=1)
            offsets = await write(writer, cluster.bootstrap_servers, codec)
            assert offsets == list(range(len(RECORDS)))
            assert await read(reader, cluster.bootstrap_servers) == RECORDS
            assert CODECS[codec] in {b.codec for b in cluster.batches(TOPIC)}


def confluent_administers(servers: str) -> None:
    """Change topics and configs through librdkafka's admin client."""
    api: Any = confluent_admin
    admin: Any = api.AdminClient({"bootstrap.servers": servers})
    wait = BOUND / 4
    new = api.NewTopic(
        "made", num_partitions=3, replication_factor=2, config={"max.message.bytes": "12345"}
    )
    admin.create_topics([new], request_timeout=wait)["made"].result(wait)
    assert len(admin.list_topics(timeout=wait).topics["made"].partitions) == 3
    kind = api.ConfigResource
    topic = kind(kind.Type.TOPIC, "made")
    topic.add_incremental_config(
        api.ConfigEntry(
            "producer.state.batches.to.retain",
            "20",
            incremental_operation=api.AlterConfigOpType.SET,
        )
    )
    (changed,) = admin.incremental_alter_configs([topic], request_timeout=wait).values()
    changed.result(wait)
    (described,) = admin.describe_configs([kind(kind.Type.TOPIC, "made")]).values()
    configs = described.result(wait)
    assert configs["max.message.bytes"].value == "12345"
    assert configs["producer.state.batches.to.retain"].value == "20"
    found = admin.describe_cluster(request_timeout=wait).result(wait)
    assert [node.id for node in found.nodes] == [0, 1]
    latest = {confluent_kafka.TopicPartition("made", 0): api.OffsetSpec.latest()}
    (offsets,) = admin.list_offsets(latest, request_timeout=wait).values()
    assert offsets.result(wait).offset == 0
    admin.delete_topics(["made"], request_timeout=wait)["made"].result(wait)


async def test_a_stock_admin_client_makes_configures_and_deletes_topics() -> None:
    """An admin client of another project creates, configures and deletes topics."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2) as cluster:
            await in_thread(confluent_administers, cluster.bootstrap_servers)
            assert not cluster.state.topics


async def test_stock_producers_and_consumers_follow_a_leader_that_moves() -> None:
    """aiokafka's producer and consumer follow a leader that moves, without a restart."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2) as cluster:
            cluster.create_topic(TOPIC, replication=2)
            servers = cluster.bootstrap_servers
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers)
            async with producer, consumer:
                consumer.assign([aiokafka.TopicPartition(TOPIC, 0)])
                await consumer.seek_to_beginning()
                for number in range(4):
                    value = b"%d" % number
                    sent = await producer.send_and_wait(TOPIC, value)
                    assert sent.offset == number
                    assert (await consumer.getone()).value == value
                    cluster.move_leader(TOPIC, 0, (number + 1) % 2)
            assert cluster.leader_epoch(TOPIC) == 4
