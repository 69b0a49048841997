"""A new partition gets one batch at a time until the broker has stored one.

The broker creates the topics at the first request and becomes their leader a little later. It
accepts any first sequence of a producer that it has no state of. If it got two batches while it
becomes the leader, it could refuse the first and accept the second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import (
    decode_request,
    decode_response,
    encode_response,
    response_type,
)
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, KafkaCluster, Rewrite
from tests.kafka.tools import PRODUCE, History, SpanCount, bounded, check, outcomes
from tests.kafka.world import RTT, World, nothing_noticed, producer_of

pytestmark = pytest.mark.anyio

TOPICS, RECORDS = 3, 50
REFUSALS = 3


@bounded(60)
async def test_new_partitions_get_one_batch_until_they_have_answered_for_one(
    cluster: KafkaCluster, world: World
) -> None:
    for number in range(TOPICS):
        topic = f"new-{number}"
        spans = SpanCount(cluster.proxy)
        unanswered: list[int] = []

        def count(spans: SpanCount = spans, unanswered: list[int] = unanswered) -> None:
            if 0 not in spans.codes:
                unanswered.append(spans.requests - spans.answers + 1)

        spans.answer = count
        async with producer_of(cluster, world) as producer:
            history = History(producer, topic)
            assert set(await outcomes(history.send(RECORDS))) == {DeliveryStatus.ACKED}
        assert set(unanswered) == {1}
        assert spans.max_span() == world.window
        assert await check(cluster, [history], topic) == list(range(RECORDS))


class FirstRefused:
    """A proxy hook that makes the first `requests` Produce requests fail with NOT_LEADER.

    The hook damages each request, so that the broker appends nothing, and replaces the code in the
    answer, as if the broker did not know yet that it leads. `said` holds the broker's own codes.
    """

    def __init__(self, spans: SpanCount, requests: int) -> None:
        self.said: list[int] = []
        self._spans = spans
        self._damaged = self._answered = 0
        self._left = requests

    def request(self) -> Action | None:
        if self._damaged == self._left:
            return None
        self._damaged += 1
        return Rewrite(damaged)

    def answer(self) -> Action | None:
        if self._answered == self._left:
            return None
        self._answered += 1
        return Rewrite(self._refused)

    def _refused(self, payload: bytes) -> bytes:
        [version] = self._spans.versions
        schema = response_type(PRODUCE, version)
        assert schema is not None
        correlation_id, response = decode_response(schema, payload)
        body: Any = response
        [topic] = body.responses
        [part] = topic.partition_responses
        self.said.append(int(part.error_code))
        part = replace(part, error_code=ErrorCode(ErrorCode.not_leader_or_follower), base_offset=-1)
        topic = replace(topic, partition_responses=(part,))
        return encode_response(replace(body, responses=(topic,)), correlation_id)[4:]


def damaged(payload: bytes) -> bytes:
    """Return a Produce request of one batch whose checksum no longer fits."""
    body: Any = decode_request(payload)[1]
    [topic] = body.topic_data
    [part] = topic.partition_data
    last = payload.index(part.records) + len(part.records) - 1
    return payload[:last] + bytes([payload[last] ^ 1]) + payload[last + 1 :]


@bounded(60)
async def test_the_first_batch_of_a_new_partition_is_refused(
    cluster: KafkaCluster, world: World
) -> None:
    """A refused first batch is resent alone, and later batches are sent when it is stored."""
    spans = SpanCount(cluster.proxy)
    first = FirstRefused(spans, REFUSALS)
    unanswered: list[int] = []
    widest: list[int] = []
    # The round trip is long enough for the proxy to see a second batch, if one were sent, before
    # the first is answered.
    cluster.proxy.set_link(rtt=RTT)

    def answer() -> Action | None:
        if ErrorCode.none not in spans.codes:
            unanswered.append(spans.requests - spans.answers + 1)
            widest.append(spans.max_span())
        return first.answer()

    spans.request, spans.answer = first.request, answer
    async with producer_of(cluster, world) as producer:
        history = History(producer, "new-refused")
        assert set(await outcomes(history.send(RECORDS))) == {DeliveryStatus.ACKED}
        assert nothing_noticed(producer)
    assert first.said == [ErrorCode.corrupt_message] * REFUSALS
    assert len(unanswered) > REFUSALS  # it also has the first success (and any real refusals)
    assert (set(unanswered), set(widest)) == ({1}, {1})
    assert spans.max_span() == world.window
    assert history.offsets() == list(range(RECORDS))
    assert await check(cluster, [history], "new-refused") == list(range(RECORDS))
