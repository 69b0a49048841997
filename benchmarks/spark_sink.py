"""Compare the sink in both modes with Spark's own sink, on one real broker, by rows and tasks.

    python benchmarks/spark_sink.py --rows 32000,1000000 --tasks 2,8,32 --rounds 5
    python benchmarks/spark_sink.py --rows 10000000 --tasks 8 --rounds 1 --heap 1g --sinks a,e
    python benchmarks/spark_sink.py --rows 320 --tasks 2,32 --rounds 1 --requests
    python benchmarks/spark_sink.py --rows 32000 --tasks 2,32 --rounds 3 --sinks a,e,s,n

Each measurement is one batch write of rows of 100 bytes by `--cores` tasks at once, in one Spark
session, to a new topic of one broker. The sinks take turns, and a different one is the first in
each round. A first write of each sink, which is not measured, starts Python's workers and warms up
the JVM. The sink `n` takes the rows in Python and does nothing with them: no sink in Python can
cost less.

Each write is to a new topic, and on some disks the first records of a new partition cost the
broker's file system more than all that follow (60 ms of system time each, on one virtual disk). The
broker's folder is in the temporary directory: `TMPDIR=/dev/shm` keeps it in memory.

The table has the medians over the rounds:

- the CPU time per row of Spark, which is the JVM (driver and executors) with its Python workers,
  and beside it that of all other processes, the broker and this one. (Linux only; elsewhere it is
  0.) Other work on the machine changes it less than it changes the elapsed time.
- With `--requests`: the requests to coordinators, and the connections. They are counted at the
  broker's proxy in a write of their own; measured writes go past the proxy, which is in Python.

kio, whose schemas aioidem uses, imports hypothesis where it is installed. Most installations do not
have it, so it is hidden from the workers.

Invariants: every wait is bounded. A topic is written to only when the broker leads all of its
partitions: Java's producer, which Spark keeps in its JVM, otherwise may send two batches to a
broker that refuses the first one and then leads the partition; it takes the second, and answers
each repetition of the first with OutOfOrderSequence until the delivery timeout has passed. The exit
status is 0 if the topic has every row of each write once.

Rejected: to count distinct keys as proof of that (a shuffle of ten million rows); rows and two sums
over them are compared.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyspark
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

import aioidem.spark
from aioidem._protocol.versions import ApiKey
from aioidem._spark.python_worker import make_next_task_cheap
from aioidem._spark.session import open_session
from aioidem._spark.topic_source import topic_format
from aioidem.testing import Action, FrameSeen, KafkaCluster

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_OFFSET_FETCH: Final = 9
_COORDINATORS: Final = {
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    _OFFSET_FETCH,
}
_OWN: Final = "Spark's own"
_NOTHING: Final = "nothing, in Python"
_SINKS: Final = {"a": "at-least-once", "e": "exactly-once", "s": _OWN, "n": _NOTHING}
_FORMATS: Final = {_OWN: "kafka", _NOTHING: "nothing"}
_PARTITIONS: Final = 8
_WARM_ROWS: Final = 32_000
_SUMS: Final = (
    "count(*) AS rows",
    "sum(cast(key AS bigint)) AS numbers",
    "sum(shiftrightunsigned(xxhash64(key), 32)) AS hashes",
)
"""Two different sets of keys have the same sums with a probability of about one in 2^32."""


class NothingSource(DataSource):
    """A data source in Python whose sink does nothing."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return _FORMATS[_NOTHING]

    def writer(self, schema: object, overwrite: bool) -> NothingWriter:  # noqa: ARG002 - Spark's
        """Make the writer."""
        make_next_task_cheap()
        return NothingWriter()


class NothingWriter(DataSourceArrowWriter):
    """Takes the rows of a task, and does nothing with them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take all rows; called in the task."""
        for _ in iterator:
            pass
        make_next_task_cheap()
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """Do nothing; Spark calls this in a Python worker of its own."""
        make_next_task_cheap()


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
    """What a write took, in seconds; CPU time by Spark, and by all other processes."""

    elapsed: float
    spark: float
    others: float


class Processes:
    """The CPU time and memory of this process and of those below it.

    Args:
        jvm: the process id of Spark's JVM, to which its Python workers belong.
    """

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self.resident: dict[str, int] = {}
        """The most MiB that a process of this name under the JVM, or the JVM, has had."""

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU time of Spark, and of all other processes of this benchmark."""
        parents, used = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
            except OSError:  # the process has ended
                continue
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            # its own and its children's that have ended
            used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

        def below(pid: int, top: int) -> bool:
            return pid == top or (pid in parents and below(parents[pid], top))

        spark = [pid for pid in used if below(pid, self._jvm)]
        for pid in spark:
            self._look(pid)
        ours = sum(used[pid] for pid in used if below(pid, os.getpid()))
        mine = sum(used[pid] for pid in spark)
        return mine, ours - mine

    def _look(self, pid: int) -> None:
        try:
            lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        except OSError:
            return
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        if "VmHWM" in fields:
            name = "JVM" if pid == self._jvm else "Python worker"
            highest = int(fields["VmHWM"].split()[0]) // 1024
            self.resident[name] = max(self.resident.get(name, 0), highest)


def rows_of(spark: SparkSession, rows: int, tasks: int) -> DataFrame:
    """Return the rows to write, whose keys are numbers."""
    return spark.range(0, rows, 1, tasks).selectExpr(
        "cast(id AS string) AS key", "repeat('x', 100) AS value"
    )


def write(frame: DataFrame, servers: str, topic: str, sink: str) -> None:
    """Write all rows in one batch write."""
    writer = frame.write.format(_FORMATS.get(sink, "aioidem")).mode("append")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", topic)
    if sink == "exactly-once":
        writer = writer.option("identity", secrets.token_hex(4)).option("adaptive", "allow")
    writer.save()


def sums_of(keys: DataFrame) -> dict[str, Any]:
    """Return sums over the keys that tell whether each row is there once."""
    [row] = keys.selectExpr(*_SUMS).collect()
    return dict(row.asDict())


def in_topic(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """Return the keys that a reader of committed data sees in a topic."""
    reader = spark.read.format(topic_format(spark)).option("kafka.bootstrap.servers", servers)
    reader = reader.option("kafka.isolation.level", "read_committed").option("subscribe", topic)
    return reader.load().selectExpr("cast(key AS string) AS key")


class Comparison:
    """All sinks, with one number of rows and one of tasks."""

    def __init__(
        self,
        spark: SparkSession,
        processes: Processes,
        portal: BlockingPortal,
        kafka: KafkaCluster,
        sinks: Sequence[str],
        rows: int,
        tasks: int,
    ) -> None:
        self._spark = spark
        self._sinks = sinks
        self._processes = processes
        self._portal = portal
        self._kafka = kafka
        self._rows, self._tasks = rows, tasks
        self._expected = sums_of(rows_of(spark, rows, tasks))
        self._took: dict[str, list[Took]] = {sink: [] for sink in sinks}

    def run(self, rounds: int, *, requests: bool) -> bool:
        """Write with each sink in turn; return whether every row is in its topic once."""
        fine = True
        watches = [self._watched(sink) for sink in self._sinks] if requests else []
        for sink in self._sinks:
            self._write(sink, min(self._rows, _WARM_ROWS), self._kafka.inner_servers)
        for turn in range(rounds):
            for place in range(len(self._sinks)):
                fine &= self._measured(self._sinks[(turn + place) % len(self._sinks)])
        self._show(watches)
        return fine

    def _show(self, watches: list[Watch]) -> None:
        own = self._took.get(_OWN)
        theirs = median(each.elapsed for each in own) if own else None
        for place, (sink, rounds) in enumerate(self._took.items()):
            took = [each.elapsed for each in rounds]
            middle = median(took)
            spark, others = (
                median(each[part] for each in rounds) / self._rows * 1e6 for part in (1, 2)
            )
            counted = [watches[place].calls, len(watches[place].connections)] if watches else []
            print(
                f"| {self._rows:,} | {self._tasks} | {sink} |"
                f" {middle:.2f} ({min(took):.2f}-{max(took):.2f}) | {self._rows / middle:,.0f} |"
                f" {'-' if theirs is None else f'{theirs / middle:.2f}'} |"
                f" {spark:.1f} | {others:.1f} |",
                *(f"{count} |" for count in counted),
                flush=True,
            )

    def _write(self, sink: str, rows: int, servers: str) -> tuple[str, Took]:
        topic = f"t{secrets.token_hex(4)}"
        self._portal.call(self._kafka.create_topic, topic, _PARTITIONS)
        frame = rows_of(self._spark, rows, self._tasks)
        began, (spark, others) = time.monotonic(), self._processes.cpu_seconds()
        write(frame, servers, topic, sink)
        elapsed, (after, beside) = time.monotonic() - began, self._processes.cpu_seconds()
        return topic, Took(elapsed, after - spark, beside - others)

    def _watched(self, sink: str) -> Watch:
        """Write twice, to start the sink's producers, and then to count what they ask for."""
        watch = Watch()
        for hook in (None, watch):
            self._kafka.proxy.on_request = hook
            self._write(sink, self._tasks * 10, self._kafka.bootstrap_servers)
        self._kafka.proxy.on_request = None
        return watch

    def _measured(self, sink: str) -> bool:
        topic, took = self._write(sink, self._rows, self._kafka.inner_servers)
        self._took[sink].append(took)
        return (
            sink == _NOTHING
            or sums_of(in_topic(self._spark, self._kafka.inner_servers, topic)) == self._expected
        )


def main() -> int:
    """Compare the sinks with each number of rows and tasks, and print the table."""
    options = arguments()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"pyspark {pyspark.__version__}, {options.cores} tasks at once,", end=" ")
    print(f"a heap of {options.heap}, {options.rounds} rounds; load before: {load}\n")
    named = ["rows", "tasks", "sink", "s, median (range)", "rows/s", "of Spark's own"]
    named += ["CPU us/row: Spark", "others"]
    named += ["calls to coordinators", "connections"] if options.requests else []
    print(f"| {' | '.join(named)} |\n|{'---|' * len(named)}", flush=True)
    fine = True
    sinks = [_SINKS[each] for each in options.sinks.split(",")]
    settings = {"spark.driver.memory": options.heap}
    with (
        tempfile.TemporaryDirectory() as hidden,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(KafkaCluster()) as kafka,
    ):
        Path(hidden, "hypothesis.py").write_text("raise ImportError\n", "utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join([hidden, os.environ.get("PYTHONPATH", "")])
        master = f"local[{options.cores}]"
        with open_session("sinks", master=master, kafka=True, settings=settings) as spark:
            aioidem.spark.register(spark)
            spark.dataSource.register(NothingSource)
            jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
            processes = Processes(jvm.java.lang.ProcessHandle.current().pid())
            for rows in map(int, options.rows.split(",")):
                for tasks in map(int, options.tasks.split(",")):
                    each = Comparison(spark, processes, portal, kafka, sinks, rows, tasks)
                    fine &= each.run(options.rounds, requests=options.requests)
            processes.cpu_seconds()
    told = ", ".join(f"{name} {most} MiB" for name, most in processes.resident.items())
    print(f"\nresident at most: {told}; {'' if fine else 'NOT '}every row is there once")
    return 0 if fine else 1


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", default="32000", metavar="N,N,...")
    parser.add_argument("--tasks", default="2,8,32", metavar="N,N,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2, help="how many tasks run at once")
    parser.add_argument("--sinks", default="a,e,s", help="the first letters of sinks")
    parser.add_argument("--heap", default="1g", help="spark.driver.memory")
    parser.add_argument("--requests", action="store_true", help="count requests and connections")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
