"""Compare the sink in both modes with Spark's own sink, on one real broker, by number of tasks.

    python benchmarks/spark_sink.py --rows 64000 --tasks 2,8,32 --rounds 5

Each measurement is one batch write with all of its tasks at once. The sinks take turns, after a
first write of each that starts Python's workers, and the table has the medians over the rounds.
Requests to coordinators, and connections, are counted at the broker's proxy in a write of their
own, because with the proxy's hook each request takes longer. The CPU time is that of all processes
of the benchmark: driver, Python workers, broker and proxy. (Linux only; elsewhere it is 0.) Other
work on the machine changes it less than it changes the elapsed time.

kio, whose schemas aioidem uses, imports hypothesis where it is installed. Most installations do not
have it, so it is hidden from the workers.

Invariants: every wait is bounded. The exit status is 0 if the topic has every row of each write
once.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyspark
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyspark.sql import SparkSession

import aioidem.spark
from aioidem._protocol.versions import ApiKey
from aioidem._spark.session import open_session
from aioidem._spark.topic_source import topic_format
from aioidem.testing import Action, FrameSeen, KafkaCluster

_OFFSET_FETCH = 9
_COORDINATORS = {
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    _OFFSET_FETCH,
}
_OWN = "Spark's own"
_SINKS = ("at-least-once", "exactly-once", _OWN)


class Watch:
    """A proxy hook that counts the requests to coordinators, and the connections."""

    def __init__(self) -> None:
        self.calls = 0
        self.connections: set[int] = set()

    def __call__(self, seen: FrameSeen) -> Action | None:
        """Count a request and its connection."""
        self.calls += seen.api_key in _COORDINATORS
        self.connections.add(seen.connection)
        return None


class Took(NamedTuple):
    """What a write took, in seconds."""

    elapsed: float
    cpu: float


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all processes below it."""
    used: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        ticks = sum(map(int, fields[11:15]))  # its own and its children's that have ended
        used[int(path.parent.name)] = (int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))

    def ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in used and ours(used[pid][0]))

    return sum(seconds for pid, (_, seconds) in used.items() if ours(pid))


def write(spark: SparkSession, servers: str, topic: str, sink: str, rows: int, tasks: int) -> Took:
    """Write all rows in one batch write, and return what it took."""
    frame = spark.range(0, rows, 1, tasks).selectExpr(
        "cast(id AS string) AS key", "repeat('x', 100) AS value"
    )
    writer = frame.write.format("kafka" if sink == _OWN else "aioidem").mode("append")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", topic)
    if sink == "exactly-once":
        writer = writer.option("identity", secrets.token_hex(4)).option("adaptive", "allow")
    began, cpu = time.monotonic(), cpu_seconds()
    writer.save()
    return Took(time.monotonic() - began, cpu_seconds() - cpu)


def written_once(spark: SparkSession, servers: str, topic: str, rows: int) -> bool:
    """Return whether the topic has each of the rows once."""
    reader = spark.read.format(topic_format(spark)).option("kafka.bootstrap.servers", servers)
    reader = reader.option("kafka.isolation.level", "read_committed").option("subscribe", topic)
    keys = reader.load().selectExpr("cast(key AS string) AS key")
    [row] = keys.selectExpr("count(*) AS all", "count(DISTINCT key) AS each").collect()
    return (row["all"], row["each"]) == (rows, rows)


class Comparison:
    """All sinks, with one number of tasks."""

    def __init__(
        self, portal: BlockingPortal, kafka: KafkaCluster, tasks: int, options: argparse.Namespace
    ) -> None:
        self._portal = portal
        self._kafka = kafka
        self._tasks = tasks
        self._rows: int = options.rows
        self._rounds: int = options.rounds
        self._took: dict[str, list[Took]] = {sink: [] for sink in _SINKS}

    def run(self) -> bool:
        """Write with each sink in turn; return whether every row is in its topic once."""
        fine = True
        with open_session("sinks", master=f"local[{self._tasks}]", kafka=True) as spark:
            aioidem.spark.register(spark)
            watches = {sink: self._watched(spark, sink) for sink in _SINKS}
            for _ in range(self._rounds):
                for sink in _SINKS:
                    fine &= self._once(spark, sink)
        theirs = median(each.elapsed for each in self._took[_OWN])
        for sink, rounds in self._took.items():
            took = [each.elapsed for each in rounds]
            middle, watch = median(took), watches[sink]
            print(
                f"| {self._tasks} | {sink} | {middle:.2f} ({min(took):.2f}-{max(took):.2f}) |"
                f" {median(each.cpu for each in rounds):.2f} |"
                f" {self._rows / middle:,.0f} | {theirs / middle:.2f} | {watch.calls} |"
                f" {len(watch.connections)} |"
            )
        sys.stdout.flush()
        return fine

    def _topic(self) -> str:
        topic = f"t{secrets.token_hex(4)}"
        self._portal.call(self._kafka.create_topic, topic, 8)
        return topic

    def _watched(self, spark: SparkSession, sink: str) -> Watch:
        """Write twice, to start Python's workers, and then to count requests and connections."""
        watch = Watch()
        for hook in (None, watch):
            self._kafka.proxy.on_request = hook
            servers = self._kafka.bootstrap_servers
            write(spark, servers, self._topic(), sink, self._tasks * 10, self._tasks)
        self._kafka.proxy.on_request = None
        return watch

    def _once(self, spark: SparkSession, sink: str) -> bool:
        topic, servers = self._topic(), self._kafka.bootstrap_servers
        self._took[sink].append(write(spark, servers, topic, sink, self._rows, self._tasks))
        return written_once(spark, servers, topic, self._rows)


def main() -> int:
    """Compare the sinks with each number of tasks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=64_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", default="2,8,32", metavar="N,N,...")
    options = parser.parse_args()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"pyspark {pyspark.__version__}, {options.rows:,} rows, {options.rounds} rounds;", end=" "
    )
    print(f"load before: {load}\n\n| tasks | sink | s, median (range) | CPU s |", end="")
    print(" rows/s | of Spark's own | calls to coordinators | connections |")
    print("|---|---|---|---|---|---|---|---|")
    fine = True
    with (
        tempfile.TemporaryDirectory() as hidden,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(KafkaCluster()) as kafka,
    ):
        Path(hidden, "hypothesis.py").write_text("raise ImportError\n", "utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join([hidden, os.environ.get("PYTHONPATH", "")])
        for tasks in map(int, options.tasks.split(",")):
            fine &= Comparison(portal, kafka, tasks, options).run()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
