"""KafkaCluster: real Apache Kafka brokers on this machine, for tests, without containers.

``async with KafkaCluster() as cluster:`` gets the jars (`kafka_install`), formats and starts
brokers that are also controllers (KRaft) in a temporary directory, and waits until they answer. A
`FaultProxy` stands in front of each broker, and brokers advertise the proxy's port to clients, so
every byte of a client crosses it. Brokers speak to one another without the proxies, and so does
`KafkaCluster` to the brokers.

This module starts and ends the brokers. `kafka_setup` has what they are started with,
`kafka_storage` formats their storage, `kafka_admin` has topics and leaders, and `kafka_tools`
Kafka's command line tools.

Invariants
    Every wait has a bound. At the end of the ``async with`` the processes are killed and the
    directory is removed, also if its body fails or this process is killed (`ProcessGuard`).
    A broker is ready when its Metadata response names all brokers (after `start` and `restart`: at
    least the broker itself). No start waits for a fixed time.
    A broker keeps its ports and its directory when it is restarted.

Rejected
    One broker for a whole test run: many tests kill brokers. Separate controllers: twice as many
    processes, and no test needs them yet.
"""

from __future__ import annotations

import functools
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Concatenate, Final, NoReturn, ParamSpec, Self, TypeVar

import anyio
import anyio.to_thread

from aioidem._testing.fault_proxy import FaultProxy
from aioidem._testing.kafka_admin import KafkaAdmin
from aioidem._testing.kafka_archive import find_archive
from aioidem._testing.kafka_broker import HOST, KafkaBroker
from aioidem._testing.kafka_install import KafkaInstall, KafkaInstallError, install_kafka
from aioidem._testing.kafka_process import ProcessGuard
from aioidem._testing.kafka_questions import POLL_SECONDS
from aioidem._testing.kafka_retention import RetentionFace
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem._testing.kafka_setup import KafkaSetup, by_broker, new_cluster_id
from aioidem._testing.kafka_storage import format_storage
from aioidem._testing.kafka_tools import KafkaJava, KafkaToolError, KafkaTools
from aioidem.errors import KafkaError

__all__ = ["JVM_OPTIONS", "KafkaCluster", "KafkaStartError"]

_DOWNLOAD_SECONDS: Final = 300.0

# A small JVM that starts quickly. The JVM's second compiler (C2) is off, because it needs more time
# than a short test lasts.
JVM_OPTIONS: Final = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

P = ParamSpec("P")
T = TypeVar("T")


class KafkaStartError(KafkaError):
    """A broker's storage could not be formatted, or the broker ended or was not ready in time."""


def _admin(
    method: Callable[Concatenate[KafkaAdmin, P], T],
) -> Callable[Concatenate[KafkaCluster, P], T]:
    """Return a method of `KafkaCluster` that calls ``method`` of the cluster's `KafkaAdmin`."""

    @functools.wraps(method)
    def call(self: KafkaCluster, /, *arguments: P.args, **options: P.kwargs) -> T:
        return method(self._admin, *arguments, **options)

    return call


def _tool(
    method: Callable[Concatenate[KafkaTools, P], T],
) -> Callable[Concatenate[KafkaCluster, P], T]:
    """Return a method of `KafkaCluster` that calls ``method`` of the cluster's `KafkaTools`."""

    @functools.wraps(method)
    def call(self: KafkaCluster, /, *arguments: P.args, **options: P.kwargs) -> T:
        return method(self._running_tools(), *arguments, **options)

    return call


class KafkaCluster:
    """Real Kafka brokers behind fault proxies. It belongs to one event loop.

    Args:
        version: Version of Apache Kafka.
        brokers: How many brokers, with ids 0, 1, ...
        retain: How many batches per producer and partition the brokers remember; a mapping has a
            number for some broker ids. These brokers are patched, and their proxies announce the
            number to clients (KIP-1269); `retention` changes the announced number. Other brokers
            are stock brokers, which remember five batches, and their proxies announce nothing.
        security: Certificates, users and permissions, with further listeners for TLS and SASL.
        properties: Server properties of all brokers; they override the ones chosen here.
        features: Feature levels to finalise when the storage is formatted, for example
            ``{"transaction.version": 0}``; others have the default of the Kafka version.
        jvm_options: Options of the brokers' JVM, instead of those chosen here (a heap of 256 MiB).
        rtt: Round-trip time of the proxies' links, in seconds.
        bandwidth: Bandwidth of the proxies' links, in bytes per second each way; None: unlimited.
        seed: Seed of the proxies' jitter.
        logs: Directory to copy the brokers' logs to when the ``async with`` fails; None: add the
            ends of the logs to the exception as a note.
        start_timeout: Seconds that a start may take until the broker is ready.
        stop_timeout: Seconds that a broker may take to end.
        unpinned: Run a version of Kafka whose SHA-256 sums are not in this package, with the jars
            that Maven Central gives; without it such a version is refused.

    Raises:
        KafkaInstallError: (On entering) there is no Java, the Python package jgo (which finds the
            jars) is not installed, there is no network for the first use, or the SHA-256 sum of a
            jar is not the one in this package.
        KafkaStartError: (On entering) a broker did not start.
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
        jvm_options: Sequence[str] = JVM_OPTIONS,
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
        self._setup = KafkaSetup(
            brokers=brokers,
            cluster_id=new_cluster_id(),
            retain=by_broker(retain, brokers),
            security=security,
            properties=dict(properties or {}),
            features=dict(features or {}),
        )
        self._jvm_options = tuple(jvm_options)
        self._rtt, self._bandwidth, self._seed = rtt, bandwidth, seed
        self._logs = logs
        self._start_timeout, self._stop_timeout = start_timeout, stop_timeout
        self._brokers: list[KafkaBroker] = []
        self._folder = Path()
        self._guard: ProcessGuard | None = None
        self._tools: KafkaTools | None = None
        self._admin = KafkaAdmin(self._brokers, brokers, start_timeout)
        self._exits = AsyncExitStack()

    def __repr__(self) -> str:
        running = sum(each.running for each in self._brokers)
        return f"<KafkaCluster {self.version}, {running} of {self._setup.brokers} brokers running>"

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
        """Kill the brokers and remove their files; keep their logs if the body failed."""
        if isinstance(error, Exception):
            with anyio.CancelScope(shield=True):
                error.add_note(await anyio.to_thread.run_sync(self._keep_logs))
        await self._shut()

    # -- for clients ------------------------------------------------------------------------------

    @property
    def brokers(self) -> Sequence[KafkaBroker]:
        """Return all brokers, in the order of their ids."""
        return tuple(self._brokers)

    @property
    def proxies(self) -> Sequence[FaultProxy]:
        """Return the brokers' proxies, in the order of the brokers' ids."""
        return tuple(each.proxy for each in self._brokers)

    @property
    def proxy(self) -> FaultProxy:
        """Return the proxy of broker 0."""
        return self._brokers[0].proxy

    @property
    def bootstrap_servers(self) -> str:
        """Return ``host:port,...`` of the brokers' proxies."""
        return ",".join(each.proxy.address for each in self._brokers)

    def retention(self, broker: int = 0) -> RetentionFace:
        """Return the numbers of retained batches that a broker's proxy announces (KIP-1269).

        Raises:
            KafkaError: The broker is a stock broker, so its proxy announces nothing.
        """
        face = self._brokers[broker].proxy.retention
        if face is None:
            raise KafkaError(f"broker {broker} is a stock broker: no `retain` was given for it")
        return face

    @property
    def inner_servers(self) -> str:
        """Return ``host:port,...`` of the brokers themselves; no proxy adds faults there."""
        return ",".join(f"{HOST}:{each.inner_port}" for each in self._brokers)

    def secure_servers(self, listener: str) -> str:
        """Return the brokers' ``host:port,...`` for one of the `KafkaSecurity.listeners`."""
        return ",".join(f"localhost:{each.secure_ports[listener]}" for each in self._brokers)

    # -- how brokers start and end ----------------------------------------------------------------

    async def kill(self, broker: int = 0) -> None:
        """Kill a broker with SIGKILL, and wait for its end.

        Writes that the broker did not flush are in the page cache, and so are not lost.

        Raises:
            KafkaError: The broker does not end within ``stop_timeout``.
        """
        await self._stop(broker, signal.SIGKILL)

    async def terminate(self, broker: int = 0) -> None:
        """End a broker with SIGTERM, a controlled shutdown, and wait for its end.

        Raises:
            KafkaError: The broker does not end within ``stop_timeout``; a paused one never does.
        """
        await self._stop(broker, signal.SIGTERM)

    async def start(self, broker: int = 0) -> None:
        """Start a broker again, with the same ports and directory, and wait until it is ready.

        Raises:
            KafkaStartError: The broker did not start in time.
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
        """End a broker by `terminate` (by `kill` if not ``clean``), and `start` it again.

        Raises:
            KafkaError: The broker does not end in time.
            KafkaStartError: The broker did not start in time.
        """
        await self._stop(broker, signal.SIGTERM if clean else signal.SIGKILL)
        await self.start(broker)

    async def pause(self, broker: int = 0) -> None:
        """Pause a broker with SIGSTOP: it answers nothing, and its connections stay open.

        Raises:
            KafkaError: The process of the broker does not stop.
        """
        await self._signal(broker, signal.SIGSTOP)

    async def resume(self, broker: int = 0) -> None:
        """Resume a paused broker with SIGCONT."""
        await self._signal(broker, signal.SIGCONT)

    async def revive(self) -> None:
        """Resume paused brokers, start stopped ones, and wait until each of them knows all others.

        Raises:
            KafkaStartError: A broker did not start, or does not know all others in time.
        """
        for broker in self._brokers:
            await self.resume(broker.node_id)
            await anyio.to_thread.run_sync(broker.process.start)
        await self._until_all_ready()

    # -- topics, leaders, requests and tools ------------------------------------------------------

    controller = _admin(KafkaAdmin.controller)
    create_topic = _admin(KafkaAdmin.create_topic)
    delete_topic = _admin(KafkaAdmin.delete_topic)
    set_config = _admin(KafkaAdmin.set_config)
    leader = _admin(KafkaAdmin.leader)
    in_sync = _admin(KafkaAdmin.in_sync)
    until_in_sync = _admin(KafkaAdmin.until_in_sync)
    move_leader = _admin(KafkaAdmin.move_leader)
    reassign = _admin(KafkaAdmin.reassign)
    elect_unclean = _admin(KafkaAdmin.elect_unclean)
    ask = _admin(KafkaAdmin.ask)
    run_tool = _tool(KafkaTools.run_tool)
    dump_log = _tool(KafkaTools.dump_log)
    dump_topic = _tool(KafkaTools.dump_topic)
    consume = _tool(KafkaTools.consume)

    def _running_tools(self) -> KafkaTools:
        if self._tools is None:
            raise KafkaError("the cluster does not run: use it inside its `async with` block")
        return self._tools

    # -- starting ---------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Prepare jars, folders, ports and proxies; the brokers' storage is not formatted yet."""
        install = await self._installed()
        self._guard = await anyio.to_thread.run_sync(ProcessGuard)
        self._folder = await anyio.to_thread.run_sync(self._make_folder, self._guard)
        archive = await anyio.to_thread.run_sync(find_archive, install, self._jvm_options)
        java = KafkaJava(install, self._jvm_options, self._folder, self._guard, archive)
        self._tools = KafkaTools(self.version, java, self._brokers, self._admin)
        ports = await anyio.to_thread.run_sync(self._setup.reserve_ports)
        for node_id, own in enumerate(ports):
            proxy = await self._exits.enter_async_context(
                FaultProxy(
                    HOST,
                    own.client,
                    rtt=self._rtt,
                    bandwidth=self._bandwidth,
                    retention=self._setup.retention(node_id),
                    seed=self._seed + node_id,
                )
            )
            make = partial(self._setup.make_broker, java, self._folder, node_id, ports, proxy)
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
                f"the jars of Kafka {self.version} did not arrive within {_DOWNLOAD_SECONDS:g} s"
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
                    await self._until_ready(broker, self._setup.brokers)
        except TimeoutError:
            await self._not_ready()

    async def _not_ready(self) -> NoReturn:
        tails = await anyio.to_thread.run_sync(self._log_tails)
        raise KafkaStartError(
            f"the brokers are not ready after {self._start_timeout:g} s\n{tails}"
        ) from None

    def _make_folder(self, guard: ProcessGuard) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="aioidem-kafka-"))
        guard.watch_folder(folder)
        return folder

    async def _format(self) -> None:
        try:
            await format_storage(
                self._running_tools(),
                self._setup,
                self._brokers,
                self._folder,
                self._start_timeout,
            )
        except KafkaToolError as error:
            raise KafkaStartError(f"the storage could not be formatted: {error.args[0]}") from None

    async def _until_ready(self, broker: KafkaBroker, brokers: int) -> None:
        """Return when a broker answers and knows ``brokers`` brokers, itself among them."""
        while True:
            if not broker.running:
                code = broker.process.exit_code()
                tail = await anyio.to_thread.run_sync(broker.process.tail)
                raise KafkaStartError(
                    f"broker {broker.node_id} ended with exit code {code}\n{tail}"
                )
            metadata = await self._admin.questions.metadata(broker, None)
            if metadata is not None:
                ids = {int(each.node_id) for each in metadata.brokers}
                if broker.node_id in ids and len(ids) >= brokers:
                    return
            await anyio.sleep(POLL_SECONDS)

    # -- ending -----------------------------------------------------------------------------------

    async def _signal(self, broker: int, number: signal.Signals) -> None:
        await anyio.to_thread.run_sync(self._brokers[broker].process.send_signal, number)

    async def _stop(self, broker: int, number: signal.Signals) -> None:
        await self._signal(broker, number)
        process = self._brokers[broker].process
        try:
            with anyio.fail_after(self._stop_timeout):
                while process.running:  # noqa: ASYNC110 - another process sends no event
                    await anyio.sleep(POLL_SECONDS)
                await anyio.to_thread.run_sync(process.wait, self._stop_timeout)
        except TimeoutError:
            tail = await anyio.to_thread.run_sync(process.tail)
            raise KafkaError(
                f"broker {broker} still runs {self._stop_timeout:g} s after {number.name}\n{tail}"
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
            self._tools = None
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
