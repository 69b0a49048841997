"""Run Kafka's own command line tools on a `KafkaCluster`, to read what a producer has written."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream

from aioidem._testing.kafka_admin import KafkaAdmin
from aioidem._testing.kafka_archive import using
from aioidem._testing.kafka_broker import HOST, KafkaBroker
from aioidem._testing.kafka_dump import DumpedBatch, parse_dump, split_dumps
from aioidem._testing.kafka_install import KafkaInstall, java_environment
from aioidem._testing.kafka_process import ProcessGuard
from aioidem.errors import KafkaError

__all__ = ["KafkaJava", "KafkaToolError", "KafkaTools"]

_Replica: TypeAlias = tuple[int, str, int]
"""Id of a broker, topic, and index of a partition."""


class KafkaToolError(KafkaError):
    """One of Kafka's command line tools failed; the message contains the tool's output."""


@dataclass(frozen=True, slots=True)
class KafkaJava:
    """How to start Java with Kafka's jars.

    Attributes:
        install: The jars, and the Java to run them with.
        options: Options of the JVM.
        folder: Directory for temporary files.
        guard: Ends the processes if this process ends first.
        archive: Archive of classes (see `kafka_archive`); None: start without one.
    """

    install: KafkaInstall
    options: tuple[str, ...]
    folder: Path
    guard: ProcessGuard
    archive: Path | None = None

    def command(self, *ahead: Path) -> list[str]:
        """Return the command up to the main class; ``ahead`` comes first in the class path."""
        # Libraries unpack native code into the temporary directory, and a killed process leaves the
        # files there. So this directory is the cluster's folder, which the guard removes.
        scratch = f"-Djava.io.tmpdir={self.folder}"
        class_path = self.install.class_path(*ahead)
        # An archive fits only the class path that it was written with.
        sharing = () if ahead or self.archive is None else using(self.archive)
        return [str(self.install.java), *self.options, *sharing, scratch, "-cp", class_path]


class KafkaTools:
    """Runs Kafka's tools on the brokers of one cluster.

    Args:
        version: Version of Kafka.
        java: How to start Java.
        brokers: The brokers; the list may grow until the cluster has started.
        admin: Administration of the same cluster.
    """

    def __init__(
        self, version: str, java: KafkaJava, brokers: Sequence[KafkaBroker], admin: KafkaAdmin
    ) -> None:
        self.version = version
        self._java = java
        self._brokers = brokers
        self._admin = admin

    async def run_tool(self, main_class: str, *arguments: str, timeout: float = 60.0) -> bytes:
        """Run one of Kafka's command line tools, and return its standard output.

        Args:
            main_class: For example "org.apache.kafka.tools.consumer.ConsoleConsumer".
            arguments: Arguments of the tool.
            timeout: Seconds that the tool may take.

        Raises:
            KafkaToolError: The tool failed, or took longer than ``timeout`` seconds.
        """
        command = [*self._java.command(), main_class, *arguments]
        try:
            with anyio.fail_after(timeout):
                code, stdout, stderr = await self._run(command)
        except TimeoutError:
            raise KafkaToolError(f"{main_class} took longer than {timeout:g} s") from None
        if code != 0:
            printed = (stdout + stderr).decode(errors="replace")
            raise KafkaToolError(f"{main_class} ended with exit code {code}:\n{printed[-2000:]}")
        return stdout

    async def _run(self, command: Sequence[str]) -> tuple[int, bytes, bytes]:
        """Run a command as `anyio.run_process` does, in a process group that the guard ends."""
        guard = self._java.guard
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
        """Read a replica's log from the disk with Kafka's own DumpLogSegments.

        Args:
            topic: Name of the topic.
            partition: Index of the partition.
            broker: Id of the broker whose replica to read; None: the leader's.

        Raises:
            KafkaToolError: The tool failed.
            LogDumpError: The log is corrupt.
        """
        if broker is None:
            broker = await self._admin.leader(topic, partition)
        return parse_dump(await self._dump([(broker, topic, partition)]))

    async def dump_topic(self, topic: str) -> Mapping[int, tuple[DumpedBatch, ...]]:
        """Read the leader's log of every partition in one run of the tool; see `dump_log`.

        Raises:
            KafkaToolError: The tool failed.
            LogDumpError: A log is corrupt.
        """
        questions = self._admin.questions
        metadata = await questions.metadata(questions.responsive()[0], topic)
        indexes = [int(each.partition_index) for each in metadata.topics[0].partitions]
        leaders = [(await self._admin.leader(topic, index), topic, index) for index in indexes]
        dumps = split_dumps(await self._dump(leaders))
        return {index: parse_dump(dumps.get(f"{topic}-{index}", ())) for index in indexes}

    async def _dump(self, replicas: Iterable[_Replica]) -> list[str]:
        """Return the lines that DumpLogSegments prints about the logs of these replicas."""
        folders = [
            self._brokers[broker].folder / f"{topic}-{partition}"
            for broker, topic, partition in replicas
        ]
        segments = await anyio.to_thread.run_sync(
            lambda: [file for folder in folders for file in sorted(folder.glob("*.log"))]
        )
        package = "org.apache.kafka.tools" if self._is_kafka_4() else "kafka.tools"
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
        """Return the lines that Kafka's console consumer prints of the first ``count`` records.

        If no further record comes for 20 seconds, the lines are those of fewer records.

        Args:
            topic: Name of the topic, or a regular expression that matches several.
            count: How many records to read.
            properties: Properties of the formatter, for example ``{"print.key": "true"}``.
            read_committed: Leave out records of transactions that are open or were aborted, and
                stop at the last stable offset.

        Raises:
            KafkaToolError: The tool failed.
        """
        option = "--formatter-property" if self._is_kafka_4() else "--property"
        settings = [
            text for pair in (properties or {}).items() for text in (option, f"{pair[0]}={pair[1]}")
        ]
        servers = ",".join(f"{HOST}:{each.inner_port}" for each in self._brokers)
        printed = await self.run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", servers),
            *("--include", topic, "--from-beginning"),
            *("--isolation-level", "read_committed" if read_committed else "read_uncommitted"),
            *("--max-messages", str(count), "--timeout-ms", "20000"),
            *settings,
        )
        return printed.splitlines()

    def _is_kafka_4(self) -> bool:
        """Return whether the tools are those of Kafka 4, which renamed some tools and options."""
        return int(self.version.split(".", 1)[0]) >= 4


async def _read_all(stream: ByteReceiveStream | None, chunks: list[bytes]) -> None:
    if stream is not None:
        chunks.extend([chunk async for chunk in stream])
