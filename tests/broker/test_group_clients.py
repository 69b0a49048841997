"""Consumers of other projects subscribe to the embedded cluster: they join, rebalance and resume.

Each client goes through the same steps: a first member reads everything and commits; a second one
joins, takes over part of the partitions and leaves, and the first has all of them again; a new
member resumes where the group committed.
"""

from __future__ import annotations

import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import aiokafka
import anyio
import confluent_kafka
import pytest

from aioidem import Producer
from aioidem.broker import ClusterControls, EmbeddedCluster

with warnings.catch_warnings():
    # Importing kafka-python warns: it loads its schemas through a deprecated function.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka


TOPIC = "readings"
GROUP = "readers"
PARTITIONS = 4
BOUND = 30.0


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio only: aiokafka does not support trio."""
    return "asyncio"


async def produce(servers: str, values: Iterable[int]) -> None:
    async with Producer(servers) as producer:
        for value in values:
            await producer.send(TOPIC, b"%d" % value, partition=value % PARTITIONS)


def aiokafka_member(servers: str) -> aiokafka.AIOKafkaConsumer:
    return aiokafka.AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=servers,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        metadata_max_age_ms=1000,
    )


async def read(consumer: aiokafka.AIOKafkaConsumer, count: int) -> set[int]:
    return {int((await consumer.getone()).value or b"") for _ in range(count)}


async def owns(consumer: aiokafka.AIOKafkaConsumer, count: int) -> None:
    while len(consumer.assignment()) != count:  # noqa: ASYNC110 - aiokafka has no event for it
        await anyio.sleep(0.02)


@pytest.mark.anyio
async def test_aiokafka_subscribes_rebalances_commits_and_resumes() -> None:
    """aiokafka's consumer joins, rebalances, commits and resumes."""
    with anyio.fail_after(BOUND):
        async with EmbeddedCluster(brokers=2) as cluster:
            cluster.create_topic(TOPIC, partitions=PARTITIONS)
            await produce(cluster.bootstrap_servers, range(20))
            one = aiokafka_member(cluster.bootstrap_servers)
            async with one:
                assert await read(one, 20) == set(range(20))
                await one.commit()
                async with aiokafka_member(cluster.bootstrap_servers) as two:
                    await owns(two, PARTITIONS // 2)
                    await owns(one, PARTITIONS // 2)
                    assert not one.assignment() & two.assignment()
                await owns(one, PARTITIONS)
                await produce(cluster.bootstrap_servers, range(20, 28))
                assert await read(one, 8) == set(range(20, 28))
                await one.commit()
            await produce(cluster.bootstrap_servers, range(28, 32))
            async with aiokafka_member(cluster.bootstrap_servers) as three:
                assert await read(three, 4) == set(range(28, 32))


class Member(ABC):
    """A group member: a blocking consumer that a thread of its own polls."""

    def __init__(self, servers: str, instance: str | None = None) -> None:
        self.read: list[int] = []
        self.owns: frozenset[int] = frozenset()
        self.failed: BaseException | None = None
        self._servers = servers
        self._instance = instance
        self._wanted: list[Callable[[], None]] = []
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave.set()
        self._thread.join(BOUND)
        assert self.failed is None

    def commit(self) -> None:
        """Commit what the member has read, and wait until that is done."""
        done = threading.Event()
        self._wanted.append(done.set)
        assert done.wait(BOUND)
        assert self.failed is None

    def _run(self) -> None:
        try:
            self._start()
            try:
                while not self._leave.is_set():
                    self.read += self._poll()
                    self.owns = self._assigned()
                    if self._wanted:
                        self._commit()
                        self._wanted.pop()()
            finally:
                self._close()
        except BaseException as error:  # noqa: BLE001 - the test's own thread checks it
            self.failed = error

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _poll(self) -> list[int]: ...

    @abstractmethod
    def _assigned(self) -> frozenset[int]: ...

    @abstractmethod
    def _commit(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class KafkaPythonMember(Member):
    def _start(self) -> None:
        self.consumer: Any = kafka.KafkaConsumer(
            TOPIC,
            bootstrap_servers=self._servers,
            group_id=GROUP,
            group_instance_id=self._instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
        )

    def _poll(self) -> list[int]:
        # The timeout is 1 s: a poll that ends during a join can lose JoinGroup's answer, and
        # kafka-python then does not join again.
        found = self.consumer.poll(timeout_ms=1000)
        return [int(record.value) for records in found.values() for record in records]

    def _assigned(self) -> frozenset[int]:
        return frozenset(each.partition for each in self.consumer.assignment())

    def _commit(self) -> None:
        self.consumer.commit()

    def _close(self) -> None:
        self.consumer.close()


class ConfluentMember(Member):
    def _start(self) -> None:
        options: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
        }
        if self._instance is not None:
            options["group.instance.id"] = self._instance
        self.consumer: Any = confluent_kafka.Consumer(options)
        self.consumer.subscribe([TOPIC])

    def _poll(self) -> list[int]:
        return [int(each.value()) for each in self.consumer.consume(100, 0.05) if not each.error()]

    def _assigned(self) -> frozenset[int]:
        return frozenset(each.partition for each in self.consumer.assignment())

    def _commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def _close(self) -> None:
        self.consumer.close()


class ConfluentCooperativeMember(ConfluentMember):
    """A member that gives up only the partitions that another member gets (KIP-429)."""

    def _start(self) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 100,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )
        self.consumer.subscribe([TOPIC])


def until(holds: Callable[[], bool], *members: Member) -> None:
    """Wait until the condition is true, and fail at once if the thread of a member has failed."""
    deadline = time.monotonic() + BOUND
    while not holds():
        for each in members:
            assert each.failed is None, each.failed
        assert time.monotonic() < deadline, [(each.owns, len(each.read)) for each in members]
        threading.Event().wait(0.02)


@pytest.mark.parametrize("kind", [KafkaPythonMember, ConfluentMember, ConfluentCooperativeMember])
def test_a_blocking_client_subscribes_rebalances_commits_and_resumes(kind: type[Member]) -> None:
    """A blocking consumer joins, rebalances, commits and resumes."""
    with EmbeddedCluster.in_thread(brokers=2) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        servers = cluster.bootstrap_servers
        anyio.run(produce, servers, range(20))
        with kind(servers) as one:
            until(lambda: len(one.read) == 20, one)
            one.commit()
            with kind(servers) as two:
                until(lambda: len(one.owns) == len(two.owns) == PARTITIONS // 2, one, two)
                assert not one.owns & two.owns
            until(lambda: len(one.owns) == PARTITIONS, one)
            anyio.run(produce, servers, range(20, 28))
            until(lambda: len(one.read) == 28, one)
            assert sorted(one.read) == list(range(28))
            one.commit()
        anyio.run(produce, servers, range(28, 32))
        with kind(servers) as three:
            until(lambda: len(three.read) == 4, three)
            assert sorted(three.read) == list(range(28, 32))


@pytest.mark.parametrize("kind", [KafkaPythonMember, ConfluentMember])
def test_restart_of_a_static_member_causes_no_rebalance(kind: type[Member]) -> None:
    """A static member that stops and starts again causes no rebalance (KIP-345)."""
    with EmbeddedCluster.in_thread() as cluster, ExitStack() as members:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        servers = cluster.bootstrap_servers
        one = members.enter_context(kind(servers, "one"))
        with kind(servers, "two") as two:
            until(lambda: len(one.owns) == len(two.owns) == PARTITIONS // 2, one, two)
            owned = two.owns
        generation = cluster.call(generation_of)
        with kind(servers, "two") as again:
            until(lambda: again.owns == owned, one, again)
        assert cluster.call(generation_of) == generation


def generation_of(cluster: ClusterControls) -> int:
    group = cluster.state.groups.find(GROUP)
    return -1 if group is None else group.generation
