"""A failing run of tests leaves nothing behind: no process, no port, no directory.

Each test starts a second pytest, with a `KafkaCluster` in a fixture and one of Kafka's tools
running. The second pytest prints its ports, directory and process groups, and then fails, exits, is
killed or is interrupted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .test_kafka_cluster import alive, listening

RUN = '''
import os, signal
import anyio, pytest
from aioidem.testing import KafkaCluster

@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"

@pytest.fixture(scope="module")
async def cluster(anyio_backend):
    async with KafkaCluster() as running:
        yield running

def groups_below_us():
    """Process groups of our own descendants, but our own."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1]), int(fields[2])
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in parents.items() if parent in ours} - ours:
        ours |= more
    return {parents[pid][1] for pid in ours - {os.getpid()}} - {os.getpgrp()}

def ports_of(broker):
    """The proxy's, and those of the broker's own configuration: the controller's is there only."""
    with open(broker.folder.with_suffix(".properties")) as properties:
        [line] = [each for each in properties if each.startswith("listeners=")]
    return broker.proxy.port, *(int(each.rpartition(":")[2]) for each in line.split(","))

def say(cluster, what):
    [broker] = cluster.brokers
    ports = ",".join(map(str, ports_of(broker)))
    print("HAVE", ports, broker.folder.parent, *groups_below_us(), flush=True)

@pytest.mark.anyio
async def test_it(cluster):
    async with anyio.create_task_group() as tasks:
        tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        where = "--bootstrap-server", cluster.inner_servers
        tasks.start_soon(cluster.run_tool, tool, *where, "--topic", "t")
        with anyio.fail_after(100):
            while await cluster.leader("t") < 0:  # which the tool brings about
                await anyio.sleep(0.05)
        say(cluster, "have")
        END
'''

ENDS = {
    "fails": "assert not 'a failure'",
    "exits": "os._exit(1)",  # as pytest-timeout ends a run where it cannot use a signal
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT)\n        await anyio.sleep_forever()",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_ends_badly_leaves_nothing(tmp_path: Path, end: str) -> None:
    """No process, port or directory of a cluster is left behind, however a run of tests ends."""
    (tmp_path / "test_run.py").write_text(RUN.replace("END", ENDS[end]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", tmp_path],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode not in {0, pytest.ExitCode.USAGE_ERROR}, done.stdout
    [have] = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("HAVE ")]
    ports, folder, groups = have[0].split(","), Path(have[1]), [int(each) for each in have[2:]]
    assert len(set(ports)) == 4  # of the proxy, the clients, the brokers and the controller
    assert len(groups) >= 3
    assert folder.name.startswith("aioidem-kafka-")
    bound = time.monotonic() + 60
    left = [int(each) for each in ports]
    while any(map(alive, groups)) or any(map(listening, left)) or folder.exists():
        assert time.monotonic() < bound, (groups, left, folder)
        os.sched_yield()  # there is no event for the end of those processes
