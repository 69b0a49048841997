"""A broker enforces a quota by muting a connection: it answers, then does not read (KIP-219).

Requests that arrive on a muted connection are appended later, even if the client has closed the
connection by then.
"""

from __future__ import annotations

import pytest

from aioidem.structs import DeliveryStatus
from aioidem.testing import FaultProxy, KafkaCluster
from tests.kafka.tools import PRODUCE, History, SpanCount, bounded, check, outcomes
from tests.kafka.world import (
    World,
    last_sequences,
    limit_bytes,
    nothing_noticed,
    producer_of,
)

pytestmark = pytest.mark.anyio

SIZE, RATE = 10_000, 10_000.0
REQUEST_TIMEOUT = 1.0
# A request of `MUTING_SIZE` bytes mutes its connection: for one second with a quota of `ONE_SECOND`
# bytes per second, for two seconds with `TWO_SECONDS`.
BATCHES, MUTING_SIZE, ONE_SECOND, TWO_SECONDS = 3, 15_000, 7_500.0, 5_000.0


def longest_wait(proxy: FaultProxy, client_id: str) -> float:
    """Return the longest time, in seconds, between a client's Produce request and its answer."""
    begun: dict[tuple[int, int], float] = {}
    waits = []
    for seen, _ in proxy.trace:
        if (seen.client_id, seen.api_key) != (client_id, PRODUCE):
            continue
        request = seen.connection, seen.correlation_id
        if seen.answer:
            waits.append(seen.at - begun[request])
        else:
            begun[request] = seen.at
    return max(waits)


@bounded(60)
async def test_throttled_for_longer_than_a_request_may_take(
    cluster: KafkaCluster, world: World
) -> None:
    """A producer that is muted by a quota keeps its connection and sends nothing twice."""
    await cluster.create_topic("quota")
    await limit_bytes(cluster, "quota", RATE)
    async with producer_of(
        cluster, world, client_id="quota", request_timeout=REQUEST_TIMEOUT, retry_backoff=0.05
    ) as producer:
        history = History(producer, "quota")
        await outcomes(history.send(1))
        opened = cluster.proxy.opened
        waiting = history.send(6, size=SIZE)
        await waiting[2]
        assert max(each.throttled_until for each in producer.statistics().connections) > 0
        assert set(await outcomes(waiting)) == {DeliveryStatus.ACKED}
        assert longest_wait(cluster.proxy, "quota") > REQUEST_TIMEOUT
        assert cluster.proxy.opened == opened
        assert producer.statistics().batches_retried == 0
        assert nothing_noticed(producer)
    await limit_bytes(cluster, "quota", None)
    assert history.offsets() == list(range(7))
    assert await check(cluster, [history], "quota") == list(range(7))


async def leave_muted(cluster: KafkaCluster, spans: SpanCount, history: History) -> None:
    """Send batches of which the muting broker reads only the first, then close the connection."""
    begun = spans.requests
    history.send(BATCHES, size=MUTING_SIZE)
    await cluster.proxy.until(lambda: spans.requests - begun == BATCHES)
    await history.deliveries[-BATCHES]
    cluster.proxy.freeze()
    cluster.proxy.disconnect()


async def last_sequence(cluster: KafkaCluster, topic: str) -> int:
    """Return the last sequence of the topic's only producer."""
    [last] = (await last_sequences(cluster, topic)).values()
    return last


@pytest.mark.parametrize("given_up", [False, True], ids=["sent-again-meanwhile", "given-up-before"])
@bounded(60)
async def test_requests_of_a_closed_connection_are_appended_when_the_quota_lets_them(
    cluster: KafkaCluster, world: World, given_up: bool
) -> None:
    topic = f"quota-{given_up}"
    await cluster.create_topic(topic)
    spans = SpanCount(cluster.proxy)
    timeouts = {"request_timeout": 0.9, "delivery_timeout": 1.0} if given_up else {}
    await limit_bytes(cluster, topic, TWO_SECONDS if given_up else ONE_SECOND)
    async with producer_of(cluster, world, client_id=topic, **timeouts) as producer:
        history = History(producer, topic)
        await outcomes(history.send(1))
        await leave_muted(cluster, spans, history)
        if given_up:
            told = await outcomes(history.deliveries[-BATCHES:])
            assert told == [DeliveryStatus.ACKED] + [DeliveryStatus.UNKNOWN] * (BATCHES - 1)
            assert await last_sequence(cluster, topic) < BATCHES
            while await last_sequence(cluster, topic) < BATCHES:
                pass  # the broker appends the last batch although its record ended UNKNOWN
        cluster.proxy.thaw()
        await outcomes(history.deliveries)
        await limit_bytes(cluster, topic, None)
        # The broker may mute the connection for bytes that it read earlier, and so for longer than
        # `delivery_timeout`.
        while set(await outcomes(history.send(10))) != {DeliveryStatus.ACKED}:
            assert given_up
        tried = range(1 + BATCHES, len(history.rows) - 10)
        assert given_up or nothing_noticed(producer)
        assert producer.statistics().data_loss_events == 0
    calls = await check(cluster, [history], topic)
    assert [call for call in calls if call not in tried] == [
        *range(1 + BATCHES),
        *range(tried.stop, tried.stop + 10),
    ]
