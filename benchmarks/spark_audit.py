"""Measure the audit alone: many records, two cores, a bounded heap, and some planted anomalies.

    python benchmarks/spark_audit.py --records 10000000 --heap 1g
    python benchmarks/spark_audit.py --records 10000000 --heap 1g --broker

Spark generates topic and ledgers while they are read: eight producers, four partitions, values of a
hundred bytes as a load writes them, with some anomalies among them. Parsing, checking, pairing,
ordering and summing up are measured.

With `--broker` reading is measured, too: the records are first written to one real broker, the
ledger to a folder, and then `aioidem audit` runs with Spark's own Kafka source, if there is one for
this version, and with aioidem's, each as a process of its own.

Invariant: the exit status is 0 if exactly the planted anomalies were found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from anyio.from_thread import start_blocking_portal
from pyspark.sql import functions as F  # noqa: N812
from spark_pipeline import run

from aioidem._spark import audit as audits
from aioidem._spark.audit import AuditPlan, Finding
from aioidem._spark.ledger import LEDGER_COLUMNS
from aioidem._spark.session import (
    SparkUnavailableError,
    kafka_jars,
    open_session,
    require_one_spark,
)
from aioidem.spark import register
from aioidem.testing import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRODUCERS, PARTITIONS, TOPIC = 8, 4, "load"
LOST, TORN, DUPLICATES = 7, 5, 11
PLANTED = {Finding.LOST: LOST + TORN, Finding.DUPLICATE: DUPLICATES, Finding.TORN: TORN}

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
    kept = whole.filter(~((where % spot == 5) & (where < spot * LOST)))
    again = whole.filter((where % spot == 7) & (where < spot * DUPLICATES))
    return kept.unionByName(again.withColumn("offset", F.col("offset") + 10**9))


def ledger_of_log(spark: SparkSession, records: int) -> DataFrame:
    """Return the ledger of a log without gaps: a lost record lowers the offsets after it."""
    spot, row = (
        records // 30,
        F.col("call") * PRODUCERS + F.substring("producer", -1, 1).cast("int"),
    )
    before = [
        F.when((row > lost) & (F.col("partition") == lost // PRODUCERS % PARTITIONS), 1).otherwise(
            0
        )
        for lost in (spot * number + 5 for number in range(LOST))
    ]
    return ledger(spark, records).withColumn("offset", F.col("offset") - reduce(add, before))


def write_all(spark: SparkSession, records: int, servers: str, folder: str) -> None:
    """Write the topic's records to a broker, in the order of their offsets, and the ledger."""
    register(spark)
    ledger_of_log(spark, records).write.parquet(folder)
    parts = [
        topic(spark, records).filter(F.col("partition") == number) for number in range(PARTITIONS)
    ]
    # The records that are there again have the highest offsets, and so are written last.
    for again in (False, True):
        ours = [each.filter((F.col("offset") >= 10**9) == again).coalesce(1) for each in parts]
        rows = reduce(lambda some, more: some.unionByName(more), ours).select("value", "partition")
        writer = rows.write.format("aioidem").mode("append").option("topic", TOPIC)
        writer.option("kafka.bootstrap.servers", servers).save()


def main_with_broker(records: int, heap: str) -> int:
    """Write the topic to a real broker, and audit it with each source; return the exit status."""
    settings = {"spark.driver.memory": heap}
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(KafkaCluster()) as kafka,
    ):
        portal.call(kafka.create_topic, TOPIC, PARTITIONS)
        servers = kafka.inner_servers
        began = time.monotonic()
        with open_session("prepare", master="local[2]", settings=settings) as spark:
            write_all(spark, records, servers, f"{folder}/ledger")
        print(
            f"pyspark {pyspark.__version__}: written in {time.monotonic() - began:.1f} s",
            flush=True,
        )
        audited = [
            as_planted(audit_with(source, words, records, heap, servers, folder))
            for source, words in sources().items()
        ]
    return 0 if all(audited) else 1


def sources() -> dict[str, list[str]]:
    """Return the sources for this version of Spark, and the flags with which an audit uses each."""
    # A jar of Spark's own: with `spark.jars` given, the audit does not look for the connector.
    given = next(require_one_spark().glob("slf4j-api-*.jar"))
    found = {"aioidem's": ["--spark-conf", f"spark.jars={given}"]}
    try:
        kafka_jars()
    except SparkUnavailableError as error:
        print(error.args[0])
    else:
        found["Spark's own"] = []
    return found


def audit_with(
    source: str, words: list[str], records: int, heap: str, servers: str, folder: str
) -> dict[str, Any]:
    """Run one audit, print what it took and return its result."""
    out = Path(folder, "audit.json")
    out.unlink(missing_ok=True)
    where = ["--bootstrap-server", servers, "--topic", TOPIC, "--ledger", f"{folder}/ledger"]
    how = ["--master", "local[2]", "--spark-conf", f"spark.driver.memory={heap}", *words]
    _, took, peak = run(["audit", *where, *how, "--json", str(out)], 1800.0)
    found = json.loads(out.read_text("utf-8")) if out.exists() else {"anomalies": {}}
    print(
        f"pyspark {pyspark.__version__}, {records} records, heap {heap}, {source} source:"
        f" {took:.1f} s, JVM at most {peak} MiB; {found['anomalies']}",
        flush=True,
    )
    return dict(found)


def as_planted(found: dict[str, Any]) -> bool:
    """Return whether exactly the planted anomalies were found."""
    return {Finding(kind): n for kind, n in found["anomalies"].items() if n} == PLANTED


def main() -> int:
    """Run the audit, and print its findings, time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--heap", default="1g", help="spark.driver.memory")
    parser.add_argument("--broker", action="store_true", help="read from a real broker")
    options = parser.parse_args()
    if options.broker:
        return main_with_broker(options.records, options.heap)
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
    return 0 if as_planted(found) else 1


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
