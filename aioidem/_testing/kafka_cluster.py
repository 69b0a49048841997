"""KafkaCluster: real Apache Kafka brokers on this machine, for tests; no containers.

``async with KafkaCluster() as cluster:`` gets the jars (`kafka_install`), formats and starts
brokers that are controllers too (KRaft) in a temporary directory, and waits until they answer. A
`FaultProxy` stands in front of each broker: what clients are told to connect to is the proxy's
port, so every byte of theirs crosses it. Brokers speak to one another, and this class to them,
behind the proxies' backs.

Invariants
    Every wait is bounded. Nothing is left behind: processes, ports and the directory go with the
    ``async with``, also when its body fails and when this process is killed (`ProcessGuard`).
    Readiness is asked for, in Kafka's own protocol, never waited out.
    A broker keeps its ports and its directory over restarts.

Rejected
    One broker for a whole test run (the tests worth having kill it); separate controllers (twice
    the processes, and no test needs them yet).
"""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream

from aioidem._broker.entities import build, from_ms
from aioidem._network.transport import TcpConnector
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import (
    decode_response,
    encode_request,
    request_type,
    response_type,
)
from aioidem._testing.broker_patch import write_patch
from aioidem._testing.fault_proxy import FaultProxy
from aioidem._testing.kafka_dump import DumpedBatch, parse_dump, split_dumps
from aioidem._testing.kafka_install import (
    KafkaInstall,
    KafkaInstallError,
    install_kafka,
    java_environment,
)
from aioidem._testing.kafka_process import KafkaProcess, ProcessGuard, reserve_port
from aioidem._testing.kafka_retention import RetentionFace
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem.errors import (
    BrokerResponseError,
    KafkaConnectionError,
    KafkaError,
    ProtocolError,
    broker_error,
)

__all__ = ["KafkaBroker", "KafkaCluster", "KafkaStartError", "KafkaToolError"]

_HOST: Final = "127.0.0.1"
_POLL_SECONDS: Final = 0.02
_INVALID_ASSIGNMENT: Final = 39
_ANSWER_SECONDS: Final = 10.0
_DOWNLOAD_SECONDS: Final = 300.0
_MAX_ANSWER_BYTES: Final = 100 << 20

# Small and quick to start: code that runs for a few seconds is not worth the second compiler.
_JVM_OPTIONS: Final = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

_METADATA: Final = (3, 12)
_CREATE_TOPICS: Final = (19, 7)
_DELETE_TOPICS: Final = (20, 6)
_ELECT_LEADERS: Final = (43, 2)
_ALTER_CONFIGS: Final = (44, 1)
_REASSIGN: Final = (45, 0)
_TOPIC: Final = 2
_DESCRIBE_QUORUM: Final = (55, 1)
_METADATA_LOG: Final = "__cluster_metadata"
_PREFERRED, _UNCLEAN = 0, 1
_ELECTION_NOT_NEEDED: Final = 84
_CONTROLLER_TIME: Final = from_ms(10_000)


class KafkaStartError(KafkaError):
    """A broker did not start, or not in time; the end of its log is in the message."""


class KafkaToolError(KafkaError):
    """One of Kafka's command line tools failed; what it printed is in the message."""


@dataclass(frozen=True, slots=True)
class KafkaBroker:
    """One broker: its process, and the proxy clients reach it through."""

    node_id: int
    port: int
    """Of the listener behind the proxy; it advertises the proxy's."""
    inner_port: int
    """Of the listener that the brokers use among themselves; it advertises itself."""
    secure_ports: Mapping[str, int]
    """Of the listeners that `KafkaSecurity` adds, by their names; they advertise themselves."""
    folder: Path
    process: KafkaProcess
    proxy: FaultProxy

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.process.running

    @property
    def paused(self) -> bool:
        """Whether it runs and is paused: it answers nothing until it is resumed."""
        return self.process.paused


class KafkaCluster:
    """Real brokers behind fault proxies. Belongs to one event loop.

    :param version: of Apache Kafka.
    :param brokers: how many, with ids 0, 1, ...
    :param retain: patch the brokers (or, by id, some of them) to remember so many batches per
        producer and partition, and have their proxies say so (KIP-1269); None: stock brokers,
        which remember five and say nothing. What is said can be changed: see `retention`.
    :param security: further listeners, with TLS and SASL, and who may do what.
    :param properties: server properties of all brokers, over the ones chosen here.
    :param features: levels to be finalised when the storage is formatted, by name, for example
        ``{"transaction.version": 0}``; what is left out is at the version's own level.
    :param jvm_options: instead of those chosen here (a heap of 256 MiB).
    :param rtt: of the proxies' links, seconds, and ``bandwidth``, bytes per second each way.
    :param seed: of the proxies.
    :param logs: where the brokers' logs are kept when the ``async with`` fails; None: their ends
        are added to the exception as a note.
    :param start_timeout: seconds for a start until it is ready, ``stop_timeout`` for a clean stop.
    :param unpinned: run a version whose jars' SHA-256 is not kept here, as Maven Central gives it.
    :raises KafkaInstallError: (on entering) no Java, no jgo, no network for the first use, or
        jars that are not the pinned ones.
    :raises KafkaStartError: (on entering) a broker did not start.
    """

    def __init__(
        self,
        version: str = "4.3.1",
        *,
        brokers: int = 1,
        retain: int | Mapping[int, int] | None = None,
        security: KafkaSecurity | None = None,
        properties: Mapping[str, str | int] | None = None,
        features: Mapping[str, int] | None = None,
        jvm_options: Sequence[str] = _JVM_OPTIONS,
        rtt: float = 0.0,
        bandwidth: float | None = None,
        seed: int = 0,
        logs: Path | None = None,
        start_timeout: float = 90.0,
        stop_timeout: float = 30.0,
        unpinned: bool = False,
    ) -> None:
        self.version = version
        self._unpinned = unpinned
        self._count = brokers
        self._retain = _by_broker(retain, brokers)
        self._security = security
        self._properties = dict(properties or {})
        self._features = dict(features or {})
        self._jvm_options = tuple(jvm_options)
        self._rtt, self._bandwidth, self._seed = rtt, bandwidth, seed
        self._logs = logs
        self._start_timeout, self._stop_timeout = start_timeout, stop_timeout
        self._brokers: list[KafkaBroker] = []
        self._install: KafkaInstall | None = None
        self._cluster_id = _cluster_id()
        self._folder = Path()
        self._guard: ProcessGuard | None = None
        self._exits = AsyncExitStack()

    def __repr__(self) -> str:
        running = sum(each.running for each in self._brokers)
        return f"<KafkaCluster {self.version}, {running} of {self._count} brokers running>"

    async def __aenter__(self) -> Self:
        """Start the brokers and wait until they are ready."""
        try:
            await self._prepare()
            await self._start_all()
        except BaseException:
            await self._shut()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill the brokers and remove what they wrote; keep their logs if the body failed."""
        if isinstance(error, Exception):
            with anyio.CancelScope(shield=True):
                error.add_note(await anyio.to_thread.run_sync(self._keep_logs))
        await self._shut()

    # -- for clients ------------------------------------------------------------------------------

    @property
    def brokers(self) -> Sequence[KafkaBroker]:
        """All brokers, by id."""
        return tuple(self._brokers)

    @property
    def proxies(self) -> Sequence[FaultProxy]:
        """The brokers' proxies, by id."""
        return tuple(each.proxy for each in self._brokers)

    @property
    def proxy(self) -> FaultProxy:
        """The first broker's proxy: the only one, of one broker."""
        return self._brokers[0].proxy

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,...`` of the brokers' proxies."""
        return ",".join(each.proxy.address for each in self._brokers)

    def retention(self, broker: int = 0) -> RetentionFace:
        """What that broker is said to retain.

        :raises KafkaError: it is a stock broker, of which nothing is said.
        """
        face = self._brokers[broker].proxy.retention
        if face is None:
            raise KafkaError(f"broker {broker} was not given a value of `retain`")
        return face

    @property
    def inner_servers(self) -> str:
        """``host:port,...`` past the proxies: for witnesses, who are not to be disturbed."""
        return ",".join(f"{_HOST}:{each.inner_port}" for each in self._brokers)

    def secure_servers(self, listener: str) -> str:
        """``host:port,...`` of the listeners of that name; see `KafkaSecurity`."""
        return ",".join(f"localhost:{each.secure_ports[listener]}" for each in self._brokers)

    # -- brokers ----------------------------------------------------------------------------------

    async def kill(self, broker: int = 0) -> None:
        """SIGKILL, and wait for its end: what was not flushed is in the page cache, and survives.

        :raises KafkaError: it does not end.
        """
        await self._stop(broker, signal.SIGKILL)

    async def terminate(self, broker: int = 0) -> None:
        """SIGTERM, and wait for its end: a controlled shutdown, as of a rolling restart.

        :raises KafkaError: it does not end within ``stop_timeout``; paused, it never does.
        """
        await self._stop(broker, signal.SIGTERM)

    async def start(self, broker: int = 0) -> None:
        """Start it again, where it was, and wait until it is ready.

        :raises KafkaStartError: it did not start.
        """
        target = self._brokers[broker]
        await anyio.to_thread.run_sync(target.process.start)
        try:
            with anyio.fail_after(self._start_timeout):
                await self._until_ready(target, 1)
        except TimeoutError:
            tail = await anyio.to_thread.run_sync(target.process.tail)
            raise KafkaStartError(
                f"broker {broker} is not ready after {self._start_timeout:g} s\n{tail}"
            ) from None

    async def restart(self, broker: int = 0, *, clean: bool = True) -> None:
        """`terminate` (or, not ``clean``, `kill`) and `start`."""
        await self._stop(broker, signal.SIGTERM if clean else signal.SIGKILL)
        await self.start(broker)

    async def pause(self, broker: int = 0) -> None:
        """SIGSTOP: it answers nothing from here on, and its connections stay open.

        :raises KafkaError: its process does not stop.
        """
        await self._signal(broker, signal.SIGSTOP)

    async def resume(self, broker: int = 0) -> None:
        """SIGCONT."""
        await self._signal(broker, signal.SIGCONT)

    async def revive(self) -> None:
        """Resume the brokers that are paused, start those that do not run, and wait until each
        knows of all.

        :raises KafkaStartError: one did not start, or they do not find one another.
        """
        for broker in self._brokers:
            await self.resume(broker.node_id)
            await anyio.to_thread.run_sync(broker.process.start)
        await self._until_all_ready()

    async def controller(self) -> int:
        """Id of the active controller; -1 while there is none, which takes ten seconds to say.

        :raises KafkaError: no broker is running.
        """
        asked = {"topic_name": _METADATA_LOG, "partitions": [{"partition_index": 0}]}
        for broker in self._responsive():
            with suppress(KafkaConnectionError, ProtocolError):
                answer = await self._ask(broker, *_DESCRIBE_QUORUM, {"topics": [asked]})
                if not int(answer.error_code):
                    return int(answer.topics[0].partitions[0].leader_id)
        return -1

    # -- topics -----------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        configs: Mapping[str, str | int] | None = None,
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Create a topic, and wait until every running broker knows its leaders.

        :param replication: None: a replica on each of up to three brokers.
        :param replicas: of each partition, the brokers to have one, the leader first; instead of
            ``partitions`` and ``replication``.
        :raises BrokerResponseError: the cluster refuses.
        """
        placed = [
            {"partition_index": partition, "broker_ids": brokers}
            for partition, brokers in enumerate(replicas or ())
        ]
        partitions = len(placed) or partitions
        topic = {
            "name": name,
            "num_partitions": -1 if placed else partitions,
            "replication_factor": -1 if placed else replication or min(self._count, 3),
            "assignments": placed,
            "configs": [
                {"name": key, "value": str(value)} for key, value in (configs or {}).items()
            ],
        }
        created = await self._ask_to_create(topic)
        # A broker that runs and is fenced yet counts as unknown; one that does not run stays so.
        everybody = len(self._responsive()) == self._count
        with anyio.move_on_after(self._start_timeout if everybody else 0):
            while int(created.error_code) == _INVALID_ASSIGNMENT:
                await anyio.sleep(_POLL_SECONDS)
                created = await self._ask_to_create(topic)
        _raise_for(created, f"topic {name!r} was not created")
        for proxy in self.proxies:
            if proxy.retention is not None:
                proxy.retention.learn(name, created.topic_id)
        for broker in self._responsive():
            await self._until(
                partial(self._all_led, broker, name, partitions),
                f"broker {broker.node_id} does not know all leaders of {name!r}",
            )

    async def delete_topic(self, name: str) -> None:
        """Delete it.

        :raises BrokerResponseError: the cluster refuses.
        """
        answer = await self._ask_any(
            *_DELETE_TOPICS, topics=[{"name": name, "topic_id": None}], timeout=_CONTROLLER_TIME
        )
        _raise_for(answer.responses[0], f"topic {name!r} was not deleted")

    async def set_config(self, topic: str, name: str, value: str | int) -> None:
        """Set one config of a topic.

        :raises BrokerResponseError: the cluster refuses.
        """
        resource = {
            "resource_type": _TOPIC,
            "resource_name": topic,
            "configs": [{"name": name, "config_operation": 0, "value": str(value)}],
        }
        answer = await self._ask_any(*_ALTER_CONFIGS, resources=[resource], validate_only=False)
        _raise_for(answer.responses[0], f"{name} of {topic!r} was not set")

    async def leader(self, topic: str, partition: int = 0) -> int:
        """Id of the leader, -1 if there is none or no such partition."""
        state = await self._state(topic, partition)
        return -1 if state is None else int(state.leader_id)

    async def in_sync(self, topic: str, partition: int = 0) -> frozenset[int]:
        """Ids of the replicas that are in sync; empty if there is no such partition."""
        state = await self._state(topic, partition)
        return frozenset() if state is None else frozenset(map(int, state.isr_nodes))

    async def _ask_to_create(self, topic: dict[str, Any]) -> Any:
        answer = await self._ask_any(
            *_CREATE_TOPICS, topics=[topic], timeout=_CONTROLLER_TIME, validate_only=False
        )
        return answer.topics[0]

    async def until_in_sync(
        self, topic: str, partition: int = 0, *, brokers: Collection[int] | None = None
    ) -> None:
        """Wait until all replicas are in sync, or ``brokers`` and no others.

        A broker that is gone or paused leaves after its session has ended (three seconds).

        :raises KafkaError: it does not happen in time.
        """
        wanted = None if brokers is None else frozenset(brokers)

        async def reached() -> bool:
            states = await self._states(topic, partition)
            return bool(states) and all(
                frozenset(map(int, state.isr_nodes))
                == (frozenset(map(int, state.replica_nodes)) if wanted is None else wanted)
                for state in states
            )

        await self._until(reached, f"the replicas of {topic}-{partition} are not in sync as wanted")

    async def move_leader(self, topic: str, partition: int, broker: int) -> None:
        """Make that broker the leader, which must have a replica in sync: it becomes the preferred
        one, and a preferred-leader election follows.

        :raises BrokerResponseError: the cluster refuses. KafkaError: it does not happen in time.
        """
        others = [each for each in await self._replicas(topic, partition) if each != broker]
        await self._place(topic, partition, [broker, *others])
        await self._elect(topic, partition, _PREFERRED)
        await self._until_led(topic, partition, broker)

    async def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move the partition to these brokers, and wait until they have it and no others; the first
        leads if the old leader is none of them.

        :raises BrokerResponseError: the cluster refuses. KafkaError: it does not happen in time.
        """
        await self._place(topic, partition, replicas)

        async def moved() -> bool:
            return list(replicas) == await self._replicas(topic, partition)

        await self._until(moved, f"{topic}-{partition} does not come to {list(replicas)}")
        await self.until_in_sync(topic, partition)

    async def elect_unclean(self, topic: str, partition: int = 0) -> int:
        """Elect a leader among replicas that are *not* in sync, where none that is can be had.

        What only the lost leader had, acknowledged or not, is lost for good.

        :returns: the new leader's id.
        :raises BrokerResponseError: the cluster refuses. KafkaError: nobody can be elected in time.
        """
        leader = -1

        async def led() -> bool:
            nonlocal leader
            with suppress(BrokerResponseError, KafkaConnectionError):
                await self._elect(topic, partition, _UNCLEAN)
            leader = await self.leader(topic, partition)
            return any(each.node_id == leader for each in self._responsive())

        await self._until(led, f"nobody can be elected to lead {topic}-{partition}")
        await self._until_led(topic, partition, leader)
        return leader

    async def _place(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        where = {"partition_index": partition, "replicas": replicas}
        answer = await self._ask_any(
            *_REASSIGN, topics=[{"name": topic, "partitions": [where]}], timeout=_CONTROLLER_TIME
        )
        _raise_for(answer, "the controller was not reached")
        _raise_for(answer.responses[0].partitions[0], "the replicas could not be placed")

    async def _elect(self, topic: str, partition: int, kind: int) -> None:
        place = {"topic": topic, "partitions": [partition]}
        answer = await self._ask_any(
            *_ELECT_LEADERS, election_type=kind, topic_partitions=[place], timeout=_CONTROLLER_TIME
        )
        for each in answer.replica_election_results:
            for result in each.partition_result:
                if int(result.error_code) != _ELECTION_NOT_NEEDED:
                    _raise_for(result, "the leader was not elected")

    async def _until_led(self, topic: str, partition: int, broker: int) -> None:
        for each in self._responsive():
            await self._until(
                partial(self._led_by, each, topic, partition, broker),
                f"broker {each.node_id} does not know that {broker} leads {topic}-{partition}",
            )

    # -- requests and tools -----------------------------------------------------------------------

    async def ask(self, api_key: int, version: int, *, broker: int = 0, **fields: Any) -> Any:
        """One request to one broker, past its proxy, and the answer as kio's entity.

        :param fields: the request's, nested ones as mappings.
        :raises KafkaConnectionError: the broker cannot be reached, hung up, or did not answer in
            ten seconds.
        """
        return await self._ask(self._brokers[broker], api_key, version, fields)

    async def run_tool(self, main_class: str, *arguments: str, timeout: float = 60.0) -> bytes:
        """Run one of Kafka's command line tools, and return what it printed.

        :param main_class: for example "org.apache.kafka.tools.consumer.ConsoleConsumer".
        :raises KafkaToolError: it failed, or took longer than ``timeout`` seconds.
        """
        command = [*self._java(), main_class, *arguments]
        try:
            with anyio.fail_after(timeout):
                code, stdout, stderr = await self._run(command)
        except TimeoutError:
            raise KafkaToolError(f"{main_class} took longer than {timeout:g} s") from None
        if code != 0:
            printed = (stdout + stderr).decode(errors="replace")
            raise KafkaToolError(f"{main_class} ended with {code}:\n{printed[-2000:]}")
        return stdout

    async def _run(self, command: Sequence[str]) -> tuple[int, bytes, bytes]:
        """As `anyio.run_process`, with the guard to end it if we are gone first."""
        guard = self._guard
        if guard is None:
            raise KafkaError("the cluster was not entered")
        printed: tuple[list[bytes], list[bytes]] = ([], [])
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=java_environment(),
        )
        try:
            async with process, anyio.create_task_group() as tasks:
                await anyio.to_thread.run_sync(guard.watch_group, process.pid)
                for stream, chunks in zip((process.stdout, process.stderr), printed, strict=True):
                    tasks.start_soon(_read_all, stream, chunks)
                await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(guard.forget_group, process.pid)
        return process.returncode or 0, b"".join(printed[0]), b"".join(printed[1])

    async def dump_log(
        self, topic: str, partition: int = 0, *, broker: int | None = None
    ) -> tuple[DumpedBatch, ...]:
        """A replica's log as Kafka's own DumpLogSegments reads it from the disk.

        :param broker: None: the leader.
        :raises KafkaToolError: it failed. LogDumpError: the log is corrupt.
        """
        if broker is None:
            broker = await self.leader(topic, partition)
        return parse_dump(await self._dump([(broker, topic, partition)]))

    async def dump_topic(self, topic: str) -> Mapping[int, tuple[DumpedBatch, ...]]:
        """The same of all partitions at once, of each the leader's replica.

        :raises KafkaToolError: it failed. LogDumpError: a log is corrupt.
        """
        metadata = await self._metadata(self._responsive()[0], topic)
        leaders = [
            (await self.leader(topic, int(each.partition_index)), topic, int(each.partition_index))
            for each in metadata.topics[0].partitions
        ]
        dumps = split_dumps(await self._dump(leaders))
        return {
            partition: parse_dump(dumps.get(f"{topic}-{partition}", ()))
            for _, _, partition in leaders
        }

    async def _dump(self, replicas: Iterable[tuple[int, str, int]]) -> list[str]:
        """What DumpLogSegments prints of replicas: (broker, topic, partition)."""
        folders = [
            self._brokers[broker].folder / f"{topic}-{partition}"
            for broker, topic, partition in replicas
        ]
        segments = await anyio.to_thread.run_sync(
            lambda: [file for folder in folders for file in sorted(folder.glob("*.log"))]
        )
        package = "org.apache.kafka.tools" if self._tools_moved() else "kafka.tools"
        printed = await self.run_tool(
            f"{package}.DumpLogSegments",
            "--print-data-log",
            "--files",
            ",".join(map(str, segments)),
        )
        return printed.decode(errors="replace").splitlines()

    async def consume(
        self,
        topic: str,
        count: int,
        *,
        properties: Mapping[str, str] | None = None,
        read_committed: bool = False,
    ) -> list[bytes]:
        """Lines that Kafka's own console consumer prints of a topic's first ``count`` records.

        :param topic: its name, or a regular expression that names several.
        :param properties: of its formatter, for example ``{"print.key": "true"}``.
        :param read_committed: only what no transaction holds back or has aborted.
        :raises KafkaToolError: it failed, or there are fewer.
        """
        option = "--formatter-property" if self._tools_moved() else "--property"
        settings = [
            text for pair in (properties or {}).items() for text in (option, f"{pair[0]}={pair[1]}")
        ]
        printed = await self.run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", self.inner_servers),
            *("--include", topic, "--from-beginning"),
            *("--isolation-level", "read_committed" if read_committed else "read_uncommitted"),
            *("--max-messages", str(count), "--timeout-ms", "20000"),
            *settings,
        )
        return printed.splitlines()

    # -- starting ---------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Everything up to formatting: jars, patch, folders, ports, proxies."""
        self._install = await self._installed()
        self._guard = await anyio.to_thread.run_sync(ProcessGuard)
        self._folder = await anyio.to_thread.run_sync(self._make_folder)
        count = 3 + (0 if self._security is None else len(self._security.listeners))
        ports = [
            await anyio.to_thread.run_sync(lambda: [reserve_port() for _ in range(count)])
            for _ in range(self._count)
        ]
        voters = ",".join(f"{i}@{_HOST}:{p[2]}" for i, p in enumerate(ports))
        for node_id, (port, inner, controller, *secure) in enumerate(ports):
            proxy = await self._exits.enter_async_context(
                FaultProxy(
                    _HOST,
                    port,
                    rtt=self._rtt,
                    bandwidth=self._bandwidth,
                    retention=self._face(node_id),
                    seed=self._seed + node_id,
                )
            )
            make = partial(
                self._make_broker, voters, node_id, port, inner, controller, secure, proxy
            )
            self._brokers.append(await anyio.to_thread.run_sync(make))

    async def _installed(self) -> KafkaInstall:
        try:
            with anyio.fail_after(_DOWNLOAD_SECONDS):
                return await anyio.to_thread.run_sync(
                    partial(install_kafka, self.version, unpinned=self._unpinned),
                    abandon_on_cancel=True,
                )
        except TimeoutError:
            raise KafkaInstallError(
                f"the jars of Kafka {self.version} did not come in {_DOWNLOAD_SECONDS:g} s"
            ) from None

    async def _start_all(self) -> None:
        try:
            with anyio.fail_after(self._start_timeout):
                await self._format()
                for broker in self._brokers:
                    await anyio.to_thread.run_sync(broker.process.start)
        except TimeoutError:
            await self._not_ready()
        await self._until_all_ready()

    async def _until_all_ready(self) -> None:
        try:
            with anyio.fail_after(self._start_timeout):
                for broker in self._brokers:
                    await self._until_ready(broker, self._count)
        except TimeoutError:
            await self._not_ready()

    async def _not_ready(self) -> NoReturn:
        tails = await anyio.to_thread.run_sync(self._log_tails)
        raise KafkaStartError(f"not ready after {self._start_timeout:g} s\n{tails}") from None

    def _make_folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="aioidem-kafka-"))
        if self._guard is not None:
            self._guard.watch_folder(folder)
        return folder

    def _face(self, node_id: int) -> RetentionFace | None:
        batches = self._retain.get(node_id)
        return None if batches is None else RetentionFace(batches)

    def _patch(self, node_id: int) -> list[Path]:
        """Directories for the class path, ahead of the jars."""
        if self._install is None or node_id not in self._retain:
            return []
        folder = self._folder / f"patch-{node_id}"
        write_patch(self._install.jar("kafka-storage"), folder, self._retain[node_id])
        return [folder]

    def _make_broker(
        self,
        voters: str,
        node_id: int,
        port: int,
        inner: int,
        controller: int,
        secure: Sequence[int],
        proxy: FaultProxy,
    ) -> KafkaBroker:
        folder = self._folder / f"broker-{node_id}"
        properties = self._folder / f"broker-{node_id}.properties"
        added = "" if self._security is None else self._security.added(secure)
        settings = _settings(self._count) | {
            "node.id": node_id,
            "controller.quorum.voters": voters,
            "listeners": (
                f"CLIENT://{_HOST}:{port},INNER://{_HOST}:{inner},CONTROLLER://{_HOST}:{controller}{added}"
            ),
            "advertised.listeners": f"CLIENT://{proxy.address},INNER://{_HOST}:{inner}{added}",
            "log.dirs": folder,
            **({} if self._security is None else self._security.settings(self._folder)),
            **self._properties,
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if self._guard is None:
            raise KafkaError("not prepared")
        process = KafkaProcess(
            [*self._java(*self._patch(node_id)), "kafka.Kafka", str(properties)],
            self._folder / f"broker-{node_id}.log",
            self._guard,
            java_environment(),
        )
        names = () if self._security is None else self._security.listeners
        by_name = dict(zip(names, secure, strict=True))
        return KafkaBroker(node_id, port, inner, by_name, folder, process, proxy)

    def _java(self, *ahead: Path) -> list[str]:
        if self._install is None:
            raise KafkaError("the cluster was not entered")
        class_path = self._install.class_path(*ahead)
        # Libraries unpack native code there, and what is killed does not clean up behind itself.
        scratch = f"-Djava.io.tmpdir={self._folder}"
        return [str(self._install.java), *self._jvm_options, scratch, "-cp", class_path]

    async def _format(self) -> None:
        failures: list[KafkaToolError] = []
        async with anyio.create_task_group() as tasks:
            for broker in self._brokers:
                tasks.start_soon(self._format_one, broker, failures)
        if failures:
            raise KafkaStartError(f"the storage could not be formatted: {failures[0].args[0]}")

    async def _format_one(self, broker: KafkaBroker, failures: list[KafkaToolError]) -> None:
        properties = str(self._folder / f"broker-{broker.node_id}.properties")
        users = [] if self._security is None else self._security.format_arguments()
        levels = [word for f in self._features.items() for word in ("--feature", f"{f[0]}={f[1]}")]
        arguments = ("format", "-t", self._cluster_id, "-c", properties, *users, *levels)
        try:
            await self.run_tool("kafka.tools.StorageTool", *arguments, timeout=self._start_timeout)
        except KafkaToolError as error:
            failures.append(error)

    async def _until_ready(self, broker: KafkaBroker, brokers: int) -> None:
        """Return when it answers, and names itself and at least so many brokers."""
        while True:
            if not broker.running:
                code = broker.process.exit_code()
                tail = await anyio.to_thread.run_sync(broker.process.tail)
                raise KafkaStartError(f"broker {broker.node_id} ended with {code}\n{tail}")
            metadata = await self._metadata(broker, None)
            if metadata is not None:
                ids = {int(each.node_id) for each in metadata.brokers}
                if broker.node_id in ids and len(ids) >= brokers:
                    return
            await anyio.sleep(_POLL_SECONDS)

    # -- ending -----------------------------------------------------------------------------------

    async def _signal(self, broker: int, number: signal.Signals) -> None:
        await anyio.to_thread.run_sync(self._brokers[broker].process.send_signal, number)

    async def _stop(self, broker: int, number: signal.Signals) -> None:
        await self._signal(broker, number)
        process = self._brokers[broker].process
        try:
            with anyio.fail_after(self._stop_timeout):
                while process.running:  # noqa: ASYNC110 - another process tells no event
                    await anyio.sleep(_POLL_SECONDS)
                await anyio.to_thread.run_sync(process.wait, self._stop_timeout)
        except TimeoutError:
            tail = await anyio.to_thread.run_sync(process.tail)
            raise KafkaError(
                f"broker {broker} runs {self._stop_timeout:g} s after {number.name}\n{tail}"
            ) from None

    async def _shut(self) -> None:
        try:
            await self._exits.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._clean_up)

    def _clean_up(self) -> None:
        for broker in self._brokers:
            broker.process.send_signal(signal.SIGKILL)
        try:
            for broker in self._brokers:
                broker.process.wait(self._stop_timeout)
        finally:
            guard, self._guard = self._guard, None
            if guard is not None:
                guard.close()

    def _keep_logs(self) -> str:
        if self._logs is None:
            return self._log_tails()
        self._logs.mkdir(parents=True, exist_ok=True)
        for broker in self._brokers:
            if broker.process.log.exists():
                shutil.copy(broker.process.log, self._logs)
        return f"the brokers' logs are in {self._logs}"

    def _log_tails(self) -> str:
        return "\n".join(
            f"--- broker {each.node_id}\n{each.process.tail()}" for each in self._brokers
        )

    # -- asking -----------------------------------------------------------------------------------

    def _responsive(self) -> list[KafkaBroker]:
        return [each for each in self._brokers if each.running and not each.paused]

    def _tools_moved(self) -> bool:
        return int(self.version.split(".", 1)[0]) >= 4

    async def _until(self, condition: Callable[[], Awaitable[bool]], failure: str) -> None:
        try:
            with anyio.fail_after(self._start_timeout):
                while not await condition():  # noqa: ASYNC110 - likewise
                    await anyio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise KafkaError(f"{failure}, after {self._start_timeout:g} s") from None

    async def _ask_any(self, api_key: int, version: int, **fields: Any) -> Any:
        """Ask the first broker that can answer; brokers forward to the controller."""
        responsive = self._responsive()
        if not responsive:
            raise KafkaError("no broker is running")
        return await self._ask(responsive[0], api_key, version, fields)

    async def _metadata(self, broker: KafkaBroker, topic: str | None) -> Any:
        """What a broker knows, None if it does not answer."""
        fields = {
            "topics": [] if topic is None else [{"name": topic, "topic_id": None}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        try:
            return await self._ask(broker, *_METADATA, fields)
        except (KafkaConnectionError, ProtocolError):
            return None

    async def _state(self, topic: str, partition: int) -> Any:
        """A partition as some broker knows it that knows its newest leader epoch, or None."""
        return next(iter(await self._states(topic, partition)), None)

    async def _states(self, topic: str, partition: int) -> list[Any]:
        """A partition as each broker knows it that can answer and knows its newest leader epoch.

        One that was paused answers as before, until it has caught up.
        """
        known = [
            state
            for broker in self._responsive()
            if (state := await self._partition(broker, topic, partition)) is not None
        ]
        newest = max((int(state.leader_epoch) for state in known), default=-1)
        return [state for state in known if int(state.leader_epoch) == newest]

    async def _partition(self, broker: KafkaBroker, topic: str, partition: int) -> Any:
        metadata = await self._metadata(broker, topic)
        for each in () if metadata is None else metadata.topics:
            for state in each.partitions:
                if state.partition_index == partition:
                    return state
        return None

    async def _replicas(self, topic: str, partition: int) -> list[int]:
        state = await self._state(topic, partition)
        if state is None:
            raise KafkaError(f"no partition {topic}-{partition}")
        return [int(each) for each in state.replica_nodes]

    async def _all_led(self, broker: KafkaBroker, topic: str, partitions: int) -> bool:
        metadata = await self._metadata(broker, topic)
        states = [] if metadata is None else [p for t in metadata.topics for p in t.partitions]
        return len(states) == partitions and all(each.leader_id >= 0 for each in states)

    async def _led_by(self, broker: KafkaBroker, topic: str, partition: int, leader: int) -> bool:
        state = await self._partition(broker, topic, partition)
        return state is not None and state.leader_id == leader

    async def _ask(
        self, broker: KafkaBroker, api_key: int, version: int, fields: Mapping[str, Any]
    ) -> Any:
        schema, answer = request_type(api_key, version), response_type(api_key, version)
        if schema is None or answer is None:
            raise KafkaError(f"no schema of API {api_key} v{version}")
        request = encode_request(
            build(schema, fields), correlation_id=0, client_id="KafkaCluster", version=version
        )
        try:
            with anyio.fail_after(_ANSWER_SECONDS):
                payload = await _exchange(broker.inner_port, request)
        except TimeoutError:
            raise KafkaConnectionError(
                f"broker {broker.node_id} did not answer in {_ANSWER_SECONDS:g} s"
            ) from None
        return decode_response(answer, payload)[1]


async def _read_all(stream: ByteReceiveStream | None, chunks: list[bytes]) -> None:
    if stream is not None:
        chunks.extend([chunk async for chunk in stream])


async def _exchange(port: int, request: bytes) -> bytes:
    stream = await TcpConnector().connect(_HOST, port)
    splitter = FrameSplitter(_MAX_ANSWER_BYTES)
    async with stream:
        try:
            await stream.send(request)
            while True:
                for payload in splitter.feed(await stream.receive()):
                    return payload
        except (anyio.EndOfStream, anyio.BrokenResourceError, OSError) as error:
            raise KafkaConnectionError(f"port {port} hung up: {error}") from error


def _by_broker(retain: int | Mapping[int, int] | None, brokers: int) -> dict[int, int]:
    if retain is None:
        return {}
    return dict.fromkeys(range(brokers), retain) if isinstance(retain, int) else dict(retain)


def _settings(brokers: int) -> dict[str, Any]:
    """Server properties that make small, quick brokers; the rest is Kafka's defaults."""
    copies = min(brokers, 3)
    return {
        "process.roles": "broker,controller",
        "inter.broker.listener.name": "INNER",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "default.replication.factor": copies,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
        # A broker killed is fenced, and may register again, after this; nine seconds otherwise.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # Half of the heap otherwise.
        "log.cleaner.dedupe.buffer.size": 2 << 20,
    }


def _cluster_id() -> str:
    """A cluster id as Kafka makes them; none that a command line would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _raise_for(result: Any, what: str) -> None:
    code = int(result.error_code)
    if code:
        raise broker_error(code, f"{what}: {result.error_message}")
