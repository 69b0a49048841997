"""Batches in doubt when a stock broker restarts, and how they are resolved.

After a restart a broker remembers one batch per producer. (After SIGKILL too: the broker reads the
log again, takes a snapshot, which holds one batch, and loads the snapshot.) The broker answers
OUT_OF_ORDER to resends of older batches, although they are stored. A client that takes the answer
for a gap writes those batches twice; aioidem probes, which means that it resends the newest batch
first. With READ permission it also asks DescribeProducers for the last sequence, to choose the
first probe. Without READ the broker refuses that request, and the result must be the same.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer
from aioidem._protocol.messages import decode_response, response_type
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, Drop, FaultProxy, FrameSeen, Inspect, KafkaCluster
from tests.kafka.tools import (
    DESCRIBE_PRODUCERS,
    ONE_EACH,
    STOCK,
    History,
    SpanCount,
    bounded,
    check,
    outcomes,
)
from tests.kafka.world import forbid_reading

pytestmark = pytest.mark.anyio

NEWEST, OLDER = STOCK
WINDOW = 5
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class World(NamedTuple):
    """A version of the broker, and whether its clients may read."""

    version: str
    read: bool


@pytest.fixture(
    scope="module",
    params=[World(version, read) for version in (NEWEST, OLDER) for read in (True, False)],
    ids=["newest", "newest-without-read", "older", "older-without-read"],
)
def world(request: pytest.FixtureRequest) -> World:
    asked: World = request.param
    return asked


@pytest.fixture(scope="module")
async def cluster(
    world: World,
    anyio_backend: object,  # noqa: ARG001 - a cluster lives in one loop
) -> AsyncIterator[KafkaCluster]:
    properties = {} if world.read else AUTHORIZED
    async with KafkaCluster(world.version, properties=properties) as running:
        yield running


def what_describe_producers_says(proxy: FaultProxy) -> list[int]:
    """Collect the error code of each answer to DescribeProducers from now on.

    The hook that the proxy had before stays in place.
    """
    codes: list[int] = []
    other = proxy.on_answer

    def note(version: int, payload: bytes) -> None:
        schema = response_type(DESCRIBE_PRODUCERS, version)
        assert schema is not None
        answer: Any = decode_response(schema, payload)[1]
        codes.extend(int(part.error_code) for topic in answer.topics for part in topic.partitions)

    def look(seen: FrameSeen) -> Action | None:
        if seen.api_key == DESCRIBE_PRODUCERS:
            return Inspect(functools.partial(note, seen.api_version))
        return None if other is None else other(seen)

    proxy.on_answer = look
    return codes


@pytest.mark.parametrize(
    ("appended", "clean"),
    [(5, True), (5, False), (3, True), (0, False)],
    ids=["5-sigterm", "5-sigkill", "3-sigterm", "0-sigkill"],
)
@bounded(60)
async def test_doubt_across_a_restart_is_resolved_exactly(
    cluster: KafkaCluster, world: World, appended: int, clean: bool
) -> None:
    """After a restart every batch of a full window in doubt ends ACKED, and the epoch stays.

    The first ``appended`` batches of the window were appended, the others never arrived, and none
    was answered.
    """
    topic = f"doubt-{appended}-{clean}"
    await cluster.create_topic(topic)
    if not world.read:
        await forbid_reading(cluster, topic)
    spans = SpanCount(cluster.proxy)
    said = what_describe_producers_says(cluster.proxy)
    async with Producer(cluster.bootstrap_servers, **ONE_EACH) as producer:
        history = History(producer, topic)
        await outcomes(history.send(2 * WINDOW))
        start = spans.requests, spans.answers
        spans.request = lambda: Drop() if spans.requests - start[0] > appended else None
        spans.answer = lambda: Drop(silent=False)
        history.send(WINDOW)
        await cluster.proxy.until(
            lambda: (
                spans.answers - start[1] == appended
                and spans.requests - start[0] == min(appended + 1, WINDOW)
            )
        )
        await (cluster.terminate() if clean else cluster.kill())
        spans.request = spans.answer = lambda: None
        spans.codes.clear()
        cluster.proxy.trace.clear()
        await cluster.start()
        assert set(await outcomes(history.deliveries)) == {DeliveryStatus.ACKED}
        await outcomes(history.send(WINDOW))
        assert producer.statistics().epoch_bumps == 0
    forgot = appended > 1
    assert (ErrorCode.out_of_order_sequence_number in spans.codes) == forgot
    asked = [each for each, _ in cluster.proxy.trace if each.api_key == DESCRIBE_PRODUCERS]
    assert bool(asked) == forgot
    # With READ permission every DescribeProducers answer is a success; without it, a refusal.
    assert set(said) == (
        {0 if world.read else ErrorCode.topic_authorization_failed} if forgot else set()
    )
    if not forgot:
        assert history.offsets() == list(range(4 * WINDOW))
    assert await check(cluster, [history], topic) == list(range(4 * WINDOW))
