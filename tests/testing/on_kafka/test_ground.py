"""Real brokers, started in an environment with other Java options and another locale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.ground import hostile

PROGRAM = """
import os, anyio
from aioidem import Producer
from aioidem.testing import KafkaCluster
async def main():
    async with KafkaCluster("4.3.1") as cluster:
        await cluster.create_topic("t")
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send("t", "\\u0131 and \\u20ac".encode())
        [batch] = await cluster.dump_log("t")
        print(ascii(batch.records[0].payload))
        print(len(open(cluster.brokers[0].process.log).readlines()[0].split("Picked up")))
os.umask(0o077)
anyio.run(main)
"""


def test_a_cluster_is_what_the_test_says_wherever_it_runs(tmp_path: Path) -> None:
    """Java options and the locale of the environment do not reach the brokers."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=hostile(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [r"'\u0131 and \u20ac'", "1"]
