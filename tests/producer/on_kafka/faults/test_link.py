"""A link that loses, delays and cuts frames while a window of batches is in flight.

The broker remembers the producer's batches in all of these tests, so each record must be
acknowledged at the offset of its first copy, whatever was resent, and no epoch may be bumped.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem.structs import DeliveryStatus
from aioidem.testing import BlackHole, Cut, Hold, KafkaCluster
from tests.kafka.tools import History, SpanCount, bounded, check
from tests.kafka.world import (
    RTT,
    World,
    every,
    fill,
    load,
    nothing_noticed,
    once,
    opened,
    producer_of,
    settled,
)

pytestmark = pytest.mark.anyio

QUICK = {"request_timeout": 0.5}


def link_producer(cluster: KafkaCluster, world: World, **options: Any) -> Producer:
    """Make a producer that may have more requests in flight than the window has batches."""
    twice = {"max_in_flight_requests_per_connection": 2 * world.window}
    return producer_of(cluster, world, **twice, **options)


async def all_acknowledged(
    cluster: KafkaCluster,
    world: World,
    producer: Producer,
    history: History,
    spans: SpanCount,
    topic: str,
) -> None:
    """Assert that every record was acknowledged in order, at its offset in the log.

    Every Produce answer was a success, and the span (the batches that the broker has to remember at
    once) reached the window but never exceeded it.
    """
    total = len(history.deliveries)
    assert nothing_noticed(producer)
    assert set(spans.codes) == {ErrorCode.none}
    # Each batch was acknowledged by its own answer. So it does not matter here whether the success
    # of a batch also resolves the batches before it: the span is the same.
    assert spans.max_span() == world.window
    assert history.offsets() == list(range(total))
    assert await check(cluster, [history], topic) == list(range(total))


@bounded(60)
async def test_answers_are_lost_with_their_connections(cluster: KafkaCluster, world: World) -> None:
    await cluster.create_topic("answers-lost")
    spans = SpanCount(cluster.proxy)
    cluster.proxy.set_link(rtt=RTT)
    async with link_producer(cluster, world) as producer:
        history = History(producer, "answers-lost")
        await fill(history, producer, world)
        before = cluster.proxy.opened
        async with load(world, history):
            spans.answer = every(40, Cut(reset=True))
            await cluster.proxy.until(lambda: cluster.proxy.opened >= before + 5)
            spans.answer = lambda: None
            await settled(history, 100)
        await all_acknowledged(cluster, world, producer, history, spans, "answers-lost")


@bounded(60)
async def test_an_answer_comes_after_its_connection_was_given_up(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("answer-late")
    spans = SpanCount(cluster.proxy)
    cluster.proxy.set_link(rtt=RTT)
    async with link_producer(cluster, world, **QUICK) as producer:
        history = History(producer, "answer-late")
        await fill(history, producer, world)
        hold = Hold()
        async with load(world, history):
            await opened(cluster, history, lambda: setattr(spans, "answer", once(hold)))
            hold.release()
            await settled(history, 100)
        await all_acknowledged(cluster, world, producer, history, spans, "answer-late")


@pytest.mark.parametrize("way", ["cut-requests", "cut-answers"])
@bounded(60)
async def test_frames_are_cut_at_byte_k(cluster: KafkaCluster, world: World, way: str) -> None:
    await cluster.create_topic(way)
    spans = SpanCount(cluster.proxy)
    cluster.proxy.set_link(rtt=RTT)
    async with link_producer(cluster, world) as producer:
        history = History(producer, way)
        await fill(history, producer, world)
        async with load(world, history):
            for number, byte in enumerate((0, 3, 4, 5, 40, -1)):
                cut = once(Cut(byte, reset=number % 2 == 1))
                hook = "request" if way == "cut-requests" else "answer"
                await opened(cluster, history, functools.partial(setattr, spans, hook, cut))
        await all_acknowledged(cluster, world, producer, history, spans, way)


@bounded(60)
async def test_the_connection_is_reset_again_and_again(cluster: KafkaCluster, world: World) -> None:
    await cluster.create_topic("cut-reset")
    spans = SpanCount(cluster.proxy)
    cluster.proxy.set_link(rtt=RTT)
    async with link_producer(cluster, world) as producer:
        history = History(producer, "cut-reset")
        await fill(history, producer, world)
        async with load(world, history):
            for _ in range(10):
                cluster.proxy.disconnect(reset=True)
                await settled(history, world.window)
        await all_acknowledged(cluster, world, producer, history, spans, "cut-reset")


@pytest.mark.parametrize("way", ["request", "answer"])
@bounded(60)
async def test_a_black_hole_swallows_both_directions(
    cluster: KafkaCluster, world: World, way: str
) -> None:
    topic = f"silent-{way}"
    await cluster.create_topic(topic)
    spans = SpanCount(cluster.proxy)
    cluster.proxy.set_link(rtt=RTT)
    async with link_producer(cluster, world, **QUICK) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        hole = once(BlackHole())
        async with load(world, history):
            await opened(cluster, history, functools.partial(setattr, spans, way, hole))
            assert hole() is None  # the action was used: the proxy has swallowed a frame
            await settled(history, 100)
        await all_acknowledged(cluster, world, producer, history, spans, topic)


@bounded(60)
async def test_the_broker_is_stopped_for_longer_than_a_request_may_take(
    cluster: KafkaCluster, world: World
) -> None:
    """No record is lost or stored twice if the broker is stopped longer than the request timeout.

    The broker is stopped by SIGSTOP. Requests in its sockets are served when it goes on, although
    the producer has closed the connection.
    """
    await cluster.create_topic("silent-stopped")
    spans = SpanCount(cluster.proxy)
    async with link_producer(cluster, world, **QUICK) as producer:
        history = History(producer, "silent-stopped")
        await fill(history, producer, world)
        async with load(world, history):
            await settled(history, 20)
            before = cluster.proxy.opened
            await cluster.pause()
            await cluster.proxy.until(lambda: cluster.proxy.opened > before)
            await cluster.resume()
            assert {each.status for each in history.deliveries} <= {
                DeliveryStatus.ACKED,
                DeliveryStatus.PENDING,
            }
            await settled(history, 100)
        await all_acknowledged(cluster, world, producer, history, spans, "silent-stopped")
