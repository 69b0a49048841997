"""The Spark parts with a real broker: load with faults, audit, killed tasks, and both sinks."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import BlockingPortal
from pyspark.errors import StreamingQueryException

from aioidem._cli import main
from aioidem._spark.topic_source import topic_format
from aioidem.spark import register
from aioidem.testing import Action, Cut, Delay, FrameSeen, KafkaCluster
from tests.kafka.tools import PRODUCE, STOCK
from tests.spark.conftest import PYSPARK_FORGETS, event_log, portal, spark
from tests.spark.tools import ROWS, Query, fail_once, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["event_log", "portal", "spark"]  # fixtures

pytestmark = pytest.mark.filterwarnings(*PYSPARK_FORGETS)

END_TXN, TXN_OFFSET_COMMIT = 26, 28


@pytest.fixture(scope="module")
def kafka(portal: BlockingPortal) -> Iterator[KafkaCluster]:
    with portal.wrap_async_context_manager(KafkaCluster(STOCK[0])) as running:
        yield running


def test_a_load_through_faults_has_no_anomaly(
    spark: SparkSession,  # noqa: ARG001 - the commands use this session
    portal: BlockingPortal,
    kafka: KafkaCluster,
    tmp_path: Path,
) -> None:
    portal.call(kafka.create_topic, "load", 3)
    dice, lost = random.Random(1), 0

    def spoil(seen: FrameSeen) -> Action | None:
        nonlocal lost
        if seen.api_key != PRODUCE or dice.random() > 0.3:
            return None
        lost += 1
        return Cut() if lost % 2 else Delay(0.05)

    words = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", "load"]
    words += ["--ledger", str(tmp_path / "ledger")]
    kafka.proxy.on_answer = spoil
    load = ["--tasks", "2", "--num-records", "20000", "--record-size", "200"]
    props = ["--producer-props", "batch.size=16384"]
    assert main(["perf", "--spark", *words, *load, *props]) == 0
    kafka.proxy.on_answer = None
    assert lost > 1
    out = tmp_path / "found.json"
    assert main(["audit", *words, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["acked"], found["log_records"]) == (20_000, 20_000)


def at_last(query: Query, **options: Any) -> None:
    """Run a query, and start it again if it fails, as its operator would.

    The first attempt at a task, after Spark has given it up, may still reach the transaction
    coordinator and fence the second attempt. Spark makes no third attempt here, so the query fails.
    """
    try:
        query.run(**options)
    except StreamingQueryException:
        query.run(**options)


@pytest.mark.parametrize(("sink", "repeated"), [("aioidem", False), ("kafka", True)])
def test_the_same_faults_for_both_sinks(
    spark: SparkSession,
    portal: BlockingPortal,
    kafka: KafkaCluster,
    tmp_path: Path,
    sink: str,
    repeated: bool,
) -> None:
    """Repeated tasks and batches make Spark's own sink write rows twice, but not aioidem's."""
    register(spark)
    if sink == "kafka" and topic_format(spark) != sink:
        pytest.skip(f"Spark's own sink for Spark {spark.version} cannot be downloaded")
    topic = f"from-{sink}"
    portal.call(kafka.create_topic, topic, 2)
    query = Query(spark, kafka.bootstrap_servers, topic, tmp_path)
    query.feed()
    at_last(query, sink=sink, column=fail_once(100))
    query.forget_commit(0)
    query.feed()
    query.run(sink=sink)
    counts = Counter(values(spark, kafka.bootstrap_servers, topic))
    assert set(counts) == set(range(2 * ROWS))
    again = sum(counts.values()) - 2 * ROWS
    print(f"{sink}: of {2 * ROWS} rows {again} were written again")  # noqa: T201 - shown by -s
    assert (again >= ROWS) if repeated else (again == 0)


def connected_to(port: int) -> set[int]:
    """Return the processes with a connection to this local port, except for this process."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ending = f":{port:04X}"
    sockets = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(ending) and row[3] == "01"}
    found = set()
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(file.readlink()) in sockets:
                found.add(int(file.parts[2]))
    return found - {os.getpid()}


@pytest.mark.parametrize(
    ("api_key", "answer", "again"),
    [(TXN_OFFSET_COMMIT, False, True), (END_TXN, False, True), (END_TXN, True, False)],
    ids=["before", "during", "after"],
)
def test_a_task_is_killed_around_its_commit(
    spark: SparkSession,
    portal: BlockingPortal,
    kafka: KafkaCluster,
    tmp_path: Path,
    api_key: int,
    answer: bool,
    again: bool,
) -> None:
    """If a task is killed around its commit, each row is still committed once.

    The task is killed when it sends its marker, when it sends its request to commit, or when the
    broker answers the commit. Only in the last case does the next attempt send no rows.
    """
    register(spark)
    topic = f"killed-{api_key}-{answer}"
    portal.call(kafka.create_topic, topic, 1)
    query = Query(spark, kafka.bootstrap_servers, topic, tmp_path)
    query.feed(tasks=1)
    killed: list[set[int]] = []
    written: list[bool] = []

    def kill(seen: FrameSeen) -> Action | None:
        if seen.api_key == PRODUCE and not seen.answer:
            written.append(bool(killed))
        if killed or (seen.api_key, seen.answer) != (api_key, answer):
            return None
        killed.append(connected_to(kafka.proxy.port))
        for process in killed[0]:
            os.kill(process, signal.SIGKILL)
        return Cut()

    kafka.proxy.on_request = kafka.proxy.on_answer = kill
    try:
        query.run()
    finally:
        kafka.proxy.on_request = kafka.proxy.on_answer = None
    # Workers that ran earlier tests may keep a connection, too: they are killed with the task.
    [processes] = killed
    assert processes
    assert written.count(False) >= 1
    assert (written.count(True) >= 1) is again
    assert values(spark, kafka.bootstrap_servers, topic) == list(range(ROWS))
