"""`aioidem perf` takes the flags of Kafka's kafka-producer-perf-test, and obeys them alike."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable

import pytest

from aioidem._testing.kafka_install import install_kafka
from aioidem.broker import EmbeddedCluster
from tests.commands import AIOIDEM

KAFKA = "4.3.1"
TOOL = "org.apache.kafka.tools.ProducerPerformance"
Tool = Callable[..., subprocess.CompletedProcess[str]]
LOAD = "--num-records 30 --warmup-records 10 --throughput -1 --payload-monotonic"


def java(*words: str) -> subprocess.CompletedProcess[str]:
    install = install_kafka(KAFKA)
    command = [str(install.java), "-Xmx256m", "-cp", install.class_path(), TOOL, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def ours(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*AIOIDEM, "perf", *words]
    wide = {**os.environ, "COLUMNS": "250"}  # the help cuts long names where a line is short
    return subprocess.run(
        command, env=wide, capture_output=True, text=True, timeout=60, check=False
    )


def test_every_flag_of_kafka_s_tool_is_a_flag_of_perf() -> None:
    told = java("--help").stdout
    flags = set(re.findall(r"^  (--[a-z.-]+)", told, re.MULTILINE))
    assert {"--num-records", "--warmup-records", "--reporting-interval"} <= flags
    ours_too = set(re.findall(r"--[a-z][a-z.-]+[a-z]", ours("--help").stdout))
    assert flags - ours_too == set()


@pytest.mark.parametrize("tool", [java, ours])
def test_both_send_numbers_and_tell_the_steady_state_apart(tool: Tool) -> None:
    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t")
        words = [*LOAD.split(), "--topic", "t", "--reporting-interval", "1000"]
        done = tool(*words, "--bootstrap-server", cluster.bootstrap_servers)
        sent = [record.value for record in cluster.records("t")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert sent == [b"%d" % number for number in range(30)]
    assert re.search(r"\b20 steady state records ", done.stdout), done.stdout
