"""Two attempts at one task at once, as speculation makes them: every row is written once.

Spark makes a second attempt only on another host than the first one's, and `local-cluster` has one
host: so two workers of a standalone cluster here, on two addresses of the loopback.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from aioidem.broker import EmbeddedCluster
from aioidem.broker.intercept import RequestSeen
from aioidem.testing.kafka_process import ProcessGuard, reserve_port

from .speculative import ROWS
from .tools import values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
INIT_PRODUCER_ID, SECONDS = 22, 100.0
DEPLOY = "org.apache.spark.deploy"


def until(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Processes:
    """What runs beside the test, each with a log, and ends with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = ProcessGuard()
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(HERE.parents[1]),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
        }
        with self.log(name).open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guard.watch_group(process.pid)
        self._all.append(process)
        return process

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def close(self) -> None:
        for process in self._all:
            if process.poll() is None:
                # Workers end their executors when they are asked to; the guard asks nobody.
                process.terminate()
        for process in self._all:
            process.wait(30)
        self._guard.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with closing(Processes(tmp_path)) as made:
        yield made


@pytest.fixture
def master(processes: Processes) -> str:
    """The URL of a standalone cluster of two workers on two hosts."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = reserve_port()
    url = f"spark://127.0.0.1:{port}"
    alone = ["--webui-port", "0"]
    words = ["--host", "127.0.0.1", "--port", str(port), *alone]
    processes.start("master", spark_class, f"{DEPLOY}.master.Master", *words)
    for number in (1, 2):
        words = ["--host", f"127.0.0.{number}", "--cores", "1", "--memory", "600m", *alone]
        words += ["--work-dir", f"work-{number}", url]
        processes.start(f"worker-{number}", spark_class, f"{DEPLOY}.worker.Worker", *words)

    def registered() -> bool:
        log = processes.log("master").read_text(errors="replace")
        return len(re.findall(r"Registering worker", log)) == 2

    until(registered, "the workers did not come to their master")
    return url


def test_a_speculative_attempt_and_the_slow_one_write_each_row_once(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    processes: Processes,
    master: str,
    tmp_path: Path,
) -> None:
    identity = f"twice-{topic}"
    fenced: Counter[str] = Counter()

    def count(seen: RequestSeen) -> None:
        if seen.api_key == INIT_PRODUCER_ID:
            fenced[seen.request.transactional_id.rpartition(".")[2]] += 1

    cluster.intercept(count)
    try:
        words = (master, cluster.bootstrap_servers, topic, identity, str(tmp_path))
        driver = processes.start("driver", sys.executable, str(HERE / "speculative.py"), *words)

        def second() -> bool:
            assert driver.poll() is None, processes.log("driver").read_text()[-3000:]
            return (tmp_path / "attempt-1").exists()

        until(second, "Spark made no second attempt")
        assert (tmp_path / "attempt-0").exists()
        (tmp_path / "go").touch()
        assert driver.wait(SECONDS) == 0, processes.log("driver").read_text()[-3000:]
    finally:
        cluster.intercept(None)
    assert fenced["0"] >= 2, fenced
    assert values(spark, cluster.bootstrap_servers, topic) == list(range(ROWS))
    assert cluster.last_stable_offset(topic, 0) == cluster.log_end_offset(topic, 0)
