"""Examples like those in aiokafka's documentation of producing, run with aiokafka and with aioidem.

Each example is one source text. Its word `PACKAGE` is replaced by `aiokafka` in one run and by
`aioidem` in the other, and nothing else differs between the two runs. The examples show the uses of
aiokafka's pages "Producer client", "Batch producer", "Custom partitioner", "Transactional
producer", "Transactional consume-process-produce", "Serialization and compression" and "Using SSL",
but their text is our own.
"""

from __future__ import annotations

import ssl
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from aioidem.broker import BrokerSecurity, EmbeddedCluster

pytestmark = pytest.mark.anyio

EXAMPLES = {
    "send_and_wait": """
        import PACKAGE

        async def example(servers, topic, tls):
            producer = PACKAGE.AIOKafkaProducer(bootstrap_servers=servers)
            await producer.start()
            try:
                return await producer.send_and_wait(topic, b"a value")
            finally:
                await producer.stop()
    """,
    "send": """
        from PACKAGE import AIOKafkaProducer

        async def example(servers, topic, tls):
            producer = AIOKafkaProducer(bootstrap_servers=servers)
            await producer.start()
            try:
                future = await producer.send(topic, b"a value", partition=1)
                return await future
            finally:
                await producer.stop()
    """,
    "idempotent": """
        from PACKAGE import AIOKafkaProducer

        async def example(servers, topic, tls):
            producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
            await producer.start()
            try:
                return await producer.send_and_wait(topic, b"a value")
            finally:
                await producer.stop()
    """,
    "direct batch control": """
        from PACKAGE import AIOKafkaProducer

        async def example(servers, topic, tls):
            async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
                batch = producer.create_batch()
                for number in range(2):
                    metadata = batch.append(value=b"%d" % number, key=None, timestamp=None)
                    assert metadata is not None
                batch.close()
                future = await producer.send_batch(batch, topic, partition=1)
                return await future
    """,
    "many batches": """
        import random
        from PACKAGE.producer import AIOKafkaProducer

        async def example(servers, topic, tls):
            producer = AIOKafkaProducer(bootstrap_servers=servers)
            await producer.start()
            batch, number, count = producer.create_batch(), 0, 1000
            while number < count:
                added = batch.append(key=None, value=b"message %d" % number, timestamp=None)
                if added is not None:
                    number += 1
                    continue
                partition = random.choice(tuple(await producer.partitions_for(topic)))
                await producer.send_batch(batch, topic, partition=partition)
                batch = producer.create_batch()
            partition = random.choice(tuple(await producer.partitions_for(topic)))
            await producer.send_batch(batch, topic, partition=partition)
            await producer.stop()
            return count
    """,
    "custom partitioner": """
        import random
        from PACKAGE import AIOKafkaProducer

        def partitioner(key, all_partitions, available_partitions):
            if key == b"first":
                return all_partitions[0]
            if key == b"last":
                return all_partitions[-1]
            return random.choice(all_partitions)

        async def example(servers, topic, tls):
            producer = AIOKafkaProducer(bootstrap_servers=servers, partitioner=partitioner)
            await producer.start()
            await (await producer.send(topic, b"1", key=b"last"))
            await (await producer.send(topic, b"2", key=b"any"))
            sent = await (await producer.send(topic, b"3", key=b"first"))
            await producer.stop()
            assert sent.partition == 0
            return sent
    """,
    "serialization and compression": """
        import json
        from PACKAGE import AIOKafkaProducer

        async def example(servers, topic, tls):
            producer = AIOKafkaProducer(
                bootstrap_servers=servers,
                value_serializer=lambda value: json.dumps(value).encode(),
                compression_type="gzip",
            )
            await producer.start()
            await producer.send(topic, {"a": 123.4, "b": "some string"})
            await producer.send(topic, [1, 2, 3, 4])
            await producer.stop()
    """,
    "ssl": """
        from PACKAGE import AIOKafkaProducer
        from PACKAGE.helpers import create_ssl_context

        async def example(servers, topic, tls):
            context = create_ssl_context(
                cafile=tls["cafile"], certfile=tls["certfile"], keyfile=tls["keyfile"]
            )
            producer = AIOKafkaProducer(
                bootstrap_servers=servers, security_protocol="SSL", ssl_context=context
            )
            await producer.start()
            try:
                return await producer.send_and_wait(topic, b"a value", partition=0)
            finally:
                await producer.stop()
    """,
    "transactional": """
        from PACKAGE import AIOKafkaProducer

        async def example(servers, topic, tls):
            producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="my-tx-id")
            await producer.start()
            try:
                async with producer.transaction():
                    return await producer.send_and_wait(topic, b"a value", partition=0)
            finally:
                await producer.stop()
    """,
    "transactional, step by step": """
        from PACKAGE import AIOKafkaProducer
        from PACKAGE.errors import KafkaError, ProducerFenced

        async def example(servers, topic, tls):
            producer = AIOKafkaProducer(
                bootstrap_servers=servers,
                transactional_id="my-tx-id",
                transaction_timeout_ms=10_000,
                enable_idempotence=True,
            )
            await producer.start()
            try:
                for number in range(2):
                    await producer.begin_transaction()
                    try:
                        await producer.send(topic, b"%d" % number, partition=0)
                        await producer.commit_transaction()
                    except ProducerFenced:
                        raise
                    except KafkaError:
                        await producer.abort_transaction()
            finally:
                await producer.stop()
    """,
    "consume, transform, produce": """
        from aiokafka import AIOKafkaConsumer, TopicPartition
        from PACKAGE import AIOKafkaProducer

        async def example(servers, topic, tls):
            source = TopicPartition(topic, 0)
            async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
                await producer.send_and_wait(topic, b"in", partition=0)
            consumer = AIOKafkaConsumer(
                bootstrap_servers=servers,
                enable_auto_commit=False,
                group_id="my-group",
                isolation_level="read_committed",
                auto_offset_reset="earliest",
            )
            await consumer.start()
            consumer.assign([source])
            producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="my-tx-id")
            await producer.start()
            try:
                batch = await consumer.getmany(timeout_ms=10_000)
                async with producer.transaction():
                    offsets = {}
                    for partition, messages in batch.items():
                        for message in messages:
                            await producer.send(topic, b"out of " + message.value, partition=1)
                        offsets[partition] = messages[-1].offset + 1
                    await producer.send_offsets_to_transaction(offsets, "my-group")
                assert await consumer.committed(source) == 1
            finally:
                await consumer.stop()
                await producer.stop()
    """,
    "errors": """
        from PACKAGE import AIOKafkaProducer
        from PACKAGE.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError

        async def example(servers, topic, tls):
            producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
            try:
                await producer.start()
            except KafkaConnectionError as error:
                assert error.retriable
            finally:
                await producer.stop()
            async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
                try:
                    await producer.send_and_wait(topic, b"x" * 2_000_000)
                except MessageSizeTooLargeError as error:
                    assert isinstance(error, KafkaError)
                    return await producer.send_and_wait(topic, b"smaller")
    """,
}
RECORDS = {"direct batch control": 2, "many batches": 1000, "custom partitioner": 3}
RECORDS["serialization and compression"] = 2
# These counts of log entries include the markers that end transactions.
RECORDS |= {"transactional": 2, "transactional, step by step": 4, "consume, transform, produce": 3}


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[tuple[EmbeddedCluster, dict[str, str]]]:
    """Provide a cluster with mutual TLS, and the PEM files of a client."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    client = authority.issue_cert("client@example.org")
    files = {name: str(tmp_path / name) for name in ("cafile", "certfile", "keyfile")}
    authority.cert_pem.write_to_path(files["cafile"])
    client.private_key_pem.write_to_path(files["keyfile"])
    client.cert_chain_pems[0].write_to_path(files["certfile"])
    async with EmbeddedCluster(transport="tcp", security=BrokerSecurity(tls=context)) as cluster:
        yield cluster, files


async def run(package: str, name: str, cluster: EmbeddedCluster, tls: dict[str, str]) -> None:
    cluster.create_topic("my_topic", partitions=3)
    source = textwrap.dedent(EXAMPLES[name]).replace("PACKAGE", package)
    names: dict[str, Any] = {}
    exec(compile(source, f"{name} with {package}", "exec"), names)  # noqa: S102 - ours, see above
    with anyio.fail_after(30):
        await names["example"](cluster.bootstrap_servers, "my_topic", tls)
    stored = sum(cluster.log_end_offset("my_topic", partition) for partition in range(3))
    assert stored == RECORDS.get(name, 1)


@pytest.mark.parametrize("package", ["aiokafka", "aioidem"])
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "ssl"])
async def test_a_documented_example_runs(name: str, package: str, cluster: EmbeddedCluster) -> None:
    # If an example fails, its producer stays open, as with the examples of the documentation.
    await run(package, name, cluster, {})


@pytest.mark.parametrize("package", ["aiokafka", "aioidem"])
async def test_the_example_with_tls_runs(
    package: str, secure: tuple[EmbeddedCluster, dict[str, str]]
) -> None:
    cluster, files = secure
    await run(package, "ssl", cluster, files)
