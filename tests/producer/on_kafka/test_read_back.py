"""Records that the producer wrote, as Kafka's console consumer and log dump read them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, get_args

import pytest

from aioidem import Producer
from aioidem.testing import KafkaCluster
from tests.kafka.tools import STOCK, bounded

NEWEST, OLDER = STOCK
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        ("anyio_backend", "version"),
        [("asyncio", NEWEST), ("uvloop", NEWEST), ("trio", NEWEST), ("asyncio", OLDER)],
        indirect=["anyio_backend"],
        scope="module",
    ),
]

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = get_args(Codec)


@pytest.fixture(scope="module")
async def cluster(
    version: str,
    anyio_backend: object,  # noqa: ARG001 - a cluster lives in one loop
) -> AsyncIterator[KafkaCluster]:
    async with KafkaCluster(version) as running:
        yield running


async def produce(cluster: KafkaCluster, codec: Codec, partition: int) -> list[int]:
    """Write records of every shape, in one batch, and return their offsets."""
    async with Producer(
        cluster.bootstrap_servers, compression_type=codec, linger=0.05, batch_size=1 << 20
    ) as producer:
        sent = [
            producer.send_nowait("shapes", value, key=key, headers=headers, partition=partition)
            for key, value, headers in (
                (b"key", b"value", ()),
                (None, b"no key", ()),
                (b"tombstone", None, ()),
                (b"", b"", ()),
                (b"headers", b"v", [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")]),
                (b"long", b"x" * 70_000, ()),
                ("schlüssel".encode(), "wörter".encode(), [("naïve", b"ja")]),
            )
        ]
        return [(await each).offset for each in sent]


@bounded(60)
async def test_console_consumer_reads_every_codec_header_null_and_tombstone(
    cluster: KafkaCluster,
) -> None:
    await cluster.create_topic("shapes", partitions=len(CODECS))
    for partition, codec in enumerate(CODECS):
        assert await produce(cluster, codec, partition) == list(range(7))
    properties = {
        **{f"print.{what}": "true" for what in ("partition", "offset", "key", "headers")},
        "null.literal": "NULL",
    }
    lines = await cluster.consume("shapes", 7 * len(CODECS), properties=properties)
    expected = [
        ("NO_HEADERS", "key", "value"),
        ("NO_HEADERS", "NULL", "no key"),
        ("NO_HEADERS", "tombstone", "NULL"),
        ("NO_HEADERS", "", ""),
        ("a:1,a:2,none:NULL,empty:", "headers", "v"),
        ("NO_HEADERS", "long", "x" * 70_000),
        ("naïve:ja", "schlüssel", "wörter"),
    ]
    wanted = {
        f"Partition:{partition}\tOffset:{offset}\t" + "\t".join(columns)
        for partition in range(len(CODECS))
        for offset, columns in enumerate(expected)
    }
    assert {line.decode() for line in lines} == wanted
    logs = await cluster.dump_topic("shapes")
    for partition, codec in enumerate(CODECS):
        [batch] = logs[partition]
        assert (batch.codec, batch.base_offset, batch.count) == (codec, 0, 7)
        assert (batch.base_sequence, batch.producer_epoch) == (0, 0)
        assert [record.header_keys for record in batch.records][4] == ("a", "a", "none", "empty")


@bounded(60)
async def test_the_log_holds_sequences_without_gap_over_batches_and_partitions(
    cluster: KafkaCluster,
) -> None:
    await cluster.create_topic("many", partitions=3)
    async with Producer(cluster.bootstrap_servers, batch_size=2000) as producer:
        sent = [
            producer.send_nowait("many", b"%06d" % number, partition=number % 3)
            for number in range(3000)
        ]
        for each in sent:
            await each
    logs = await cluster.dump_topic("many")
    assert sorted(logs) == [0, 1, 2]
    for partition, batches in logs.items():
        records = [record for batch in batches for record in batch.records]
        assert [record.payload for record in records] == [
            f"{number:06d}" for number in range(partition, 3000, 3)
        ]
        assert [record.offset for record in records] == list(range(1000))
        assert [batch.base_sequence for batch in batches] == [b.base_offset for b in batches]
        assert len({(batch.producer_id, batch.producer_epoch) for batch in batches}) == 1


@bounded(60)
async def test_a_topic_is_created_by_its_first_record(
    cluster: KafkaCluster,
) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        assert (await producer.send("made-by-sending", b"v")).offset == 0
    [batch] = await cluster.dump_log("made-by-sending")
    assert batch.count == 1
