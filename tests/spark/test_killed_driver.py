"""A query whose driver was killed after a task had committed skips that task after a restart."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aioidem._broker.intercept import Action, Drop, RequestSeen
from aioidem._spark.topic_source import topic_format
from aioidem.broker import EmbeddedCluster

from .tools import fixed_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
END_TXN, EVENTS, FILES = 26, 200, 4


def feed(source: Path) -> None:
    source.mkdir()
    for number in range(FILES):
        events = [{"user": f"{number}-{each}", "action": "login"} for each in range(EVENTS)]
        lines = "\n".join(map(json.dumps, events))
        (source / f"{number}.json").write_text(lines, encoding="utf-8")


def kill(servers: str, topic: str, tmp_path: Path, committed: Callable[[], int]) -> None:
    """Kill a driver after its first task's commit; the caller drops the answers to commits."""
    source, checkpoint = tmp_path / "events", tmp_path / "checkpoint"
    feed(source)
    words = [str(source), str(checkpoint), servers, topic]
    driver = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "spark_streaming.py"), *words],
        cwd=tmp_path,  # a killed driver leaves Spark's artifacts in its working directory
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 150
        while not committed() and driver.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # kills the driver's JVM and its workers too
        driver.wait(30)
    assert committed()
    assert not list((checkpoint / "commits").glob("[0-9]*"))


def restart(
    spark: SparkSession,
    servers: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Restart the query from its checkpoint, and check that the topic has every event once."""
    words = [str(tmp_path / "events"), str(tmp_path / "checkpoint"), servers, topic]
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    with fixed_tasks(spark):  # the example turns it off too, and this session goes on
        query = importlib.import_module("spark_streaming").start(*words, once=True)
        assert query.awaitTermination(120)
    reader = spark.read.format(topic_format(spark)).option(
        "kafka.isolation.level", "read_committed"
    )
    reader = reader.option("kafka.bootstrap.servers", servers)
    rows = reader.option("subscribe", topic).load().selectExpr("cast(key AS string) key").collect()
    assert Counter(row.key for row in rows) == Counter(
        f"{number}-{each}" for number in range(FILES) for each in range(EVENTS)
    )


def test_a_killed_driver_is_restarted_from_its_checkpoint(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committed = 0

    def lose_the_answer(seen: RequestSeen) -> Action | None:
        nonlocal committed
        if seen.api_key != END_TXN:
            return None
        committed += 1
        return Drop(processed=True)

    cluster.intercept(lose_the_answer)
    try:
        kill(cluster.bootstrap_servers, topic, tmp_path, lambda: committed)
    finally:
        cluster.intercept(None)
    restart(spark, cluster.bootstrap_servers, topic, tmp_path, monkeypatch)
