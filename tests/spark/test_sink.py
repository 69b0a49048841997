"""The sink on Spark writes every column unchanged, and a task that fails says why."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from aioidem._spark.session import job_failure
from aioidem._spark.topic_source import topic_format
from aioidem.broker import EmbeddedCluster
from aioidem.spark import register

from .tools import fixed_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "key binary, value binary, topic string, partition int,"
    " headers array<struct<key:string,value:binary>>, timestamp timestamp"
)
WHEN = datetime.now(UTC).replace(microsecond=123_000)


def rows(topic: str) -> list[tuple[Any, ...]]:
    return [
        (b"k1", b"v1", topic, 1, [("h", b"1"), ("h", b"2")], WHEN),
        (None, b"v2", topic, 0, None, WHEN),
        (b"k3", None, topic, 1, [], WHEN),  # a tombstone
        (b"", b"", topic, 0, [("e", None)], WHEN),
    ]


def read_back(spark: SparkSession, servers: str, topic: str) -> list[tuple[Any, ...]]:
    """Read the topic with Spark's own source."""
    frame = (
        spark.read.format(topic_format(spark))
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
        .orderBy("partition", "offset")
    )
    return [
        (
            row.key and bytes(row.key),
            row.value if row.value is None else bytes(row.value),
            row.partition,
            [(each.key, each.value) for each in row.headers or ()],
            row.timestamp.astimezone(UTC),
        )
        for row in frame.collect()
    ]


def in_partition_order(topic: str) -> list[tuple[Any, ...]]:
    given = sorted(rows(topic), key=lambda row: row[3])
    return [(row[0], row[1], row[3], row[4] or [], row[5]) for row in given]


def test_a_batch_write_has_every_column(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    """A batch write sends key, value, headers, partition and timestamp unchanged."""
    register(spark)
    frame = spark.createDataFrame(rows(topic), SCHEMA).coalesce(1)
    frame.write.format("aioidem").mode("append").options(
        **{"kafka.bootstrap.servers": cluster.bootstrap_servers, "kafka.linger.ms": "5"}
    ).save()
    assert read_back(spark, cluster.bootstrap_servers, topic) == in_partition_order(topic)


def test_a_stream_has_every_column_and_goes_on_from_its_checkpoint(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """A stream sends every column unchanged, and continues from its checkpoint."""
    register(spark)
    source = str(tmp_path / "source")
    frame = spark.createDataFrame(rows("elsewhere"), SCHEMA).coalesce(1)
    frame.write.parquet(source)

    def run() -> None:
        stream: DataFrame = spark.readStream.schema(SCHEMA).parquet(source)
        writer = (
            stream.writeStream.format("aioidem")
            .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
            .option("topic", topic)  # replaces the column
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        with fixed_tasks(spark):
            assert writer.trigger(availableNow=True).start().awaitTermination(120)

    run()
    assert read_back(spark, cluster.bootstrap_servers, topic) == in_partition_order(topic)
    run()  # there are no new files
    more = spark.createDataFrame([("k", "a string")], "key string, value string")
    more.selectExpr("cast(key AS binary) key", "cast(value AS binary) value").write.mode(
        "append"
    ).parquet(source)
    run()
    values = [row[1] for row in read_back(spark, cluster.bootstrap_servers, topic)]
    assert sorted(values, key=str) == sorted([b"v1", b"v2", None, b"", b"a string"], key=str)


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark 4.1 has the table of logs")
def test_what_a_write_has_done_is_in_sparks_table_of_logs(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    """Spark's table of the logs of Python workers has a line about each batch write."""
    register(spark)
    frame = spark.range(0, 30, 1, 2).selectExpr("cast(id AS string) value")
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic}
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        frame.write.format("aioidem").mode("append").options(**options).save()
        logs: Any = spark.tvf
        rows = logs.python_worker_logs().where("logger = 'aioidem.spark.report'").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    [told] = [row.msg for row in rows]
    assert told.startswith("a write: 30 rows acknowledged by 2 tasks, 0 of them skipped")


def test_many_rows_of_many_tasks_keep_their_order(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    """Each task's rows keep their order within a partition."""
    register(spark)
    frame = spark.range(0, 20_000, 1, 4).selectExpr(
        "cast(id AS string) AS value", "cast(id % 2 AS int) AS partition"
    )
    frame.write.format("aioidem").mode("append").option(
        "kafka.bootstrap.servers", cluster.bootstrap_servers
    ).option("topic", topic).save()
    numbers: dict[int, list[int]] = {0: [], 1: []}
    for _, value, partition, _, _ in read_back(spark, cluster.bootstrap_servers, topic):
        numbers[partition].append(int(value))
    assert sorted(numbers[0] + numbers[1]) == list(range(20_000))
    for each in numbers.values():
        for task in range(4):  # 5,000 rows each
            own = [number for number in each if number // 5000 == task]
            assert own == sorted(own)


def test_a_task_that_cannot_write_fails_clearly(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    """A job whose task cannot write fails with SinkTaskError, which says why."""
    register(spark)
    cluster.set_config(topic, "max.message.bytes", 1000)
    frame = spark.createDataFrame([("x" * 2000,)], "value string").coalesce(1)
    writer = frame.write.format("aioidem").mode("append").option("topic", topic)
    with pytest.raises(Exception, match="SinkTaskError") as caught:
        writer.option("kafka.bootstrap.servers", cluster.bootstrap_servers).save()
    told = job_failure(caught.value)
    assert "of 1 rows 1 were not written and 0 are unknown" in told
    assert "MessageSizeTooLarge" in told


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({"topic": "t"}, "value string", "kafka.bootstrap.servers: needed"),
        ({"kafka.bootstrap.servers": "h:1"}, "value string", "topic: needed"),
        ({"kafka.bootstrap.servers": "h:1", "topic": "t"}, "key string", "column value: needed"),
    ],
)
def test_bad_options_are_found_before_a_task_starts(
    spark: SparkSession, options: dict[str, str], columns: str, message: str
) -> None:
    """Bad options of the sink are refused before any task starts."""
    register(spark)
    frame = spark.createDataFrame([("x",)], columns)
    with pytest.raises(Exception, match=message):
        frame.write.format("aioidem").mode("append").options(**options).save()


def test_overwriting_a_topic_is_refused(spark: SparkSession) -> None:
    """The save mode `overwrite` is refused."""
    register(spark)
    frame = spark.createDataFrame([("x",)], "value string")
    writer = frame.write.format("aioidem").mode("overwrite").option("topic", "t")
    with pytest.raises(Exception, match="appended to"):
        writer.option("kafka.bootstrap.servers", "h:1").save()
