"""Kafka's jars are used only if they have the SHA-256 checksums that are pinned in the tree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioidem._testing.kafka_install import KafkaInstallError, install_kafka
from aioidem._testing.kafka_pins import pinned_jars, unlike_pins
from tests.fake_maven import JGO_FORGETS, FakeMaven

pytestmark = pytest.mark.filterwarnings(*JGO_FORGETS)


@pytest.fixture(autouse=True)
def _java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Install a fake Java that only prints its version, so that the tests need no real one."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    install_kafka.cache_clear()
    yield
    install_kafka.cache_clear()


def publish(maven: FakeMaven, version: str) -> None:
    maven.put(f"org.apache.kafka:kafka_2.13:{version}")
    maven.put(f"org.apache.kafka:kafka-tools:{version}")
    maven.put("org.slf4j:slf4j-simple:1.7.36")


@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_the_versions_of_the_tests_are_pinned(version: str) -> None:
    """The jars of the Kafka versions that the tests run are pinned."""
    pins = pinned_jars(version)
    assert pins is not None
    assert {f"kafka_2.13-{version}.jar", f"kafka-tools-{version}.jar"} < pins.keys()
    assert all(len(digest) == 64 and int(digest, 16) for digest in pins.values())


def test_jars_that_are_not_the_pinned_ones_are_not_run(maven: FakeMaven) -> None:
    """`install_kafka` refuses jars that do not have the pinned SHA-256."""
    publish(maven, "4.3.1")
    with pytest.raises(KafkaInstallError, match="not have the pinned SHA-256") as caught:
        install_kafka("4.3.1")
    assert str(caught.value).count("has SHA-256") == 3


def test_a_version_that_is_not_pinned_needs_a_flag(maven: FakeMaven) -> None:
    """`install_kafka` takes a version that is not pinned only with ``unpinned=True``."""
    publish(maven, "4.9.9")
    with pytest.raises(KafkaInstallError, match="pass unpinned=True"):
        install_kafka("4.9.9")
    assert len(install_kafka("4.9.9", unpinned=True).jars) == 3


def test_a_flag_does_not_excuse_a_pinned_version(maven: FakeMaven) -> None:
    """``unpinned=True`` does not make `install_kafka` accept other jars of a pinned version."""
    publish(maven, "4.3.1")
    with pytest.raises(KafkaInstallError, match="not have the pinned SHA-256"):
        install_kafka("4.3.1", unpinned=True)


def test_each_jar_is_held_against_its_pin(tmp_path: Path) -> None:
    """`unlike_pins` compares each jar with the checksum that is pinned for its own name."""
    good, changed, strange = (tmp_path / name for name in ("a.jar", "b.jar", "c.jar"))
    for jar in (good, changed, strange):
        jar.write_bytes(jar.name.encode())
    digest = hashlib.sha256(b"a.jar").hexdigest()
    wrong = unlike_pins([good, changed, strange], {"a.jar": digest, "b.jar": digest})
    assert wrong == [
        f"{changed} has SHA-256 {hashlib.sha256(b'b.jar').hexdigest()}, expected {digest}",
        f"{strange} is not among the jars that are pinned",
    ]
