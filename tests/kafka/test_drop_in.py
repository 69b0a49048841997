"""The suite of what aiokafka does, for aiokafka and for the drop-in, on a real broker."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import pytest

import aioidem
import aioidem.integrations.aiokafka
from aioidem.testing import KafkaCluster
from tests.aiokafka_face.suite import BEHAVIOURS, PARTITIONS, Behaviour, World, name_of
from tests.aiokafka_face.suite_transactions import TRANSACTIONAL

from .tools import STOCK, bounded

CLIENTS = [
    pytest.param(aiokafka.AIOKafkaProducer, id="aiokafka"),
    pytest.param(aioidem.AIOKafkaProducer, id="aioidem"),
    pytest.param(aioidem.integrations.aiokafka.AIOKafkaProducer, id="integration"),
]
_numbers = itertools.count()


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: object,  # noqa: ARG001 - a cluster lives in one loop
) -> AsyncIterator[KafkaCluster]:
    async with KafkaCluster(STOCK[0]) as running:
        yield running


@contextmanager
def nothing_left_by(client: Any) -> Iterator[None]:
    """A fenced producer of aiokafka leaves tasks whose errors nobody retrieves. Whenever they are
    collected the loop is told, and the test that runs then would fail for it.
    """
    if client is not aiokafka.AIOKafkaProducer:
        yield
        return
    loop = asyncio.get_running_loop()
    told = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        yield
        gc.collect()
    finally:
        loop.set_exception_handler(told)


@pytest.mark.anyio
@pytest.mark.parametrize("behaviour", [*BEHAVIOURS, *TRANSACTIONAL], ids=name_of)
@pytest.mark.parametrize("client", CLIENTS)
@bounded(60)
async def test_both_do(behaviour: Behaviour, client: Any, cluster: KafkaCluster) -> None:
    topic = f"drop-in-{next(_numbers)}"
    await cluster.create_topic(topic, partitions=PARTITIONS)
    with nothing_left_by(client):
        await behaviour(World(client, cluster.bootstrap_servers, topic))
