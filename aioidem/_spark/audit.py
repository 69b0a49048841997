"""The audit: compare the outcomes in ledgers with the records of a topic of any size.

The audit does with DataFrames what `aioidem.testing.check_history` does in memory. Each record of
the topic contains the name of its producer and its call, which is the number of the send call that
made the record, counted per producer. A ledger (`ledger.py`) has the outcome of each call. One
shuffle groups ledger rows and records by producer and call, a second one checks the order.

The results are three folders of Parquet files: `records` (one row per record, with the array of its
findings), `anomalies` (one row per finding) and `latency`.

Invariants:

- The audit consists of DataFrame expressions and window functions, which run in the JVM and can
  spill to disk. The driver collects only sums, one row per partition and limit on requests in
  flight, and a few examples.
- The findings are about the records that a reader with `read_committed` gets. An aborted record
  counts as absent, and is distinguished from a lost one.
- A value contains its own identity with a CRC, so a value in the wrong place is recognised.
- The records of one producer in one partition must be in the order of its calls. A value that is
  found twice counts at its first place.

Rejected: Python functions on rows (ten times slower, with memory that Spark does not account for);
joining ledger and topic (a duplicate would multiply the rows; grouping counts it).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.window import Window

from aioidem._spark.examples import example
from aioidem._spark.ledger import LEDGER_SCHEMA
from aioidem._spark.topic_source import TopicDataSource, topic_format
from aioidem.structs import DeliveryStatus

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "AuditPlan",
    "Finding",
    "aborted_copies",
    "audit",
    "copies_of",
    "entries_of",
    "grouped",
    "judged",
    "latencies",
    "out_of_order",
    "read_ledger",
    "read_topic",
    "report",
    "summary_of",
]


class Finding(enum.StrEnum):
    """A kind of anomaly: what is wrong with a record."""

    LOST = "lost"
    """Acknowledged, but not in the topic."""
    ABORTED = "aborted"
    """Acknowledged, but in the topic only as part of an aborted transaction."""
    DUPLICATE = "duplicate"
    """In the topic more than once."""
    REORDERED = "reordered"
    """In the topic after the record of a later call of the same producer, in the same partition."""
    WRONG_OFFSET = "wrong_offset"
    """Acknowledged with an offset at which the topic has another record or none."""
    NOT_ABSENT = "not_absent"
    """Reported as not written, but in the topic."""
    UNSETTLED = "unsettled"
    """In the ledger without an outcome."""
    ENTERED_TWICE = "entered_twice"
    """In the ledger more than once."""
    FOREIGN = "foreign"
    """In the topic, but in no ledger."""
    MISPLACED = "misplaced"
    """In another topic or partition than its value says."""
    TORN = "torn"
    """A value that no producer can have sent: cut, changed, or of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """The checked options of one `aioidem audit`.

    Attributes:
        ledger: the folder with the ledgers, a path or URI that Spark can read.
        out: the folder for the results; those of an earlier audit are replaced.
        options: further options for Spark's Kafka source (`kafka.security.protocol` and so on).
        bucket: the length in seconds of each interval in `latency`.
    """

    ledger: str
    bootstrap: str
    topic: str
    out: str
    options: Mapping[str, str]
    bucket: int = 10


_ACKED: Final = DeliveryStatus.ACKED.value
_NOT_WRITTEN: Final = DeliveryStatus.NOT_WRITTEN.value
_UNKNOWN: Final = DeliveryStatus.UNKNOWN.value
_EXAMPLES: Final = 3
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
# Of `percentile_approx`: ranks are exact to one part in 100,000, so p99.9 to one in its hundred.
_ACCURACY: Final = 100_000

# A value of `aioidem.testing.make_value` consists of magic, CRC32 of all that follows the CRC32,
# partition, call, the lengths of the producer's and of the topic's name, these names, and padding.
_FIELDS: Final = {
    "crc": "try_cast(conv(hex(substring(value, 5, 4)), 16, 10) AS bigint)",
    "own_partition": "try_cast(conv(hex(substring(value, 9, 4)), 16, 10) AS bigint)",
    "own_call": "try_cast(conv(hex(substring(value, 13, 8)), 16, 10) AS bigint)",
    "producer_size": "try_cast(conv(hex(substring(value, 21, 2)), 16, 10) AS int)",
    "topic_size": "try_cast(conv(hex(substring(value, 23, 2)), 16, 10) AS int)",
}
_WHOLE: Final = (
    "coalesce(substring(value, 1, 4) = X'61697631' AND crc = crc32(substring(value, 9))"
    " AND length(value) >= 24 + producer_size + topic_size"
    " AND is_valid_utf8(cast(substring(value, 25, producer_size) AS string))"
    " AND is_valid_utf8(cast(substring(value, 25 + producer_size, topic_size) AS string)), false)"
)
# The `own_partition` of a value whose partition the producer chose: -1 as an unsigned number.
_ANY_PARTITION: Final = 2**32 - 1

# The columns that ledger rows and records share, so that the two can be grouped together. A column
# that does not apply to a row is null.
_COMMON: Final = {
    "producer": "string",
    "call": "bigint",
    "stray": "string",  # partition and offset of a value without a usable identity
    "strayed": "string",  # TORN or MISPLACED: why that value has no usable identity
    "entry": "int",
    "status": "string",
    "in_flight": "int",
    "partition": "int",
    "offset": "bigint",
    "sent_at": "timestamp",
    "ended_at": "timestamp",
    "copy": "int",
    "aborted": "int",
    "place": "struct<partition:int,offset:bigint>",
    "size": "int",
}


def read_topic(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    committed: bool,
    options: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
) -> DataFrame:
    """Read the whole topic with Spark's own Kafka source, or without it with aioidem's.

    Args:
        spark: the session.
        bootstrap: the bootstrap servers.
        topic: the topic's name.
        committed: whether to leave out the records of aborted and open transactions.
        options: further options of the source.
        columns: the columns to read; none are all. aioidem's source saves time then.
    """
    source = topic_format(spark)
    # What the flags say replaces options of the same name, which a file of properties often has.
    reader = spark.read.format(source).options(**dict(options or {}))
    reader = reader.option("kafka.bootstrap.servers", bootstrap)
    isolation = "read_committed" if committed else "read_uncommitted"
    reader = reader.option("subscribe", topic).option("kafka.isolation.level", isolation)
    if columns and source == TopicDataSource.name():
        reader = reader.option("columns", ",".join(columns))
    frame = reader.load()
    return frame.select(*columns) if columns else frame


def read_ledger(spark: SparkSession, folder: str) -> DataFrame:
    """Read all ledgers in a folder."""
    return spark.read.schema(LEDGER_SCHEMA).parquet(folder)


def entries_of(ledger: DataFrame, topic: str) -> DataFrame:
    """Return a topic's ledger rows, with the columns of `_COMMON`."""
    rows = ledger.filter(F.col("topic") == topic)
    return _shaped(rows.withColumn("entry", F.lit(1)))


def copies_of(
    records: DataFrame, topic: str, *, aborted: bool = False, keep: Sequence[str] = ()
) -> DataFrame:
    """Parse the records of a topic, and check that each is whole and in its place.

    Args:
        records: rows of Spark's Kafka source.
        topic: the topic that the records were read from.
        aborted: whether the records belong to aborted transactions; such a record counts as absent.
        keep: further columns of `records` to keep.

    Returns:
        One row per record, with the columns of `_COMMON` and those in `keep`.
    """
    parsed = records.select(
        "value",
        "partition",
        "offset",
        *keep,
        *(F.expr(how).alias(name) for name, how in _FIELDS.items()),
    )
    parsed = parsed.withColumn("whole", F.expr(_WHOLE))
    own_topic = F.expr("cast(substring(value, 25 + producer_size, topic_size) AS string)")
    own_place = F.col("own_partition").isin(_ANY_PARTITION) | (
        F.col("own_partition") == F.col("partition")
    )
    strayed = F.when(~F.col("whole"), Finding.TORN.value).when(
        (own_topic != topic) | ~own_place, Finding.MISPLACED.value
    )
    rows = parsed.withColumn("strayed", strayed)
    if aborted:
        rows = rows.filter(F.col("strayed").isNull())
    known = F.col("strayed").isNull()
    return _shaped(
        rows.select(
            F.when(known, F.expr("cast(substring(value, 25, producer_size) AS string)")).alias(
                "producer"
            ),
            F.when(known, F.col("own_call")).alias("call"),
            F.when(~known, F.concat_ws("@", "partition", "offset")).alias("stray"),
            "strayed",
            F.lit(int(not aborted)).alias("copy"),
            F.lit(int(aborted)).alias("aborted"),
            *([] if aborted else [F.struct("partition", "offset").alias("place")]),
            F.length("value").alias("size"),
            *keep,
        ),
        keep,
    )


def _shaped(rows: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
    """Select the columns of `_COMMON` in order; a column that the rows lack is null."""
    return rows.select(
        *(
            (F.col(name) if name in rows.columns else F.lit(None)).cast(kind).alias(name)
            for name, kind in _COMMON.items()
        ),
        *keep,
    )


def aborted_copies(
    committed: DataFrame, everything: DataFrame, uncommitted: DataFrame, topic: str
) -> DataFrame | None:
    """Return the records that only a reader with `read_uncommitted` gets; None if there are none.

    The records are counted first, because that is cheap and spares most topics, which have no
    aborted records, a second shuffle.

    Args:
        committed: the places (partition and offset) of committed records.
        everything: the places of all records.
        uncommitted: all records.
        topic: the topic that they were read from.
    """
    if committed.count() == everything.count():
        return None
    only = uncommitted.join(committed, ["partition", "offset"], "left_anti")
    return copies_of(only, topic, aborted=True)


def grouped(rows: DataFrame, *also: Column) -> DataFrame:
    """Merge the rows about each record into one: what the ledgers say, and what the topic has.

    A place is a partition and an offset. In the result `told` is the place that the ledger has for
    the record; `found` and `last` are the record's first and last place in the topic, and `copies`
    says how often the topic has it.

    Args:
        rows: the rows of `entries_of` and `copies_of`, in one DataFrame.
        also: further columns to group by.
    """
    return (
        rows.groupBy("producer", "call", "stray", *also)
        .agg(
            F.max("strayed").alias("strayed"),
            F.sum("entry").alias("entries"),
            F.max("status").alias("status"),
            F.max("in_flight").alias("in_flight"),
            F.max(F.struct("partition", "offset")).alias("told"),
            F.max("sent_at").alias("sent_at"),
            F.max("ended_at").alias("ended_at"),
            F.sum("copy").alias("copies"),
            F.sum("aborted").alias("aborted"),
            F.min("place").alias("found"),
            F.max("place").alias("last"),
            F.max("size").alias("size"),
        )
        .na.fill(0, ["entries", "copies", "aborted"])
    )


def out_of_order(records: DataFrame) -> DataFrame:
    """Add the column `late`: whether a record of a later send call precedes it in its partition.

    Only records of the same producer are compared.
    """
    before = (
        Window.partitionBy("producer", "found.partition")
        .orderBy("found.offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    placed = (F.col("copies") > 0) & F.col("stray").isNull()
    late = placed & (F.max("call").over(before) > F.col("call"))
    return records.withColumn("late", F.coalesce(late, F.lit(False)))


def judged(records: DataFrame) -> DataFrame:
    """Add the column `findings`: the array of the anomalies of each record.

    Args:
        records: rows of `grouped`, with the column `late` of `out_of_order`.
    """
    entered, acked = F.col("entries") > 0, F.col("status") == _ACKED
    absent, present = F.col("copies") == 0, F.col("copies") > 0
    # `grouped` keeps only the first and the last place of a record. With three or more copies the
    # acknowledged offset cannot be checked; such a record is reported as a duplicate.
    elsewhere = (
        acked
        & (F.col("told.offset") >= 0)
        & present
        & (F.col("copies") <= 2)
        & (F.col("told") != F.col("found"))
        & (F.col("told") != F.col("last"))
    )
    own = F.col("stray").isNull()
    unsettled = entered & ~F.col("status").isin(_ACKED, _NOT_WRITTEN, _UNKNOWN)
    conditions = {
        Finding.LOST: acked & absent & (F.col("aborted") == 0),
        Finding.ABORTED: acked & absent & (F.col("aborted") > 0),
        Finding.DUPLICATE: own & (F.col("copies") > 1),
        Finding.REORDERED: F.col("late"),
        Finding.WRONG_OFFSET: elsewhere,
        Finding.NOT_ABSENT: (F.col("status") == _NOT_WRITTEN) & present,
        Finding.UNSETTLED: unsettled,
        Finding.ENTERED_TWICE: F.col("entries") > 1,
        Finding.FOREIGN: own & ~entered & present,
        Finding.MISPLACED: F.col("strayed") == Finding.MISPLACED.value,
        Finding.TORN: F.col("strayed") == Finding.TORN.value,
    }
    found = F.array(*(F.when(when, F.lit(kind.value)) for kind, when in conditions.items()))
    return records.withColumn("findings", F.array_compact(found))


def summary_of(records: DataFrame) -> DataFrame:
    """Return one row that counts the records by outcome, and their anomalies by kind.

    `records` are rows of `judged`.
    """

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, 1))

    entered, status = F.col("entries") > 0, F.col("status")
    return records.agg(
        count(entered).alias("records"),
        count(status == _ACKED).alias("acked"),
        count(status == _NOT_WRITTEN).alias("not_written"),
        count(status == _UNKNOWN).alias("unknown"),
        count((status == _UNKNOWN) & (F.col("copies") > 0)).alias("unknown_found"),
        count((status == _UNKNOWN) & (F.col("copies") == 0)).alias("unknown_absent"),
        F.coalesce(F.sum("copies"), F.lit(0)).alias("log_records"),
        F.coalesce(F.sum("aborted"), F.lit(0)).alias("aborted_records"),
        *(count(F.array_contains("findings", kind.value)).alias(kind.value) for kind in Finding),
    )


def latencies(records: DataFrame, bucket: int | None) -> DataFrame:
    """Return throughput and latency (in ms) of acknowledged records that are in the topic.

    Each row is for one partition, one limit on requests in flight (the column `in_flight`), and one
    interval of `bucket` seconds. A record counts in the interval of its acknowledgement. If
    `bucket` is None, there is one interval for all records.
    """
    acked = records.filter((F.col("status") == _ACKED) & (F.col("copies") > 0))
    took = (F.unix_micros("ended_at") - F.unix_micros("sent_at")) / 1000
    by = [F.col("found.partition").alias("partition"), F.col("in_flight")]
    if bucket is not None:
        second = F.floor(F.unix_micros("ended_at") / (bucket * 1_000_000)) * bucket
        by.append(F.timestamp_seconds(second).alias("bucket"))
    rows = acked.withColumn("took", took).groupBy(*by)
    sums = rows.agg(
        F.count("*").alias("records"),
        F.sum("size").alias("bytes"),
        ((F.max(F.unix_micros("ended_at")) - F.min(F.unix_micros("sent_at"))) / 1e6).alias(
            "seconds"
        ),
        F.avg("took").alias("avg"),
        F.percentile_approx("took", list(_PERCENTILES.values()), _ACCURACY).alias("percentiles"),
        F.max("took").alias("max"),
    )
    for index, name in enumerate(_PERCENTILES):
        sums = sums.withColumn(name, F.col("percentiles")[index])
    length = F.col("seconds") if bucket is None else F.lit(float(bucket))
    # Without buckets `seconds` is 0 if the clock did not advance; the rate must not divide by 0.
    rate = F.col("records") / F.greatest(length, F.lit(1e-6))
    return sums.withColumn("records_per_sec", rate).drop("percentiles")


def audit(spark: SparkSession, plan: AuditPlan) -> dict[str, Any]:
    """Audit a topic, and write `records`, `anomalies` and `latency` below `plan.out`.

    Returns:
        The contents of the JSON result: sums, anomalies by kind with a few examples, and the
        throughput and latency of each partition with each limit on requests in flight.
    """

    def read(committed: bool, *columns: str) -> DataFrame:
        options = plan.options
        return read_topic(
            spark, plan.bootstrap, plan.topic, committed=committed, options=options, columns=columns
        )

    place = ("partition", "offset")
    rows = entries_of(read_ledger(spark, plan.ledger), plan.topic).unionByName(
        copies_of(read(True, "value", *place), plan.topic)
    )
    everything = read(False, "value", *place)
    aborted = aborted_copies(read(True, *place), read(False, *place), everything, plan.topic)
    if aborted is not None:
        rows = rows.unionByName(aborted)
    return report(spark, judged(out_of_order(grouped(rows))), plan)


def report(spark: SparkSession, records: DataFrame, plan: AuditPlan) -> dict[str, Any]:
    """Write `records` (rows of `judged`), `anomalies` and `latency`, and return a summary."""
    # The records are written and read again, because Spark would compute them anew for each use.
    records.drop("last", "late", "stray").write.mode("overwrite").parquet(f"{plan.out}/records")
    records = spark.read.parquet(f"{plan.out}/records")
    anomalies = records.filter(F.size("findings") > 0).withColumn("finding", F.explode("findings"))
    anomalies = anomalies.drop("findings", "strayed")
    anomalies.write.mode("overwrite").parquet(f"{plan.out}/anomalies")
    latencies(records, plan.bucket).write.mode("overwrite").parquet(f"{plan.out}/latency")
    [sums] = summary_of(records).collect()
    counts = sums.asDict()
    return {
        "topic": plan.topic,
        **{name: counts[name] for name in counts if name not in set(Finding)},
        "anomalies": {kind.value: counts[kind.value] for kind in Finding},
        "examples": _examples(spark.read.parquet(f"{plan.out}/anomalies")),
        "partitions": [_figures(row.asDict()) for row in _overall(records).collect()],
    }


def _overall(records: DataFrame) -> DataFrame:
    return latencies(records, None).orderBy("partition", "in_flight")


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    named = ("avg", *_PERCENTILES, "max")
    return {
        "partition": row["partition"],
        "in_flight": row["in_flight"],
        "records": row["records"],
        "bytes": row["bytes"],
        "seconds": round(row["seconds"], 6),
        "records_per_sec": round(row["records_per_sec"], 3),
        "latency_ms": {name: round(row[name], 3) for name in named},
    }


def _examples(anomalies: DataFrame) -> dict[str, list[str]]:
    """Return a few examples of each kind of anomaly, the first ones by producer and call."""
    first = Window.partitionBy("finding").orderBy("producer", "call", "found")
    rows = (
        anomalies.withColumn("nth", F.row_number().over(first))
        .filter(F.col("nth") <= _EXAMPLES)
        .orderBy("finding", "nth")
        .collect()
    )
    examples: dict[str, list[str]] = {}
    for row in rows:
        examples.setdefault(row.finding, []).append(example(row))
    return examples
