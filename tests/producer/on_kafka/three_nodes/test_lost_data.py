"""Unclean elections: the cluster loses acknowledged records, and the producer must notice.

The in-sync replicas are shrunk to the leader alone first, with min.insync.replicas=1: otherwise
Kafka 4 would remember who is eligible (KIP-966) and elect no other replica.
"""

from __future__ import annotations

import pytest

from aioidem.structs import DeliveryStatus
from aioidem.testing import Drop, KafkaCluster
from tests.kafka.tools import History, bounded, outcomes
from tests.kafka.world import World, fill, producer_of

from .nodes import Tap, appended, cast, said_of, verdict

pytestmark = pytest.mark.anyio

ACKED, UNKNOWN = DeliveryStatus.ACKED, DeliveryStatus.UNKNOWN


@bounded(180)
async def test_unclean_election_loses_acknowledged_records_and_is_noticed(
    cluster: KafkaCluster, world: World
) -> None:
    """Every producer notices that an unclean election lost acknowledged records.

    There are three producers, each with its own topic. The new leader lacks 10 acknowledged records
    of each. Of the second producer it has no record at all. The third producer also has three
    batches in doubt, which the new leader lacks, too.
    """
    _, a, b = await cast(cluster)
    topics = ("known", "unheard", "doubtful")
    for topic in topics:
        await cluster.create_topic(topic, replicas=[[a, b]], configs={"min.insync.replicas": 1})
    old = Tap(cluster, a)
    producers = [producer_of(cluster, world, request_timeout=2.0) for _ in topics]
    async with producers[0], producers[1], producers[2]:
        known, _, doubtful = histories = [
            History(*each) for each in zip(producers, topics, strict=True)
        ]
        await fill(known, producers[0], world)
        await fill(doubtful, producers[2], world)
        await cluster.pause(b)
        for topic in topics:
            await cluster.until_in_sync(topic, brokers=[a])
        lost = {history: range(len(history.rows), len(history.rows) + 10) for history in histories}
        for history in histories:
            assert set(await outcomes(history.send(10))) == {ACKED}
        old.answer = Drop(silent=False)
        in_doubt = doubtful.send(3)
        await appended(cluster, a, "doubtful", len(doubtful.rows) - 1)
        await cluster.kill(a)
        await cluster.resume(b)
        for topic in topics:
            assert await cluster.elect_unclean(topic) == b
        for history in histories:
            assert set(await outcomes(history.send(2 * world.window))) == {ACKED}
        assert [each.status for each in in_doubt] == [UNKNOWN] * 3
        assert said_of(histories)[UNKNOWN] == 3
        for producer in producers:
            assert producer.statistics().data_loss_events >= 1
        await cluster.revive()
        for topic, history in zip(topics, histories, strict=True):
            await cluster.until_in_sync(topic)
            values = [history.rows[call].value for call in lost[history]]
            unknown = [call for call, each in enumerate(history.deliveries) if each in in_doubt]
            gone = {*lost[history], *unknown}
            calls = await verdict(cluster, topic, [history], values)
            assert calls == {0: [each for each in range(len(history.rows)) if each not in gone]}
