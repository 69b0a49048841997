"""Run `aioidem perf --spark` on a standalone Spark cluster of several workers, by number of tasks.

    python benchmarks/spark_cluster.py --workers 4 --tasks 2,8,32,64,100 --records 100000

A master and the workers, each on a loopback address of its own (127.0.0.1, 127.0.0.2, ...) and with
one core, are started here, and one real broker. Each load is a process of its own, as a user starts
it, and gets executors of its own on every worker. The first load is not measured.

The table has the CPU time of the cluster (master, workers, executors and their Python processes)
and of the broker. Starting the executors' JVMs is part of it, and is the same for every number of
tasks; so the cost of a task is taken from two numbers of tasks with the same records, and the cost
of a record from two numbers of records with the same tasks. (Linux only.)

Invariants: every wait is bounded, and all processes end with this one. The exit status is 0 if
every record of each load was acknowledged.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import pyspark
from anyio.from_thread import start_blocking_portal

from aioidem._testing.kafka_process import ProcessGuard, reserve_port
from aioidem.testing import KafkaCluster

_SECONDS: Final = 120.0
_DEPLOY: Final = "org.apache.spark.deploy"
_COLUMNS: Final = (
    *("tasks", "records", "acknowledged", "s in all", "records/s"),
    *("CPU s: cluster", "broker"),
)
_SETTINGS: Final = """\
spark.executor.memory 512m
spark.driver.memory 512m
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1
"""


class Standalone:
    """A standalone Spark cluster on loopback addresses.

    Args:
        folder: for logs and settings.
        workers: how many workers, each with one core.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        (folder / "spark-defaults.conf").write_text(_SETTINGS, "utf-8")
        self._folder = folder
        self._guard = ProcessGuard()
        self._running: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }
        port, alone = reserve_port(), ["--webui-port", "0"]
        self.url = f"spark://127.0.0.1:{port}"
        self._start("master", "--host", "127.0.0.1", "--port", str(port), *alone)
        for number in range(1, workers + 1):
            words = ["--host", f"127.0.0.{number}", "--cores", "1", "--memory", "600m", *alone]
            self._start("worker", *words, "--work-dir", str(folder / f"work-{number}"), self.url)
        self._wait_for(workers)

    def _start(self, role: str, *words: str) -> None:
        spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        command = [spark_class, f"{_DEPLOY}.{role}.{role.capitalize()}", *words]
        log = self._folder / f"{role}-{len(self._running)}.log"
        with log.open("wb") as file:
            started = self._guard.start(command, file, cwd=self._folder, env=self.environment)
        self._running.append(started)

    def _wait_for(self, workers: int) -> None:
        deadline = time.monotonic() + _SECONDS
        log = self._folder / "master-0.log"
        while len(re.findall("Registering worker", log.read_text("utf-8", "replace"))) < workers:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all {workers} workers came within {_SECONDS:g} s")
            time.sleep(0.1)

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes of the cluster so far."""
        return sum(cpu_seconds_below(each.pid) for each in self._running)

    def close(self) -> None:
        """End all processes: a worker that is terminated ends its executors."""
        for each in self._running:
            each.terminate()
        for each in self._running:
            each.wait(_SECONDS)
        self._guard.close()


class Load(NamedTuple):
    """What one load took; times in seconds."""

    tasks: int
    records: int
    acked: int
    elapsed: float
    rate: float
    cluster: float
    broker: float


def cpu_seconds_below(top: int) -> float:
    """Return the CPU time of a process, and of those below it, which may have ended."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
        used[int(path.parent.name)] = sum(map(int, fields[11:15]))

    def below(pid: int) -> bool:
        return pid == top or (pid in parents and below(parents[pid]))

    return sum(ticks for pid, ticks in used.items() if below(pid)) / os.sysconf("SC_CLK_TCK")


def load(cluster: Standalone, kafka: KafkaCluster, topic: str, tasks: int, records: int) -> Load:
    """Run one load, and return what it took."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "load.json")
        words = ["perf", "--spark", "--master", cluster.url, "--tasks", str(tasks)]
        words += ["--bootstrap-server", kafka.inner_servers, "--topic", topic]
        words += ["--num-records", str(records), "--record-size", "100", "--json", str(out)]
        broker = kafka.brokers[0].process.pid or 0
        before, beside = cluster.cpu_seconds(), cpu_seconds_below(broker)
        began = time.monotonic()
        subprocess.run(  # noqa: S603 - our own
            [sys.executable, "-m", "aioidem", *words],
            check=False,
            stdout=subprocess.DEVNULL,
            env=cluster.environment,
            timeout=10 * _SECONDS,
        )
        elapsed = time.monotonic() - began
        [told] = json.loads(out.read_text("utf-8"))
    return Load(
        tasks,
        records,
        told["acked"],
        elapsed,
        told["records_per_sec"],
        cluster.cpu_seconds() - before,
        cpu_seconds_below(broker) - beside,
    )


def main() -> int:
    """Run a load with each number of tasks, and print the table and the costs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tasks", default="2,8,32,64,100", metavar="N,N,...")
    parser.add_argument("--records", type=int, default=100_000)
    options = parser.parse_args()
    counts = [int(each) for each in options.tasks.split(",")]
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(KafkaCluster()) as kafka,
    ):
        portal.call(kafka.create_topic, "load", 8)
        cluster = Standalone(Path(folder), options.workers)
        try:
            load(cluster, kafka, "load", options.workers, options.workers)
            print(f"pyspark {pyspark.__version__}, {options.workers} workers with one core each\n")
            print(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}", flush=True)
            wanted = [(each, options.records) for each in counts]
            done = [
                shown(load(cluster, kafka, "load", tasks, records))
                for tasks, records in (*wanted, (counts[0], 4 * options.records))
            ]
        finally:
            cluster.close()
    show_costs(done)
    return 0 if all(each.acked == each.records for each in done) else 1


def shown(each: Load) -> Load:
    """Print a row of the table."""
    print(
        f"| {each.tasks} | {each.records:,} | {each.acked:,} | {each.elapsed:.1f} |"
        f" {each.rate:,.0f} | {each.cluster:.2f} | {each.broker:.2f} |",
        flush=True,
    )
    return each


def show_costs(done: list[Load]) -> None:
    """Print the costs of a task and of a record; the last load has more records than the others."""
    few, many, more = done[0], done[-2], done[-1]
    for name in ("cluster", "broker"):
        few_s, many_s, more_s = (float(getattr(each, name)) for each in (few, many, more))
        task = (many_s - few_s) / (many.tasks - few.tasks)
        record = (more_s - few_s) / (more.records - few.records)
        print(f"CPU of the {name}: {task * 1e3:.1f} ms per task, {record * 1e6:.1f} us per record")


if __name__ == "__main__":
    sys.exit(main())
