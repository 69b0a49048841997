"""Outcomes that one answer settles are delivered in slices, one per turn of the event loop.

A slice is at most `AT_ONCE` outcomes. Each outcome is delivered once, in call order, and flush()
and close() return after the last one. The tests count turns; benchmarks/hostile_answers.py measures
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aioidem import Delivery, DeliveryCounts, DeliveryStatus, Producer
from aioidem._producer.native import internals
from aioidem._producer.settled_records import AT_ONCE
from aioidem.broker import EmbeddedCluster
from tests.waiting import until

from .tools import REAL_LOOPS, bounded, producer_for

pytestmark = [pytest.mark.anyio, REAL_LOOPS]

# The most outcomes that are delivered between two runs of the counting task. One slice is delivered
# when the answer arrives, and one in each turn of the Sender. The Sender may have two turns between
# two counts, because trio runs the tasks of each round in random order.
MOST = 3 * AT_ONCE
MANY = 5 * AT_ONCE + 1
ONE_BATCH = {"batch_size": 1 << 20, "linger": 0.001}


class Turns:
    """A counter of the loop's turns, and of the outcomes delivered in each turn."""

    def __init__(self) -> None:
        self.now = 0
        self.told: list[int] = []
        self.in_turn: Counter[int] = Counter()

    async def run(self) -> None:
        """Count turns until cancelled."""
        while True:
            self.now += 1
            await anyio.lowlevel.checkpoint()

    def watch(self, delivery: Delivery, number: int) -> None:
        """Note `number`, and the turn, when the delivery gets its outcome."""

        def tell(_: Delivery) -> None:
            self.told.append(number)
            self.in_turn[self.now] += 1

        delivery.add_done_callback(tell)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[EmbeddedCluster, Producer, Turns]]:
    """Run a producer that knows the topic "t", and a task that counts turns."""
    turns = Turns()
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t", partitions=1)
        async with producer_for(cluster, **(ONE_BATCH | options)) as producer:
            await producer.partitions_for("t")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(turns.run)
                yield cluster, producer, turns
                tasks.cancel_scope.cancel()


def send(producer: Producer, turns: Turns, count: int = MANY) -> list[Delivery]:
    """Queue `count` numbered records, and watch the delivery (awaitable outcome) of each."""
    deliveries = [producer.send_nowait("t", b"%d" % n, partition=0) for n in range(count)]
    for number, delivery in enumerate(deliveries):
        turns.watch(delivery, number)
    return deliveries


@bounded(60)
async def test_no_turn_of_the_loop_tells_more_than_a_slice_and_flush_waits_for_all() -> None:
    async with running() as (_, producer, turns):
        send(producer, turns)
        counts = await producer.flush()
        assert counts == DeliveryCounts(acked=MANY, not_written=0, unknown=0)
        assert turns.told == list(range(MANY)), (
            "flush returns after every outcome, once each, in call order"
        )
        assert max(turns.in_turn.values()) <= MOST


@bounded(60)
async def test_a_flush_that_begins_between_two_slices_waits_for_the_last_one() -> None:
    async with running() as (_, producer, turns):
        deliveries = send(producer, turns)
        await deliveries[0]
        assert not deliveries[-1].done()
        assert producer.statistics().records_queued == 0
        await producer.flush()
        assert turns.told == list(range(MANY))


@bounded(60)
async def test_closing_at_once_between_two_slices_tells_the_rest() -> None:
    async with running() as (_, producer, turns):
        deliveries = send(producer, turns)
        await deliveries[0]
        assert not deliveries[-1].done()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await producer.close(0)
        assert turns.told == list(range(MANY))
        assert all(delivery.status is DeliveryStatus.ACKED for delivery in deliveries)


@bounded(60)
async def test_cancelling_the_background_task_between_two_slices_tells_the_rest() -> None:
    async with running() as (_, producer, turns):
        deliveries = send(producer, turns)
        await deliveries[0]
        assert not deliveries[-1].done()
        assert internals(producer).life.abandon()  # as the producer's finaliser does
        await until(deliveries[-1].done)
        assert turns.told == list(range(MANY))


@bounded(60)
async def test_records_that_callbacks_send_are_reported_after_all_settled_ones() -> None:
    async with running() as (_, producer, turns):
        deliveries = send(producer, turns)
        deliveries[0].add_done_callback(
            lambda _: turns.watch(producer.send_nowait("t", b"later", partition=0), MANY)
        )
        await until(lambda: len(turns.told) == MANY + 1)
        assert turns.told == list(range(MANY + 1))


@bounded(60)
async def test_a_commit_returns_when_all_of_its_records_are_reported() -> None:
    async with running(transactional_id="slices") as (_, producer, turns):
        async with producer.transaction():
            send(producer, turns)
        assert turns.told == list(range(MANY))
        assert max(turns.in_turn.values()) <= MOST


@bounded(60)
async def test_an_abort_returns_when_all_of_its_records_are_reported() -> None:
    async with running(transactional_id="slices", linger=60.0) as (_, producer, turns):
        await producer.begin_transaction()
        deliveries = send(producer, turns)
        await producer.abort_transaction()
        assert turns.told == list(range(MANY))
        assert all(delivery.status is DeliveryStatus.NOT_WRITTEN for delivery in deliveries)
        assert max(turns.in_turn.values()) <= MOST
