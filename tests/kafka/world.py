"""Helpers of the tests of faults: three kinds of brokers, full windows, load, and hooks for frames.

No test waits for time to pass. Each waits for an event (a frame at the proxy, an outcome, a state
of the broker, which is asked without the proxy), and `bounded` ends a test whose event does not
come.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, NamedTuple

import anyio
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem._broker.entities import from_ms
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, Drop, KafkaCluster
from tests.kafka.tools import ONE_EACH, History, SpanCount, outcomes, partition_of

RTT: Final = 0.01
"""A round-trip time in seconds, long enough for the window to be full most of the time."""

TOPIC, BROKER, CLIENT_ID = 2, 4, "client-id"
_DESCRIBE_PRODUCERS, _CREATE_ACLS, _ALTER_CONFIGS, _ALTER_QUOTAS = (
    (61, 0),
    (30, 3),
    (44, 1),
    (49, 1),
)
_DELETE_RECORDS: Final = (21, 2)
_METADATA: Final = (3, 12)
_CONFIGS: Final = (32, 4)
_LITERAL, _READ, _WRITE, _ALL, _DENY, _ALLOW = 3, 3, 4, 2, 2, 3
_DESCRIBE_CONFIGS: Final = 10
_HIGH_WATERMARK: Final = -1
_SET, _DELETE = 0, 1
_POLL_SECONDS: Final = 0.05

PROPERTIES: Final[Mapping[str, str | int]] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    # Expired producer state is removed within 0.3 s, instead of within ten minutes.
    "producer.id.expiration.check.interval.ms": 300,
    # Transactions that time out are aborted within 0.3 s, instead of within ten seconds.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 300,
    # Quotas average over 2 samples of 1 s instead of 11, so a burst is throttled at once, and for
    # seconds.
    "quota.window.num": 2,
}


class World(NamedTuple):
    """A kind of broker: its version, and how many batches it retains (None: not patched)."""

    version: str
    retain: int | None = None

    @property
    def window(self) -> int:
        """Return how many batches the broker deduplicates per producer and partition."""
        return self.retain or 5


WORLDS: Final = {
    "stock": World("4.3.1"),
    "patched": World("4.3.1", 20),
    "older": World("3.9.1"),
}


def producer_of(cluster: KafkaCluster, world: World, **options: Any) -> Producer:
    """Make a producer of one-record batches, with as many in flight as the broker remembers."""
    window = {"max_in_flight_requests_per_connection": world.window}
    return Producer(cluster.bootstrap_servers, **{**ONE_EACH, **window, **options})


async def fill(history: History, producer: Producer, world: World) -> None:
    """Send four windows of records, and check that the producer has learned the broker's window."""
    assert set(await outcomes(history.send(4 * world.window))) == {DeliveryStatus.ACKED}
    topic, partition = history.rows[0].topic, history.rows[0].partition
    assert partition_of(producer, topic, partition).window == world.window


def nothing_noticed(producer: Producer) -> bool:
    """Return whether each record was acknowledged, without an epoch bump or a detected loss."""
    told = producer.statistics()
    return not (
        told.epoch_bumps
        or told.data_loss_events
        or told.records_not_written
        or told.records_unknown
        or told.records_queued
    )


@asynccontextmanager
async def load(world: World, *histories: History) -> AsyncIterator[None]:
    """Keep two windows of records unsettled in each history during the block; then await them."""
    ending, depth = False, 2 * world.window

    async def run(history: History) -> None:
        waiting = deque(history.send(depth))
        while not ending:
            with suppress(KafkaError):
                await waiting[0]
            while waiting and waiting[0].done():
                waiting.popleft()
            waiting.extend(history.send(depth - len(waiting)))
        await outcomes(waiting)

    async with anyio.create_task_group() as tasks:
        for history in histories:
            tasks.start_soon(run, history)
        await anyio.lowlevel.checkpoint()
        try:
            yield
        except BaseException:
            tasks.cancel_scope.cancel()
            raise
        ending = True


async def settled(history: History, count: int) -> None:
    """Wait until `count` records queued after this call are settled; `load` must be running."""
    last = len(history.deliveries) + count
    while len(history.deliveries) < last:
        await outcomes(history.deliveries[-1:])
        await anyio.lowlevel.checkpoint()
    await outcomes(history.deliveries[last - 1 : last])


async def opened(cluster: KafkaCluster, history: History, cut: Callable[[], object]) -> None:
    """Call `cut`, which breaks the connection, and wait until a new one is open and in use."""
    before = cluster.proxy.opened
    cut()
    await cluster.proxy.until(lambda: cluster.proxy.opened > before)
    await settled(history, 20)


def once(action: Action) -> Callable[[], Action | None]:
    """Return a hook that returns the action once, and then None."""
    left = iter((action,))
    return lambda: next(left, None)


def every(number: int, action: Action) -> Callable[[], Action | None]:
    """Return a hook that returns the action at every ``number``-th call, and else None."""
    counter = itertools.count(1)
    return lambda: action if next(counter) % number == 0 else None


async def leave_in_doubt(
    cluster: KafkaCluster, spans: SpanCount, history: History, batches: int, **how: Any
) -> None:
    """Send batches, and wait until the proxy has dropped all answers; the connection stays open."""
    start = spans.answers
    spans.answer = lambda: Drop(silent=False)
    history.send(batches, **how)
    await cluster.proxy.until(lambda: spans.answers - start == batches)


class InDoubt(NamedTuple):
    """A producer with a full window in doubt, its history, and the spans seen at the proxy."""

    producer: Producer
    history: History
    spans: SpanCount


@asynccontextmanager
async def window_in_doubt(
    cluster: KafkaCluster, world: World, topic: str, **options: Any
) -> AsyncIterator[InDoubt]:
    """Create a topic, and run the block while a full window of batches is appended but unanswered.

    Answers are dropped until the block sets `spans.answer`.
    """
    await cluster.create_topic(topic)
    spans = SpanCount(cluster.proxy)
    async with producer_of(cluster, world, **options) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        await leave_in_doubt(cluster, spans, history, world.window)
        yield InDoubt(producer, history, spans)


# --- requests to the broker, without the proxy ----------------------------------------------------


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds, by asking again and again; `bounded` sets the time limit."""
    while not await condition():  # noqa: ASYNC110 - another process signals no event
        await anyio.sleep(_POLL_SECONDS)


async def _producers(cluster: KafkaCluster, topic: str) -> Any:
    place = {"name": topic, "partition_indexes": [0]}
    answer = await cluster.ask(*_DESCRIBE_PRODUCERS, topics=[place])
    return answer.topics[0].partitions[0]


async def last_sequences(cluster: KafkaCluster, topic: str) -> dict[tuple[int, int], int]:
    """Return the producer state of partition 0's leader: (producer ID, epoch) -> last sequence."""
    partition = await _producers(cluster, topic)
    assert partition.error_code == ErrorCode.none
    return {
        (each.producer_id, each.producer_epoch): each.last_sequence
        for each in partition.active_producers
    }


async def forgotten(cluster: KafkaCluster, topic: str) -> None:
    """Wait until the broker has no producer state of the topic any more."""

    async def gone() -> bool:
        return not await last_sequences(cluster, topic)

    await until(gone)


async def _forbid(cluster: KafkaCluster, topic: str, operation: int) -> None:
    """Deny everybody one operation on the topic, and permit all others."""
    rule = {
        "resource_type": TOPIC,
        "resource_name": topic,
        "resource_pattern_type": _LITERAL,
        "principal": "User:ANONYMOUS",
        "host": "*",
    }
    rules = [
        {**rule, "operation": operation, "permission_type": _DENY},
        {**rule, "operation": _ALL, "permission_type": _ALLOW},
    ]
    answer = await cluster.ask(*_CREATE_ACLS, creations=rules)
    assert [each.error_code for each in answer.results] == [ErrorCode.none] * 2


async def forbid_writing(cluster: KafkaCluster, topic: str) -> None:
    """Forbid everybody to write to the topic, and wait until that is in force."""
    await _forbid(cluster, topic, _WRITE)

    async def forbidden() -> bool:
        answer = await cluster.ask(
            *_METADATA,
            topics=[{"name": topic, "topic_id": None}],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        return not answer.topics[0].topic_authorized_operations & 1 << _WRITE

    await until(forbidden)


async def forbid_reading(cluster: KafkaCluster, topic: str) -> None:
    """Forbid everybody to read the topic, and wait until that is in force."""
    await _forbid(cluster, topic, _READ)

    async def forbidden() -> bool:
        return bool(
            (await _producers(cluster, topic)).error_code == ErrorCode.topic_authorization_failed
        )

    await until(forbidden)


async def forbid_describing_configs(cluster: KafkaCluster, topic: str) -> None:
    """Forbid everybody to ask for the topic's configuration, and wait until that is in force."""
    await _forbid(cluster, topic, _DESCRIBE_CONFIGS)

    async def forbidden() -> bool:
        asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
        answer = await cluster.ask(*_CONFIGS, resources=[asked])
        return bool(answer.results[0].error_code == ErrorCode.topic_authorization_failed)

    await until(forbidden)


async def delete_records(cluster: KafkaCluster, topic: str) -> int:
    """Delete all committed records; return the first offset that is left."""
    place = {"partition_index": 0, "offset": _HIGH_WATERMARK}
    answer = await cluster.ask(
        *_DELETE_RECORDS, topics=[{"name": topic, "partitions": [place]}], timeout=from_ms(10_000)
    )
    [partition] = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.none
    return int(partition.low_watermark)


async def _alter_brokers(cluster: KafkaCluster, operation: int, name: str, value: str) -> None:
    config = {"name": name, "config_operation": operation, "value": value}
    resource = {"resource_type": BROKER, "resource_name": "", "configs": [config]}
    answer = await cluster.ask(*_ALTER_CONFIGS, resources=[resource], validate_only=False)
    assert answer.responses[0].error_code == ErrorCode.none


@asynccontextmanager
async def broker_config(cluster: KafkaCluster, name: str, value: str) -> AsyncIterator[None]:
    """Set a configuration of all brokers during the block."""
    await _alter_brokers(cluster, _SET, name, value)
    try:
        yield
    finally:
        await _alter_brokers(cluster, _DELETE, name, "")


async def limit_bytes(cluster: KafkaCluster, client_id: str, rate: float | None) -> None:
    """Limit a client to `rate` bytes per second; None removes the limit."""
    op = {"key": "producer_byte_rate", "value": rate or 0.0, "remove": rate is None}
    entity = [{"entity_type": CLIENT_ID, "entity_name": client_id}]
    entry = {"entity": entity, "ops": [op]}
    answer = await cluster.ask(*_ALTER_QUOTAS, entries=[entry], validate_only=False)
    assert answer.entries[0].error_code == ErrorCode.none


@contextmanager
def link(cluster: KafkaCluster, rtt: float) -> Iterator[None]:
    """Set the round-trip time of the proxy's link, in s, during the block."""
    cluster.proxy.set_link(rtt=rtt)
    try:
        yield
    finally:
        cluster.proxy.set_link()
