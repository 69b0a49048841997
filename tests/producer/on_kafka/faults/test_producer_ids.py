"""Producers that get their producer id late or not at all, because a coordinator does not answer.

The coordinator loads, moves, hangs or is down. `start` waits for a producer id for `max_block`
seconds at most. Once the coordinator answers again, records are acknowledged as usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import decode_response, encode_response, response_type
from aioidem.errors import KafkaConnectionError, KafkaTimeoutError
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, BlackHole, Cut, FrameSeen, KafkaCluster, Rewrite
from tests.kafka.tools import History, bounded, check, outcomes
from tests.kafka.world import World, nothing_noticed, producer_of

pytestmark = pytest.mark.anyio

INIT_PRODUCER_ID = 22
SLACK = 5.0
"""The time allowed for a busy machine, in seconds.

It is less than the defaults of `request_timeout` and `max_block`.
"""


def refused(seen: FrameSeen, code: int) -> Action:
    """Return an action that turns an InitProducerId answer into an error without a producer id."""
    schema = response_type(INIT_PRODUCER_ID, seen.api_version)
    assert schema is not None

    def change(payload: bytes) -> bytes:
        correlation_id, response = decode_response(schema, payload)
        body: Any = response
        none = replace(body, error_code=ErrorCode(code), producer_id=-1, producer_epoch=-1)
        return encode_response(none, correlation_id)[4:]

    return Rewrite(change)


def answer_with(cluster: KafkaCluster, said: Iterable[int | Action]) -> None:
    """Replace the next answers of InitProducerId by these error codes or actions, in turn."""
    left = iter(said)

    def on_answer(seen: FrameSeen) -> Action | None:
        each = next(left, None) if seen.api_key == INIT_PRODUCER_ID else None
        return refused(seen, each) if isinstance(each, int) else each

    cluster.proxy.on_answer = on_answer


@bounded(60)
async def test_an_id_comes_in_the_end(cluster: KafkaCluster, world: World) -> None:
    await cluster.create_topic("no-id")
    codes = (
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.request_timed_out,
    )
    answer_with(cluster, [*codes, Cut(), Cut(6, reset=True), BlackHole()])
    async with producer_of(cluster, world, request_timeout=0.5, retry_backoff_max=0.2) as producer:
        assert cluster.proxy.opened >= 4
        history = History(producer, "no-id")
        assert set(await outcomes(history.send(30))) == {DeliveryStatus.ACKED}
        assert nothing_noticed(producer)
    assert await check(cluster, [history], "no-id") == list(range(30))


@pytest.mark.parametrize(
    "said", [ErrorCode.coordinator_load_in_progress, BlackHole()], ids=["loading", "silent"]
)
@bounded(60)
async def test_no_id_comes_and_starting_ends_in_time(
    cluster: KafkaCluster, world: World, said: int | Action
) -> None:
    answer_with(cluster, [said] * 10_000)
    max_block = 1.0
    with (
        anyio.fail_after(max_block + SLACK),
        pytest.raises(KafkaTimeoutError, match="no producer id within max_block"),
    ):
        async with producer_of(cluster, world, request_timeout=0.5, max_block=max_block):
            pytest.fail("the producer started without a producer id")


@bounded(60)
async def test_a_producer_starts_while_its_only_controller_restarts(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("no-id-restart")
    await cluster.kill()
    with pytest.raises((KafkaConnectionError, KafkaTimeoutError)):
        async with producer_of(cluster, world, max_block=0.5):
            pytest.fail("the producer started without a broker")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cluster.start)
        await start_when_possible(cluster, world)


async def start_when_possible(cluster: KafkaCluster, world: World) -> None:
    """Try to start a producer until the broker takes connections; then check its records."""
    while True:
        try:
            async with producer_of(cluster, world) as producer:
                history = History(producer, "no-id-restart")
                assert set(await outcomes(history.send(30))) == {DeliveryStatus.ACKED}
                assert nothing_noticed(producer)
        except KafkaConnectionError:
            await anyio.lowlevel.checkpoint()
            continue
        assert await check(cluster, [history], "no-id-restart") == list(range(30))
        return
