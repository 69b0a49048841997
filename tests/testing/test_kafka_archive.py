"""Which JVMs start with an archive of classes: those with the Java, jars and options it is for.

`on_kafka/test_kafka_archive.py` looks at brokers that use one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aioidem._testing.kafka_archive import archive_path, find_archive
from aioidem._testing.kafka_install import KafkaInstall
from aioidem._testing.kafka_tools import KafkaJava


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KafkaInstall:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17"')
    jars = (tmp_path / "a.jar", tmp_path / "b.jar")
    for jar in jars:
        jar.touch()
    return KafkaInstall("4.3.1", java, jars)


def test_another_java_jar_or_option_has_another_archive(install: KafkaInstall) -> None:
    """An archive is found by what it was written with: the build of Java, jars, options."""
    paths = [archive_path(install, ["-Xmx256m"])]
    assert archive_path(install, ["-Xmx256m"]) == paths[0]
    paths.append(archive_path(install, ["-Xmx512m"]))
    (install.java.parents[1] / "release").write_text('JAVA_VERSION="21"')
    paths.append(archive_path(install, ["-Xmx256m"]))
    os.utime(install.jars[1], (1, 1))
    paths.append(archive_path(install, ["-Xmx256m"]))
    install.jars[0].write_bytes(b"more")
    paths.append(archive_path(install, ["-Xmx256m"]))
    assert len(set(paths)) == 5


def test_only_an_archive_that_is_there_is_found(install: KafkaInstall) -> None:
    """Without an archive there is nothing to find."""
    assert find_archive(install, []) is None
    path = archive_path(install, [])
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_archive(install, []) == path


def test_a_patched_broker_starts_without_it(install: KafkaInstall, tmp_path: Path) -> None:
    """A class path that begins with something else does not fit, so the JVM is told of none."""
    guard: Any = None
    archive = tmp_path / "archive.jsa"
    option = f"-XX:SharedArchiveFile={archive}"
    java = KafkaJava(install, (), tmp_path, guard, archive)
    assert option in java.command()
    assert option not in java.command(tmp_path / "patch")
    assert option not in KafkaJava(install, (), tmp_path, guard).command()
