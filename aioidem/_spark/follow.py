"""The audit of a load that still runs: ledgers and topic as streams, anomalies as they show.

The same grouping and the same rules as `audit.py`. What is new is time: a record is judged once
both streams have moved on from the moment it was sent, by `delay` seconds; until then it waits in
Spark's state store. Each batch of judged records is written below a folder of its own.

Invariants:

* Ledger and record are paired by the moment of sending, which both carry: `LedgerProducer` stamps
  its records so. A topic with LogAppendTime stamps them anew, and is refused.
* `delay` exceeds the time within which a record ends, `delivery.timeout.ms`; else a ledger's row
  comes too late, is dropped by Spark, and its record looks foreign.
* State is bounded by what is sent within `delay`, and the edges: two numbers per producer and
  partition, by which order is judged from one batch to the next.
* A batch that is repeated after a restart overwrites what it wrote.

The last seconds of a load are never judged here, because nothing follows that would end the wait.
The last word is the batch audit's, and it cannot see what aborted transactions wrote either.

Rejected: an outer join of two streams (duplicates multiply its rows, and it needs a bound on the
time between the two all the same).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows it by

from aioidem._spark.audit import (
    AuditPlan,
    Finding,
    copies_of,
    entries_of,
    grouped,
    judged,
    latencies,
    out_of_order,
    summary_of,
)
from aioidem._spark.ledger import LEDGER_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["FollowPlan", "follow"]

_LOG_APPEND_TIME: Final = 1
_REFUSED: Final = "the topic has LogAppendTime: records cannot be paired by when they were sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowPlan:
    """What is followed, and how closely.

    Attributes:
        audit: the topic, the ledger and where to write.
        delay: seconds until a record is judged; more than records take to end.
        step: seconds of sending time that are judged together.
        every: seconds between batches; None takes what there is and ends.
    """

    audit: AuditPlan
    delay: int = 180
    step: int = 10
    every: int | None = 10


def follow(
    spark: SparkSession, plan: FollowPlan, told: Callable[[dict[str, Any]], None]
) -> StreamingQuery:
    """Start following; ends with `StreamingQuery.stop`.

    Args:
        spark: a session with Spark's Kafka source.
        plan: see there.
        told: called after each batch that judged something, with its sums.
    """
    out = plan.audit.out

    def each(batch: DataFrame, number: int) -> None:
        sums = _judge(spark, batch, number, plan)
        if sums["records"] or any(sums["anomalies"].values()):
            told(sums)

    at = F.window("at", f"{plan.step} seconds")
    rows = _entries(spark, plan).unionByName(_copies(spark, plan))
    writer = grouped(rows, at).writeStream.outputMode("append").foreachBatch(each)
    writer = writer.option("checkpointLocation", f"{out}/checkpoint")
    if plan.every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{plan.every} seconds").start()


def _entries(spark: SparkSession, plan: FollowPlan) -> DataFrame:
    ledger = spark.readStream.schema(LEDGER_SCHEMA).parquet(plan.audit.ledger)
    # Records have milliseconds, cut off and not rounded.
    sent = F.timestamp_millis(F.floor(F.unix_micros("sent_at") / 1000))
    rows = entries_of(ledger, plan.audit.topic)
    return rows.withColumn("at", sent).withWatermark("at", f"{plan.delay} seconds")


def _copies(spark: SparkSession, plan: FollowPlan) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**dict(plan.audit.options))
    reader = reader.option("kafka.bootstrap.servers", plan.audit.bootstrap)
    reader = reader.option("kafka.isolation.level", "read_committed")
    records = (
        reader.option("subscribe", plan.audit.topic).option("startingOffsets", "earliest").load()
    )
    appended = F.col("timestampType") == _LOG_APPEND_TIME
    at = F.when(appended, F.raise_error(F.lit(_REFUSED)).cast("timestamp"))
    records = records.withColumn("at", at.otherwise(F.col("timestamp")))
    rows = copies_of(records, plan.audit.topic, keep=["at"])
    return rows.withWatermark("at", f"{plan.delay} seconds")


def _judge(spark: SparkSession, batch: DataFrame, number: int, plan: FollowPlan) -> dict[str, Any]:
    """One batch: written, then summed up from what was written."""

    def folder(name: str, which: int = number) -> str:
        return f"{plan.audit.out}/{name}/batch={which}"

    edges = None if number == 0 else spark.read.parquet(folder("edges", number - 1))
    records = judged(_late_over_edges(out_of_order(batch), edges))
    records.drop("last", "late", "stray", "window").write.mode("overwrite").parquet(
        folder("records")
    )
    records = spark.read.parquet(folder("records"))
    anomalies = records.filter(F.size("findings") > 0).withColumn("finding", F.explode("findings"))
    anomalies.drop("findings").write.mode("overwrite").parquet(folder("anomalies"))
    latencies(records, plan.audit.bucket).write.mode("overwrite").parquet(folder("latency"))
    _edges_of(records, edges).write.mode("overwrite").parquet(folder("edges"))
    [sums] = summary_of(records).collect()
    counts = sums.asDict()
    kinds = set(Finding)
    return {
        "batch": number,
        **{name: count for name, count in counts.items() if name not in kinds},
        "anomalies": {kind.value: counts[kind.value] for kind in Finding},
    }


def _late_over_edges(records: DataFrame, edges: DataFrame | None) -> DataFrame:
    """Adds to `late` what is out of order with the batches before.

    Those were sent earlier: a later call belongs behind their last offset, an earlier one before.
    """
    if edges is None:
        return records
    keyed = records.withColumn("in_partition", F.col("found.partition"))
    joined = keyed.join(F.broadcast(edges), ["producer", "in_partition"], "left")
    behind = F.col("found.offset") > F.col("edge_offset")
    later = F.col("call") > F.col("edge_call")
    late = F.col("late") | F.coalesce(behind != later, F.lit(False))
    return joined.withColumn("late", late).drop("in_partition", "edge_offset", "edge_call")


def _edges_of(records: DataFrame, edges: DataFrame | None) -> DataFrame:
    """The highest call and offset of each producer in each partition, so far."""
    placed = records.filter((F.col("copies") > 0) & F.col("producer").isNotNull())
    rows = placed.select(
        "producer",
        F.col("found.partition").alias("in_partition"),
        F.col("call").alias("edge_call"),
        F.col("found.offset").alias("edge_offset"),
    )
    if edges is not None:
        rows = rows.unionByName(edges)
    return rows.groupBy("producer", "in_partition").agg(
        F.max("edge_call").alias("edge_call"), F.max("edge_offset").alias("edge_offset")
    )
