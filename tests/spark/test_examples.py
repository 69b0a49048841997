"""The examples for Spark do what they say."""

from __future__ import annotations

import html
import importlib
import json
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import aioidem.spark
from aioidem.broker import EmbeddedCluster

from .tools import fixed_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


def records(cluster: EmbeddedCluster, topic: str) -> list[Any]:
    return [
        record
        for partition in range(2)
        for batch in cluster.batches(topic, partition)
        if not batch.control
        for record in batch.records()
    ]


def test_the_batch_job(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = str(tmp_path / "orders")
    spark.range(100).selectExpr("id", "id * 2 AS amount").write.parquet(source)
    example("spark_batch", monkeypatch).main(source, cluster.bootstrap_servers, topic)
    written = {record.key: json.loads(record.value) for record in records(cluster, topic)}
    assert written == {
        str(number).encode(): {"id": number, "amount": 2 * number} for number in range(100)
    }


def test_the_clickstream_pipeline_writes_each_view_once(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each view is in the topic once, in spite of failed tasks and of a batch that is repeated."""
    aioidem.spark.register(spark)
    job, page = example("spark_clickstream", monkeypatch), tmp_path / "clicks.html"
    with fixed_tasks(spark):
        pipeline = job.Pipeline(spark, cluster.bootstrap_servers, topic, tmp_path, page)
        audit = job.run(pipeline, files=2, clicks=100)
    assert audit["views"] == len(records(cluster, topic)) > 100
    assert (audit["lost"], audit["twice"], audit["foreign"]) == (0, 0, 0)
    assert html.escape('"lost": 0') in page.read_text("utf-8")


def test_the_streaming_job(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / "events"
    source.mkdir()
    at = datetime.now(UTC).replace(microsecond=0)
    event = {"user": "u1", "action": "login", "at": at.isoformat()}
    (source / "1.json").write_text(json.dumps(event), encoding="utf-8")
    job = example("spark_streaming", monkeypatch)
    words = [str(source), str(tmp_path / "c"), cluster.bootstrap_servers, topic]
    with fixed_tasks(spark):  # the example turns it off too, and this session goes on
        assert job.start(*words, once=True).awaitTermination(120)
    [record] = records(cluster, topic)
    assert record.key == b"u1"
    assert json.loads(record.value)["action"] == "login"
    assert list(record.headers) == [("job", b"events")]
    assert record.timestamp_ms == int(at.timestamp()) * 1000
