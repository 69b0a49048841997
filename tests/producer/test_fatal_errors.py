"""The error that has ended a producer, as each later call raises it."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, Producer, errors
from aioidem._broker.entities import ZERO_MS, respond
from aioidem._broker.intercept import Action, CloseConnection, Respond
from aioidem._protocol.versions import ApiKey
from aioidem.broker import EmbeddedCluster

from .tools import bounded, producer_for

pytestmark = pytest.mark.anyio

CALLS: dict[str, Callable[[Producer], Awaitable[Any]]] = {
    "send": lambda producer: producer.send("t", b"x"),
    "send_many": lambda producer: producer.send_many("t", [b"x"]),
    "flush": lambda producer: producer.flush(),
    "begin_transaction": lambda producer: producer.begin_transaction(),
    "partitions_for": lambda producer: producer.partitions_for("t"),
}


async def ended_in_a_commit(cluster: EmbeddedCluster) -> Producer:
    """Return a producer that was fenced in a commit, whose own outcome stays unknown."""
    answers: list[Action] = [
        CloseConnection(processed=True),
        Respond(
            respond(
                ApiKey.END_TXN,
                5,
                {
                    "throttle_time": ZERO_MS,
                    "error_code": ErrorCode.producer_fenced,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            )
        ),
    ]
    producer = producer_for(cluster, transactional_id="x")
    await producer.start()
    await producer.begin_transaction()
    await producer.send("t", b"x")
    cluster.intercept(lambda seen: answers.pop(0) if seen.api_key == ApiKey.END_TXN else None)
    with pytest.raises(errors.ProducerFenced) as caught:
        await producer.commit_transaction()
    assert caught.value.status is DeliveryStatus.UNKNOWN
    return producer


@pytest.mark.parametrize("call", CALLS)
@bounded(60)
async def test_each_call_raises_a_copy_of_its_own_of_the_error_that_ended_the_producer(
    call: str,
) -> None:
    """Its traceback has the frames of that call only, so that memory does not grow with calls."""
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t")
        producer = await ended_in_a_commit(cluster)
        raised: list[errors.KafkaError] = []
        for _ in range(3):
            with pytest.raises(errors.KafkaError) as caught:
                await CALLS[call](producer)
            raised.append(caught.value)
        frames = [len(traceback.extract_tb(error.__traceback__)) for error in raised]
        assert len({id(error) for error in raised}) == 3
        assert frames[0] == frames[1] == frames[2]
        assert len({(type(error), str(error)) for error in raised}) == 1
        assert raised[0].__cause__ is raised[2].__cause__
        if call.startswith("send"):
            # nothing was queued, although the commit may have taken place
            assert {error.status for error in raised} == {DeliveryStatus.NOT_WRITTEN}
        else:
            assert {error.status for error in raised} == {DeliveryStatus.UNKNOWN}
        await producer.close()
