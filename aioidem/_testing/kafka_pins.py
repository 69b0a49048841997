"""Check the SHA-256 of every jar of the Kafka versions that the tests run, before they are run.

The checksum that a server sends with a jar does not protect against that server. The checksums here
were computed when a version was added, and are reviewed. There is one file per version, in the
format of ``sha256sum``; ``python -m tests.kafka.new_pins VERSION`` prints a new one.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["pinned_jars", "sha256_of", "unlike_pins"]


def pinned_jars(version: str) -> Mapping[str, str] | None:
    """Return the pinned SHA-256 of each jar of a Kafka version, by file name; None without pins."""
    file = importlib.resources.files("aioidem._testing") / f"kafka-{version}.sha256"
    if not file.is_file():
        return None
    pairs = (line.split() for line in file.read_text("ascii").splitlines())
    return {name: digest for digest, name in pairs}


def unlike_pins(jars: Iterable[Path], pins: Mapping[str, str]) -> list[str]:
    """Return a line for each jar that has no pin, or whose SHA-256 is not the pinned one."""
    wrong = []
    for jar in jars:
        expected = pins.get(jar.name)
        if expected is None:
            wrong.append(f"{jar} is not among the jars that are pinned")
        elif (found := sha256_of(jar)) != expected:
            wrong.append(f"{jar} has SHA-256 {found}, expected {expected}")
    return wrong


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
