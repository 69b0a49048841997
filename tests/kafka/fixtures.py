"""Fixtures for tests on real Kafka, which are in the folders named ``on_kafka``.

They need Java 17 or newer, and Maven Central the first time. One cluster serves a module, or a
folder, in one event loop: brokers start in seconds, and the machine may have two cores. Most tests
wait most of their time, so several run at once, by `pytest -n 3 --dist loadgroup`; those that share
a cluster stay together (see tests/markers.py).

Invariant: where Kafka cannot be run a test is skipped with the reason, but on CI it fails.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from aioidem._testing.kafka_install import KafkaInstallError, install_kafka

from .tools import STOCK

__all__ = ["anyio_backend", "kafka_installed"]

_LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.fixture(scope="session", autouse=True)
def kafka_installed() -> None:
    """Make the Kafka versions of the tests available; outside CI, skip the tests if that fails."""
    try:
        for version in STOCK:
            install_kafka(version)
    except KafkaInstallError as error:
        if os.environ.get("CI", "").lower() == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run the module's cluster and tests on asyncio, unless a test names another event loop."""
    return _LOOPS[getattr(request, "param", "asyncio")]
