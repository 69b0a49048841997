"""Transactions while leaders and coordinators move or die: v2 on Kafka 4.3.1, v1 on Kafka 3.9.1.

A record counts as committed if aiokafka's read_committed consumer finds it.
"""

from __future__ import annotations

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import TopicPartition
from aioidem.errors import KafkaTimeoutError
from aioidem.structs import DeliveryStatus
from aioidem.testing import Drop, KafkaCluster
from tests.kafka.tools import bounded, outcomes
from tests.kafka.transactional import END, committed, each_of, ends, group_offset, send, values
from tests.kafka.world import WORLDS, World, producer_of

from .nodes import SAFE, Tap

pytestmark = pytest.mark.anyio

STATE = "__transaction_state"
ACKED = {DeliveryStatus.ACKED}
both_protocols = pytest.mark.parametrize(
    "world", [WORLDS["stock"], WORLDS["older"]], ids=["stock", "older"], indirect=True
)
newest = pytest.mark.parametrize("world", [WORLDS["stock"]], ids=["stock"], indirect=True)


@both_protocols
@bounded(120)
async def test_leaders_and_the_coordinator_move_inside_transactions(
    cluster: KafkaCluster, world: World
) -> None:
    """Every transaction is committed while leaders and its coordinator move."""
    topic, leaders = "txn-moves", [1, 2, 0]
    await cluster.create_topic(topic, replicas=[[0, 1, 2]], configs=SAFE)
    taps = [Tap(cluster, broker) for broker in range(3)]
    async with producer_of(cluster, world, transactional_id=topic) as producer:
        for leader in leaders:
            await producer.begin_transaction()
            sent = send(producer, topic, f"to-{leader}", 20)
            await outcomes(sent[:5])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cluster.move_leader, topic, 0, leader)
                sent += send(producer, topic, f"at-{leader}", 40)
                await outcomes(sent)
            await producer.send_offsets_to_transaction({TopicPartition(topic, 0): leader}, topic)
            coordinator = await cluster.leader(STATE)
            await cluster.move_leader(STATE, 0, (coordinator + 1) % 3)
            assert (
                set(await outcomes([*sent, *send(producer, topic, f"after-{leader}", 5)])) == ACKED
            )
            await producer.commit_transaction()
            assert await group_offset(cluster, topic, topic) == leader
    assert ErrorCode.not_leader_or_follower in {code for tap in taps for code, _ in tap.said}
    expected = []
    for leader in leaders:
        for name, count in (("to", 20), ("at", 40), ("after", 5)):
            expected += values(topic, f"{name}-{leader}", count)
    assert await committed(cluster, topic) == expected
    assert await ends(cluster, topic) == ["COMMIT"] * 3


@newest
@bounded(120)
async def test_the_coordinator_is_killed_while_the_commit_is_unanswered(
    cluster: KafkaCluster, world: World
) -> None:
    """The next coordinator answers the commit that the killed one left unanswered."""
    topic = "txn-coordinator"
    async with producer_of(cluster, world, transactional_id=topic) as producer:
        coordinator = await cluster.leader(STATE)
        others = [each for each in range(3) if each != coordinator]
        await cluster.create_topic(topic, replicas=[[*others, coordinator]], configs=SAFE)
        for name in ("one", "two"):
            await producer.begin_transaction()
            assert set(await outcomes(send(producer, topic, name, 20))) == ACKED
            if name == "two":
                proxy = cluster.proxies[coordinator]
                proxy.on_answer = each_of(END, Drop(silent=False))
                with pytest.raises(KafkaTimeoutError):
                    await producer.commit_transaction(timeout=1.0)
                await cluster.kill(coordinator)
            await producer.commit_transaction()
        await producer.begin_transaction()
        assert set(await outcomes(send(producer, topic, "three", 20))) == ACKED
        await producer.commit_transaction()
    expected = [each for name in ("one", "two", "three") for each in values(topic, name, 20)]
    assert await committed(cluster, topic) == expected
    assert await ends(cluster, topic) == ["COMMIT"] * 3
