"""Consume, transform, produce: records are copied exactly once, whatever is killed meanwhile.

The copier is a process of its own (`../copier.py`). Three events happen in an order that a seed
decides: the copier is killed and started anew; the copier is stopped (SIGSTOP), and resumes after
another copier has replaced it; the broker is killed and started. The records that the
read_committed consumers of aiokafka and Java find are compared with the source.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import pytest

from aioidem import Producer
from aioidem._testing.kafka_process import ProcessGuard
from aioidem.testing import KafkaCluster
from tests.kafka.tools import bounded
from tests.kafka.transactional import (
    committed,
    decided,
    end_of,
    group_offset,
    markers_written,
)
from tests.kafka.world import RTT, WORLDS, World, until
from tests.producer.on_kafka.copier import FENCED, PARTITIONS, changed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "world", [WORLDS["stock"], WORLDS["older"]], ids=["stock", "older"], indirect=True
    ),
]

RECORDS = 900
EVENTS = ("kill the copier", "kill the copier", "stop the copier", "kill the broker")
ROOT = Path(__file__).parents[4]


in_thread = anyio.to_thread.run_sync
"""Runs a blocking call in a thread; the tests use it to start processes and to read files."""


class Copiers:
    """The copier processes: the newest one, which copies, and those that it replaced.

    The output of each process goes to a file of its own. All methods but `check` and `signal`
    block, so they are called in a thread.
    """

    def __init__(self, cluster: KafkaCluster, source: str, target: str, folder: Path) -> None:
        self._work = {
            "bootstrap": cluster.bootstrap_servers,
            "inner": cluster.inner_servers,
            "source": source,
            "target": target,
            "group": source,
        }
        self.group = source
        self._folder = folder
        self._guard = ProcessGuard()
        self._all: list[subprocess.Popen[bytes]] = []

    def _log(self, number: int) -> Path:
        return self._folder / f"copier-{number}.log"

    def start(self) -> None:
        """Start one more copier, which fences the earlier ones once it has begun."""
        command = [sys.executable, "-m", "tests.producer.on_kafka.copier", json.dumps(self._work)]
        with self._log(len(self._all)).open("wb") as log:
            self._all.append(self._guard.start(command, log, cwd=ROOT))

    def check(self) -> subprocess.Popen[bytes]:
        """Assert that the newest copier still runs, and return its process."""
        process = self._all[-1]
        assert process.poll() is None, f"the copier ended; its output is in {self._folder}"
        return process

    def begun(self) -> bool:
        """Return whether the newest copier has its producer id and epoch.

        A copier that is stopped (SIGSTOP) before it has them would request them when it resumes,
        and so fence its successor.
        """
        self.check()
        return b"begins at" in self._log(len(self._all) - 1).read_bytes()

    def signal(self, number: signal.Signals) -> subprocess.Popen[bytes]:
        """Send a signal to the newest copier, and return its process."""
        process = self.check()
        os.killpg(process.pid, number)
        return process

    def said(self) -> str:
        """Return what all copiers have printed."""
        logs = [self._log(number) for number in range(len(self._all))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    def end(self) -> None:
        """Kill the copiers that run."""
        for process in self._all:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        self._guard.close()


@asynccontextmanager
async def copying(
    cluster: KafkaCluster, source: str, target: str, folder: Path
) -> AsyncIterator[Copiers]:
    copiers = await in_thread(Copiers, cluster, source, target, folder)
    try:
        await in_thread(copiers.start)
        yield copiers
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(copiers.end)


async def copied(cluster: KafkaCluster, target: str) -> int:
    """Return the sum of the target's end offsets, markers of transactions included."""
    return sum([await end_of(cluster, target, each) for each in range(PARTITIONS)])


async def progress(cluster: KafkaCluster, copiers: Copiers, target: str, more: int) -> None:
    """Wait until the newest copier has begun, and then until `more` offsets are copied."""

    async def begun() -> bool:
        return await in_thread(copiers.begun)

    await until(begun)
    enough = await copied(cluster, target) + more

    async def reached() -> bool:
        copiers.check()
        return await copied(cluster, target) >= enough

    await until(reached)


async def at_work(cluster: KafkaCluster, copiers: Copiers) -> None:
    """Wait until the newest copier has committed twice, so that it can be stopped (SIGSTOP).

    A kill of the broker may have disturbed the transaction that the first commit ended. If so, the
    copier requests a new epoch (InitProducerId) before its next transaction. If it were stopped
    before that request, it would send the request when it resumes, after its successor has started.
    While the successor has an open transaction, brokers accept InitProducerId with any older epoch
    of the producer id, so the request would fence the successor.
    """
    for _ in range(2):
        place = await group_offset(cluster, copiers.group, copiers.group, stable=False)

        async def moved(place: int = place) -> bool:
            copiers.check()
            now = await group_offset(cluster, copiers.group, copiers.group, stable=False)
            return now != place

        await until(moved)


async def happen(event: str, cluster: KafkaCluster, copiers: Copiers, target: str) -> None:
    """Kill or stop the copier, or kill the broker, as `event` says, and start a successor."""
    if event == "kill the copier":
        await in_thread(copiers.signal(signal.SIGKILL).wait, 10)
        await in_thread(copiers.start)
    elif event == "stop the copier":
        await at_work(cluster, copiers)
        stopped = copiers.signal(signal.SIGSTOP)
        await in_thread(copiers.start)
        await progress(cluster, copiers, target, 1)
        os.killpg(stopped.pid, signal.SIGCONT)
        assert await in_thread(stopped.wait, 30) == FENCED, await in_thread(copiers.said)
    else:
        cluster.proxy.freeze()
        await markers_written(cluster, copiers.group)
        await cluster.kill()
        cluster.proxy.thaw()
        await cluster.start()


async def fill_source(cluster: KafkaCluster, source: str) -> list[bytes]:
    """Write the records to be copied, in transactions of which every third is aborted.

    Returns the values that were committed.
    """
    left: list[bytes] = []
    async with Producer(cluster.inner_servers, transactional_id=f"{source}-filler") as producer:
        for first in range(0, RECORDS, 100):
            await producer.begin_transaction()
            told = [f"{source}/{number}".encode() for number in range(first, first + 100)]
            for each in told:
                producer.send_nowait(source, each, partition=0)
            await producer.flush()
            if first % 300:
                await producer.commit_transaction()
                left += told
            else:
                await producer.abort_transaction()
    return left


@bounded(120)
async def test_copied_exactly_once_under_kills_of_client_and_broker(
    cluster: KafkaCluster, world: World, tmp_path: Path
) -> None:
    source, target = "copy-source", "copy-target"
    seed = int.from_bytes(os.urandom(4))
    print(f"{world.version}: seed {seed}")  # noqa: T201 - shown where it fails
    random = Random(seed)
    events = random.sample(EVENTS, len(EVENTS))
    await cluster.create_topic(source)
    await cluster.create_topic(target, partitions=PARTITIONS)
    left = await fill_source(cluster, source)
    last = await decided(cluster, source) - 1  # the end of the last transaction
    cluster.proxy.set_link(rtt=RTT)
    async with copying(cluster, source, target, tmp_path) as copiers:
        for event in events:
            await progress(cluster, copiers, target, random.randrange(1, 60))
            await happen(event, cluster, copiers, target)

        async def all_copied() -> bool:
            copiers.check()
            return await group_offset(cluster, source, source) == last

        try:
            await until(all_copied)
        finally:
            print(await in_thread(copiers.said))  # noqa: T201 - likewise
    expected = [changed(each) for each in left]
    told = [await committed(cluster, target, each) for each in range(PARTITIONS)]
    assert sorted(told[0] + told[1], key=expected.index) == expected
    for part in told:
        assert part == sorted(part, key=expected.index)
    java = await cluster.consume(target, len(expected), read_committed=True)
    assert sorted(java) == sorted(expected)
