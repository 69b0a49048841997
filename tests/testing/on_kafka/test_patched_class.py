"""The patch of Kafka's ProducerStateEntry class, run in a JVM and tried on each Kafka version."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from aioidem._testing.broker_patch import CLASS_NAME, patched, retained, write_patch
from aioidem._testing.kafka_install import find_java, install_kafka
from tests.kafka.tools import STOCK

GOLDEN = Path(__file__).parents[1] / "golden" / "ProducerStateEntry.class"


@pytest.mark.parametrize("retain", [1, 5, 6, 20, 127, 128, 32767])
def test_a_jvm_verifies_the_patched_code_and_it_retains_exactly_that(
    tmp_path: Path, retain: int
) -> None:
    """A JVM verifies the patched class, and the class retains the number of batches patched in.

    The class is a small one of our own, in the form of Kafka's class. Its main method adds 40,000
    batches and prints how many it retains.
    """
    written = tmp_path / f"{CLASS_NAME}.class"
    written.parent.mkdir(parents=True)
    written.write_bytes(patched(GOLDEN.read_bytes(), retain))
    name = CLASS_NAME.replace("/", ".")
    done = subprocess.run(
        [find_java(), "-Xverify:all", "-cp", tmp_path, name],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == f"{retain}\n"


@pytest.mark.parametrize("version", STOCK)
def test_each_version_of_kafka_has_the_class_as_expected(tmp_path: Path, version: str) -> None:
    """In each Kafka version, ProducerStateEntry has the form that the patch expects."""
    jar = install_kafka(version).jar("kafka-storage")
    with zipfile.ZipFile(jar) as archive:
        original = archive.read(f"{CLASS_NAME}.class")
    assert retained(original) == 5
    written = write_patch(jar, tmp_path, 20)
    assert retained(written.read_bytes()) == 20
    assert patched(written.read_bytes(), 5) == original
