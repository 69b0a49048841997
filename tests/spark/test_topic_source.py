"""aioidem's own source for the audit reads a topic as Spark's own Kafka source reads it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aioidem import Producer
from aioidem._admin.topic_log import LogPart, TopicLog
from aioidem._config import ProducerConfig
from aioidem._records import Codec, ReadRecord, build_batch
from aioidem._spark.topic_source import TopicDataSource, topic_format
from aioidem.broker import EmbeddedCluster, Rewrite
from aioidem.errors import (
    ConfigError,
    KafkaTimeoutError,
    ProtocolError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FETCH, METADATA = 1, 3
InLoop = Callable[..., Any]


async def fill(servers: str, topic: str) -> None:
    """Write 4 records, abort 3, commit 2, and leave a transaction with 1 open."""
    async with Producer(servers, compression_type="gzip") as plain:
        headers = [("h", b"1")]
        for number in range(4):
            await plain.send(topic, b"%d" % number, key=b"k", headers=headers, partition=0)
    async with Producer(servers, transactional_id=uuid.uuid4().hex) as producer:
        for count, name, commit in ((3, b"aborted", False), (2, b"committed", True)):
            await producer.begin_transaction()
            await producer.send_many(topic, [name] * count, partition=0)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        await producer.begin_transaction()
        await producer.send(topic, b"open", partition=0)


async def read(log: TopicLog, part: LogPart) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        async for page in log.pages(part)
        for batch in page
        for record in batch.iter_records()
        if part.begin <= record.offset < part.end
    ]


def test_aborted_records_are_left_out_of_committed_ones(
    cluster: EmbeddedCluster, topic: str, in_loop: InLoop
) -> None:
    """A reader of committed data gets neither aborted records nor control records."""
    in_loop(fill, cluster.bootstrap_servers, topic)
    config = ProducerConfig.build(cluster.bootstrap_servers)
    committed = TopicLog(config, topic, committed=True, timeout=10)
    uncommitted = TopicLog(config, topic, committed=False, timeout=10)
    first, other = in_loop(committed.parts)
    assert other == LogPart(1, 0, 0)
    values = [value for _, value in in_loop(read, committed, first)]
    assert values == [b"0", b"1", b"2", b"3", b"committed", b"committed"]
    everything = in_loop(read, uncommitted, in_loop(uncommitted.parts)[0])
    assert [value for _, value in everything].count(b"aborted") == 3
    assert [offset for offset, _ in everything] == sorted({offset for offset, _ in everything})
    # Parts of the log together have what the whole has, wherever they are cut.
    cut = [LogPart(0, begin, min(begin + 2, first.end)) for begin in range(0, first.end, 2)]
    pieces = [row for part in cut for row in in_loop(read, committed, part)]
    assert pieces == in_loop(read, committed, first)


def test_a_topic_that_does_not_exist_is_an_error(cluster: EmbeddedCluster, in_loop: InLoop) -> None:
    """Reading a topic that does not exist raises what the broker says."""
    config = ProducerConfig.build(cluster.bootstrap_servers)
    with pytest.raises(UnknownTopicOrPartitionError):
        in_loop(TopicLog(config, "no-such-topic", committed=True, timeout=10).parts)


def without_topics(answer: Any) -> Any:
    name = "topics" if hasattr(answer, "topics") else "responses"
    return dataclasses.replace(answer, **{name: ()})


def without_partitions(answer: Any) -> Any:
    if not hasattr(answer, "responses"):
        return answer
    topics = [dataclasses.replace(each, partitions=()) for each in answer.responses]
    return dataclasses.replace(answer, responses=tuple(topics))


@pytest.mark.parametrize(
    ("api", "change", "message"),
    [
        (METADATA, without_topics, "an answer without the topic"),
        (FETCH, without_topics, "an answer without partition 0"),
        (FETCH, without_partitions, "an answer without partition 0"),
    ],
)
def test_an_answer_without_what_was_asked_for_is_a_failed_attempt(
    cluster: EmbeddedCluster,
    topic: str,
    in_loop: InLoop,
    api: int,
    change: Callable[[Any], Any],
    message: str,
) -> None:
    """A broker that answers so is asked again until the timeout, whose error says what it did."""
    in_loop(fill, cluster.bootstrap_servers, topic)
    config = ProducerConfig.build(cluster.bootstrap_servers)
    log = TopicLog(config, topic, committed=True, timeout=0.5)
    cluster.intercept(lambda seen: Rewrite(change) if seen.api_key == api else None)
    try:
        with pytest.raises(KafkaTimeoutError, match=message):
            in_loop(read, log, LogPart(0, 0, 1))
    finally:
        cluster.intercept(None)


def test_a_log_that_is_read_again_and_again_has_an_end(
    cluster: EmbeddedCluster, topic: str, in_loop: InLoop
) -> None:
    """A broker that answers every request with the first batch is refused."""
    in_loop(fill, cluster.bootstrap_servers, topic)
    config = ProducerConfig.build(cluster.bootstrap_servers)
    log = TopicLog(config, topic, committed=True, timeout=5)
    pages: list[Any] = []

    def first_page(answer: Any) -> Any:
        [responses] = answer.responses
        [part] = responses.partitions
        pages.append(part.records)
        again = dataclasses.replace(part, records=pages[0])
        kept = dataclasses.replace(responses, partitions=(again,))
        return dataclasses.replace(answer, responses=(kept,))

    cluster.intercept(lambda seen: Rewrite(first_page) if seen.api_key == FETCH else None)
    try:
        with pytest.raises(ProtocolError, match=r"none from offset .* on, but earlier ones"):
            in_loop(read, log, LogPart(0, 0, 1_000))
    finally:
        cluster.intercept(None)


def test_a_page_of_control_batches_that_decompress_to_much_is_refused(
    cluster: EmbeddedCluster, topic: str, in_loop: InLoop
) -> None:
    """A hostile page must not cost 64 MiB for each of its control batches."""
    in_loop(fill, cluster.bootstrap_servers, topic)
    records = [ReadRecord(0, 1, b"\x00\x00\x00\x00", bytes(1 << 20), ())]
    bomb = bytes(build_batch(records, codec=Codec.GZIP, control=True).data)

    def exploding(answer: Any) -> Any:
        [responses] = answer.responses
        [part] = responses.partitions
        kept = dataclasses.replace(part, records=bomb)
        responses = dataclasses.replace(responses, partitions=(kept,))
        return dataclasses.replace(answer, responses=(responses,))

    config = ProducerConfig.build(cluster.bootstrap_servers)
    log = TopicLog(config, topic, committed=True, timeout=5)
    cluster.intercept(lambda seen: Rewrite(exploding) if seen.api_key == FETCH else None)
    try:
        with pytest.raises(ProtocolError, match="more than 4096 bytes"):
            in_loop(read, log, LogPart(0, 0, 1))
    finally:
        cluster.intercept(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t"}, "bootstrap.servers: needed"),
        ({"kafka.bootstrap.servers": "h:1"}, "subscribe: needed"),
        (
            {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "endingOffsets": "1"},
            "endingoffsets",
        ),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g"}, "group.id"),
        (
            {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.isolation.level": "none"},
            "isolation.level",
        ),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "columns": "keys"}, "columns: "),
    ],
)
def test_a_bad_option_is_named(options: dict[str, str], message: str) -> None:
    """An option that is missing, unknown or illegal is an error that names it."""
    from pyspark.sql.types import StructType

    with pytest.raises(ConfigError, match=message):
        TopicDataSource(options).reader(StructType([]))


def test_both_sources_return_the_same_rows(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, in_loop: InLoop
) -> None:
    """aioidem's source returns the rows of Spark's own, with both isolation levels."""
    in_loop(fill, cluster.bootstrap_servers, topic)
    spark.dataSource.register(TopicDataSource)

    def rows(source: str, level: str, columns: list[str]) -> list[Any]:
        reader = spark.read.format(source).option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        reader = reader.option("kafka.isolation.level", level).option("includeHeaders", "true")
        frame = reader.load()
        assert not columns or frame.columns == columns
        return frame.orderBy("partition", "offset").collect()

    theirs = topic_format(spark)
    for level, count in (("read_committed", 6), ("read_uncommitted", 10)):
        expected = rows(theirs, level, [])
        assert len(expected) == count
        assert rows(TopicDataSource.name(), level, list(expected[0].__fields__)) == expected


def rows_of(options: dict[str, str], part: LogPart, *columns: str) -> list[Any]:
    """Return what a task reads of a part of the log, without Spark."""
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField(name, StringType()) for name in columns])
    source = TopicDataSource({**options, "columns": ",".join(columns)})
    batches = source.reader(schema).read(InputPartition(tuple(part)))
    return [row for batch in batches for row in batch.to_pylist()]


def test_offsets_that_are_not_decoded_are_those_of_the_records(
    cluster: EmbeddedCluster, topic: str, in_loop: InLoop
) -> None:
    """A task that reads no column of the records has the same rows, wherever its part is cut."""
    in_loop(fill, cluster.bootstrap_servers, topic)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": topic,
        "kafka.isolation.level": "read_committed",
    }
    places: list[Any] = []
    for begin in range(0, 9, 2):
        part = LogPart(0, begin, begin + 2 if begin < 8 else 9)
        records = rows_of(options, part, "partition", "offset", "value")
        only = rows_of(options, part, "partition", "offset")
        assert only == [{name: row[name] for name in ("partition", "offset")} for row in records]
        places += only
    assert [each["offset"] for each in places] == [0, 1, 2, 3, 8]
    assert list(TopicDataSource({"columns": "offset, partition"}).schema().split(", ")) == [
        "partition int",
        "offset bigint",
    ]


def test_a_stream_returns_each_record_once_and_continues(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, in_loop: InLoop, tmp_path: Path
) -> None:
    """A stream of aioidem's source returns each record once, also after it was restarted."""
    spark.dataSource.register(TopicDataSource)
    reader = spark.readStream.format(TopicDataSource.name()).option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    writer = reader.load().writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    async def send(numbers: Iterable[int]) -> None:
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in numbers:
                await producer.send(topic, b"%d" % number, partition=number % 2)

    def values() -> list[int]:
        return sorted(
            int(row.value) for row in spark.read.parquet(str(tmp_path / "rows")).collect()
        )

    for begin in (0, 20):
        in_loop(send, range(begin, begin + 10))
        query = writer.start()
        try:
            query.processAllAvailable()
            assert values() == list(range(begin + 10))
            in_loop(send, range(begin + 10, begin + 20))
            query.processAllAvailable()
            assert values() == list(range(begin + 20))
        finally:
            query.stop()
