"""An archive of the classes that brokers load, with which a JVM starts at about half of the cost.

The JVM calls it class data sharing. An archive is written by a JVM that ends in order, and used by
others with the same Java, jars and options; one that cannot use it starts without it. Nothing here
writes an archive, because that takes ten seconds: ``tests/kafka/archive.py`` does it once for all
tests, by the option of `writing`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from aioidem._jars import jar_folder
from aioidem._testing.kafka_install import KafkaInstall

__all__ = ["archive_path", "find_archive", "using", "writing"]


def archive_path(install: KafkaInstall, options: Sequence[str]) -> Path:
    """Return where the archive is kept for this Java, these jars and these options of the JVM."""
    java = install.java.resolve()
    release = java.parents[1] / "release"  # names the build; the JVM checks that too
    told = [str(java), release.read_text() if release.is_file() else "", *options]
    for jar in install.jars:
        found = jar.stat()
        told.append(f"{jar} {found.st_size} {found.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
    return jar_folder().parent / "kafka-classes" / f"{install.version}-{digest}.jsa"


def find_archive(install: KafkaInstall, options: Sequence[str]) -> Path | None:
    """Return the archive for this Java, these jars and these options; None if there is none."""
    path = archive_path(install, options)
    return path if path.is_file() else None


def using(archive: Path) -> tuple[str, ...]:
    """Return the options of a JVM that uses an archive.

    What the JVM has to say about an archive that it cannot use goes to standard error: the output
    of Kafka's tools is read.
    """
    return f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=warning:stderr"


def writing(archive: Path) -> str:
    """Return the option of a JVM that writes an archive when it ends."""
    return f"-XX:ArchiveClassesAtExit={archive}"
