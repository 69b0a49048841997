"""The brokers that the tests of this folder share, because starting one takes longer than a test.

One cluster of each world (kind of broker) serves all files of this folder, in one event loop. The
fixtures are of package scope and not of session scope, because anyio has one runner at a time: it
must have ended when files with another event loop begin.

Invariant: each test gets a broker that runs and a proxy that changes no request or answer, even
after a failed test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioidem.testing import KafkaCluster
from tests.kafka.world import PROPERTIES, WORLDS, World


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
    async with KafkaCluster(world.version, retain=world.retain, properties=PROPERTIES) as running:
        yield running


@pytest.fixture
async def cluster(shared: KafkaCluster) -> AsyncIterator[KafkaCluster]:
    yield shared
    proxy = shared.proxy
    proxy.on_request = proxy.on_answer = None
    proxy.set_link()
    proxy.thaw()
    await proxy.accept()
    await shared.resume()
    if not shared.brokers[0].running:
        await shared.start()
