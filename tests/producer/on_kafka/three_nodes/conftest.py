"""The three nodes of each kind of broker that the tests of this folder share.

They are slow to start, so one cluster of each world (kind of broker) serves all files of this
folder, in one event loop. Fixtures are of package scope, for the reason in `faults/conftest.py`.

Invariant: each test gets three brokers that run and know each other, and proxies that change no
request or answer, even after a failed test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioidem.testing import KafkaCluster
from tests.kafka.world import RTT, WORLDS, World


@pytest.fixture(scope="package")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("asyncio", {"use_uvloop": False})


@pytest.fixture(scope="package", params=WORLDS.values(), ids=list(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    asked: World = request.param
    return asked


@pytest.fixture(scope="package")
async def shared(
    world: World,
    anyio_backend: object,  # noqa: ARG001 - a cluster lives in one loop
) -> AsyncIterator[KafkaCluster]:
    async with KafkaCluster(world.version, brokers=3, retain=world.retain, rtt=RTT) as running:
        yield running


@pytest.fixture
async def cluster(shared: KafkaCluster) -> AsyncIterator[KafkaCluster]:
    yield shared
    for proxy in shared.proxies:
        proxy.on_request = proxy.on_answer = None
        proxy.set_link(rtt=RTT)
        proxy.thaw()
        await proxy.accept()
    await shared.revive()
