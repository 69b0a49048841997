"""Errors of the drop-in's `send`: each call has one of its own, and it says NOT_WRITTEN."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, DeliveryStatus, errors
from aioidem._broker.intercept import Action, RequestSeen, Rewrite
from aioidem._protocol.versions import ApiKey
from aioidem.broker import EmbeddedCluster

pytestmark = pytest.mark.anyio
LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
NOT_WRITTEN = DeliveryStatus.NOT_WRITTEN


def forbid(seen: RequestSeen) -> Action | None:
    """Let the cluster refuse to describe any topic."""

    def forbidden(answer: Any) -> Any:
        code = ErrorCode.topic_authorization_failed
        topics = (dataclasses.replace(t, error_code=code, partitions=()) for t in answer.topics)
        return dataclasses.replace(answer, topics=tuple(topics))

    return Rewrite(forbidden) if seen.api_key == ApiKey.METADATA else None


@LOOPS
async def test_each_send_to_a_forbidden_topic_has_an_error_of_its_own(
    cluster: EmbeddedCluster,
) -> None:
    """Its traceback has the frames of that call only, so that memory does not grow with calls."""
    cluster.create_topic("other")
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        cluster.intercept(forbid)
        raised: list[errors.KafkaError] = []

        async def send() -> None:
            with pytest.raises(errors.TopicAuthorizationFailedError) as caught:
                await producer.send("other", b"x")
            raised.append(caught.value)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(send)
            await send()
            batch = producer.create_batch()
            batch.append(timestamp=None, key=None, value=b"x")
            with pytest.raises(errors.TopicAuthorizationFailedError) as of_batch:
                await producer.send_batch(batch, "other", partition=0)
            with pytest.raises(errors.TopicAuthorizationFailedError) as asked:
                await producer.partitions_for("other")
    assert len({id(error) for error in raised}) == 6
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in raised}) == 1
    assert {error.status for error in [*raised, of_batch.value]} == {NOT_WRITTEN}
    assert asked.value.status is None


@LOOPS
@pytest.mark.parametrize("key", [None, b"k"])
async def test_a_record_without_an_open_transaction_is_not_written(
    cluster: EmbeddedCluster, key: bytes | None
) -> None:
    """So says the error, whichever way the record would have been queued."""
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, transactional_id="x"
    ) as producer:
        async with producer.transaction():
            await producer.send_and_wait("t", b"x")
        with pytest.raises(errors.IllegalOperation) as caught:
            await producer.send("t", b"x", key=key)
        assert caught.value.status is NOT_WRITTEN


async def test_a_serialisers_own_class_of_error_is_raised_as_it_is(
    cluster: EmbeddedCluster,
) -> None:
    """The class need not be made from its arguments: a copy says that nothing was written."""

    class FieldError(errors.KafkaError):
        def __init__(self, field: str, *, code: int) -> None:
            super().__init__(f"{field} is bad")
            self.code = code

    def refuse(_: object) -> bytes:
        raise FieldError("name", code=7)

    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, value_serializer=refuse
    ) as producer:
        with pytest.raises(FieldError, match="FieldError: name is bad") as raised:
            await producer.send("t", b"x")
    assert (raised.value.code, raised.value.status) == (7, NOT_WRITTEN)
