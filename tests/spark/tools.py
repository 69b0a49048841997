"""Rows for a task of the sink; a streaming query that writes with it, and ways to make it fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from aioidem._spark.options import SinkOptions
from aioidem._spark.topic_source import topic_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from aioidem.broker import EmbeddedCluster

ROWS = 300
ADAPTIVE = "spark.sql.adaptive.enabled"


def streaming_sink(cluster: EmbeddedCluster, topic: str, **more: str) -> SinkOptions:
    """Return the options of a stream's sink for a topic."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, **more}
    return SinkOptions.read(given, streaming=True)


def record_batch(topic: str, values: list[bytes | None]) -> pa.RecordBatch:
    """Make rows for partition 0 of a topic, as Spark passes them to the sink."""
    count = len(values)
    columns = {
        "topic": pa.array([topic] * count, pa.string()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([0] * count, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


@contextmanager
def fixed_tasks(spark: SparkSession) -> Iterator[None]:
    """Turn adaptive execution off, as a stream that is exactly-once needs it since Spark 4.2."""
    before = spark.conf.get(ADAPTIVE)
    spark.conf.set(ADAPTIVE, "false")
    try:
        yield
    finally:
        spark.conf.set(ADAPTIVE, str(before))


def values(spark: SparkSession, servers: str, topic: str) -> list[int]:
    """Return the values that a reader of committed data sees, sorted."""
    frame = (
        spark.read.format(topic_format(spark))
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .load()
    )
    rows = frame.selectExpr("cast(cast(value AS string) AS int) AS value").collect()
    return sorted(row.value for row in rows)


class Query:
    """A streaming query: each `feed` adds files that become a batch, by default of two tasks."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._topic = topic
        self._fed = 0
        self.source = str(folder / "source")
        self.checkpoint = folder / "checkpoint"

    def feed(self, tasks: int = 2) -> None:
        first = self._fed * ROWS
        frame = self._spark.range(first, first + ROWS, 1, tasks).selectExpr(
            "cast(id AS string) value"
        )
        frame.write.mode("append").parquet(self.source)
        self._fed += 1

    def run(self, *, column: Any = "value", sink: str = "aioidem", **options: str) -> None:
        """Write the rows of the new files; raise the error that ended the query."""
        stream: DataFrame = self._spark.readStream.schema("value string").parquet(self.source)
        writer = stream.select(column).writeStream.format(sink)
        writer = writer.option("checkpointLocation", str(self.checkpoint)).options(**options)
        with fixed_tasks(self._spark):
            query = (
                writer.option("kafka.bootstrap.servers", self._servers)
                .option("topic", self._topic)
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)

    def forget_commit(self, batch: int) -> None:
        """Remove the note that a batch is finished, as if the driver had died before writing it."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


def fail_once(at: int) -> Any:
    """Make a column that fails the first attempt of the task whose rows include the value `at`."""

    def look(value: str) -> str:
        context = TaskContext.get()
        if int(value) == at and context is not None and context.attemptNumber() == 0:
            raise ZeroDivisionError(f"attempt 0 fails at {value}")
        return value

    return F.udf(look, StringType(), useArrow=False)("value").alias("value")
