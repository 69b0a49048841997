"""Late sealing lets a batch grow beyond `batch.size` only up to the topic's known size limit.

A batch that is refused for its size, and whose refusal is lost, is in doubt: the producer may not
split the batch, and the broker refuses every copy. So the producer sends a batch larger than
`batch.size` only if the topic is known to accept that size.
"""

from __future__ import annotations

import dataclasses

import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, errors
from aioidem._broker.entities import Entity
from aioidem._broker.intercept import Action, CloseConnection, RequestSeen, Rewrite
from aioidem.broker import EmbeddedCluster

from .tools import DESCRIBE_CONFIGS, PRODUCE, bounded, producer_for, stored_values

pytestmark = pytest.mark.anyio

RTT = 0.05
LIMIT = "max.message.bytes"
BATCH_SIZE = 16384


def value(number: int) -> bytes:
    return (b"%06d" % number).ljust(100, b".")


def denied(answer: Entity) -> Entity:
    results = tuple(
        dataclasses.replace(result, error_code=ErrorCode.topic_authorization_failed, configs=())
        for result in answer.results
    )
    return dataclasses.replace(answer, results=results)


class OneAnswerLost:
    """An interceptor that closes the connection instead of answering the `nth` Produce request.

    The broker carries that request out. If `granted` is False, the broker refuses DescribeConfigs.
    `largest` is the size of the largest batch seen, in bytes.
    """

    def __init__(self, nth: int, *, granted: bool = True) -> None:
        self.nth = nth
        self.granted = granted
        self.requests = 0
        self.largest = 0

    def __call__(self, seen: RequestSeen) -> Action | None:
        if seen.api_key == DESCRIBE_CONFIGS and not self.granted:
            return Rewrite(denied)
        if seen.api_key != PRODUCE:
            return None
        self.requests += 1
        self.largest = max(
            self.largest,
            *(len(p.records) for t in seen.request.topic_data for p in t.partition_data),
        )
        return CloseConnection(processed=True) if self.requests == self.nth else None


@pytest.mark.parametrize("granted", [True, False], ids=["told", "not-told"])
@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("nth", [1, 3, 6, 7, 8, 9, 10, 12])
@bounded(120)
async def test_a_lost_answer_leaves_no_batch_that_the_topic_would_never_take(
    nth: int, codec: str, granted: bool
) -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs={LIMIT: "65536"})
        wire = OneAnswerLost(nth, granted=granted)
        cluster.intercept(wire)
        async with producer_for(cluster, compression_type=codec) as producer:
            deliveries = [producer.send_nowait("t", value(n)) for n in range(4000)]
            await producer.flush()
            assert [each.status for each in deliveries] == [DeliveryStatus.ACKED] * 4000
        assert stored_values(cluster) == [value(n) for n in range(4000)]
        assert wire.largest <= (65536 if granted else BATCH_SIZE)


@bounded(60)
async def test_batches_grow_to_the_known_limit_of_their_topic_and_no_further() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs={LIMIT: "65536"})
        wire = OneAnswerLost(-1)
        cluster.intercept(wire)
        async with producer_for(cluster) as producer:
            deliveries = [producer.send_nowait("t", value(n)) for n in range(9000)]
            await producer.flush()
            assert {each.status for each in deliveries} == {DeliveryStatus.ACKED}
            assert producer.statistics().batches_split == 0
        assert 60_000 < wire.largest <= 65536


@bounded(60)
async def test_batch_size_itself_yields_to_the_known_limit_of_the_topic() -> None:
    """If the topic's limit is smaller than `batch.size`, only the first batch is refused and split.

    After that refusal the producer asks for the limit, and makes no larger batch.
    """
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs={LIMIT: "5000"})
        async with producer_for(cluster, late_sealing=False) as producer:
            deliveries = [producer.send_nowait("t", value(n)) for n in range(4000)]
            await producer.flush()
            assert {each.status for each in deliveries} == {DeliveryStatus.ACKED}
            assert producer.statistics().batches_split == 1
        assert stored_values(cluster) == [value(n) for n in range(4000)]
        sizes = [len(batch.raw) for batch in cluster.batches("t")]
        assert max(sizes) > 4800


@bounded(60)
async def test_a_limit_that_is_lowered_is_asked_for_again() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs={LIMIT: "65536"})
        async with producer_for(cluster) as producer:
            deliveries = [producer.send_nowait("t", value(n)) for n in range(9000)]
            await deliveries[3000]
            cluster.set_config("t", LIMIT, 30_000)
            await producer.flush()
            split = producer.statistics().batches_split
            deliveries += [producer.send_nowait("t", value(n)) for n in range(9000, 18_000)]
            await producer.flush()
            assert {each.status for each in deliveries} == {DeliveryStatus.ACKED}
            assert producer.statistics().batches_split == split > 0
        assert stored_values(cluster) == [value(n) for n in range(18_000)]


@bounded(60)
async def test_the_error_of_a_record_too_large_by_itself_has_its_size_and_the_limit() -> None:
    async with EmbeddedCluster(rtt=RTT, transport="memory") as cluster:
        cluster.create_topic("t", configs={LIMIT: "5000"})
        async with producer_for(cluster) as producer:
            await producer.send("t", b"")
            with pytest.raises(
                errors.MessageSizeTooLargeError,
                match=r"max\.message\.bytes of the topic \(5000 bytes\)",
            ) as told:
                await producer.send("t", bytes(6000))
            assert told.value.status is DeliveryStatus.NOT_WRITTEN
            await producer.send("t", b"")
