"""Measure the audit alone: many records, two cores, a bounded heap, and no broker.

    python benchmarks/spark_audit.py --records 10000000 --heap 1g

Spark generates topic and ledgers while they are read: eight producers, four partitions, values of a
hundred bytes as a load writes them, with some anomalies among them. Parsing, checking, pairing,
ordering and summing up are measured; reading from Kafka is not (see `spark_pipeline.py`).

Invariant: the exit status is 0 if exactly the planted anomalies were found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from aioidem._spark import audit as audits
from aioidem._spark.audit import AuditPlan, Finding
from aioidem._spark.ledger import LEDGER_COLUMNS
from aioidem._spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRODUCERS, PARTITIONS, TOPIC = 8, 4, "load"
PLANTED = {Finding.LOST: 7 + 5, Finding.DUPLICATE: 11, Finding.TORN: 5}

_BODY = (
    "concat(X'FFFFFFFF', unhex(lpad(hex(call), 16, '0')),"
    f" unhex(lpad(hex(length(producer)), 4, '0')), unhex(lpad(hex({len(TOPIC)}), 4, '0')),"
    f" encode(producer, 'UTF-8'), encode('{TOPIC}', 'UTF-8'),"
    " unhex(repeat(lpad(hex(call % 256), 2, '0'), 64)))"
)


def calls(spark: SparkSession, records: int) -> DataFrame:
    """Return every call of the load, with its partition and offset in the topic."""
    ids = spark.range(0, records, 1, 16)
    return ids.select(
        "id",
        F.concat(F.lit("load-5-0000"), (F.col("id") % PRODUCERS).cast("string")).alias("producer"),
        F.floor(F.col("id") / PRODUCERS).alias("call"),
    ).select(
        "id",
        "producer",
        "call",
        (F.col("call") % PARTITIONS).cast("int").alias("partition"),
        (F.floor(F.col("call") / PARTITIONS) * PRODUCERS + F.col("id") % PRODUCERS).alias("offset"),
    )


def ledger(spark: SparkSession, records: int) -> DataFrame:
    """Return the ledger, in which each call was acknowledged after 1 to 100 ms."""
    sent = F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.col("id") * 20)
    ended = F.timestamp_micros(
        F.lit(1_700_000_000_001_000) + F.col("id") * 20 + (F.col("id") * 7919) % 99_000
    )
    return (
        calls(spark, records)
        .withColumns(
            {
                "topic": F.lit(TOPIC),
                "in_flight": F.lit(5),
                "status": F.lit("acked"),
                "sent_at": sent,
                "ended_at": ended,
            }
        )
        .select(*LEDGER_COLUMNS)
    )


def topic(spark: SparkSession, records: int) -> DataFrame:
    """Return the topic's records, some of them with an anomaly."""
    spot, where = records // 30, F.col("id")
    body = calls(spark, records).withColumn("body", F.expr(_BODY))
    value = F.expr("concat(X'61697631', unhex(lpad(hex(crc32(body)), 8, '0')), body)")
    torn = (where % spot == 3) & (where < spot * 5)
    whole = body.select(
        "id",
        F.when(torn, F.expr("substring(body, 5)")).otherwise(value).alias("value"),
        "partition",
        "offset",
    )
    kept = whole.filter(~((where % spot == 5) & (where < spot * 7)))
    again = whole.filter((where % spot == 7) & (where < spot * 11))
    return kept.unionByName(again.withColumn("offset", F.col("offset") + 10**9))


def main() -> int:
    """Run the audit, and print its findings, time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--heap", default="1g", help="spark.driver.memory")
    options = parser.parse_args()
    settings = {"spark.driver.memory": options.heap}
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session("audit", master="local[2]", settings=settings) as spark,
    ):
        began = time.monotonic()
        rows = audits.entries_of(ledger(spark, options.records), TOPIC).unionByName(
            audits.copies_of(topic(spark, options.records), TOPIC)
        )
        records = audits.judged(audits.out_of_order(audits.grouped(rows)))
        plan = AuditPlan(ledger="", bootstrap="", topic=TOPIC, out=folder, options={})
        found = audits.report(spark, records, plan)
        took = time.monotonic() - began
        peak, cpu = _spent()
    print(json.dumps(found, indent=1))
    print(f"{options.records} records, heap {options.heap}: {took:.1f} s, {cpu:.0f} s of CPU")
    print(f"resident with at most {peak} MiB: the JVM, which is driver and executor in one")
    wrong = {Finding(kind): count for kind, count in found["anomalies"].items() if count}
    return 0 if wrong == PLANTED else 1


def _spent() -> tuple[int, float]:
    """Return the highest resident size in MiB and the CPU seconds of the child Java process."""
    for task in Path("/proc/self/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            found = _java(int(child))
            if found is not None:
                return found
    return 0, 0.0


def _java(process: int) -> tuple[int, float] | None:
    folder = Path(f"/proc/{process}")
    status = (folder / "status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in status if ":" in line)
    if fields["Name"].strip() != "java":
        return None
    times = (folder / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    ticks = int(times[11]) + int(times[12])
    return int(fields["VmHWM"].split()[0]) // 1024, ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
