"""Measure the audit alone: many records, two cores, a bounded heap, and some planted anomalies.

    python benchmarks/spark_audit.py --records 10000000 --heap 1g
    python benchmarks/spark_audit.py --records 10000000 --heap 1g --broker

Spark generates topic and ledgers while they are read: eight producers, four partitions, values of a
hundred bytes as a load writes them, and one anomaly of each kind. Parsing, checking, pairing,
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
from aioidem._testing.history import ValueId, make_value
from aioidem.spark import register
from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRODUCERS, PARTITIONS, TOPIC = 8, 4, "load"
PLANTED = {kind: 1 for kind in Finding if kind is not Finding.ABORTED}
"""One of each kind, but for the one that needs a transaction."""

_SIZE = 100
_PRODUCER = "load-5-0000"
_ACKED, _NOT_WRITTEN = DeliveryStatus.ACKED.value, DeliveryStatus.NOT_WRITTEN.value
_BODY = (
    "concat(X'FFFFFFFF', unhex(lpad(hex(call), 16, '0')),"
    f" unhex(lpad(hex(length(producer)), 4, '0')), unhex(lpad(hex({len(TOPIC)}), 4, '0')),"
    f" encode(producer, 'UTF-8'), encode('{TOPIC}', 'UTF-8'),"
    " unhex(repeat(lpad(hex(call % 256), 2, '0'), 64)))"
)
_VALUE = "concat(X'61697631', unhex(lpad(hex(crc32(body)), 8, '0')), body)"


def calls(spark: SparkSession, records: int, partition: int, slices: int = 4) -> DataFrame:
    """Return the calls of the load whose records are in a partition, in the order of the log."""
    offset = F.col("offset")
    return spark.range(0, records // PARTITIONS, 1, slices).select(
        F.col("id").alias("offset"),
        F.lit(partition).alias("partition"),
        F.concat(F.lit(_PRODUCER), (offset % PRODUCERS).cast("string")).alias("producer"),
        (F.floor(offset / PRODUCERS) * PARTITIONS + partition).alias("call"),
    )


def log(spark: SparkSession, records: int, partition: int, slices: int = 4) -> DataFrame:
    """Return the records of a partition, without those that are planted."""
    bodies = calls(spark, records, partition, slices).withColumn("body", F.expr(_BODY))
    return bodies.select(F.expr(_VALUE).alias("value"), "partition", "offset")


def ledger(spark: SparkSession, records: int) -> DataFrame:
    """Return the ledger, in which each call was acknowledged after 1 to 100 ms, and the planted."""
    number = F.col("offset") * PARTITIONS + F.col("partition")
    sent, start = number * 20, 1_700_000_000_000_000
    parts = [calls(spark, records, partition) for partition in range(PARTITIONS)]
    times = {
        "sent_at": F.timestamp_micros(F.lit(start) + sent),
        "ended_at": F.timestamp_micros(F.lit(start + 1000) + sent + (number * 7919) % 99_000),
    }
    known = {"topic": F.lit(TOPIC), "in_flight": F.lit(5)}
    rows = reduce(_united, parts).withColumn("status", F.lit(_ACKED))
    planted = spark.createDataFrame(
        Planted(records).entries(),
        "producer string, call long, status string, partition int, offset long",
    )
    rows = rows.select(*planted.columns).unionByName(planted)
    return rows.withColumns({**known, **times}).select(*LEDGER_COLUMNS)


def topic(spark: SparkSession, records: int) -> DataFrame:
    """Return all records of the topic, as Spark would read them."""
    parts = [log(spark, records, partition) for partition in range(PARTITIONS)]
    return _united(reduce(_united, parts), planted_log(spark, records))


def planted_log(spark: SparkSession, records: int) -> DataFrame:
    """Return the records that are planted: the last ones of partition 0."""
    first = records // PARTITIONS
    rows = [(value, 0, first + place) for place, value in enumerate(Planted(records).values())]
    frame = spark.createDataFrame(rows, "value binary, partition int, offset long")
    return frame.coalesce(1).sortWithinPartitions("offset")


def _united(some: DataFrame, more: DataFrame) -> DataFrame:
    return some.unionByName(more)


class Planted:
    """One anomaly of each kind, at the end of a partition: what its log has, and its ledger.

    Args:
        records: how many records there are without them.
    """

    def __init__(self, records: int) -> None:
        self._first = records // PARTITIONS
        self._call = records // PRODUCERS

    def values(self) -> list[bytes]:
        """Return the values at the end of the log of partition 0."""
        return [
            self._value(0),
            self._value(0),  # a duplicate
            self._value(2),
            self._value(1),  # reordered
            self._value(3),
            self._value(4),
            self._value(5),
            self._value(6),
            self._value(7),  # foreign
            self._value(8, partition=1),  # misplaced
            self._value(9)[:-1] + b"?",  # torn
        ]

    def entries(self) -> list[tuple[str, int, str, int, int]]:
        """Return the rows of the ledger: producer, call, status, partition and offset."""
        return [
            self._entry(0, 0),
            self._entry(1, 3),
            self._entry(2, 2),
            self._entry(3, 1000),  # a wrong offset
            self._entry(4, -1, _NOT_WRITTEN),  # not absent
            self._entry(5, -1, "sent"),  # unsettled
            self._entry(6, 7),
            self._entry(6, 7),  # entered twice
            self._entry(10, 11),  # lost
        ]

    def _value(self, number: int, *, partition: int = -1) -> bytes:
        name = ValueId(f"{_PRODUCER}0", TOPIC, partition, self._call + number)
        return make_value(name, _SIZE)

    def _entry(
        self, number: int, place: int, status: str = _ACKED
    ) -> tuple[str, int, str, int, int]:
        offset = -1 if place < 0 else self._first + place
        return f"{_PRODUCER}0", self._call + number, status, 0, offset


def write_all(spark: SparkSession, records: int, servers: str, folder: str) -> None:
    """Write the topic's records to a broker, in the order of their offsets, and the ledger."""
    register(spark)
    ledger(spark, records).write.parquet(folder)
    # One task for each partition; and the planted records when the others are in the log.
    parts = [log(spark, records, partition, slices=1) for partition in range(PARTITIONS)]
    for rows in (reduce(_united, parts), planted_log(spark, records)):
        writer = rows.select("value", "partition").write.format("aioidem").mode("append")
        writer = writer.option("topic", TOPIC).option("kafka.bootstrap.servers", servers)
        writer.save()


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
    options.records -= options.records % (PARTITIONS * PRODUCERS)
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
