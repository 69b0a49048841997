"""The broker forgets the producer: it was idle for too long, or its records were old (KIP-854).

A broker that has forgotten a producer accepts any first sequence, so a resent batch would be
written twice. Batches in doubt are therefore not resent: with READ permission the producer looks
for them in the log, and without it they end UNKNOWN. Each test asks the broker whether it has
forgotten the producer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster
from tests.kafka.tools import History, SpanCount, bounded, check, outcomes
from tests.kafka.world import (
    World,
    broker_config,
    fill,
    forbid_reading,
    forgotten,
    last_sequences,
    leave_in_doubt,
    nothing_noticed,
    producer_of,
    window_in_doubt,
)

pytestmark = pytest.mark.anyio

EXPIRATION = "producer.id.expiration.ms"
DAY_AND_AN_HOUR = 25 * 3600.0
reads = pytest.mark.parametrize("read", [True, False], ids=["read", "no-read"])


@asynccontextmanager
async def nothing_arrives(cluster: KafkaCluster, spans: SpanCount) -> AsyncIterator[None]:
    """Cut the connection, and let no frame pass on a new one while the body runs."""
    cluster.proxy.freeze()
    cluster.proxy.disconnect(reset=True)
    spans.answer = lambda: None
    try:
        yield
    finally:
        cluster.proxy.thaw()


async def settle_doubt(history: History, world: World, *, read: bool) -> None:
    """Assert that the batches in doubt get their outcome, and that sending goes on.

    They end ACKED if the producer may read the log (`read`), and otherwise UNKNOWN.
    """
    window = world.window
    first = len(history.deliveries) - window
    told = await outcomes(history.deliveries[first:])
    if read:
        assert told == [DeliveryStatus.ACKED] * window
        assert history.offsets()[first:] == list(range(first, first + window))
    else:
        assert told == [DeliveryStatus.UNKNOWN] * window
    assert set(await outcomes(history.send(2 * window))) == {DeliveryStatus.ACKED}


@bounded(60)
async def test_an_idle_producer_that_was_forgotten_goes_on_as_if_it_were_not(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("forgotten-idle")
    async with (
        broker_config(cluster, EXPIRATION, "500"),
        producer_of(cluster, world) as producer,
    ):
        history = History(producer, "forgotten-idle")
        await fill(history, producer, world)
        for _ in range(2):
            await forgotten(cluster, "forgotten-idle")
            assert set(await outcomes(history.send(30))) == {DeliveryStatus.ACKED}
        assert nothing_noticed(producer)
    total = 4 * world.window + 60
    assert history.offsets() == list(range(total))
    assert await check(cluster, [history], "forgotten-idle") == list(range(total))


@reads
@bounded(60)
async def test_a_full_window_is_in_doubt_when_its_producer_is_forgotten(
    cluster: KafkaCluster, world: World, read: bool
) -> None:
    topic = f"forgotten-{read}"
    async with (
        broker_config(cluster, EXPIRATION, "500"),
        window_in_doubt(cluster, world, topic, producer_id_expiration=0.5) as in_doubt,
    ):
        producer, history, spans = in_doubt
        async with nothing_arrives(cluster, spans):
            await forgotten(cluster, topic)
            if not read:
                await forbid_reading(cluster, topic)
        await settle_doubt(history, world, read=read)
        assert producer.statistics().data_loss_events == 0
    assert await check(cluster, [history], topic) == list(range(7 * world.window))


@reads
@bounded(60)
async def test_kip_854_records_of_yesterday_are_in_doubt_and_nothing_is_written_twice(
    cluster: KafkaCluster, world: World, read: bool
) -> None:
    """A broker forgets a producer whose records are a day old, and no record is written twice.

    The broker measures how long a producer was idle from the record timestamps of the last batch
    that it appended.
    """
    topic = f"kip-854-{read}"
    await cluster.create_topic(topic)
    spans = SpanCount(cluster.proxy)
    async with producer_of(cluster, world) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        old = time.time() - DAY_AND_AN_HOUR
        assert set(await outcomes(history.send(30, timestamp=old))) == {DeliveryStatus.ACKED}
        await leave_in_doubt(cluster, spans, history, world.window, timestamp=old)
        async with nothing_arrives(cluster, spans):
            await forgotten(cluster, topic)
            if not read:
                await forbid_reading(cluster, topic)
        await settle_doubt(history, world, read=read)
        assert producer.statistics().data_loss_events == 0
    assert await check(cluster, [history], topic) == list(range(7 * world.window + 30))


@bounded(60)
async def test_kip_854_the_brokers_own_timestamps_keep_it_from_forgetting(
    cluster: KafkaCluster, world: World
) -> None:
    """With LogAppendTime the broker does not forget, so batches in doubt are resent as usual."""
    topic = "kip-854-append-time"
    await cluster.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    spans = SpanCount(cluster.proxy)
    async with producer_of(cluster, world) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        old = time.time() - DAY_AND_AN_HOUR
        await leave_in_doubt(cluster, spans, history, world.window, timestamp=old)
        async with nothing_arrives(cluster, spans):
            assert set((await last_sequences(cluster, topic)).values()) == {5 * world.window - 1}
            await forbid_reading(cluster, topic)
        assert set(await outcomes(history.deliveries)) == {DeliveryStatus.ACKED}
        assert nothing_noticed(producer)
    assert history.offsets() == list(range(5 * world.window))
    assert await check(cluster, [history], topic) == list(range(5 * world.window))
