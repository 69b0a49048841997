"""Leaders that move while batches are in flight to them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, Drop, Hold, KafkaCluster
from tests.kafka.tools import History, bounded, outcomes, partition_of
from tests.kafka.world import World, fill, load, producer_of, settled, until

from .nodes import (
    SAFE,
    Tap,
    all_there,
    appended,
    cast,
    said_of,
    through,
    verdict,
)

pytestmark = pytest.mark.anyio

TRIES = 5


@bounded(120)
async def test_preferred_elections_and_reassignments_under_load(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("moves", replicas=[[0, 1], [1, 2]], configs=SAFE)
    taps = [Tap(cluster, broker) for broker in range(3)]
    async with producer_of(cluster, world) as producer:
        moved, reassigned = histories = [History(producer, "moves", each) for each in range(2)]
        async with load(world, *histories):
            for leader in (1, 0, 1, 0):
                await settled(moved, 50)
                await cluster.move_leader("moves", 0, leader)
            for replicas in ([2, 0], [0, 1], [1, 2]):
                await settled(reassigned, 50)
                await cluster.reassign("moves", 1, replicas)
                await cluster.move_leader("moves", 1, replicas[0])
            await settled(reassigned, 50)
        assert ErrorCode.not_leader_or_follower in {code for tap in taps for code, _ in tap.said}
        await all_there(cluster, "moves", producer, *histories)


@bounded(120)
async def test_a_leader_flaps_while_epochs_are_bumped(cluster: KafkaCluster, world: World) -> None:
    """Records are stored once and in order while leaders move and epochs are bumped.

    During each move, a record fails because it is too large. Its sequence is never appended, so the
    producer bumps the epoch to close the gap.
    """
    configs = {**SAFE, "max.message.bytes": 1000}
    await cluster.create_topic("flapping", replicas=[[0, 1], [0, 1]], configs=configs)
    taps = [Tap(cluster, broker) for broker in range(2)]
    async with producer_of(cluster, world) as producer:
        histories = [History(producer, "flapping", each) for each in range(2)]
        too_large = []
        async with load(world, *histories):
            for leader in (1, 0, 1, 0, 1, 0):
                too_large += histories[0].send(1, size=2000)
                await cluster.move_leader("flapping", 0, leader)
                await settled(histories[0], 20)
        assert ErrorCode.not_leader_or_follower in {code for tap in taps for code, _ in tap.said}
        assert {each.status for each in too_large} == {DeliveryStatus.NOT_WRITTEN}
        assert said_of(histories) == {
            DeliveryStatus.NOT_WRITTEN: 6,
            DeliveryStatus.ACKED: sum(len(each.rows) for each in histories) - 6,
        }
        told = producer.statistics()
        assert told.epoch_bumps == 6
        assert told.data_loss_events == 0
        await verdict(cluster, "flapping", histories)


@bounded(120)
async def test_half_a_request_is_refused_and_the_answer_alone_names_the_new_leader(
    cluster: KafkaCluster, world: World
) -> None:
    """The leader named in a Produce answer is enough to go on without metadata (KIP-951).

    One request has two partitions, and one of them moves before the request arrives. From then on
    no Metadata answer comes through.
    """
    await cluster.create_topic("half", replicas=[[0, 1], [0, 1]], configs=SAFE)
    old, new, other = (Tap(cluster, broker) for broker in range(3))
    async with producer_of(cluster, world) as producer:
        moves, stays = histories = [History(producer, "half", each) for each in range(2)]
        for history in histories:
            await fill(history, producer, world)
        held = Hold()
        whole: list[Sequence[int]] = []

        def hold(partitions: Sequence[int]) -> Action:
            whole.append(partitions)
            return held

        old.request = hold
        sent = [*moves.send(1), *stays.send(1)]
        await old.until(lambda: bool(whole))
        assert sorted(whole[0]) == [0, 1]
        old.request = lambda _: None
        old.metadata = new.metadata = other.metadata = Drop(silent=False)
        answered = len(old.answers)
        await cluster.move_leader("half", 0, 1)
        held.release()
        assert set(await outcomes(sent)) == {DeliveryStatus.ACKED}
        by_partition = {each.partition: each for each in old.answers[answered]}
        assert by_partition[0][1:] == (ErrorCode.not_leader_or_follower, -1, 1)
        assert by_partition[1].code == ErrorCode.none
        assert new.said[-1] == (ErrorCode.none, True)
        old.metadata = new.metadata = other.metadata = None
        await through(*histories)
        await all_there(cluster, "half", producer, *histories)


@bounded(120)
async def test_not_leader_comes_after_the_append_where_a_follower_is_stopped(
    cluster: KafkaCluster, world: World
) -> None:
    """NOT_LEADER with a base offset leaves a batch in doubt until the new leader acknowledges it.

    The old leader and the new one have the batch. The old leader does not acknowledge it, because
    it waits for the third replica, which is stopped.
    """
    for number in range(TRIES):
        if await refused_after_the_append(cluster, world, f"after-{number}"):
            return
    pytest.fail("each time the stopped node was counted out before the leader had moved")


async def refused_after_the_append(cluster: KafkaCluster, world: World, topic: str) -> bool:
    """Provoke NOT_LEADER after an append, and return whether the old leader gave that answer.

    The leader drops the stopped replica from the in-sync replicas after three seconds, and then
    acknowledges the batch. The move of the leader may take longer.
    """
    controller, a, b = await cast(cluster)
    await cluster.create_topic(topic, replicas=[[a, controller, b]], configs=SAFE)
    old, new = Tap(cluster, a), Tap(cluster, controller)
    async with producer_of(cluster, world) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        known = len(history.rows)
        await cluster.pause(b)
        sent = history.send(world.window)
        for broker in (a, controller):
            await appended(cluster, broker, topic, known)
        old.answers.clear()
        new.answer = hold = Hold()
        await cluster.move_leader(topic, 0, controller)
        refused, accepted = (ErrorCode.not_leader_or_follower, True), (ErrorCode.none, True)
        await old.until(lambda: refused in old.said or accepted in old.said)
        came = accepted not in old.said
        if came:
            await until(lambda: is_in_doubt(producer, topic))
        new.answer = None
        hold.release()
        await outcomes(sent)
        assert not came or set(new.said) == {accepted}
        assert history.offsets() == list(range(len(history.rows)))
        await cluster.resume(b)
        await cluster.until_in_sync(topic)
        await through(history)
        await all_there(cluster, topic, producer, history)
    return came


async def is_in_doubt(producer: Producer, topic: str) -> bool:
    """Return whether a batch of the topic's partition 0 is in doubt."""
    return partition_of(producer, topic).in_doubt > 0
