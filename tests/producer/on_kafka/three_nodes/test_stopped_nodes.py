"""Nodes that stall: followers that leaders wait for, and a leader that wakes up deposed."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster
from tests.kafka.tools import History, bounded, outcomes
from tests.kafka.world import World, fill, load, producer_of, settled

from .nodes import (
    SAFE,
    Tap,
    all_there,
    cast,
    patience,
    said_of,
    through,
    verdict,
)

pytestmark = pytest.mark.anyio


@bounded(120)
async def test_appended_and_refused_while_the_only_follower_is_stopped(
    cluster: KafkaCluster, world: World
) -> None:
    """Every batch is acknowledged at the offset of its first append, whatever errors came before.

    The leader answers REQUEST_TIMED_OUT while the follower counts as in sync, and then
    NOT_ENOUGH_REPLICAS. Current brokers never answer NOT_ENOUGH_REPLICAS_AFTER_APPEND here: below
    min.insync.replicas the high watermark stands still (KAFKA-15583), so a waiting request times
    out.
    """
    _, a, b = await cast(cluster)
    await cluster.create_topic("appended", replicas=[[a, b]], configs=SAFE)
    tap = Tap(cluster, a)
    async with producer_of(cluster, world, retry_backoff_max=0.1) as producer:
        history = History(producer, "appended")
        await fill(history, producer, world)
        tap.answers.clear()
        await cluster.pause(b)
        tap.request = lambda _: patience(300)
        history.send(1)
        await tap.until(lambda: (ErrorCode.request_timed_out, True) in tap.said)
        tap.request = lambda _: patience(4000)
        history.send(world.window - 1)
        await tap.until(lambda: (ErrorCode.not_enough_replicas, False) in tap.said)
        assert set(tap.said) == {
            (ErrorCode.request_timed_out, True),
            (ErrorCode.not_enough_replicas, False),
        }
        assert not any(each.done() for each in history.deliveries[-world.window :])
        await cluster.resume(b)
        await through(history)
        assert history.offsets() == list(range(len(history.rows)))
        await all_there(cluster, "appended", producer, history)


@bounded(120)
async def test_deadlines_pass_while_the_only_follower_is_stopped(
    cluster: KafkaCluster, world: World
) -> None:
    """Records whose deadline passes in flight end UNKNOWN, and later records are stored once.

    The producer bumps the epoch, so the broker takes no later record for a duplicate of them.
    """
    _, a, b = await cast(cluster)
    await cluster.create_topic("deadline", replicas=[[a, b]], configs=SAFE)
    async with producer_of(cluster, world, delivery_timeout=2.5, request_timeout=1.0) as producer:
        history = History(producer, "deadline")
        await fill(history, producer, world)
        await cluster.pause(b)
        late = history.send(world.window)
        assert set(await outcomes(late)) == {DeliveryStatus.UNKNOWN}
        await cluster.resume(b)
        await cluster.until_in_sync("deadline")
        after = history.send(world.window)
        assert set(await outcomes(after)) == {DeliveryStatus.ACKED}
        assert said_of([history]) == {
            DeliveryStatus.ACKED: len(history.rows) - world.window,
            DeliveryStatus.UNKNOWN: world.window,
        }
        told = producer.statistics()
        assert (told.epoch_bumps, told.data_loss_events) == (1, 0)
    await verdict(cluster, "deadline", [history])


@bounded(120)
async def test_a_leader_stalls_is_deposed_and_wakes_up_as_a_zombie(
    cluster: KafkaCluster, world: World
) -> None:
    """A deposed leader that wakes up appends no record that the new leader has stored meanwhile.

    Requests that were sent to the stopped leader are still in its sockets when it wakes up.
    """
    controller, a, b = await cast(cluster)
    places = [[a, b, controller], [b, controller, a]]
    await cluster.create_topic("silent", replicas=places, configs=SAFE)
    zombie = Tap(cluster, a)
    async with producer_of(cluster, world, request_timeout=2.0) as producer:
        histories = [History(producer, "silent", each) for each in range(2)]
        for history in histories:
            await fill(history, producer, world)
        async with load(world, *histories):
            await settled(histories[0], 50)
            await cluster.pause(a)
            await settled(histories[0], 100)
            assert await cluster.leader("silent") == b
            asked, answered = zombie.requests, len(zombie.answers)
            await cluster.resume(a)
            await zombie.until(lambda: len(zombie.answers) > answered)
            await cluster.until_in_sync("silent")
            await settled(histories[0], 50)
        assert asked > answered
        await all_there(cluster, "silent", producer, *histories)
