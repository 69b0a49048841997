"""Batches that become too large when max.message.bytes is lowered under load.

A batch that was never appended is split, and its parts keep its sequences. A batch in doubt is not
split, because the refusal of a resend does not tell whether the first copy was appended.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from aioidem import Producer
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, Cut, FaultProxy, FrameSeen, KafkaCluster
from tests.kafka.tools import PRODUCE, History, SpanCount, bounded, check, outcomes
from tests.kafka.world import (
    RTT,
    World,
    fill,
    forbid_describing_configs,
    leave_in_doubt,
    load,
    nothing_noticed,
    producer_of,
    settled,
    until,
)

pytestmark = pytest.mark.anyio

LIMIT = "max.message.bytes"
DESCRIBE_CONFIGS, TOPIC = (32, 4), 2
LARGE = 3000


async def limit(cluster: KafkaCluster, topic: str, size: int) -> None:
    """Set the topic's max.message.bytes, and wait until DescribeConfigs returns the new value."""
    await cluster.set_config(topic, LIMIT, size)

    async def known() -> bool:
        asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [LIMIT]}
        answer = await cluster.ask(*DESCRIBE_CONFIGS, resources=[asked])
        [config] = answer.results[0].configs
        return bool(config.value == str(size))

    await until(known)


@bounded(60)
async def test_full_windows_are_split_when_the_limit_falls(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("limit")
    cluster.proxy.set_link(rtt=RTT)
    spans = SpanCount(cluster.proxy)
    async with producer_of(cluster, world, batch_size=8000, linger=0.002) as producer:
        history = History(producer, "limit")
        await outcomes(history.send(40 * world.window))
        for size in (4000, 2000):
            history.send(80 * world.window)
            await limit(cluster, "limit", size)
            await outcomes(history.send(80 * world.window))
        assert producer.statistics().batches_split > 0
        assert nothing_noticed(producer)
    assert spans.max_span() <= world.window
    total = len(history.deliveries)
    assert history.offsets() == list(range(total))
    assert await check(cluster, [history], "limit") == list(range(total))


@bounded(60)
async def test_one_record_too_large_fails_alone_in_the_middle_of_a_full_window(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("limit-one", configs={LIMIT: 1000})
    cluster.proxy.set_link(rtt=RTT)
    async with producer_of(cluster, world) as producer:
        history = History(producer, "limit-one")
        await fill(history, producer, world)
        async with load(world, history):
            await settled(history, 20)
            [large] = history.send(1, size=LARGE)
            await settled(history, 50)
        told = producer.statistics()
        assert (told.records_not_written, told.records_unknown) == (1, 0)
        assert (told.epoch_bumps, told.data_loss_events) == (1, 0)
    left_out = history.deliveries.index(large)
    assert large.status is DeliveryStatus.NOT_WRITTEN
    calls = await check(cluster, [history], "limit-one")
    assert calls == [call for call in range(len(history.deliveries)) if call != left_out]


@pytest.mark.parametrize("known", [True, False], ids=["known-to-the-leader", "not-known"])
@bounded(60)
async def test_the_limit_falls_while_large_batches_are_in_doubt(
    cluster: KafkaCluster, world: World, known: bool
) -> None:
    """Large batches that are in the log end ACKED or UNKNOWN, never NOT_WRITTEN.

    Their answers are lost, and then max.message.bytes is lowered, so their resends are refused.

    A small batch follows the large ones. With `known`, another small batch precedes them; if its
    resend is acknowledged, the leader still has the producer's state. Then an acknowledged resend
    of the last batch proves that the large ones are stored. Without `known` nothing proves it, and
    the oldest large batch ends UNKNOWN.
    """
    topic = f"limit-doubt-{known}"
    await cluster.create_topic(topic)
    spans = SpanCount(cluster.proxy)
    window = world.window
    async with producer_of(cluster, world) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        start = spans.answers
        if known:
            await leave_in_doubt(cluster, spans, history, 1)
        await leave_in_doubt(cluster, spans, history, window - 1 - known, size=LARGE)
        await leave_in_doubt(cluster, spans, history, 1)
        assert spans.answers - start == window
        await cluster.proxy.refuse()
        cluster.proxy.disconnect()
        spans.answer = lambda: None
        await limit(cluster, topic, LARGE // 2)
        await cluster.proxy.accept()
        told = await outcomes(history.deliveries[-window:])
        if known:
            assert set(told) == {DeliveryStatus.ACKED}
            assert nothing_noticed(producer)
        else:
            assert told[0] is DeliveryStatus.UNKNOWN
            assert DeliveryStatus.NOT_WRITTEN not in told
        assert producer.statistics().batches_split == 0
        assert set(await outcomes(history.send(20))) == {DeliveryStatus.ACKED}
        assert producer.statistics().data_loss_events == 0
    assert await check(cluster, [history], topic) == list(range(5 * window + 20))


class _OneAnswerLost:
    """A proxy hook that closes the connection instead of passing one Produce answer on.

    It does so for the first request that is larger than a batch of `batch.size`, or for the eighth
    request if no earlier one is so large.
    """

    def __init__(self, proxy: FaultProxy) -> None:
        self.requests = 0
        self.largest = 0
        self.lost: tuple[int, int] | None = None
        proxy.on_request, proxy.on_answer = self._asked, self._answered

    def _asked(self, seen: FrameSeen) -> None:
        if seen.api_key == PRODUCE:
            self.requests += 1
            self.largest = max(self.largest, seen.size)
            if self.lost is None and (seen.size > 20_000 or self.requests == 8):
                self.lost = seen.connection, seen.correlation_id

    def _answered(self, seen: FrameSeen) -> Action | None:
        lost = (seen.connection, seen.correlation_id) == self.lost
        return Cut(reset=True) if lost else None


@pytest.mark.parametrize("told", [True, False], ids=["told", "not-told"])
@bounded(90)
async def test_late_sealing_does_not_outgrow_a_topic_one_of_whose_answers_is_lost(
    cluster: KafkaCluster, world: World, told: bool
) -> None:
    """No batch grows beyond max.message.bytes, whether or not the producer may ask for this limit.

    The test sends 4,000 small records with a limit of 64 KiB. If a larger batch were refused and
    this answer were lost, the producer could not know whether the batch was stored. So it could not
    split the batch, and the broker would refuse each resend.
    """
    topic = f"small-{told}"
    await cluster.create_topic(topic, configs={LIMIT: 65536})
    if not told:
        await forbid_describing_configs(cluster, topic)
    cluster.proxy.set_link(rtt=0.05)
    wire = _OneAnswerLost(cluster.proxy)
    async with Producer(
        cluster.bootstrap_servers, max_in_flight_requests_per_connection=world.window
    ) as producer:
        history = History(producer, topic)
        history.send(4000, size=100)
        found = Counter(await outcomes(history.deliveries))
        assert found == {DeliveryStatus.ACKED: 4000}
        assert nothing_noticed(producer)
        assert producer.statistics().batches_split == 0
    assert wire.lost is not None
    assert (wire.largest > 20_000) is told
    assert await check(cluster, [history], topic) == list(range(4000))


@bounded(90)
async def test_late_sealing_does_not_outgrow_a_topic_that_stores_records_uncompressed(
    cluster: KafkaCluster, world: World
) -> None:
    """Batches do not outgrow `batch.size` if the topic stores records uncompressed.

    The broker applies its limit of 64 KiB to the decompressed batch, so that a compressed batch of
    60 KiB would be too large.
    """
    await cluster.create_topic("plain", configs={LIMIT: 65536, "compression.type": "uncompressed"})
    cluster.proxy.set_link(rtt=0.05)
    wire = _OneAnswerLost(cluster.proxy)
    random = Random(19)
    async with Producer(
        cluster.bootstrap_servers,
        compression_type="gzip",
        max_in_flight_requests_per_connection=world.window,
    ) as producer:
        values = [random.randbytes(50).hex().encode() for _ in range(8000)]
        found = Counter(await outcomes([producer.send_nowait("plain", each) for each in values]))
        assert found == {DeliveryStatus.ACKED: 8000}
        assert nothing_noticed(producer)
    assert wire.lost is not None
    assert wire.largest < 20_000
