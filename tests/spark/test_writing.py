"""One task of the sink, tested without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from aioidem._broker.intercept import Drop
from aioidem._records.compression import Codec
from aioidem._spark.options import SinkOptions, check_columns
from aioidem._spark.task_loop import TaskLoop
from aioidem._spark.writing import SinkTaskError, write_rows
from aioidem.broker import EmbeddedCluster
from aioidem.errors import (
    ConfigError,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    RecordError,
)
from aioidem.structs import DeliveryStatus

from .tools import record_batch

PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22
QUICK = {"delivery.timeout.ms": "600", "request.timeout.ms": "200", "linger.ms": "0"}


def rows_in_batches(rows: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
    return [rows.slice(begin, size) for begin in range(0, rows.num_rows, size)]


@pytest.fixture(autouse=True)
def _healthy(cluster: EmbeddedCluster) -> Iterator[None]:
    yield
    cluster.intercept(None)


def options(cluster: EmbeddedCluster, **properties: str) -> SinkOptions:
    return SinkOptions(
        properties={"bootstrap.servers": cluster.bootstrap_servers, **properties}, topic=None
    )


def numbered(topic: str, count: int, size: int = 10, first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return record_batch(topic, [str(number).encode().ljust(size) for number in numbers])


def test_every_row_is_written_in_order(cluster: EmbeddedCluster, topic: str) -> None:
    rows = numbered(topic, 5000)
    assert write_rows(options(cluster), rows_in_batches(rows, 1000)).rows == 5000
    values = [record.value for batch in cluster.batches(topic) for record in batch.records()]
    assert values == rows.column("value").to_pylist()


def test_a_small_buffer_is_waited_for(cluster: EmbeddedCluster, topic: str) -> None:
    """A task with more rows than fit into the producer's buffer waits for room."""
    small = options(cluster, **{"buffer.memory": "20000", "batch.size": "2000"})
    assert write_rows(small, rows_in_batches(numbered(topic, 2000, 100), 1000)).rows == 2000
    assert cluster.log_end_offset(topic) == 2000


def test_rows_that_may_be_written_fail_the_task_as_unknown(
    cluster: EmbeddedCluster, topic: str
) -> None:
    """Rows whose answers never come fail the task with the status UNKNOWN."""
    cluster.intercept(lambda seen: Drop(processed=True) if seen.api_key == PRODUCE else None)
    with pytest.raises(SinkTaskError, match="0 were not written and 3 are unknown") as caught:
        write_rows(options(cluster, **QUICK), [numbered(topic, 3)])
    assert caught.value.status is DeliveryStatus.UNKNOWN


def test_a_failed_row_ends_the_task_before_its_rows_do(
    cluster: EmbeddedCluster, topic: str
) -> None:
    """The first failed row ends the task, even if the task has endless rows."""
    cluster.set_config(topic, "max.message.bytes", 1000)
    taken = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        while True:
            taken += 1
            yield numbered(topic, 10, 2000)

    with pytest.raises(SinkTaskError, match="not written") as caught:
        write_rows(options(cluster), endless())
    assert caught.value.status is DeliveryStatus.NOT_WRITTEN
    assert taken >= 1


def test_a_producer_serves_one_task_after_another(cluster: EmbeddedCluster, topic: str) -> None:
    """Tasks with the same properties share a producer, one after the other; a failed task none."""
    seen: list[int] = []
    cluster.intercept(lambda each: seen.append(each.api_key))
    loop = TaskLoop()
    try:
        for number in range(3):
            rows = numbered(topic, 5, first=5 * number)
            assert write_rows(options(cluster), [rows], loop=loop).rows == 5
        assert seen.count(INIT_PRODUCER_ID) == 1
        write_rows(options(cluster, **{"linger.ms": "1"}), [numbered(topic, 1)], loop=loop)
        assert seen.count(INIT_PRODUCER_ID) == 2
        bad = record_batch(topic, [b"x" * 2_000_000])
        with pytest.raises(MessageSizeTooLargeError):
            write_rows(options(cluster, **{"linger.ms": "1"}), [bad], loop=loop)
        write_rows(options(cluster, **{"linger.ms": "1"}), [numbered(topic, 1)], loop=loop)
        assert seen.count(INIT_PRODUCER_ID) == 3
    finally:
        loop.stop()
    assert cluster.log_end_offset(topic) == 17


def test_the_first_metadata_request_names_the_topic(cluster: EmbeddedCluster, topic: str) -> None:
    """A task whose topic is an option learns it with the producer's first Metadata request."""
    seen: list[int] = []
    cluster.intercept(lambda each: seen.append(each.api_key))
    given = SinkOptions.read({"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic})
    write_rows(given, [numbered(topic, 5)])
    assert seen.index(METADATA) < seen.index(PRODUCE)
    asked = seen[: seen.index(PRODUCE)].count(METADATA)
    assert asked <= 2  # at the bootstrap address, and perhaps at the broker itself


def test_headers_can_be_left_out(cluster: EmbeddedCluster, topic: str) -> None:
    """With `includeHeaders` false, the column `headers` is not sent."""
    rows = pa.RecordBatch.from_pydict({"value": [b"v"], "headers": [[{"key": "h", "value": b"1"}]]})
    for flag in ("true", "false"):
        servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
        given = SinkOptions.read({**servers, "topic": topic, "includeHeaders": flag})
        write_rows(given, [rows])
    headers = sorted(record.headers for record in cluster.records(topic))
    assert headers == [(), (("h", b"1"),)]


def test_what_the_rows_raise_ends_the_task(cluster: EmbeddedCluster, topic: str) -> None:
    """An exception raised while the rows are computed ends the task."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield numbered(topic, 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_rows(options(cluster), broken())
    with pytest.raises(RecordError):
        write_rows(options(cluster), [record_batch("no/topic", [b""])])


def test_a_task_fails_if_no_broker_can_be_reached() -> None:
    """A task fails with KafkaConnectionError if no broker can be reached."""
    nobody = SinkOptions(
        properties={"bootstrap.servers": "127.0.0.1:1", "max.block.ms": "200"}, topic="t"
    )
    with pytest.raises(KafkaConnectionError):
        write_rows(nobody, [])


# --- options --------------------------------------------------------------------------------------

SERVERS = {"kafka.bootstrap.servers": "h:1"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "kafka.bootstrap.servers: needed"),
        ({**SERVERS, "topics": "t"}, "topics: not an option"),
        ({**SERVERS, "kafka.linger.m": "5"}, "linger.m"),
        ({**SERVERS, "topic": "a/b"}, "topic: "),
        ({**SERVERS, "mode": "at-most-once"}, "mode: 'at-most-once'"),
        ({**SERVERS, "topic": "t", "includeHeaders": "yes"}, "includeheaders: 'yes'"),
    ],
)
def test_a_bad_option_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SinkOptions.read(given)


def test_what_spark_adds_for_a_stream_is_no_unknown_option() -> None:
    """Spark passes the names of query and checkpoint on as options; `queryName` makes the first."""
    given = {**SERVERS, "topic": "t", "checkpointLocation": "/c", "queryName": "clicks"}
    assert SinkOptions.read(given, streaming=True).topic == "t"


def test_names_are_taken_in_any_case_and_passwords_are_not_shown() -> None:
    """Option names are accepted in any case, and no password is shown."""
    read = SinkOptions.read(
        {
            "KAFKA.bootstrap.servers": "h:1",
            "Topic": "t",
            "checkpointLocation": "/c",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
            'required username="u" password="secret-word";',
        }
    )
    assert read.topic == "t"
    assert read.config().bootstrap_servers == (("h", 1),)
    assert "secret-word" not in repr(read)


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ({"key": "string"}, "t", "column value: needed"),
        ({"value": "int"}, "t", "column value: of type int"),
        ({"value": "string", "partition": "bigint"}, "t", "column partition: of type bigint"),
        ({"value": "string", "keys": "string"}, "t", "column keys: not a column"),
        ({"value": "string"}, None, "topic: needed"),
    ],
)
def test_a_bad_column_is_named(columns: dict[str, str], topic: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_columns(columns, SinkOptions(properties={}, topic=topic))


# --- topics with options of their own -------------------------------------------------------------


def both(cluster: EmbeddedCluster, own: str, other: str) -> SinkOptions:
    given = {"compression.type": "gzip", "linger.ms": 0}
    return SinkOptions.read(
        {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "topic.options": json.dumps({own: given, f"{other}-unused": {"linger.ms": "5"}}),
        }
    )


def test_a_topic_can_have_options_of_its_own(cluster: EmbeddedCluster, topic: str) -> None:
    """Rows of a topic with own options are written with them, and all other rows without."""
    other = f"{topic}.Other"
    cluster.create_topic(other, partitions=1)
    rows = pa.Table.from_batches([numbered(topic, 20), numbered(other, 30)]).combine_chunks()
    done = write_rows(both(cluster, other, topic), rows.to_batches())
    assert done.rows == 50
    assert done.effort.batches == 2
    codecs = {name: {each.codec for each in cluster.batches(name)} for name in (topic, other)}
    assert codecs == {topic: {Codec.NONE}, other: {Codec.GZIP}}
    assert cluster.log_end_offset(other) == 30


def test_the_producers_of_topics_serve_the_next_task(cluster: EmbeddedCluster, topic: str) -> None:
    """A worker keeps the producers of all topics, until a write comes with other properties."""
    seen: list[int] = []
    other = f"{topic}.Other"
    cluster.create_topic(other, partitions=1)
    cluster.intercept(lambda each: seen.append(each.api_key))
    sink, loop = both(cluster, other, topic), TaskLoop()
    rows = [numbered(topic, 1), numbered(other, 1)]
    try:
        for _ in range(2):
            write_rows(sink, rows, loop=loop)
        assert seen.count(INIT_PRODUCER_ID) == 2
        write_rows(options(cluster), rows, loop=loop)  # the producer without topic's own options
        assert seen.count(INIT_PRODUCER_ID) == 2
        write_rows(sink, rows, loop=loop)
        assert seen.count(INIT_PRODUCER_ID) == 3
    finally:
        loop.stop()


def test_a_failed_row_of_any_topic_fails_the_task(cluster: EmbeddedCluster, topic: str) -> None:
    """A row that fails with a topic's own producer fails the task."""
    other = f"{topic}.Other"
    cluster.create_topic(other, partitions=1)
    cluster.set_config(other, "max.message.bytes", 1000)
    rows = [numbered(other, 1, 2000), numbered(topic, 1)]
    sink = both(cluster, topic, other)
    with pytest.raises(SinkTaskError, match="1 were not written"):
        write_rows(sink, rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "topic.options: "),
        ("[]", "topic.options: not an object"),
        ('{"t": 5}', "topic.options: t: not an object"),
        ('{"a/b": {}}', "topic.options: .*a/b"),
        ('{"t": {}, "t": {}}', "topic.options: 't' is there twice"),
        ('{"t": {"linger.m": 5}}', "topic.options: t: linger.m is not a property"),
        ('{"t": {"sasl.password": "p"}}', "topic.options: t: sasl.password is not a property"),
        ('{"t": {"linger.ms": null}}', "topic.options: t: linger.ms is neither"),
        ('{"t": {"acks": 1}}', "topic.options: t: .*idempotence"),
        ('{"t": {"compression.type": "zip"}}', "topic.options: t: compression.type"),
        ("[" * 100_000, "topic.options: "),
    ],
)
def test_a_bad_option_of_a_topic_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SinkOptions.read({**SERVERS, "topic.options": text})


def test_options_of_a_topic_that_cannot_apply_are_refused() -> None:
    """A write to one topic has no options of another, and an exactly-once write has none."""
    own = {**SERVERS, "topic.options": '{"t": {"acks": "all", "enable.idempotence": true}}'}
    assert SinkOptions.read({**own, "topic": "t"}).topics["t"]["enable.idempotence"] == "true"
    with pytest.raises(ConfigError, match=r"topic\.options: t: all rows are for u"):
        SinkOptions.read({**own, "topic": "u"})
    with pytest.raises(ConfigError, match=r"topic\.options: not in mode exactly-once"):
        SinkOptions.read({**own, "topic": "t"}, streaming=True)
