"""Produce answers that do not show whether a batch was appended.

A single broker never gives such answers, so the proxy replaces the true answer. After an append,
the proxy answers like a leader that has lost its followers or its leadership since the append.
If the batch is not to be appended, the proxy damages the request, so that the broker refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.batch import parse_single_batch
from aioidem._protocol.messages import (
    decode_request,
    decode_response,
    encode_response,
    response_type,
)
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus
from aioidem.testing import Action, FaultProxy, FrameSeen, Inspect, KafkaCluster, Rewrite
from tests.kafka.tools import PRODUCE, History, bounded, check, outcomes
from tests.kafka.world import RTT, World, fill, load, nothing_noticed, producer_of, settled

pytestmark = pytest.mark.anyio

REFUSED, KEPT = -1, None


def said_instead(version: int, codes: Mapping[int, tuple[int, int | None]]) -> Rewrite:
    """Return an action that changes the error codes in a Produce answer.

    `codes` maps a partition to its new code and base offset; None keeps the true base offset.
    """
    schema = response_type(PRODUCE, version)
    assert schema is not None

    def partition(part: Any) -> Any:
        if part.index not in codes:
            return part
        code, offset = codes[part.index]
        told = part.base_offset if offset is None else offset
        return replace(part, error_code=ErrorCode(code), base_offset=told)

    def change(payload: bytes) -> bytes:
        correlation_id, response = decode_response(schema, payload)
        body: Any = response
        responses = tuple(
            replace(topic, partition_responses=tuple(map(partition, topic.partition_responses)))
            for topic in body.responses
        )
        return encode_response(replace(body, responses=responses), correlation_id)[4:]

    return Rewrite(change)


class HalfRefused:
    """A proxy hook that answers NOT_LEADER for partition 0 of requests with partitions 0 and 1.

    Only the first `requests` such requests are answered so. If `appended` is False, the hook also
    damages the batch of partition 0, so that the broker does not append it.
    """

    def __init__(self, proxy: FaultProxy, requests: int, *, appended: bool) -> None:
        self.left = requests
        self._appended = appended
        self._chosen: set[tuple[int, int]] = set()
        proxy.on_request = self._on_request
        proxy.on_answer = self._on_answer

    def _on_request(self, seen: FrameSeen) -> Action | None:
        if seen.api_key != PRODUCE or not self.left:
            return None
        return Inspect(partial(self._look, (seen.connection, seen.correlation_id)))

    def _look(self, request: tuple[int, int], payload: bytes) -> Action | None:
        body: Any = decode_request(payload)[1]
        batches = {p.index: p.records for topic in body.topic_data for p in topic.partition_data}
        if batches.keys() != {0, 1} or not self.left:
            return None
        self.left -= 1
        self._chosen.add(request)
        assert parse_single_batch(batches[0]).record_count == 1
        return None if self._appended else Rewrite(partial(_damage, batches[0]))

    def _on_answer(self, seen: FrameSeen) -> Action | None:
        if (seen.connection, seen.correlation_id) not in self._chosen:
            return None
        return said_instead(seen.api_version, {0: (ErrorCode.not_leader_or_follower, KEPT)})


def _damage(batch: bytes, payload: bytes) -> bytes:
    last = payload.index(batch) + len(batch) - 1
    return payload[:last] + bytes([payload[last] ^ 1]) + payload[last + 1 :]


@pytest.mark.parametrize("appended", [True, False], ids=["after-the-append", "before-it"])
@bounded(60)
async def test_not_leader_of_one_partition_in_a_request_of_two(
    cluster: KafkaCluster, world: World, appended: bool
) -> None:
    topic = f"half-{appended}"
    await cluster.create_topic(topic, partitions=2)
    cluster.proxy.set_link(rtt=RTT)
    async with producer_of(cluster, world) as producer:
        histories = [History(producer, topic, partition) for partition in (0, 1)]
        for history in histories:
            await fill(history, producer, world)
        half = HalfRefused(cluster.proxy, 5, appended=appended)
        async with load(world, *histories):
            await cluster.proxy.until(lambda: not half.left)
            for history in histories:
                await settled(history, 40)
        assert nothing_noticed(producer)
    for partition, history in enumerate(histories):
        calls = await check(cluster, [history], topic, partition)
        assert calls == list(range(len(history.deliveries)))
    assert histories[1].offsets() == list(range(len(histories[1].deliveries)))


@pytest.mark.parametrize(
    "code",
    [ErrorCode.request_timed_out, ErrorCode.not_enough_replicas_after_append],
    ids=["timed-out", "not-enough"],
)
@bounded(60)
async def test_appended_and_refused_then_refused_for_sure_then_found(
    cluster: KafkaCluster, world: World, code: int
) -> None:
    """A batch in doubt stays in doubt after NOT_LEADER, until a success settles it.

    If the first attempt of a batch is answered NOT_LEADER, the batch was not written. Here an
    earlier attempt was appended, so only a success of the batch or of a later one settles it.
    """
    topic = f"appended-{code}"
    await cluster.create_topic(topic)
    async with producer_of(cluster, world) as producer:
        history = History(producer, topic)
        await fill(history, producer, world)
        alone: list[tuple[int, int | None]] = [
            (code, KEPT),
            (ErrorCode.not_leader_or_follower, REFUSED),
        ]
        for batches, said in ((1, alone), (world.window, alone[:1])):
            answer_with(cluster.proxy, said)
            assert set(await outcomes(history.send(batches))) == {DeliveryStatus.ACKED}
            assert not said
        assert nothing_noticed(producer)
    assert await check(cluster, [history], topic) == list(range(5 * world.window + 1))
    assert history.offsets()[4 * world.window] == 4 * world.window


def answer_with(proxy: FaultProxy, said: list[tuple[int, int | None]]) -> None:
    """Replace the code and base offset in the next Produce answers, one item of `said` in each."""

    def on_answer(seen: FrameSeen) -> Action | None:
        if seen.api_key != PRODUCE or not said:
            return None
        return said_instead(seen.api_version, {0: said.pop(0)})

    proxy.on_answer = on_answer


@bounded(60)
async def test_what_was_appended_and_refused_ever_since_is_never_called_not_written(
    cluster: KafkaCluster, world: World
) -> None:
    await cluster.create_topic("appended-sticky")
    async with producer_of(
        cluster, world, request_timeout=0.5, delivery_timeout=1.5, retry_backoff_max=0.1
    ) as producer:
        history = History(producer, "appended-sticky")
        await fill(history, producer, world)
        answer_with(
            cluster.proxy,
            [
                (ErrorCode.request_timed_out, KEPT),
                *[(ErrorCode.not_leader_or_follower, REFUSED)] * 10_000,
            ],
        )
        [delivery] = history.send(1)
        with pytest.raises(KafkaError):
            await delivery
        cluster.proxy.on_answer = None
        assert delivery.status is DeliveryStatus.UNKNOWN
        assert set(await outcomes(history.send(10))) == {DeliveryStatus.ACKED}
        assert producer.statistics().data_loss_events == 0
    assert await check(cluster, [history], "appended-sticky") == list(range(4 * world.window + 11))
