"""Java's consumer subscribes to the embedded cluster: it joins, rebalances, commits and resumes.

The consumer is Kafka's VerifiableConsumer, which prints its assigned partitions and what it read,
and commits after each poll.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from aioidem import Producer
from aioidem._testing.kafka_install import install_kafka
from aioidem.broker import ClusterControls, EmbeddedCluster

TOPIC, GROUP, PARTITIONS = "readings", "readers", 4
BOUND = 60.0


class JavaMember:
    """The process of one VerifiableConsumer, with what it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.owns: set[int] = set()
        self.count = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, holds: Callable[[JavaMember], bool]) -> None:
        """Wait until `holds` is true of this object, which follows what the consumer prints."""
        with self._news:
            assert self._news.wait_for(lambda: holds(self), BOUND), (self.owns, self.count)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            told: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
            partitions = {each["partition"] for each in told.get("partitions", ())}
            with self._news:
                match told.get("name"):
                    case "partitions_assigned":
                        self.owns |= partitions
                    case "partitions_revoked":
                        self.owns -= partitions
                    case "records_consumed":
                        self.count += told["count"]
                self._news.notify_all()


@contextmanager
def java_member(servers: str) -> Iterator[JavaMember]:
    """Run one consumer, which is terminated at the end and then leaves the group."""
    install = install_kafka("4.3.1")
    command = [
        str(install.java),
        "-cp",
        install.class_path(),
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", servers, "--topic", TOPIC, "--group-id", GROUP),
        *("--reset-policy", "earliest"),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            yield JavaMember(process)
            process.terminate()
            process.wait(BOUND)
        finally:
            process.kill()


async def produce(servers: str, values: Iterable[int]) -> None:
    async with Producer(servers) as producer:
        for value in values:
            await producer.send(TOPIC, b"%d" % value, partition=value % PARTITIONS)


@pytest.mark.timeout(600)
def test_javas_consumer_subscribes_rebalances_commits_and_resumes() -> None:
    """Java's consumer joins a group, rebalances, commits and resumes."""
    with EmbeddedCluster.in_thread(brokers=2) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        servers = cluster.bootstrap_servers
        anyio.run(produce, servers, range(20))
        with java_member(servers) as one:
            one.until(lambda told: told.count == 20)
            with java_member(servers) as two:
                two.until(lambda told: len(told.owns) == PARTITIONS // 2)
                one.until(lambda told: len(told.owns) == PARTITIONS // 2)
                assert not one.owns & two.owns
            one.until(lambda told: len(told.owns) == PARTITIONS)
            anyio.run(produce, servers, range(20, 28))
            one.until(lambda told: told.count == 28)
        anyio.run(produce, servers, range(28, 32))
        with java_member(servers) as three:
            three.until(lambda told: told.count == 4)

        def committed(inner: ClusterControls) -> int:
            return sum(each.offset for each in inner.state.groups.committed(GROUP).values())

        assert cluster.call(committed) == 32
