"""Format the brokers' storage: Kafka's StorageTool does it once, then its files are copied.

The tool is a Java process, which takes a third of the time of a broker's start. What it writes is
the same for all brokers with the same version and properties, except for the names of the cluster,
of the broker and of the directory. So it runs once for them in a process.

Invariants
    Only what the tool wrote is copied, and only if it wrote the files and entries that are known
    here. Otherwise the tool formats each broker's storage.
    The storage of a cluster with `KafkaSecurity` is never copied: it holds its users' keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import anyio
import anyio.to_thread

from aioidem._testing.kafka_broker import KafkaBroker
from aioidem._testing.kafka_setup import KafkaSetup, new_cluster_id
from aioidem._testing.kafka_tools import KafkaToolError, KafkaTools

__all__ = ["FormattedStorage", "format_storage"]

_META: Final = "meta.properties"
_BOOTSTRAP: Final = "bootstrap.checkpoint"
_VERSION, _CLUSTER, _NODE, _DIRECTORY = "version", "cluster.id", "node.id", "directory.id"


@dataclass(frozen=True, slots=True)
class FormattedStorage:
    """What StorageTool wrote into a directory, without what belongs to that directory alone.

    Attributes:
        layout: Version of the directory's layout.
        bootstrap: The first records of the cluster's metadata log, which set its feature levels.
    """

    layout: str
    bootstrap: bytes

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read a formatted directory; None if it has other files or entries than those known."""
        if not folder.is_dir() or {each.name for each in folder.iterdir()} != {_META, _BOOTSTRAP}:
            return None
        lines = (folder / _META).read_text().splitlines()
        entries = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
        if entries.keys() != {_VERSION, _CLUSTER, _NODE, _DIRECTORY}:
            return None
        return cls(entries[_VERSION], (folder / _BOOTSTRAP).read_bytes())

    def write(self, folder: Path, cluster_id: str, node_id: int) -> None:
        """Write the same into the directory of another broker, which must not exist yet."""
        folder.mkdir()
        entries = {
            _VERSION: self.layout,
            _CLUSTER: cluster_id,
            _NODE: node_id,
            _DIRECTORY: new_cluster_id(),  # any random id, of the same form
        }
        (folder / _META).write_text("".join(f"{name}={v}\n" for name, v in entries.items()))
        (folder / _BOOTSTRAP).write_bytes(self.bootstrap)


_FORMATTED: Final[dict[bytes, FormattedStorage]] = {}
"""What the tool wrote in this process, by `KafkaSetup.storage_kind`."""


async def format_storage(
    tools: KafkaTools,
    setup: KafkaSetup,
    brokers: Sequence[KafkaBroker],
    folder: Path,
    timeout: float,
) -> None:
    """Format the storage of all brokers of a cluster.

    Args:
        tools: Runs the tool.
        setup: What the brokers are started with.
        brokers: The brokers; none has run.
        folder: Folder of the cluster.
        timeout: Seconds that the tool may take.

    Raises:
        KafkaToolError: The tool failed.
    """
    run = partial(_run_tool, tools, setup, folder, timeout)
    kind, left = setup.storage_kind(tools.version), list(brokers)
    formatted = None if kind is None else _FORMATTED.get(kind)
    if kind is not None and formatted is None:
        first = left.pop(0)
        await run(first)
        formatted = await anyio.to_thread.run_sync(FormattedStorage.read, first.folder)
        if formatted is not None:
            _FORMATTED[kind] = formatted
    if formatted is None:
        await _run_for_each(run, left)
        return
    for broker in left:
        await anyio.to_thread.run_sync(
            formatted.write, broker.folder, setup.cluster_id, broker.node_id
        )


async def _run_for_each(
    run: Callable[[KafkaBroker], Awaitable[None]], brokers: Sequence[KafkaBroker]
) -> None:
    failures: list[KafkaToolError] = []

    async def one(broker: KafkaBroker) -> None:
        try:
            await run(broker)
        except KafkaToolError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        for broker in brokers:
            tasks.start_soon(one, broker)
    if failures:
        raise failures[0]


async def _run_tool(
    tools: KafkaTools, setup: KafkaSetup, folder: Path, timeout: float, broker: KafkaBroker
) -> None:
    arguments = setup.format_arguments(folder, broker.node_id)
    await tools.run_tool("kafka.tools.StorageTool", *arguments, timeout=timeout)
