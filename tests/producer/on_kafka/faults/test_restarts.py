"""The broker ends and starts again while records are in flight.

Appended records are in the page cache and survive SIGTERM and SIGKILL. The broker's memory does
not: one batch per producer is left of it, so resends of older batches are answered OUT_OF_ORDER
although they are stored. test_recovery.py shows in detail how they are resolved.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster
from tests.kafka.tools import History, bounded, check, outcomes
from tests.kafka.world import (
    RTT,
    World,
    fill,
    load,
    nothing_noticed,
    producer_of,
    settled,
    window_in_doubt,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("clean", [False, True], ids=["kill -9", "clean"])
@bounded(60)
async def test_restarts_under_load(cluster: KafkaCluster, world: World, clean: bool) -> None:
    topic = f"restart-{clean}"
    await cluster.create_topic(topic)
    cluster.proxy.set_link(rtt=RTT)
    async with producer_of(cluster, world) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        async with load(world, history):
            await settled(history, 50)
            await (cluster.terminate() if clean else cluster.kill())
            await cluster.start()
            await settled(history, 100)
        assert nothing_noticed(producer)
    assert await check(cluster, [history], topic) == list(range(len(history.deliveries)))


@bounded(60)
async def test_a_full_window_is_in_doubt_when_a_clean_restart_leaves_a_memory_of_one(
    cluster: KafkaCluster, world: World
) -> None:
    async with window_in_doubt(cluster, world, "doubt") as (producer, history, spans):
        await cluster.terminate()
        spans.answer = lambda: None
        spans.forget()
        await cluster.start()
        assert set(await outcomes(history.deliveries)) == {DeliveryStatus.ACKED}
        await outcomes(history.send(world.window))
        assert nothing_noticed(producer)
    assert ErrorCode.out_of_order_sequence_number in spans.codes
    assert await check(cluster, [history], "doubt") == list(range(6 * world.window))
