"""Run a pipeline on this machine: clicks in files, transformed by Spark, exactly-once into Kafka.

    python examples/spark_clickstream.py
    python examples/spark_clickstream.py --files 20 --clicks 20000 --page clicks.html
    python examples/spark_clickstream.py --bootstrap-server localhost:9092 --topic views

Without `--bootstrap-server` an embedded broker is started. Each file with clicks becomes a batch of
a structured streaming query, which keeps the views of people (not of robots), finds the section of
each page and writes one record per view, with the user as its key. While it runs, one task of each
batch fails once after its first rows, and at the end the query has forgotten that its last batch
was finished, and repeats it.

The audit then compares the topic with the files: each view must be there once, and nothing else.
The page (`clickstream.html`) shows the views of each section, each batch and the result of the
audit; a browser loads it again every two seconds while the pipeline runs. The exit status is 0 if
the audit found nothing.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import random
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

import aioidem.spark
from aioidem.broker import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "click bigint, user string, path string, agent string, at timestamp"
SECTIONS = ("books", "games", "music", "news")
FIRST_DAY = 1_767_225_600  # 2026-01-01, in seconds since the epoch


def write_clicks(folder: Path, number: int, count: int) -> None:
    """Write a file with clicks; the number decides its content."""
    draw = random.Random(number)  # noqa: S311 - the same clicks in each run
    lines = []
    for click in range(number * count, (number + 1) * count):
        section = draw.choice(SECTIONS)
        lines.append(
            json.dumps(
                {
                    "click": click,
                    "user": f"user-{draw.randrange(500)}",
                    "path": f"/{section}/{draw.randrange(100)}",
                    "agent": draw.choice(("firefox", "safari", "chrome", "robot")),
                    "at": FIRST_DAY + click,
                }
            )
        )
    hidden = folder / f".{number:06}"
    hidden.write_text("\n".join(lines), encoding="utf-8")
    hidden.rename(folder / f"{number:06}.json")  # Spark sees the file when it is whole


def views(clicks: DataFrame) -> DataFrame:
    """Return the records: a key and a value for each view by a person."""
    people = clicks.where("agent <> 'robot'")
    section = F.split("path", "/").getItem(1)
    value = F.to_json(F.struct("click", "user", section.alias("section"), "at"))
    return people.select(F.col("user").alias("key"), value.alias("value"))


def failing_once() -> Any:
    """Make a function of values that fails the first attempt of each batch's task 0."""

    def look(value: str) -> str:
        context = TaskContext.get()
        if context is not None and context.partitionId() + context.attemptNumber() == 0:
            raise RuntimeError("this attempt fails on purpose")
        return value

    return F.udf(look, StringType(), useArrow=False)


class Pipeline:
    """A query from a folder of files to a topic; it can be run again after more files came.

    Args:
        spark: the session, with at least two attempts per task (`local[2,2]`).
        servers: the bootstrap servers.
        topic: the topic, which must be empty.
        folder: where the files with clicks, and the checkpoint, are.
        page: the page to write.
    """

    def __init__(
        self, spark: SparkSession, servers: str, topic: str, folder: Path, page: Path
    ) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": servers}
        self._topic = topic
        self._folder = folder
        self._page = page
        self._batches: list[tuple[int, int, int]] = []
        self.source = folder / "clicks"
        self.source.mkdir(exist_ok=True)

    def run(self) -> None:
        """Write the views of all new files, one file per batch."""
        clicks = (
            self._spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .json(str(self.source))
            .withColumn("path", failing_once()("path"))
        )
        query = (
            views(clicks)
            .writeStream.format("aioidem")
            .options(**self._options, topic=self._topic)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        while not query.awaitTermination(2):
            self._show(query.recentProgress)
        self._show(query.recentProgress)

    def forget_the_last_commit(self) -> None:
        """Remove Spark's note that the last batch is finished, as if the driver had died before."""
        commits = self._folder / "checkpoint" / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)

    def audit(self) -> Mapping[str, int]:
        """Compare the topic with the files; all counts but `views` are 0 if all is well."""
        click = F.get_json_object("value", "$.click").cast("bigint")
        section = F.get_json_object("value", "$.section")
        wanted = views(self._spark.read.schema(SCHEMA).json(str(self.source)))
        topic = (
            self._spark.read.format("aioidem-topic")
            .options(**self._options, subscribe=self._topic)
            .option("kafka.isolation.level", "read_committed")
            .load()
            .selectExpr("cast(value AS string) AS value")
        )
        found = topic.select(click.alias("click"), section.alias("section"))
        copies = found.groupBy("click").agg(F.count("*").alias("copies"))
        both = wanted.select(click.alias("click"), F.lit(True).alias("wanted")).join(
            copies, "click", "full"
        )
        [row] = both.selectExpr(
            "count(wanted) AS views",
            "count_if(copies IS NULL) AS lost",
            "count_if(copies > 1) AS twice",
            "count_if(wanted IS NULL) AS foreign",
        ).collect()
        sections = {
            each["section"]: each["count"] for each in found.groupBy("section").count().collect()
        }
        told: Mapping[str, int] = row.asDict()
        self._write(sections, told)
        return told

    def _show(self, progress: Sequence[Any]) -> None:
        known = dict.fromkeys(self._batches)
        for each in progress:
            if each["numInputRows"]:
                took = each["durationMs"].get("triggerExecution", 0)
                known[(each["batchId"], each["numInputRows"], took)] = None
        self._batches = list(known)
        self._write({}, None)

    def _write(self, sections: Mapping[str, int], audit: Mapping[str, int] | None) -> None:
        most = max(sections.values(), default=1)
        bars = "".join(
            f'<tr><th>{html.escape(name)}<td><div style="background:#4c78a8;height:1em;'
            f'width:{30 * count / most:.1f}em"></div><td>{count:,}'
            for name, count in sorted(sections.items())
        )
        batches = "".join(
            f"<tr><td>{number}<td>{rows:,}<td>{took:,}" for number, rows, took in self._batches
        )
        verdict = "the pipeline runs" if audit is None else json.dumps(audit)
        again = '<meta http-equiv="refresh" content="2">' if audit is None else ""
        self._page.write_text(
            f"<!doctype html><meta charset=utf-8>{again}<title>Clicks</title>"
            "<style>body{font:1em sans-serif}th,td{padding:0 1em;text-align:left}</style>"
            f"<h1>Clicks</h1><p>Audit: {html.escape(verdict)}</p><table>{bars}</table>"
            f"<h2>Batches</h2><table><tr><th>batch<th>clicks<th>ms{batches}</table>",
            encoding="utf-8",
        )


def run(pipeline: Pipeline, files: int, clicks: int) -> Mapping[str, int]:
    """Run the pipeline with the faults that the text above describes; return the audit's counts."""
    for number in range(files):
        write_clicks(pipeline.source, number, clicks)
    pipeline.run()
    pipeline.forget_the_last_commit()
    pipeline.run()
    return pipeline.audit()


def main() -> int:
    """Start what is needed, run the pipeline, and print the audit's counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--clicks", type=int, default=2_000, help="in each file")
    parser.add_argument("--page", type=Path, default=Path("clickstream.html"))
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--topic", default=f"views-{secrets.token_hex(4)}")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with ExitStack() as stack:
        servers = options.bootstrap_server
        if servers is None:
            cluster = stack.enter_context(EmbeddedCluster.in_thread(brokers=1))
            cluster.create_topic(options.topic, partitions=4)
            servers = cluster.bootstrap_servers
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # A repeated batch must be divided into the same tasks, so adaptive execution is off.
        builder = SparkSession.builder.master("local[2,2]").appName("clicks to Kafka")
        builder = builder.config("spark.sql.adaptive.enabled", "false")
        spark = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("FATAL")  # the failures on purpose fill pages
        aioidem.spark.register(spark)
        pipeline = Pipeline(spark, servers, options.topic, folder, options.page)
        audit = run(pipeline, options.files, options.clicks)
    sys.stdout.write(f"{json.dumps(audit)}; see {options.page}\n")
    return 0 if not any(audit[each] for each in ("lost", "twice", "foreign")) else 1


if __name__ == "__main__":
    sys.exit(main())
