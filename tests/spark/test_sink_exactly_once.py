"""The sink on Spark, exactly once: failing tasks, repeated batches, restored checkpoints.

`local[2,2]`: a task that fails is tried once more.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from aioidem.broker import EmbeddedCluster
from aioidem.spark import register
from aioidem.spark.session import job_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 300


def values(spark: SparkSession, servers: str, topic: str) -> list[int]:
    """What a reader of committed data sees, sorted."""
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .load()
    )
    rows = frame.selectExpr("cast(cast(value AS string) AS int) AS value").collect()
    return sorted(row.value for row in rows)


class Query:
    """A stream of files: each `feed` is a batch of two tasks."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._topic = topic
        self._fed = 0
        self.source = str(folder / "source")
        self.checkpoint = folder / "checkpoint"

    def feed(self) -> None:
        first = self._fed * ROWS
        frame = self._spark.range(first, first + ROWS, 1, 2).selectExpr("cast(id AS string) value")
        frame.write.mode("append").parquet(self.source)
        self._fed += 1

    def run(self, *, column: Any = "value", **options: str) -> None:
        """Write what is new; raises what the query ended with."""
        stream: DataFrame = self._spark.readStream.schema("value string").parquet(self.source)
        writer = stream.select(column).writeStream.format("aioidem")
        query = (
            writer.option("kafka.bootstrap.servers", self._servers)
            .option("topic", self._topic)
            .option("checkpointLocation", str(self.checkpoint))
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    def forget_commit(self, batch: int) -> None:
        """As if the driver had been killed before it noted that the batch was done."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.fixture
def query(spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> Query:
    register(spark)
    made = Query(spark, cluster.bootstrap_servers, topic, tmp_path)
    made.feed()
    return made


def fail_once(at: int) -> Any:
    """A column that lets the first attempt at a row's task fail, halfway through its rows."""

    def look(value: str) -> str:
        context = TaskContext.get()
        if int(value) == at and context is not None and context.attemptNumber() == 0:
            raise ZeroDivisionError(f"attempt 0 fails at {value}")
        return value

    return F.udf(look, StringType())("value").alias("value")


def test_failing_tasks_and_repeated_batches_write_once(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, query: Query
) -> None:
    """attack.md finding 15: what a task needs to know reaches it by its local properties."""
    query.run(column=fail_once(100))  # before its commit: aborted, tried again
    assert values(spark, cluster.bootstrap_servers, topic) == list(range(ROWS))
    query.forget_commit(0)
    query.feed()
    query.run()  # batch 0 again, which is skipped, and batch 1
    assert values(spark, cluster.bootstrap_servers, topic) == list(range(2 * ROWS))


def test_a_checkpoint_that_is_rolled_back_fails_and_loses_nothing(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, query: Query, tmp_path: Path
) -> None:
    query.run()
    shutil.copytree(query.checkpoint, tmp_path / "backup")
    for _ in range(2):
        query.feed()
        query.run()
    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "backup", query.checkpoint)
    query.feed()  # a batch 1 with other rows
    with pytest.raises(Exception, match="MarkerAheadError"):
        query.run()
    assert values(spark, cluster.bootstrap_servers, topic) == list(range(3 * ROWS))


def test_a_stream_that_is_at_least_once_writes_twice(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, query: Query
) -> None:
    """What the other mode is for."""
    query.run(mode="at-least-once")
    query.forget_commit(0)
    query.run(mode="at-least-once")
    assert values(spark, cluster.bootstrap_servers, topic) == sorted([*range(ROWS), *range(ROWS)])


def test_a_batch_write_with_an_identity(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    register(spark)
    frame = spark.range(0, ROWS, 1, 3).selectExpr("cast(id AS string) value")
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "topic": topic,
        "identity": f"import-{topic}",
    }

    def write(**more: str) -> None:
        writer = frame.select(fail_once(250)).write.format("aioidem").mode("append")
        writer.options(**options, **more).save()

    with pytest.raises(Exception, match="UnsafePlanError") as caught:
        write()  # adaptive execution is on by default
    assert "adaptive=allow" in job_failure(caught.value)
    write(adaptive="allow")
    with pytest.raises(Exception, match="IdentityUsedError"):
        write(adaptive="allow")
    assert values(spark, cluster.bootstrap_servers, topic) == list(range(ROWS))


def test_speculation_is_refused(spark: SparkSession, query: Query) -> None:
    """Spark tells its tasks the application's settings; this one cannot be changed in passing."""

    def told(_: int) -> str | None:
        context = TaskContext.get()
        return None if context is None else context.getLocalProperty("spark.driver.bindAddress")

    [row] = spark.range(1).select(F.udf(told, StringType())("id").alias("told")).collect()
    assert row.told == "127.0.0.1"
    spark.sparkContext.setLocalProperty("spark.speculation", "true")
    try:
        with pytest.raises(Exception, match="speculation=allow"):
            query.run()
    finally:
        spark.sparkContext.setLocalProperty("spark.speculation", None)  # type: ignore[arg-type]
