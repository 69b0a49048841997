"""No record is lost or stored twice if streams are slow, freeze, break or carry garbage.

Each test is about a bug that another producer had, which its docstring names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from aioidem import Delivery, DeliveryStatus
from aioidem._broker.intercept import Action, CloseConnection, Delay, RequestSeen
from aioidem._network.transport import Connector
from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.messages import decode_request
from aioidem.broker import EmbeddedCluster

from .tools import (
    ONE_EACH,
    PRODUCE,
    bounded,
    numbered,
    partition_of,
    producer_for,
    stored_values,
    virtual_time,
)

pytestmark = pytest.mark.anyio

PENDING, ACKED, NOT_WRITTEN, UNKNOWN = (
    DeliveryStatus.PENDING,
    DeliveryStatus.ACKED,
    DeliveryStatus.NOT_WRITTEN,
    DeliveryStatus.UNKNOWN,
)


def marked(number: int, topic: str = "t") -> bytes:
    """Build a value that has its number at both ends, so that torn or foreign bytes show."""
    word = b"%s%06d" % (topic.encode(), number)
    return word + b"." * 986 + word


def check(deliveries: Mapping[bytes, Delivery], stored: list[Any]) -> None:
    """Assert that the log has every ACKED record and no NOT_WRITTEN one, each once and in order."""
    order = list(deliveries)
    places = [order.index(value) for value in stored]
    assert places == sorted(set(places))
    for value, delivery in deliveries.items():
        assert delivery.status is not PENDING
        if delivery.status is ACKED:
            assert value in stored
            if delivery.metadata.has_offset:
                assert stored[delivery.metadata.offset] == value
        elif delivery.status is NOT_WRITTEN:
            assert value not in stored


class Stream(ByteStream):
    """A stream around another one, for subclasses that change some of its methods."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream

    async def send(self, item: bytes) -> None:
        await self.stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self.stream.receive(max_bytes)

    async def send_eof(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        await self.stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self.stream.extra_attributes


class Trickle:
    """A connector whose streams can be slowed down to `step` bytes a second."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.step: int | None = None
        self.sent = bytearray()

    async def connect(self, host: str, port: int) -> ByteStream:
        return _Trickling(await self._connector.connect(host, port), self)


class _Trickling(Stream):
    def __init__(self, stream: ByteStream, trickle: Trickle) -> None:
        super().__init__(stream)
        self._trickle = trickle

    async def send(self, item: bytes) -> None:
        while item:
            step = self._trickle.step
            if step is not None:
                await virtual_time(1.0)
            self._trickle.sent += item[:step]
            await self.stream.send(item[:step])
            item = item[len(item) if step is None else step :]


@pytest.mark.parametrize("step", [40, 200, 700])
@bounded(600)
async def test_records_that_expire_half_written_leave_no_torn_and_no_foreign_bytes(
    step: int,
) -> None:
    """If a record expires while a slow socket has sent half of it, the log gets no wrong bytes.

    Other producers reused the buffer that the socket was still sending, so that records went to a
    wrong topic or were torn (KAFKA-19012, KAFKA-17862, librdkafka dotnet#704).
    """
    async with EmbeddedCluster(transport="memory") as cluster:
        topics = ("t", "u")
        for topic in topics:
            cluster.create_topic(topic)
        trickle = Trickle(cluster.connector)
        sent: dict[str, dict[bytes, Delivery]] = {topic: {} for topic in topics}
        async with producer_for(
            cluster,
            connector=trickle,
            delivery_timeout=8.0,
            request_timeout=4.0,
            **ONE_EACH,
        ) as producer:

            def send(number: int) -> None:
                for topic in topics:
                    value = marked(number, topic)
                    sent[topic][value] = producer.send_nowait(topic, value)

            send(0)
            await producer.flush()
            trickle.step = step
            for number in range(1, 10):
                send(number)
                await virtual_time(0.7)
            await virtual_time(12.0)
            trickle.step = None
            for number in range(10, 20):
                send(number)
            await producer.flush()
            assert producer.statistics().buffer_bytes_used == 0
        for topic, deliveries in sent.items():
            check(deliveries, stored_values(cluster, topic))
            statuses = [delivery.status for delivery in deliveries.values()]
            assert UNKNOWN in statuses[1:10], (
                "a half-written record may be in the log, so it is UNKNOWN"
            )
            for value, delivery in deliveries.items():
                assert delivery.status is not NOT_WRITTEN or value[:7] not in trickle.sent
            assert set(statuses[10:]) == {ACKED}


@pytest.mark.parametrize(("frozen", "thawed"), [(45.0, 20.0), (7.0, 0.5)])
@bounded(1000)
async def test_a_broker_that_freezes_and_thaws_again_and_again_loses_nothing(
    frozen: float, thawed: float
) -> None:
    """No record is lost or stored twice if the broker freezes and thaws again and again.

    When the broker thaws, it carries out the requests that waited in it, even if the producer has
    closed their connection (librdkafka #4134).
    """
    period = frozen + thawed

    def freeze(seen: RequestSeen) -> Action | None:
        at = (seen.now - began) % period
        return Delay(frozen - at) if seen.now < until and at < frozen else None

    async with EmbeddedCluster(transport="memory", rtt=0.01) as cluster:
        cluster.create_topic("t")
        deliveries: dict[bytes, Delivery] = {}
        async with producer_for(cluster, **ONE_EACH) as producer:
            await producer.partitions_for("t")
            began = anyio.current_time()
            until = began + 5 * period
            cluster.intercept(freeze)
            for number in range(200):
                value = marked(number)
                deliveries[value] = producer.send_nowait("t", value)
                await virtual_time(5 * period / 200)
            await producer.flush()
            assert producer.statistics().epoch_bumps == 0
        assert {delivery.status for delivery in deliveries.values()} == {ACKED}
        check(deliveries, stored_values(cluster))


class Garbler:
    """A connector that spoils the n-th answer to a Produce request."""

    def __init__(self, connector: Connector, nth: int, spoil: Callable[[bytes], bytes]) -> None:
        self._connector = connector
        self._spoil = spoil
        self._left = nth

    async def connect(self, host: str, port: int) -> ByteStream:
        return _Garbling(await self._connector.connect(host, port), self)

    def pass_on(self, api_key: int, payload: bytes) -> bytes:
        if api_key != PRODUCE:
            return payload
        self._left -= 1
        return self._spoil(payload) if self._left == 0 else payload


class _Garbling(Stream):
    def __init__(self, stream: ByteStream, garbler: Garbler) -> None:
        super().__init__(stream)
        self._garbler = garbler
        self._asked: deque[int] = deque()
        self._sent, self._received = FrameSplitter(1 << 20), FrameSplitter(1 << 20)

    async def send(self, item: bytes) -> None:
        self._asked.extend(decode_request(each)[0].api_key for each in self._sent.feed(item))
        await self.stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while True:
            answers = self._received.feed(await self.stream.receive(max_bytes))
            if answers:
                pass_on = self._garbler.pass_on
                return b"".join(frame(pass_on(self._asked.popleft(), each)) for each in answers)


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda answer: answer[:-3],
    "nothing but its header": lambda answer: answer[:5],
    "longer": lambda answer: answer + b"?",
    "another correlation id": lambda answer: b"\x7f" + answer[1:],
    "a count of two billion": lambda answer: answer[:5] + b"\xff\xff\xff\xff\x07" + answer[6:],
    "noise": lambda answer: answer[:4] + bytes(range(255, 200, -1)),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("nth", [1, 4])
@bounded(60)
async def test_an_answer_that_is_garbage_costs_its_connection_and_nothing_else(
    nth: int, spoil: Callable[[bytes], bytes]
) -> None:
    """After a garbage answer the connection is closed, and its batches are resent and stored once.

    See KAFKA-4966.
    """
    async with EmbeddedCluster(transport="memory", rtt=0.05) as cluster:
        cluster.create_topic("t")
        garbler = Garbler(cluster.connector, nth, spoil)
        async with producer_for(cluster, connector=garbler, **ONE_EACH) as producer:
            values = [marked(number) for number in range(20)]
            deliveries = [producer.send_nowait("t", value) for value in values]
            with anyio.fail_after(5.0):  # soon, and not only after a request timeout
                await producer.flush()
            statistics = producer.statistics()
            assert statistics.batches_retried > 0
            assert statistics.epoch_bumps == 0
        assert {delivery.status for delivery in deliveries} == {ACKED}
        assert stored_values(cluster) == values


@bounded(120)
async def test_what_was_buffered_when_a_connection_broke_arrives_without_a_flush() -> None:
    """Records that are buffered when a connection breaks are delivered without a flush.

    confluent-kafka-python cleared its buffer (#2071), or gave no outcome before a flush (#2154).
    """
    cut = 0
    queued: list[int] = []

    def hook(seen: RequestSeen) -> Action | None:
        nonlocal cut
        if seen.api_key == PRODUCE and cut < 5:
            cut += 1
            queued.append(partition_of(producer).pending_records)
            return CloseConnection()
        return None

    async with EmbeddedCluster(transport="memory", rtt=0.05) as cluster:
        cluster.create_topic("t")
        cluster.intercept(hook)
        async with producer_for(
            cluster, linger=0.5, batch_size=500, late_sealing=False
        ) as producer:
            deliveries = [producer.send_nowait("t", value) for value in numbered(500)]
            for delivery in deliveries:
                await delivery
        assert cut == 5
        assert all(queued), "some records were not sealed at each cut"
        assert stored_values(cluster) == numbered(500)
