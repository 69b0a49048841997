"""Topics that are emptied, unknown for a while, or recreated while records are written to them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import decode_response, encode_response, response_type
from aioidem.structs import DeliveryStatus
from aioidem.testing import (
    Action,
    Expectations,
    FrameSeen,
    Inspect,
    KafkaCluster,
    Outcome,
    Rewrite,
    parse_value,
)
from tests.kafka.tools import History, SpanCount, bounded, check, judge, outcomes, records_of
from tests.kafka.world import (
    RTT,
    World,
    delete_records,
    fill,
    leave_in_doubt,
    load,
    nothing_noticed,
    producer_of,
    settled,
    window_in_doubt,
)

pytestmark = pytest.mark.anyio

METADATA = 3
SLACK = 1.0
"""The seconds by which a test on a busy machine may notice later what the proxy has seen."""


async def check_what_stays(cluster: KafkaCluster, history: History, topic: str, start: int) -> None:
    """Check the history as `check` does, against the log from offset `start` on.

    Deleted records, below `start`, may still be in the log's files.
    """
    log = [
        each for each in records_of(topic, 0, await cluster.dump_log(topic)) if each.offset >= start
    ]
    gone = {
        row.value
        for row, delivery in zip(history.settle(), history.deliveries, strict=True)
        if delivery.metadata.offset < start
    }
    assert judge([history], log, Expectations(lost=gone)) == []
    values = [parse_value(each.value) for each in log]
    total = len(history.deliveries)
    assert [each.call for each in values if each] == list(range(total - len(log), total))


@bounded(60)
async def test_records_are_deleted_under_load_and_while_a_window_is_in_doubt(
    cluster: KafkaCluster, world: World
) -> None:
    """After DeleteRecords under load the producer loses no later record, and reports no data loss.

    The broker keeps the producer's state when records are deleted.
    """
    await cluster.create_topic("emptied")
    spans = SpanCount(cluster.proxy)
    async with producer_of(cluster, world) as producer:
        history = History(producer, "emptied")
        await fill(history, producer, world)
        cluster.proxy.set_link(rtt=RTT)
        async with load(world, history):
            for _ in range(3):
                await settled(history, 20)
                assert await delete_records(cluster, "emptied") > 0
        await leave_in_doubt(cluster, spans, history, world.window)
        start = await delete_records(cluster, "emptied")
        assert start == len(history.deliveries)
        spans.answer = lambda: None
        cluster.proxy.disconnect()
        assert set(await outcomes(history.deliveries)) == {DeliveryStatus.ACKED}
        await outcomes(history.send(20))
        assert nothing_noticed(producer)
    assert spans.max_span() == world.window
    assert history.offsets() == list(range(len(history.deliveries)))
    await check_what_stays(cluster, history, "emptied", start)


@bounded(60)
async def test_records_are_deleted_and_the_broker_crashes(
    cluster: KafkaCluster, world: World
) -> None:
    """After a crash the broker still knows a producer whose records were deleted.

    The broker's files still hold the deleted batches, so it finds the producer's last batch.
    """
    async with window_in_doubt(cluster, world, "emptied-crash") as (producer, history, spans):
        start = await delete_records(cluster, "emptied-crash")
        assert start == len(history.deliveries)
        await cluster.kill()
        spans.answer = lambda: None
        await cluster.start()
        assert set(await outcomes(history.deliveries)) == {DeliveryStatus.ACKED}
        await outcomes(history.send(20))
        assert nothing_noticed(producer)
    await check_what_stays(cluster, history, "emptied-crash", start)


class Vanished:
    """A proxy hook that makes every topic unknown in the next `answers` answers to Metadata."""

    def __init__(self, answers: int) -> None:
        self.left = answers

    def __call__(self, seen: FrameSeen) -> Action | None:
        if seen.api_key != METADATA or not self.left:
            return None
        self.left -= 1
        schema = response_type(METADATA, seen.api_version)
        assert schema is not None

        def change(payload: bytes) -> bytes:
            correlation_id, response = decode_response(schema, payload)
            body: Any = response
            code = ErrorCode(ErrorCode.unknown_topic_or_partition)
            topics = tuple(replace(t, error_code=code, partitions=()) for t in body.topics)
            return encode_response(replace(body, topics=topics), correlation_id)[4:]

        return Rewrite(change)


@bounded(60)
async def test_a_topic_is_unknown_for_a_while_and_its_sequences_go_on(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("recreated-gone")
    cluster.proxy.set_link(rtt=RTT)
    async with producer_of(cluster, world, metadata_max_age=0.1) as producer:
        history = History(producer, "recreated-gone")
        await fill(history, producer, world)
        cluster.proxy.on_answer = vanished = Vanished(3)
        async with load(world, history):
            await cluster.proxy.until(lambda: not vanished.left)
            await settled(history, 50)
        assert nothing_noticed(producer)
    total = len(history.deliveries)
    assert history.offsets() == list(range(total))
    assert await check(cluster, [history], "recreated-gone") == list(range(total))


class ToldAnew:
    """A proxy hook that sets `at` to the time of the first Metadata answer with a new topic id."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._first: Any = None

    def __call__(self, seen: FrameSeen) -> Action | None:
        return Inspect(partial(self._look, seen)) if seen.api_key == METADATA else None

    def _look(self, seen: FrameSeen, payload: bytes) -> None:
        schema = response_type(METADATA, seen.api_version)
        assert schema is not None
        response: Any = decode_response(schema, payload)[1]
        for topic in response.topics:
            if not int(topic.error_code):
                self._first = self._first or topic.topic_id
                if topic.topic_id != self._first and self.at is None:
                    self.at = seen.at


@bounded(60)
async def test_a_topic_is_deleted_and_made_anew_under_load(
    cluster: KafkaCluster, world: World
) -> None:
    """After metadata names a recreated topic, records go to the new topic once and in order.

    Records that the old topic acknowledged are deleted with it. Records in flight at that time end
    ACKED or UNKNOWN.
    """
    await cluster.create_topic("recreated-new")
    cluster.proxy.set_link(rtt=RTT)
    cluster.proxy.on_answer = told = ToldAnew()
    async with producer_of(
        cluster, world, allow_auto_create_topics=False, metadata_max_age=1.0
    ) as producer:
        history = History(producer, "recreated-new")
        await fill(history, producer, world)
        async with load(world, history):
            await settled(history, 20)
            deleted = anyio.current_time()
            await cluster.delete_topic("recreated-new")
            await cluster.create_topic("recreated-new")
            made = anyio.current_time()
            await cluster.proxy.until(lambda: told.at is not None)
            assert told.at is not None
            known = told.at + RTT + SLACK
            while anyio.current_time() < known:
                await settled(history, 1)
            await settled(history, 50)
        assert set(await outcomes(history.send(20))) == {DeliveryStatus.ACKED}
        # Produce requests to Kafka 3 name topics without ids. Until metadata shows the new id, the
        # new topic looks like the old one with its data lost, perhaps in several answers.
        losses = producer.statistics().data_loss_events
        assert losses == 0 or world.version < "4"
    # Answers from the old topic may arrive up to one round trip after the new topic was made.
    rows = history.settle()
    gone = {row.value for row in rows if row.settled is not None and row.settled < made + RTT}
    # Until `known` a record may go to the deleted topic, or to the new one with sequences that it
    # does not expect.
    unknown = [row for row in rows if row.outcome is Outcome.UNKNOWN]
    assert all(row.started < known for row in unknown)
    assert all(row.settled is not None and deleted < row.settled < known for row in unknown)
    calls = await check(cluster, [history], "recreated-new", expect=Expectations(lost=gone))
    assert calls[-20:] == list(range(len(history.deliveries) - 20, len(history.deliveries)))
