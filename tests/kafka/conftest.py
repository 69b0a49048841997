"""Tests that need a real broker: Java 17 or newer, and Maven Central the first time.

Every test below gets the marker ``kafka``, so that `make check` can leave them out, and time for a
cluster to start. One cluster serves a module, or a directory, in one event loop: brokers start in
seconds, and the machine may have two cores. Most tests wait most of their time, so several run at
once, by `pytest -n 3 --dist loadgroup`; those that share a cluster stay together.

Invariant: where Kafka cannot be run a test is skipped with the reason, but on CI it fails.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest

from aioidem._testing.kafka_install import KafkaInstallError, install_kafka

from .tools import STOCK

_HERE = Path(__file__).parent
_SECONDS = 300  # the first one may download; each test bounds itself more tightly
_LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@runtime_checkable
class _Parametrised(Protocol):
    callspec: Any


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.timeout(_SECONDS))
            item.add_marker(pytest.mark.xdist_group(_who_shares_a_cluster(item)))


def _who_shares_a_cluster(item: pytest.Item) -> str:
    """Name the tests that are to run in one process: those of one file, or of one directory that
    shares its clusters, in one world.
    """
    where = item.path.relative_to(_HERE).parts[0]
    world = item.callspec.params.get("world") if isinstance(item, _Parametrised) else None
    return f"{where} {world}"


@pytest.fixture(scope="session", autouse=True)
def _kafka() -> None:
    try:
        for version in STOCK:
            install_kafka(version)
    except KafkaInstallError as error:
        if os.environ.get("CI", "").lower() == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The event loop of the module's cluster and tests."""
    return _LOOPS[getattr(request, "param", "asyncio")]
