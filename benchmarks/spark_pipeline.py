"""Run the data pipeline on one real broker: a load on Spark, and the audit of its records.

    python benchmarks/spark_pipeline.py --records 1000000 --tasks 2 --faults
    python benchmarks/spark_pipeline.py --records 10000000 --tasks 2 --past-the-proxy --heap 1g
    python benchmarks/spark_pipeline.py --records 200000 --tasks 2,8,32 --past-the-proxy

For each number of tasks, `aioidem perf --spark` writes the records and keeps ledgers, then `aioidem
audit` compares these with the topic. Both are processes of their own, as when a user runs them.

- --faults: any answer to a Produce request, except for the first on each connection, may be lost
  with its connection (one in forty), delayed, or held for a moment.
- --past-the-proxy: connect to the broker directly, for its speed, because the proxy is in Python.

The output for each has rates, sums and anomalies, the time of the audit, and the peak of its memory
as counted by the kernel (resident, of the JVM, which is driver and executor here).

Invariants: every wait is bounded. The exit status is 0 if every record was acknowledged and the
audit found no anomaly.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from aioidem.testing import Action, Cut, Delay, FrameSeen, KafkaCluster

_PRODUCE = 0
_LONGEST = 3600.0


class Faults:
    """A proxy hook that loses or delays some answers to Produce requests, and counts them."""

    def __init__(self, seed: int) -> None:
        self.lost = 0
        self.late = 0
        self._source = random.Random(seed)
        self._seen: set[int] = set()

    def __call__(self, seen: FrameSeen) -> Action | None:
        """Return the fault for an answer, or None."""
        if seen.api_key != _PRODUCE:
            return None
        if seen.connection not in self._seen:
            self._seen.add(seen.connection)
            return None
        dice = self._source.random()
        if dice < 0.025:
            self.lost += 1
            return Cut(reset=dice < 0.0125)
        if dice < 0.05:
            self.late += 1
            return Delay(self._source.uniform(0.01, 0.3))
        return None


def run(words: Sequence[str], timeout: float) -> tuple[int, float, int]:
    """Run a command; return its status, its seconds, and the peak of its JVM's memory in MiB."""
    began = time.monotonic()
    peak = 0
    command = [sys.executable, "-m", "aioidem", *words]
    with subprocess.Popen(command) as process:  # noqa: S603 - our own
        while process.poll() is None:
            if time.monotonic() - began > timeout:
                process.kill()
            peak = max(peak, _resident(process.pid))
            time.sleep(0.2)
    return process.returncode, time.monotonic() - began, peak


def _resident(parent: int) -> int:
    """Return the highest resident size, in MiB, of the Java processes below a process."""
    highest = 0
    for child in _children(parent):
        try:
            status = Path(f"/proc/{child}/status").read_text(encoding="utf-8")
        except OSError:  # the process has ended
            continue
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if lines["Name"].strip() == "java" and "VmHWM" in lines:
            highest = max(highest, int(lines["VmHWM"].split()[0]) // 1024)
        highest = max(highest, _resident(child))
    return highest


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for each in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found += map(int, each.read_text(encoding="ascii").split())
        except OSError:
            continue
    return found


async def pipeline(cluster: KafkaCluster, tasks: int, options: argparse.Namespace) -> bool:
    """Run load and audit on one topic; return whether both ended with exit status 0."""
    topic = f"pipeline-{tasks}"
    await cluster.create_topic(topic, partitions=options.partitions)
    servers = cluster.inner_servers if options.past_the_proxy else cluster.bootstrap_servers
    faults = Faults(options.seed) if options.faults else None
    cluster.proxy.on_answer = faults
    with tempfile.TemporaryDirectory() as folder:
        where = ["--bootstrap-server", servers, "--topic", topic, "--ledger", f"{folder}/ledger"]
        load = ["--spark", "--tasks", str(tasks), "--num-records", str(options.records)]
        load += ["--record-size", str(options.record_size), "--json", f"{folder}/load.json"]
        loaded, _, _ = await anyio.to_thread.run_sync(run, ["perf", *where, *load], _LONGEST)
        cluster.proxy.on_answer = None
        words = ["audit", *where, "--json", f"{folder}/audit.json", "--master", "local[2]"]
        words += ["--spark-conf", f"spark.driver.memory={options.heap}"]
        audited, took, peak = await anyio.to_thread.run_sync(run, words, _LONGEST)
        told = _told(Path(folder))
    if faults is not None:
        print(f"{tasks} tasks: {faults.lost} answers lost, {faults.late} late")
    print(f"{tasks} tasks: {json.dumps(told)}")
    print(f"{tasks} tasks: audited in {took:.1f} s, heap {options.heap}, JVM at most {peak} MiB")
    sys.stdout.flush()
    return loaded == audited == 0


def _told(folder: Path) -> dict[str, Any]:
    """Return the figures of load and audit, without the audit's list of partitions."""
    told: dict[str, Any] = {}
    for name in ("load", "audit"):
        path = folder / f"{name}.json"
        told[name] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if told["audit"]:
        told["audit"].pop("partitions")
    return told


async def main(options: argparse.Namespace) -> int:
    """Run load and audit with each number of tasks, on one broker."""
    fine = True
    async with KafkaCluster(seed=options.seed, rtt=options.rtt / 1000) as cluster:
        for tasks in map(int, options.tasks.split(",")):
            fine &= await pipeline(cluster, tasks, options)
    return 0 if fine else 1


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--record-size", type=int, default=100, metavar="BYTES")
    parser.add_argument("--tasks", default="2", metavar="N,N,...")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rtt", type=float, default=0.0, metavar="MS", help="of the proxy's link")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--past-the-proxy", action="store_true")
    parser.add_argument("--heap", default="1g", help="spark.driver.memory of the audit")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(anyio.run(main, arguments()))
