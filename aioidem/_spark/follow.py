"""Audit a load while it runs: read ledgers and topic as streams, and report anomalies early.

A load is a run that sends numbered records. Its ledgers (`ledger.py`) have a row with the outcome
of each record. Rows and records are grouped, and checked for anomalies, as in `audit.py`. A record
is judged (checked) when both streams have advanced `delay` seconds beyond the time at which the
record was sent. Until then it is kept in Spark's state store. Each streaming batch of judged
records is written to a folder of its own.

Invariants:

- Ledger row and record are paired by the time of sending, which both contain: `NumberedRecords`
  gives a record the `sent_at` of its row as timestamp. In a topic with LogAppendTime the broker
  replaces the timestamps, so such a topic is refused.
- `delay` must exceed `delivery.timeout.ms`, within which every record ends. Otherwise a ledger row
  may come too late: Spark drops it, and the record seems to be in no ledger.
- The state is bounded by the records sent within `delay`, plus the edges, which serve to check the
  order from one streaming batch to the next. The edges are the highest call (the number of the send
  call, counted per producer) and the highest offset per producer and partition.
- A streaming batch that is repeated after a restart overwrites its own output.

The last seconds of a load are never judged here, because no later record ends the wait. Records of
aborted transactions are not seen either. The final result is that of the audit after the load
(`audit.py`).

Rejected: an outer join of two streams (duplicates multiply its rows, and it also needs a bound on
the time between ledger row and record); the trigger `availableNow` (with a source that does not
support it, such as `aioidem-topic`, Spark runs a single batch, and records are judged only in the
batch after the one that advances the time).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - its usual name

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
from aioidem._spark.topic_source import topic_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["FollowPlan", "follow"]

_LOG_APPEND_TIME: Final = 1
_REFUSED: Final = "the topic has LogAppendTime: records cannot be paired by when they were sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowPlan:
    """The options of an audit of a load that still runs.

    Attributes:
        audit: the topic, the ledger and the output folder.
        delay: seconds until a record is judged; must exceed the producer's `delivery.timeout.ms`.
        step: length in seconds of the intervals into which records are grouped by the time at which
            they were sent; the records of an interval are judged together.
        every: seconds from the start of one streaming batch to the next.
    """

    audit: AuditPlan
    delay: int = 180
    step: int = 10
    every: int = 10


def follow(
    spark: SparkSession, plan: FollowPlan, told: Callable[[dict[str, Any]], None]
) -> StreamingQuery:
    """Start the audit of a running load; `StreamingQuery.stop` of the result ends it.

    Args:
        spark: the session.
        plan: what to follow.
        told: called with the counts of each streaming batch that has ledger rows or anomalies.
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
    return writer.trigger(processingTime=f"{plan.every} seconds").start()


def _entries(spark: SparkSession, plan: FollowPlan) -> DataFrame:
    ledger = spark.readStream.schema(LEDGER_SCHEMA).parquet(plan.audit.ledger)
    # Ledger row and record are paired by this time. In the record it is truncated to milliseconds,
    # not rounded, so it is truncated here too.
    sent = F.timestamp_millis(F.floor(F.unix_micros("sent_at") / 1000))
    rows = entries_of(ledger, plan.audit.topic)
    return rows.withColumn("at", sent).withWatermark("at", f"{plan.delay} seconds")


def _copies(spark: SparkSession, plan: FollowPlan) -> DataFrame:
    reader = spark.readStream.format(topic_format(spark)).options(**dict(plan.audit.options))
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
    """Find the anomalies in one streaming batch, write the results, and return the counts."""

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
    """Mark a record as `late` if it is out of order with the records of earlier batches.

    `call` is the number of the send call that made a record, counted per producer. `edges` has the
    highest `call` and the highest offset (the edge) of the earlier batches, per producer and
    partition. A record with a higher `call` than the edge must have a higher offset too, and a
    record with a lower `call` must have a lower offset.
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
    """Return the new edges: the highest `call` and offset of each producer in each partition."""
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
