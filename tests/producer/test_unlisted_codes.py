"""A newer broker can refuse records with an error code that this client does not know.

KIP-1279 adds such a code, for a topic that is read-only. The records get their outcome long before
their deadline, and the error has the code's number.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, DeliveryStatus, errors
from aioidem._broker.entities import build
from aioidem._broker.intercept import Action, RequestSeen, Respond, Rewrite
from aioidem._protocol.messages import response_type
from aioidem.broker import EmbeddedCluster

from .tools import ASYNCIO, PRODUCE, bounded, numbered, producer_for, stored_values

READ_ONLY = 134
WORDS = "The topic is a mirror"


_NONE = ErrorCode.none


class Unnamed:
    """An error code that kio (the library of Kafka's message schemas) does not have."""

    name, value = "READ_ONLY_TOPIC", READ_ONLY


class Mirror:
    """An interceptor that refuses every Produce request, and counts them.

    If `appended` is True, the requests are carried out all the same.
    """

    def __init__(self, *, appended: bool = False) -> None:
        self.refused = 0
        self._appended = appended

    def __call__(self, seen: RequestSeen) -> Action | None:
        if seen.api_key != PRODUCE:
            return None
        self.refused += 1
        if self._appended:
            return Rewrite(_refusing)
        request: Any = seen.request
        answer = response_type(PRODUCE, seen.api_version)
        assert answer is not None
        topics = [
            {
                **({"topic_id": t.topic_id} if hasattr(t, "topic_id") else {"name": t.name}),
                "partition_responses": [
                    {"index": p.index, "base_offset": -1, "error_code": _NONE, "record_errors": ()}
                    for p in t.partition_data
                ],
            }
            for t in request.topic_data
        ]
        return Respond(_refusing(build(answer, {"responses": topics})))


def _refusing(answer: Any) -> Any:
    return dataclasses.replace(
        answer,
        responses=tuple(
            dataclasses.replace(
                topic,
                partition_responses=tuple(
                    dataclasses.replace(part, error_code=Unnamed(), error_message=WORDS)
                    for part in topic.partition_responses
                ),
            )
            for topic in answer.responses
        ),
    )


@pytest.mark.parametrize("records", [0, 10], ids=["from the start", "of a leader that knew us"])
@pytest.mark.anyio
@bounded(60)
async def test_the_error_of_a_topic_that_turns_read_only_has_the_number_of_its_code(
    records: int,
) -> None:
    """Records refused with an unknown code soon end UNKNOWN, and the error has the code's number.

    The outcome is not NOT_WRITTEN, because an unknown code may mean that the records were appended.
    """
    async with EmbeddedCluster(rtt=0.05, transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, batch_size=1, late_sealing=False) as producer:
            for value in numbered(records):
                await producer.send("t", value)
            mirror = Mirror()
            cluster.intercept(mirror)
            began = anyio.current_time()
            deliveries = [producer.send_nowait("t", b"refused") for _ in range(5)]
            for delivery in deliveries:
                with pytest.raises(
                    errors.UnknownError, match=f"t-0: .*{WORDS}.*{READ_ONLY}"
                ) as told:
                    await delivery
                assert told.value.errno == READ_ONLY
                assert delivery.status is DeliveryStatus.UNKNOWN
            # In virtual seconds. An outcome at the deadline would take 120.
            assert anyio.current_time() - began < 5.0
            assert mirror.refused <= 10
            cluster.intercept(None)
            await producer.send("t", b"after")
            assert producer.statistics().data_loss_events == 0
        assert stored_values(cluster) == [*numbered(records), b"after"]


@pytest.mark.anyio
@bounded(60)
async def test_what_was_appended_under_such_a_code_is_acknowledged_once() -> None:
    """Records that a broker appended and answered with an unknown code are stored once and ACKED.

    The producer sends the batches again, and the leader recognises them as duplicates.
    """
    async with EmbeddedCluster(rtt=0.05, transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, batch_size=1, late_sealing=False) as producer:
            await producer.send("t", b"first")
            mirror = Mirror(appended=True)
            cluster.intercept(lambda seen: mirror(seen) if mirror.refused < 5 else None)
            for delivery in [producer.send_nowait("t", value) for value in numbered(5)]:
                await delivery
            assert producer.statistics().epoch_bumps == 0
        assert stored_values(cluster) == [b"first", *numbered(5)]


@ASYNCIO
@pytest.mark.anyio
@bounded(60)
async def test_the_drop_in_names_the_number_too() -> None:
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True
        ) as producer:
            cluster.intercept(Mirror())
            with pytest.raises(errors.UnknownError, match=str(READ_ONLY)) as told:
                await producer.send_and_wait("t", b"refused")
            assert told.value.errno == READ_ONLY


@pytest.mark.anyio
@bounded(60)
async def test_a_transaction_is_abortable_and_says_the_number() -> None:
    async with EmbeddedCluster(rtt=0.05, transport="memory") as cluster:
        cluster.create_topic("t")
        async with producer_for(cluster, transactional_id="x") as producer:
            await producer.begin_transaction()
            await producer.send("t", b"aborted")
            cluster.intercept(Mirror())
            producer.send_nowait("t", b"refused")
            await producer.flush()
            with pytest.raises(errors.AbortableTransactionError, match=str(READ_ONLY)):
                await producer.commit_transaction()
            await producer.abort_transaction()
            cluster.intercept(None)
            async with producer.transaction():
                await producer.send("t", b"committed")
