"""Write the archive of classes that the brokers of the tests start with.

It takes ten seconds once for a version of Kafka, and saves more than a second of CPU for each
broker that the tests start or restart. `aioidem._testing.kafka_archive` has where it is kept.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import anyio
from anyio import to_thread

from aioidem import Producer
from aioidem._testing.kafka_archive import archive_path, writing
from aioidem._testing.kafka_cluster import JVM_OPTIONS
from aioidem._testing.kafka_install import KafkaInstall
from aioidem.errors import KafkaError
from aioidem.testing import KafkaCluster

__all__ = ["make_archive"]

_STOP_SECONDS = 120.0  # a broker that writes an archive ends late


def make_archive(install: KafkaInstall) -> None:
    """Write the archive for a version of Kafka, if there is none and this Java can write one.

    Several workers may ask at once: one of them writes it, and the others wait.
    """
    archive = archive_path(install, JVM_OPTIONS)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with suppress(KafkaError):  # brokers start without an archive, too
                anyio.run(_write, install.version, archive)


async def _write(version: str, archive: Path) -> None:
    """Start a broker, use it, and end it in order; StorageTool writes first, the broker last."""
    part = archive.with_suffix(f".{os.getpid()}")
    options = (*JVM_OPTIONS, writing(part))
    async with KafkaCluster(version, jvm_options=options, stop_timeout=_STOP_SECONDS) as cluster:
        await cluster.create_topic("t")
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send("t", b"v")
        await cluster.terminate()
    await to_thread.run_sync(_keep, part, archive)


def _keep(part: Path, archive: Path) -> None:
    with suppress(FileNotFoundError):  # a JVM that knows the option, but writes no archives
        part.rename(archive)
