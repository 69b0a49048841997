"""The suite of aiokafka's behaviour, run with aiokafka's producer and with both drop-in classes.

The broker here is the embedded one; tests/drop_in/on_kafka/test_drop_in.py runs the suite on a real
broker.
"""

from __future__ import annotations

from typing import Any

import aiokafka
import anyio
import pytest

import aioidem
import aioidem.integrations.aiokafka
from aioidem.broker import EmbeddedCluster

from .suite import BEHAVIOURS, PARTITIONS, Behaviour, World, name_of
from .suite_transactions import TRANSACTIONAL

CLIENTS = {
    "aiokafka": aiokafka.AIOKafkaProducer,
    "aioidem": aioidem.AIOKafkaProducer,
    "integration": aioidem.integrations.aiokafka.AIOKafkaProducer,
}
EACH_CLIENT_AND_LOOP = pytest.mark.parametrize(
    ("client", "anyio_backend"),
    [
        pytest.param(CLIENTS["aiokafka"], "asyncio", id="aiokafka"),
        pytest.param(CLIENTS["aioidem"], "asyncio", id="aioidem"),
        pytest.param(CLIENTS["aioidem"], "uvloop", id="aioidem-uvloop"),
        pytest.param(CLIENTS["integration"], "asyncio", id="integration"),
    ],
    indirect=["anyio_backend"],
)


@pytest.mark.anyio
@pytest.mark.usefixtures("theirs_may_leak")
@EACH_CLIENT_AND_LOOP
@pytest.mark.parametrize("behaviour", [*BEHAVIOURS, *TRANSACTIONAL], ids=name_of)
async def test_both_do(behaviour: Behaviour, client: Any, cluster: EmbeddedCluster) -> None:
    cluster.create_topic("t", partitions=PARTITIONS)
    with anyio.fail_after(20):
        await behaviour(World(client, cluster.bootstrap_servers, "t"))


@pytest.mark.anyio
@pytest.mark.usefixtures("theirs_may_leak")
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("behaviour", TRANSACTIONAL, ids=name_of)
async def test_both_do_on_brokers_before_kafka_4(behaviour: Behaviour, client: Any) -> None:
    async with EmbeddedCluster(transport="tcp", transaction_version=0) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        with anyio.fail_after(20):
            await behaviour(World(client, cluster.bootstrap_servers, "t"))
