"""The audit of a running load judges records as time passes, across batches and a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aioidem import Producer
from aioidem._cli import main
from aioidem._spark.audit import AuditPlan, Finding
from aioidem._spark.follow import FollowPlan, follow
from aioidem._spark.ledger import Ledger
from aioidem.broker import EmbeddedCluster
from aioidem.structs import DeliveryStatus
from aioidem.testing import ValueId, make_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACKED = DeliveryStatus.ACKED
START = time.time() // 10 * 10 - 600


class Load:
    """Sends records with timestamps one second apart, and enters their outcomes into the ledger."""

    def __init__(self, producer: Producer, ledger: Ledger, topic: str) -> None:
        self.ledger = ledger
        self._producer = producer
        self._topic = topic

    async def write(self, call: int) -> int:
        """Write a record; return its offset."""
        value = make_value(ValueId("p", self._topic, -1, call))
        done = await self._producer.send(self._topic, value, partition=0, timestamp=START + call)
        return done.offset

    def enter(self, call: int, offset: int) -> None:
        self.ledger.add(call, ACKED, 0, offset, START + call, START + call + 0.5)

    async def right(self, *calls: int) -> None:
        for call in calls:
            self.enter(call, await self.write(call))


def test_anomalies_show_while_the_load_goes_on(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    in_loop: Callable[..., Any],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "ledger"
    plan = FollowPlan(
        audit=AuditPlan(
            ledger=str(folder),
            bootstrap=cluster.bootstrap_servers,
            topic=topic,
            out=str(tmp_path / "out"),
            options={},
        ),
        delay=5,
        every=1,
    )
    told: list[dict[str, Any]] = []
    ledger = in_loop(make_ledger, folder, topic)

    async def first() -> None:
        async with Producer(cluster.bootstrap_servers) as producer:
            load = Load(producer, ledger, topic)
            await load.right(*range(10))
            load.enter(10, 900)  # lost
            await load.right(11, 12)
            await load.write(12)  # duplicate
            offset = await load.write(14)
            await load.right(13)  # reordered
            load.enter(14, offset)
            await load.right(*range(15, 30), 60, 61)  # the last two calls only advance the time
            await load.ledger.close()

    async def second() -> None:
        async with Producer(cluster.bootstrap_servers) as producer:
            load = Load(producer, ledger, topic)
            await load.right(*range(62, 90), 55)  # call 55 is sent too late: reordered
            await load.right(120, 121)
            await load.ledger.close()

    in_loop(first)
    run(spark, plan, told)
    assert total(told, "records") == 30
    assert total(told, "log_records") == 30  # one call is lost, and one is duplicated
    assert anomalies(told) == {"lost": 1, "duplicate": 1, "reordered": 1}

    in_loop(second)
    run(spark, plan, told)  # the audit continues from its checkpoint
    assert total(told, "records") == 30 + 2 + 28 + 1
    assert anomalies(told) == {"lost": 1, "duplicate": 1, "reordered": 2}
    rows = spark.read.parquet(str(tmp_path / "out" / "anomalies")).collect()
    assert sorted((row.finding, row.call) for row in rows) == [
        ("duplicate", 12), ("lost", 10), ("reordered", 13), ("reordered", 55),
    ]  # fmt: skip
    seconds = spark.read.parquet(str(tmp_path / "out" / "latency"))
    assert seconds.agg({"records": "sum"}).first() == (60,)  # all calls except for the lost one


async def make_ledger(folder: Path, topic: str) -> Ledger:
    return Ledger(str(folder), "p", topic, 5)


def test_the_command_follows_until_it_is_stopped(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    in_loop: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "ledger"

    async def write() -> None:
        async with Producer(cluster.bootstrap_servers) as producer:
            load = Load(producer, await make_ledger(folder, topic), topic)
            await load.right(*range(5))
            load.enter(5, 900)
            await load.right(500)
            await load.ledger.close()

    in_loop(write)
    words = [
        "audit",
        "--follow",
        "--every",
        "1",
        "--bootstrap-server",
        cluster.bootstrap_servers,
        "--topic",
        topic,
    ]
    with ThreadPoolExecutor(1) as threads:
        command = threads.submit(main, [*words, "--ledger", str(folder)])
        shown = ""
        until = time.monotonic() + 100
        while "judged" not in shown and not command.done() and time.monotonic() < until:
            time.sleep(0.1)
            shown += capsys.readouterr().out
        for query in spark.streams.active:
            query.stop()
        assert command.result(timeout=60) == 1
    assert "6 records judged, 6 acked; 1 lost" in shown


def run(spark: SparkSession, plan: FollowPlan, told: list[dict[str, Any]]) -> None:
    """Follow until all that is there has been processed; a failed query raises."""
    query = follow(spark, plan, told.append)
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def total(told: list[dict[str, Any]], name: str) -> int:
    return sum(each[name] for each in told)


def anomalies(told: list[dict[str, Any]]) -> dict[str, int]:
    counts = {kind.value: sum(each["anomalies"][kind.value] for each in told) for kind in Finding}
    return {kind: count for kind, count in counts.items() if count}


def test_a_topic_that_stamps_anew_is_refused(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    in_loop: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """The audit of a running load refuses a topic with LogAppendTime, which replaces timestamps."""
    cluster.set_config(topic, "message.timestamp.type", "LogAppendTime")

    async def write() -> None:
        async with Producer(cluster.bootstrap_servers) as producer:
            load = Load(producer, await make_ledger(tmp_path / "ledger", topic), topic)
            load.ledger.add(0, ACKED, 0, 0, time.time(), time.time())
            await load.write(0)
            await load.ledger.close()

    in_loop(write)
    plan = FollowPlan(
        audit=AuditPlan(
            ledger=str(tmp_path / "ledger"),
            bootstrap=cluster.bootstrap_servers,
            topic=topic,
            out=str(tmp_path / "out"),
            options={},
        ),
        every=1,
    )
    query = follow(spark, plan, print)
    with pytest.raises(Exception, match="LogAppendTime"):
        query.awaitTermination(120)
