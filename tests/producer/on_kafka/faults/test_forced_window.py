"""What goes wrong in a producer that sends one batch more than the broker remembers.

`RawProducer` does what the protocol allows and other clients do: it resends unanswered batches,
oldest first; it takes OUT_OF_ORDER for a gap, bumps the epoch, and sends the batch once more with
the first sequence of the new epoch. test_windows.py has the same test for aioidem: twenty-one
batches in flight where the broker retains twenty.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import from_ms
from aioidem._network.transport import TcpConnector
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.produce import (
    PartitionAnswer,
    decode_produce_response,
    encode_produce_request,
)
from aioidem._records import build_batch
from aioidem.testing import (
    Anomaly,
    KafkaCluster,
    Outcome,
    Row,
    ValueId,
    check_history,
    make_value,
)
from tests.kafka.tools import bounded, records_of
from tests.kafka.world import World, until

pytestmark = pytest.mark.anyio

VERSION = 11  # of Produce: it identifies topics by name, and every broker here has it
INIT_PRODUCER_ID = (22, 4)
HOST = "127.0.0.1"


class Plain(NamedTuple):
    """One record for `build_batch`."""

    value: bytes
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0


class RawProducer:
    """A client that sends batches of one record to one partition; the test itself resends them."""

    def __init__(self, cluster: KafkaCluster, topic: str, producer_id: int) -> None:
        self._port = cluster.brokers[0].port
        self._topic = topic
        self._producer_id = producer_id
        # Records have the current time, because a broker soon forgets a producer of old records.
        self._timestamp_ms = round(time.time() * 1000)

    async def send(
        self, values: Sequence[bytes], *, epoch: int = 0, first: int = 0
    ) -> list[PartitionAnswer]:
        """Send one batch per value on a new connection, without waiting, and return all answers."""
        splitter = FrameSplitter(1 << 20)
        answers: list[PartitionAnswer] = []
        async with await TcpConnector().connect(HOST, self._port) as stream:
            for number, value in enumerate(values):
                await stream.send(self._request(number, value, epoch, first + number))
            while len(answers) < len(values):
                for payload in splitter.feed(await stream.receive()):
                    answers += decode_produce_response(VERSION, payload)[1].partitions
        return answers

    def _request(self, number: int, value: bytes, epoch: int, sequence: int) -> bytes:
        batch = build_batch(
            [Plain(value, timestamp_ms=self._timestamp_ms)],
            producer_id=self._producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        return encode_produce_request(
            VERSION,
            correlation_id=number,
            client_id="raw",
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topics=[(self._topic, None, [(0, batch.data)])],
        )


async def new_producer_id(cluster: KafkaCluster) -> int:
    """Return a new producer id, as soon as the broker hands one out.

    A broker that has just started asks its controller for ids first.
    """
    given: list[int] = []

    async def granted() -> bool:
        answer = await cluster.ask(
            *INIT_PRODUCER_ID,
            transactional_id=None,
            transaction_timeout=from_ms(0),
            producer_id=-1,
            producer_epoch=-1,
        )
        given.append(answer.producer_id)
        return bool(answer.error_code == ErrorCode.none)

    await until(granted)
    return given[-1]


@pytest.mark.parametrize("over", [0, 1], ids=["as-many-as-are-remembered", "one-more"])
@bounded(60)
async def test_one_batch_beyond_what_is_remembered_is_refused_and_its_cure_writes_it_twice(
    cluster: KafkaCluster, world: World, over: int
) -> None:
    topic, batches = f"forced-{over}", world.window + over
    await cluster.create_topic(topic)
    raw = RawProducer(cluster, topic, await new_producer_id(cluster))
    ids = [ValueId("raw", topic, 0, call) for call in range(batches)]
    values = [make_value(each).hex().encode() for each in ids]

    appended = await raw.send(values)
    assert [each.base_offset for each in appended] == list(range(batches))
    # The client behaves as if these answers had been lost with their connection.
    again = await raw.send(values)
    refused = [
        call
        for call, each in enumerate(again)
        if each.error_code == ErrorCode.out_of_order_sequence_number
    ]
    assert refused == list(range(over))
    assert [each.base_offset for each in again[over:]] == list(range(over, batches))
    if over:
        cured = await raw.send([values[call] for call in refused], epoch=1)
        assert [each.error_code for each in cured] == [ErrorCode.none]

    now = anyio.current_time()
    rows = [Row(each, topic, 0, now, Outcome.ACKED, each.call, now) for each in ids]
    wrong = check_history(rows, records_of(topic, 0, await cluster.dump_log(topic)))
    assert [each.anomaly for each in wrong] == [Anomaly.DUPLICATE] * over
