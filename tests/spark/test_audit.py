"""The audit finds exactly the anomalies that are in the data."""

from __future__ import annotations

import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from aioidem import Producer
from aioidem._cli import main
from aioidem._cli.audit import example_lines
from aioidem._spark import audit as audits
from aioidem._spark.audit import Finding
from aioidem._spark.ledger import LEDGER_SCHEMA, Ledger
from aioidem.broker import EmbeddedCluster
from aioidem.structs import DeliveryStatus
from aioidem.testing import (
    Anomaly,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    check_history,
    make_value,
    parse_value,
)
from tests.hostile.fuzz import mutated
from tests.hostile.topic_values import value_of, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

InLoop = Callable[..., Any]
CALLS = 40
ACKED, NOT_WRITTEN, UNKNOWN, PENDING = (
    DeliveryStatus.ACKED,
    DeliveryStatus.NOT_WRITTEN,
    DeliveryStatus.UNKNOWN,
    DeliveryStatus.PENDING,
)


class Bench:
    """A topic and a ledger of what was sent to it.

    `write` adds a value to the topic only, `enter` adds a row to the ledger only, and `right` adds
    a value and its correct row.
    """

    def __init__(self, producer: Producer, topic: str, folder: Path) -> None:
        self.ledger = Ledger(str(folder), "p", topic, 5)
        self._producer = producer
        self._topic = topic

    def value(self, call: int, partition: int = -1, producer: str = "p") -> bytes:
        return make_value(ValueId(producer, self._topic, partition, call), 100)

    async def write(self, value: bytes) -> int:
        """Write a value to partition 0; return its offset."""
        return (await self._producer.send(self._topic, value, partition=0)).offset

    def enter(self, call: int, status: DeliveryStatus, offset: int = -1) -> None:
        now = time.time()
        partition = 0 if status is ACKED else -1
        self.ledger.add(call, status, partition, offset, now - 0.25, now)

    async def right(self, call: int) -> None:
        self.enter(call, ACKED, await self.write(self.value(call)))


async def plant(bench: Bench) -> None:
    """Write one anomaly of each kind among correct calls."""
    for call in range(10):
        await bench.right(call)
    bench.enter(10, ACKED, 900)  # lost
    bench.enter(11, ACKED, 901)  # written in the transaction that is aborted below
    await bench.right(12)
    await bench.write(bench.value(12))  # duplicate
    offset = await bench.write(bench.value(14))
    await bench.right(13)  # reordered, because call 14 precedes it
    bench.enter(14, ACKED, offset)
    bench.enter(15, ACKED, await bench.write(bench.value(15)) + 7)  # wrong offset
    await bench.write(bench.value(16))
    bench.enter(16, NOT_WRITTEN)  # not absent
    await bench.write(bench.value(17))
    bench.enter(17, PENDING)  # unsettled
    await bench.right(18)
    bench.enter(18, UNKNOWN)  # entered twice
    await bench.write(bench.value(0, producer="q"))  # foreign
    await bench.write(bench.value(19, partition=1))  # misplaced: the value names partition 1
    whole = bench.value(20)
    await bench.write(whole[:50] + b"#" + whole[51:])  # torn
    # These are no anomalies: a refused record, two UNKNOWN ones, and one acknowledged without an
    # offset.
    bench.enter(21, NOT_WRITTEN)
    await bench.write(bench.value(22))
    bench.enter(22, UNKNOWN)
    bench.enter(23, UNKNOWN)
    await bench.write(bench.value(24))
    bench.enter(24, ACKED)
    for call in range(25, CALLS):
        await bench.right(call)
    await bench.ledger.close()


def abort(servers: str, topic: str, value: bytes) -> None:
    """Write a value in a transaction that is aborted."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "transactional.id": secrets.token_hex(4)}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value, partition=1)
    producer.flush(30)
    producer.abort_transaction(30)


def test_each_planted_anomaly_is_found(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    in_loop: InLoop,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def write() -> bytes:
        async with Producer(cluster.bootstrap_servers) as producer:
            bench = Bench(producer, topic, tmp_path / "ledger")
            await plant(bench)
            return bench.value(11)

    value = in_loop(write)
    abort(cluster.bootstrap_servers, topic, value)
    words = ["--bootstrap-server", cluster.bootstrap_servers, "--topic", topic]
    words += ["--ledger", str(tmp_path / "ledger"), "--out", str(tmp_path / "out")]
    # A file of properties may have what the flags say and what the audit needs: both win.
    words += ["--consumer-props", "bootstrap.servers=127.0.0.1:1", "isolation.level=none"]
    assert main(["audit", *words, "--json", str(tmp_path / "found.json")]) == 1
    assert "lost: p#10, acked at 0@900" in capsys.readouterr().out.splitlines()
    found = json.loads((tmp_path / "found.json").read_text())
    # Each kind of anomaly was found exactly once.
    assert found["anomalies"] == dict.fromkeys(map(str, Finding), 1)
    anomalies = spark.read.parquet(str(tmp_path / "out" / "anomalies")).collect()
    assert {row.finding: row.call for row in anomalies} == {
        "lost": 10, "aborted": 11, "duplicate": 12, "reordered": 13, "wrong_offset": 15,
        "not_absent": 16, "unsettled": 17, "entered_twice": 18, "foreign": 0, "misplaced": None,
        "torn": None,
    }  # fmt: skip
    assert found["unknown_found"] == 1 + 1  # call 22, and the second entry of call 18
    assert found["unknown_absent"] == 1
    assert found["aborted_records"] == 1
    assert found["log_records"] == sum(cluster.log_end_offset(topic, each) for each in (0,))


def test_a_clean_load_has_no_anomaly(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    folder, out = tmp_path / "ledger", tmp_path / "found.json"
    servers = ["--bootstrap-server", cluster.bootstrap_servers, "--topic", topic]
    load = ["--tasks", "2", "--num-records", "4000", "--record-size", "100"]
    assert main(["perf", "--spark", *servers, *load, "--ledger", str(folder)]) == 0
    assert main(["audit", *servers, "--ledger", str(folder), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["records"], found["acked"], found["log_records"]) == (4000, 4000, 4000)
    assert not any(found["anomalies"].values())
    assert not found["examples"]
    figures = found["partitions"]
    assert sum(row["records"] for row in figures) == 4000
    assert all(row["in_flight"] == 5 and row["records_per_sec"] > 0 for row in figures)
    assert sum(row["bytes"] for row in figures) == 4000 * 100
    buckets = spark.read.parquet(f"{folder}-audit/latency")
    assert buckets.agg({"records": "sum"}).first() == (4000,)
    assert main(["audit", *servers, "--ledger", str(folder), "--bucket", "0"]) == 2


# --- compared with the checker that the other tests use -------------------------------------------

KINDS = {
    Anomaly.LOST: Finding.LOST,
    Anomaly.DUPLICATE: Finding.DUPLICATE,
    Anomaly.REORDERED: Finding.REORDERED,
    Anomaly.WRONG_OFFSET: Finding.WRONG_OFFSET,
    Anomaly.NOT_ABSENT: Finding.NOT_ABSENT,
    Anomaly.UNSETTLED: Finding.UNSETTLED,
    Anomaly.TORN: Finding.TORN,
}


def spoilt_history(source: random.Random) -> tuple[list[Row], list[LogRecord]]:
    """Make a history of three producers and two partitions with many anomalies."""
    rows: list[Row] = []
    logs: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(900):
        producer, partition = f"p{number % 3}", source.randrange(2)
        value = ValueId(producer, "t", source.choice([-1, partition]), number // 3)
        row = Row(value, "t", partition, float(number))
        row.outcome = source.choice([Outcome.ACKED] * 30 + list(Outcome))
        data, log = make_value(value, source.choice([0, 90])), logs[partition]
        if row.outcome is not Outcome.NOT_WRITTEN or source.random() < 0.7:
            for _ in range(source.choice([1] * 40 + [0, 2])):
                log.append(data)
        if source.random() < 0.02:
            log.append(data[: source.randrange(len(data))])
        rows.append(row)
    for log in logs.values():
        for _ in range(60):
            first = source.randrange(len(log) - 1)
            log[first], log[first + 1] = log[first + 1], log[first]
    records = [
        LogRecord("t", partition, offset, data)
        for partition, log in logs.items()
        for offset, data in enumerate(log)
    ]
    places = {parse_value(record.value): record.offset for record in reversed(records)}
    for row in rows:
        if row.outcome is Outcome.ACKED:
            row.offset = places.get(row.value, 3) + (source.random() < 0.02) * 10_000
    return rows, records


def ledger_frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    return spark.createDataFrame(
        [
            (
                row.value.producer, "t", 5, row.value.call, row.outcome.value,
                row.partition if row.outcome is Outcome.ACKED else -1, row.offset, when, when,
            )
            for row in rows
        ],
        LEDGER_SCHEMA,
    )  # fmt: skip


def topic_frame(spark: SparkSession, records: list[LogRecord]) -> DataFrame:
    return spark.createDataFrame(
        [(record.value, record.partition, record.offset) for record in records],
        "value binary, partition int, offset long",
    )


def test_it_agrees_with_the_history_checker(spark: SparkSession) -> None:
    """The audit finds the same anomalies in random histories as `check_history`."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - a failure is repeated with it
    rows, records = spoilt_history(random.Random(seed))
    expected = Counter(KINDS[violation.anomaly] for violation in check_history(rows, records))
    assert set(expected) == set(KINDS.values())
    both = audits.entries_of(ledger_frame(spark, rows), "t").unionByName(
        audits.copies_of(topic_frame(spark, records), "t")
    )
    judged = audits.judged(audits.out_of_order(audits.grouped(both)))
    [sums] = audits.summary_of(judged).collect()
    assert {kind: sums[kind.value] for kind in Finding if sums[kind.value]} == expected


def test_values_of_strangers_are_judged_as_by_the_history_checker_and_reported(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The audit reports as torn exactly the fuzz inputs that `parse_value` does not accept."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - a failure is repeated with it
    chance, pool = random.Random(seed), list(values())
    inputs = pool + [mutated(chance, pool)[:4096] for _ in range(1000)]
    records = [LogRecord("t", 0, at, value_of(data)) for at, data in enumerate(inputs)]
    copies = audits.copies_of(topic_frame(spark, records), "t")
    torn = {row.stray for row in copies.filter("strayed = 'torn'").collect()}
    said = [parse_value(record.value) for record in records]
    assert torn == {f"0@{at}" for at, value in enumerate(said) if value is None}
    rows = audits.entries_of(ledger_frame(spark, []), "t").unionByName(copies)
    plan = audits.AuditPlan(
        ledger="", bootstrap="", topic="t", out=str(tmp_path / "out"), options={}
    )
    judged = audits.judged(audits.out_of_order(audits.grouped(rows)))
    found = audits.report(spark, judged, plan)
    assert found["log_records"] == len(records)
    assert found["anomalies"]["torn"] == len(torn)
    assert all(line.isprintable() for line in example_lines(found))
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ledger nowhere --bootstrap-server h:1 --topic t", "--ledger: nowhere"),
        ("--ledger . --bootstrap-server h:1 --topic t/", "--topic: "),
        ("--ledger . --bootstrap-server h:1 --topic t --bucket 0", "--bucket: 0"),
        ("--ledger . --bootstrap-server h:1 --topic t --consumer-props x", "--consumer-props: "),
        ("--ledger . --bootstrap-server h:1 --topic t --spark-conf x", "--spark-conf: "),
        ("--ledger . --bootstrap-server h:1 --topic t --json no/where", "--json: "),
        ("--ledger . --bootstrap-server h:1 --topic t --follow --every 0", "--every: 0"),
        ("--ledger . --bootstrap-server h:1 --topic t --follow --json x", "--json: not with"),
        ("--ledger /dev/null --bootstrap-server h:1 --topic t --follow", "--ledger: /dev/null"),
        (f"--ledger {'x' * 300} --bootstrap-server h:1 --topic t", "File name too long"),
    ],
)
def test_bad_usage_is_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *words.split()]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("aioidem audit: ")
    assert message in line
