"""Nodes that are killed or restarted, and come back."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem.structs import DeliveryStatus
from aioidem.testing import Drop, KafkaCluster
from tests.kafka.tools import History, bounded, outcomes
from tests.kafka.world import World, fill, load, producer_of, settled

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


@bounded(240)
async def test_rolling_restart_of_all_nodes_under_load(cluster: KafkaCluster, world: World) -> None:
    places = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    await cluster.create_topic("restart", replicas=places, configs=SAFE)
    async with producer_of(cluster, world) as producer:
        histories = [History(producer, "restart", each) for each in range(3)]
        async with load(world, *histories):
            for broker in range(3):
                await cluster.restart(broker)
                for partition in range(3):
                    await cluster.until_in_sync("restart", partition)
                await through(*histories)
        await all_there(cluster, "restart", producer, *histories)


@bounded(180)
async def test_kill_of_a_leader_under_load(cluster: KafkaCluster, world: World) -> None:
    controller, a, b = await cast(cluster)
    places = [[a, b, controller], [b, controller, a]]
    await cluster.create_topic("kill", replicas=places, configs=SAFE)
    async with producer_of(cluster, world) as producer:
        histories = [History(producer, "kill", each) for each in range(2)]
        async with load(world, *histories):
            await settled(histories[0], 100)
            await cluster.kill(a)
            await settled(histories[0], 100)
            await cluster.start(a)
            for partition in range(2):
                await cluster.until_in_sync("kill", partition)
            await cluster.move_leader("kill", 0, a)
            await settled(histories[0], 50)
        await all_there(cluster, "kill", producer, *histories)


@bounded(180)
async def test_the_controller_dies_and_then_the_quorum(cluster: KafkaCluster, world: World) -> None:
    """With the controller killed, leaders append records, and a new producer gets a producer id.

    Then a second of the three nodes is killed, so no leader can be elected. The leader on the third
    node still appends records.
    """
    controller, a, b = await cast(cluster)
    await cluster.create_topic("no-id", replicas=[[controller, a, b], [b, a, controller]])
    await cluster.create_topic("alone", replicas=[[a]])
    # The other producer has a connection of its own: a request that waits for followers holds up
    # all that follow on its connection.
    async with producer_of(cluster, world) as producer, producer_of(cluster, world) as other:
        histories = [History(producer, "no-id", each) for each in range(2)]
        alone = History(other, "alone")
        async with load(world, *histories, alone):
            await settled(histories[0], 50)
            await cluster.kill(controller)
            async with producer_of(cluster, world) as newcomer:
                late = History(newcomer, "alone")
                await outcomes(late.send(20))
            await settled(histories[0], 50)
            assert await cluster.controller() in {a, b}
            await cluster.kill(b)
            await settled(alone, 200)  # one of three is no quorum
            await cluster.revive()
            await through(*histories)
        await all_there(cluster, "no-id", producer, *histories)
        assert said_of([alone, late]) == {DeliveryStatus.ACKED: len(alone.rows) + len(late.rows)}
        await verdict(cluster, "alone", [alone, late])


@bounded(120)
async def test_a_follower_that_has_restarted_becomes_the_leader_of_a_window_in_doubt(
    cluster: KafkaCluster, world: World
) -> None:
    """A window in doubt is resolved by a new leader that has restarted and remembers one batch.

    The new leader answers OUT_OF_ORDER to resends of the older batches.
    """
    _, a, b = await cast(cluster)
    await cluster.create_topic("doubt", replicas=[[a, b]])
    old, new = Tap(cluster, a), Tap(cluster, b)
    async with producer_of(cluster, world) as producer:
        history = History(producer, "doubt")
        await fill(history, producer, world)
        answered = len(old.answers)
        old.answer = Drop(silent=False)
        sent = history.send(world.window)
        await old.until(lambda: len(old.answers) - answered == world.window)
        await appended(cluster, b, "doubt", len(history.rows) - 1)
        await cluster.restart(b)
        await cluster.until_in_sync("doubt")
        await cluster.move_leader("doubt", 0, b)
        old.answer = None
        cluster.proxies[a].disconnect()
        assert set(await outcomes(sent)) == {DeliveryStatus.ACKED}
        await through(history)
        assert (ErrorCode.out_of_order_sequence_number, False) in new.said
        await all_there(cluster, "doubt", producer, history)


@bounded(120)
async def test_topics_are_created_by_a_window_of_first_records(
    cluster: KafkaCluster, world: World
) -> None:
    """Records that create their topics, two windows of batches each, are stored once and in order.

    The brokers learn at different times that they lead, and have no state of the producer yet.
    """
    taps = [Tap(cluster, broker) for broker in range(3)]
    each_has = 2 * world.window
    async with producer_of(cluster, world) as producer:
        histories = [History(producer, f"new-{each}") for each in range(6)]
        for history in histories:
            history.send(each_has)
        for history in histories:
            await outcomes(history.deliveries)
            assert history.offsets() == list(range(each_has))
        told = producer.statistics()
        assert (told.data_loss_events, told.epoch_bumps) == (0, 0)
    said = [each for tap in taps for each in tap.said]
    # A broker that did not know yet that it leads appended nothing, and no broker got a later batch
    # before the first one was appended.
    assert said.count((ErrorCode.none, True)) == len(histories) * each_has
    assert {offset for code, offset in said if code != ErrorCode.none} <= {False}
    assert ErrorCode.out_of_order_sequence_number not in {code for code, _ in said}
    for number, history in enumerate(histories):
        assert await verdict(cluster, f"new-{number}", [history]) == {0: list(range(each_has))}
