"""Formatted storage is copied if it is of the known form, and only with ids of its own.

`on_kafka/test_kafka_storage.py` compares the copies with what Kafka's StorageTool writes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aioidem._testing.kafka_security import KafkaSecurity
from aioidem._testing.kafka_setup import KafkaSetup
from aioidem._testing.kafka_storage import FormattedStorage

META = "#\n#Tue Nov 24\nnode.id=0\ndirectory.id=5dCx0Ft9j5PczN2XzN8arg\nversion=1\ncluster.id=c\n"


def formatted(folder: Path, meta: str = META, bootstrap: bytes = b"levels") -> Path:
    folder.mkdir()
    (folder / "meta.properties").write_text(meta)
    (folder / "bootstrap.checkpoint").write_bytes(bootstrap)
    return folder


def entries(folder: Path) -> dict[str, str]:
    lines = (folder / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_a_copy_has_the_names_of_its_own_broker(tmp_path: Path) -> None:
    """A copy has the same records, but its own cluster, broker and directory."""
    found = FormattedStorage.read(formatted(tmp_path / "0"))
    assert found is not None
    for node in (1, 2):
        found.write(tmp_path / str(node), "another cluster", node)
    one, two = (entries(tmp_path / str(node)) for node in (1, 2))
    assert (one["cluster.id"], one["node.id"], one["version"]) == ("another cluster", "1", "1")
    assert len({one["directory.id"], two["directory.id"], "5dCx0Ft9j5PczN2XzN8arg"}) == 3
    assert (tmp_path / "2" / "bootstrap.checkpoint").read_bytes() == b"levels"
    assert FormattedStorage.read(tmp_path / "2") == found


@pytest.mark.parametrize("meta", [META + "more=1\n", META.replace("version=1\n", ""), ""])
def test_entries_that_are_not_known_are_not_copied(tmp_path: Path, meta: str) -> None:
    """A directory with other entries than the known ones is not read, so the tool runs again."""
    assert FormattedStorage.read(formatted(tmp_path / "0", meta)) is None


def test_files_that_are_not_known_are_not_copied(tmp_path: Path) -> None:
    """A directory with other files is not read, nor is one that is not there."""
    folder = formatted(tmp_path / "0")
    (folder / "more").touch()
    assert FormattedStorage.read(folder) is None
    assert FormattedStorage.read(tmp_path / "1") is None


def setup(**changed: object) -> KafkaSetup:
    fields: dict[str, object] = {
        "brokers": 1, "cluster_id": "c", "retain": {}, "security": None,
        "properties": {"log.segment.bytes": 1 << 20, "a.password": "canary"}, "features": {},
    }  # fmt: skip
    return KafkaSetup(**(fields | changed))  # type: ignore[arg-type]


def test_only_what_the_same_settings_made_is_copied() -> None:
    """Another version, property or feature level makes other storage; security means no copy."""
    kinds = {
        setup().storage_kind("4.3.1"),
        setup().storage_kind("3.9.1"),
        setup(properties={}).storage_kind("4.3.1"),
        setup(features={"transaction.version": 0}).storage_kind("4.3.1"),
    }
    assert len(kinds) == 4
    assert None not in kinds
    again = setup(brokers=3, cluster_id="d", retain={0: 20}).storage_kind("4.3.1")
    assert again == setup().storage_kind("4.3.1")
    security = KafkaSecurity("identity", "authorities", {"user": "canary"})
    assert setup(security=security).storage_kind("4.3.1") is None
