"""The drop-in's suite of behaviours, with aiokafka and with the drop-in, on real Kafka."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import aiokafka
import pytest

import aioidem
import aioidem.integrations.aiokafka
from aioidem.testing import KafkaCluster
from tests.drop_in.leaks import leaks_of_aiokafka
from tests.drop_in.suite import BEHAVIOURS, PARTITIONS, Behaviour, World, name_of
from tests.drop_in.suite_transactions import TRANSACTIONAL
from tests.kafka.tools import STOCK, bounded

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
        with leaks_of_aiokafka(asyncio.get_running_loop()):
            yield running


@pytest.mark.anyio
@pytest.mark.parametrize("behaviour", [*BEHAVIOURS, *TRANSACTIONAL], ids=name_of)
@pytest.mark.parametrize("client", CLIENTS)
@bounded(60)
async def test_both_do(behaviour: Behaviour, client: Any, cluster: KafkaCluster) -> None:
    topic = f"drop-in-{next(_numbers)}"
    await cluster.create_topic(topic, partitions=PARTITIONS)
    await behaviour(World(client, cluster.bootstrap_servers, topic))
