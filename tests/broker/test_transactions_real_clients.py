"""Clients of other projects write transactions to the embedded cluster, and read from it.

The clients speak transactions v1, to clusters with ``transaction.version`` 0 and 2. Each writer has
three transactions, of which it aborts the second. Each transaction also has an offset of a consumer
group.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import aiokafka
import anyio
import anyio.lowlevel
import anyio.to_thread
import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode

from aioidem.broker import EmbeddedCluster

with warnings.catch_warnings():
    # kafka-python loads its schemas through a deprecated function of importlib.resources.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.anyio

TOPIC = "witness"
GROUP = "readers"
BOUND = 60.0
ROUNDS = [(b"one", True), (b"two", False), (b"three", True)]
EACH = 20
COORDINATOR_FAULTS = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)
EXPECTED = [b"%s %d" % (name, n) for name, commit in ROUNDS if commit for n in range(EACH)]
Version = Literal[0, 2]
T = TypeVar("T")


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio only: aiokafka does not support trio."""
    return "asyncio"


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking client in a thread, while the brokers run on the event loop."""
    return await anyio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True)


async def aiokafka_writes(servers: str) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="tx")
    async with producer:
        for number, (name, commit) in enumerate(ROUNDS):
            await producer.begin_transaction()
            for n in range(EACH):
                await producer.send(TOPIC, b"%s %d" % (name, n), partition=0)
            offsets = {aiokafka.TopicPartition(TOPIC, 0): number + 1}
            await producer.send_offsets_to_transaction(offsets, GROUP)
            await (producer.commit_transaction() if commit else producer.abort_transaction())


async def confluent_writes(servers: str) -> None:
    await in_thread(_confluent_writes, servers)


def _confluent_writes(servers: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "transactional.id": "tx", "linger.ms": 1}
    )
    consumer: Any = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": GROUP})
    try:
        producer.init_transactions(BOUND / 3)
        for number, (name, commit) in enumerate(ROUNDS):
            producer.begin_transaction()
            for n in range(EACH):
                producer.produce(TOPIC, b"%s %d" % (name, n), partition=0)
            # An abort drops records that were not sent; the test needs aborted records in the log.
            assert producer.flush(BOUND / 3) == 0
            offsets = [confluent_kafka.TopicPartition(TOPIC, 0, number + 1)]
            producer.send_offsets_to_transaction(
                offsets, consumer.consumer_group_metadata(), BOUND / 3
            )
            if commit:
                producer.commit_transaction(BOUND / 3)
            else:
                producer.abort_transaction(BOUND / 3)
    finally:
        consumer.close()


async def kafka_python_writes(servers: str) -> None:
    await in_thread(_kafka_python_writes, servers)


def _kafka_python_writes(servers: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id="tx")
    try:
        producer.init_transactions()
        for number, (name, commit) in enumerate(ROUNDS):
            producer.begin_transaction()
            for n in range(EACH):
                producer.send(TOPIC, b"%s %d" % (name, n), partition=0)
            producer.flush(timeout=BOUND / 3)
            offset = kafka.OffsetAndMetadata(number + 1, "", -1)
            producer.send_offsets_to_transaction({kafka.TopicPartition(TOPIC, 0): offset}, GROUP)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(timeout=BOUND / 4)


async def aiokafka_reads(servers: str) -> list[bytes | None]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed"
    )
    async with consumer:
        partition = aiokafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await consumer.getone()).value for _ in EXPECTED]


async def confluent_reads(servers: str) -> list[bytes | None]:
    return await in_thread(_confluent_reads, servers)


def _confluent_reads(servers: str) -> list[bytes | None]:
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "others",
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    try:
        start = confluent_kafka.TopicPartition(TOPIC, 0, confluent_kafka.OFFSET_BEGINNING)
        consumer.assign([start])
        found = consumer.consume(len(EXPECTED), timeout=BOUND / 3)
        return [message.value() for message in found]
    finally:
        consumer.close()


WRITERS = {
    "aiokafka": aiokafka_writes,
    "confluent": confluent_writes,
    "kafka-python": kafka_python_writes,
}
READERS = {"aiokafka": aiokafka_reads, "confluent": confluent_reads}


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
async def test_what_a_client_commits_another_reads_and_nothing_else(
    writer: str, reader: str, version: Version
) -> None:
    """A reader of committed records gets exactly the records that another client committed."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2, transaction_version=version) as cluster:
            cluster.create_topic(TOPIC)
            await WRITERS[writer](cluster.bootstrap_servers)
            assert await READERS[reader](cluster.bootstrap_servers) == EXPECTED
            committed = cluster.state.groups.committed(GROUP)
            assert committed[TOPIC, 0].offset == len(ROUNDS)
            # The log holds every record, and a marker for each transaction.
            assert cluster.log_end_offset(TOPIC) == len(ROUNDS) * (EACH + 1)
            assert cluster.last_stable_offset(TOPIC) == cluster.log_end_offset(TOPIC)


@pytest.mark.parametrize("reader", READERS)
async def test_an_open_transaction_holds_readers_back(reader: str) -> None:
    """Readers of committed records stop at an open transaction until its producer is fenced."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster() as cluster:
            cluster.create_topic(TOPIC)
            servers = cluster.bootstrap_servers
            dead = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="tx")
            await dead.start()
            await dead.begin_transaction()
            await dead.send_and_wait(TOPIC, b"never", partition=0)
            assert cluster.last_stable_offset(TOPIC) == 0
            await aiokafka_writes(servers)
            assert await READERS[reader](servers) == EXPECTED
            with pytest.raises(aiokafka.errors.KafkaError):
                await dead.commit_transaction()
            await dead.stop()


async def test_what_a_test_can_do_to_a_coordinator() -> None:
    """aiokafka commits despite coordinator errors, held markers and a coordinator that moves."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2) as cluster:
            cluster.create_topic(TOPIC)
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers, transactional_id="tx"
            )
            async with producer:
                for fault in (*COORDINATOR_FAULTS, None):
                    await producer.begin_transaction()
                    await producer.send_and_wait(TOPIC, b"%r" % fault, partition=0)
                    cluster.fail_coordinator("tx", fault)
                    cluster.hold_markers()
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(producer.commit_transaction)
                        await anyio.lowlevel.checkpoint()
                        cluster.fail_coordinator("tx", None)
                        cluster.move_coordinator("tx", 1 - cluster.coordinator("tx"))
                    assert cluster.last_stable_offset(TOPIC) < cluster.high_watermark(TOPIC)
                    cluster.release_markers()
                    assert cluster.last_stable_offset(TOPIC) == cluster.high_watermark(TOPIC)
            assert len(cluster.batches(TOPIC)) == 8
