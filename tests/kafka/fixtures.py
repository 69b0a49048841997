"""Fixtures for tests on real Kafka, which are in the folders named ``on_kafka``.

The tests need Java 17 or newer, and Maven Central the first time. The first test also writes an
archive of classes, which makes each later start of a broker cheaper (`archive.py`).

Brokers take seconds to start, so one cluster serves a module or a folder, in one event loop. Most
tests spend their time waiting, so `pytest -n 4 --dist loadgroup` runs four processes, and tests
that share a cluster run in the same process (see tests/markers.py).

Invariant: where Kafka cannot run, a test is skipped with the reason, but fails on CI.
"""

from __future__ import annotations

from typing import Any

import pytest

from aioidem._testing.kafka_install import KafkaInstallError, install_kafka
from tests.ci import CI

from .archive import make_archive
from .tools import STOCK

__all__ = ["anyio_backend", "grouped", "kafka_installed"]

_LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.fixture(scope="session", autouse=True)
def grouped(request: pytest.FixtureRequest) -> None:
    """Fail if pytest-xdist spreads tests that share a cluster: each worker would start its own."""
    if request.config.getoption("loadgroup", default=False):
        alone = [item.nodeid for item in request.session.items if "@" not in item.nodeid]
        assert alone == []


@pytest.fixture(scope="session", autouse=True)
def kafka_installed() -> None:
    """Make the Kafka versions of the tests available; outside CI, skip the tests if that fails."""
    try:
        for version in STOCK:
            make_archive(install_kafka(version))
    except KafkaInstallError as error:
        if CI:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run the module's cluster and tests on asyncio, unless a test names another event loop."""
    return _LOOPS[getattr(request, "param", "asyncio")]
