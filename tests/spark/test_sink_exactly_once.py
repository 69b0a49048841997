"""The exactly-once sink on Spark, with failing tasks, repeated batches and restored checkpoints.

With `local[2,2]` a task that fails is tried once more.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from aioidem._spark.session import job_failure
from aioidem.broker import EmbeddedCluster
from aioidem.spark import register

from .tools import ROWS, Query, fail_once, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INIT_PRODUCER_ID = 22


@pytest.fixture
def query(spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> Query:
    register(spark)
    made = Query(spark, cluster.bootstrap_servers, topic, tmp_path)
    made.feed()
    return made


def test_failing_tasks_and_repeated_batches_write_once(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, query: Query
) -> None:
    """Rows are written once even if a task fails and a batch is repeated."""
    seen: list[int] = []
    cluster.intercept(lambda each: seen.append(each.api_key))
    try:
        query.run(column=fail_once(100))  # fails before its commit, and is tried again
    finally:
        cluster.intercept(None)
    # Two of three attempts asked for a producer ID: attempt 0 at task 0 failed before its first row
    # came out, so it fenced no other attempt.
    assert seen.count(INIT_PRODUCER_ID) == 2
    assert values(spark, cluster.bootstrap_servers, topic) == list(range(ROWS))
    query.forget_commit(0)
    query.feed()
    query.run()  # batch 0 again, which is skipped, then batch 1
    assert values(spark, cluster.bootstrap_servers, topic) == list(range(2 * ROWS))


def test_a_checkpoint_that_is_rolled_back_fails_and_loses_nothing(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, query: Query, tmp_path: Path
) -> None:
    """A query that restarts from an older checkpoint fails, and no row is lost."""
    query.run()
    shutil.copytree(query.checkpoint, tmp_path / "backup")
    for _ in range(2):
        query.feed()
        query.run()
    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "backup", query.checkpoint)
    query.feed()  # batch 1 now has other rows
    with pytest.raises(Exception, match="MarkerAheadError"):
        query.run()
    assert values(spark, cluster.bootstrap_servers, topic) == list(range(3 * ROWS))


def test_a_batch_write_with_an_identity(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    """A batch write with an identity writes its rows once, however often it is repeated."""
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
    """A task refuses speculation, a Spark setting that the task reads in its local properties."""

    def told(_: int) -> str | None:
        context = TaskContext.get()
        return None if context is None else context.getLocalProperty("spark.driver.bindAddress")

    [row] = (
        spark.range(1)
        .select(F.udf(told, StringType(), useArrow=False)("id").alias("told"))
        .collect()
    )
    assert row.told == "127.0.0.1"
    spark.sparkContext.setLocalProperty("spark.speculation", "true")
    try:
        with pytest.raises(Exception, match="speculation=allow"):
            query.run()
    finally:
        spark.sparkContext.setLocalProperty("spark.speculation", None)  # type: ignore[arg-type]
