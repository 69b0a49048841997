"""Where Spark's speculation runs two attempts at a task at once, every row is written once.

Spark makes a second attempt only on another host than the first one's, and `local-cluster` has one
host. So there are two workers of a standalone cluster here, on two loopback addresses.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from anyio.from_thread import BlockingPortal

from aioidem._testing.kafka_process import ProcessGuard, reserve_port
from aioidem.testing import KafkaCluster
from tests.kafka.tools import STOCK
from tests.spark import speculative
from tests.spark.conftest import PYSPARK_FORGETS, event_log, portal, spark
from tests.spark.speculative import ROWS, TASKS
from tests.spark.tools import values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["event_log", "portal", "spark"]  # fixtures

pytestmark = pytest.mark.filterwarnings(*PYSPARK_FORGETS)

INIT_PRODUCER_ID, SECONDS = 22, 100.0
DEPLOY = "org.apache.spark.deploy"


def until(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Processes:
    """Processes that run during the test, each with a log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = ProcessGuard()
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[3])])
            ),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
        }
        with self.log(name).open("wb") as log:
            process = self._guard.start(command, log, cwd=self._folder, env=environment)
        self._all.append(process)
        return process

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def close(self) -> None:
        for process in self._all:
            if process.poll() is None:
                # A worker that is terminated ends its executors; one that is killed cannot.
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
    """Start a standalone Spark cluster with two workers on two hosts; return its URL."""
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


@pytest.fixture
def kafka(portal: BlockingPortal) -> Iterator[KafkaCluster]:
    with portal.wrap_async_context_manager(KafkaCluster(STOCK[0])) as running:
        yield running


def test_a_speculative_attempt_and_the_slow_one_write_each_row_once(
    spark: SparkSession,
    portal: BlockingPortal,
    kafka: KafkaCluster,
    processes: Processes,
    master: str,
    tmp_path: Path,
) -> None:
    """A slow attempt and a speculative attempt at the same task write each row once."""
    topic = "speculation"
    portal.call(kafka.create_topic, topic, 2)
    words = (master, kafka.bootstrap_servers, topic, "twice", str(tmp_path))
    driver = processes.start("driver", sys.executable, str(speculative.__file__), *words)

    def second() -> bool:
        assert driver.poll() is None, processes.log("driver").read_text()[-3000:]
        return (tmp_path / "attempt-1").exists()

    until(second, "Spark made no second attempt")
    assert (tmp_path / "attempt-0").exists()
    (tmp_path / "go").touch()
    assert driver.wait(SECONDS) == 0, processes.log("driver").read_text()[-3000:]
    asked = [seen for seen, _ in kafka.proxy.trace if seen.api_key == INIT_PRODUCER_ID]
    assert sum(not seen.answer for seen in asked) > TASKS
    assert values(spark, kafka.bootstrap_servers, topic) == list(range(ROWS))
