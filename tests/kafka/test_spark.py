"""The Spark parts on a real broker: a load through faults, its audit, both sinks side by side."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import BlockingPortal
from pyspark.errors import StreamingQueryException

from aioidem.cli import main
from aioidem.spark import register
from aioidem.testing import KafkaCluster
from aioidem.testing.fault_proxy import Action, Cut, Delay, FrameSeen
from tests.spark.conftest import PYSPARK_FORGETS, portal, spark
from tests.spark.tools import ROWS, Query, fail_once, values

from .tools import PRODUCE, STOCK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["portal", "spark"]  # fixtures

pytestmark = pytest.mark.filterwarnings(*PYSPARK_FORGETS)


@pytest.fixture(scope="module")
def kafka(portal: BlockingPortal) -> Iterator[KafkaCluster]:
    with portal.wrap_async_context_manager(KafkaCluster(STOCK[0])) as running:
        yield running


def test_a_load_through_faults_has_no_anomaly(
    spark: SparkSession,  # noqa: ARG001 - the session that the commands take
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
    """Start a query that ended again, as its operator would. An attempt that Spark has given up may
    come to its coordinator after the one that follows, which is then fenced; and Spark, as it is
    set up here, counts no third one.
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
    """A task that fails halfway, and a batch whose end the driver did not note."""
    register(spark)
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
    assert (again >= ROWS) if repeated else (again == 0)
