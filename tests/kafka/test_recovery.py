"""Batches in doubt when a stock broker restarts (F8), and what becomes of them.

A restart leaves a broker one remembered batch per producer. (After SIGKILL as well: having read the
log again it takes a snapshot, which holds one, and loads that.) Resends of older ones come back
OUT_OF_ORDER, although they are stored. A client that takes that for a gap writes them twice; ours
asks newest first. With READ it may also ask DescribeProducers where to begin; without, it is
refused, and must come to the same end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from aioidem import Producer
from aioidem.structs import DeliveryStatus
from aioidem.testing import KafkaCluster
from aioidem.testing.fault_proxy import Drop

from .tools import (
    DESCRIBE_PRODUCERS,
    ONE_EACH,
    OUT_OF_ORDER,
    STOCK,
    History,
    SpanCount,
    bounded,
    check,
    outcomes,
)

pytestmark = pytest.mark.anyio

NEWEST, OLDER = STOCK
WINDOW = 5
CREATE_ACLS = (30, 3)
TOPIC, LITERAL, READ, ALL, DENY, ALLOW = 2, 3, 3, 2, 2, 3
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class World(NamedTuple):
    """A broker, and whether its clients may read."""

    version: str
    read: bool


@pytest.fixture(
    scope="module",
    params=[World(NEWEST, read=True), World(NEWEST, read=False), World(OLDER, read=True)],
    ids=["newest", "newest-without-read", "older"],
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


async def forbid_reading(cluster: KafkaCluster, topic: str) -> None:
    """Everybody may do anything to the topic but read it."""
    rule = {
        "resource_type": TOPIC,
        "resource_name": topic,
        "resource_pattern_type": LITERAL,
        "principal": "User:ANONYMOUS",
        "host": "*",
    }
    rules = [
        {**rule, "operation": READ, "permission_type": DENY},
        {**rule, "operation": ALL, "permission_type": ALLOW},
    ]
    answer = await cluster.ask(*CREATE_ACLS, creations=rules)
    assert [int(each.error_code) for each in answer.results] == [0, 0]


@pytest.mark.parametrize(
    ("appended", "clean"),
    [(5, True), (5, False), (3, True), (0, False)],
    ids=["5-sigterm", "5-sigkill", "3-sigterm", "0-sigkill"],
)
@bounded(60)
async def test_f8_doubt_across_a_restart_is_resolved_exactly(
    cluster: KafkaCluster, world: World, appended: int, clean: bool
) -> None:
    """Of a full window ``appended`` were, the rest never arrived, and nothing was answered."""
    topic = f"doubt-{appended}-{clean}"
    await cluster.create_topic(topic)
    if not world.read:
        await forbid_reading(cluster, topic)
    spans = SpanCount(cluster.proxy)
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
    assert (OUT_OF_ORDER in spans.codes) == forgot
    asked = [each for each, _ in cluster.proxy.trace if each.api_key == DESCRIBE_PRODUCERS]
    assert bool(asked) == forgot
    if not forgot:
        assert history.offsets() == list(range(4 * WINDOW))
    assert await check(cluster, [history], topic) == list(range(4 * WINDOW))
