"""The engine and the producer keep their guarantees with hostile peers and faulty callers.

Parsers are tested with the code they belong to: tests/protocol, tests/network, tests/security.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from aioidem import Producer, errors
from aioidem._aiokafka import AIOKafkaProducer
from aioidem._config import ProducerConfig
from aioidem._config.secret import Secret
from aioidem._engine import steps
from aioidem._engine.connections import Connections
from aioidem._network.sasl.scram import Scram
from aioidem._network.transport import Connector
from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.messages import decode_request, response_type
from aioidem._protocol.metadata import BrokerAddress, MetadataUpdate, TopicUpdate, metadata_update
from aioidem._protocol.produce import LeaderNode
from aioidem._protocol.versions import ApiKey
from aioidem.broker import EmbeddedCluster
from tests.engine.driver import Rig, T

from .conversation import in_virtual_time
from .samples import filled

# --- garbage in the place of a Produce answer -----------------------------------------------------


class Spoilt(ByteStream):
    """A stream on which the first answer to Produce is replaced."""

    def __init__(self, inner: ByteStream, spoiling: Spoiling) -> None:
        self._inner = inner
        self._spoiling = spoiling
        self._is_it = False
        self._asked: deque[int] = deque()
        self._requests = FrameSplitter(1 << 27)
        self._answers = FrameSplitter(1 << 27)

    async def send(self, item: bytes) -> None:
        for payload in self._requests.feed(item):
            self._asked.append(decode_request(payload)[0].api_key)
        await self._inner.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        passed = b""
        while not passed:
            for payload in self._answers.feed(await self._inner.receive(max_bytes)):
                if self._asked.popleft() == ApiKey.PRODUCE and not self._spoiling.done:
                    self._spoiling.done = self._is_it = True
                    passed += self._spoiling.spoil(payload)
                else:
                    passed += frame(payload)
        return passed

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        self._spoiling.closed |= self._is_it
        await self._inner.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}


class Spoiling:
    """A connector that replaces one answer."""

    def __init__(self, inner: Connector, spoil: Callable[[bytes], bytes]) -> None:
        self._inner = inner
        self.spoil = spoil
        self.done = False
        self.closed = False

    async def connect(self, host: str, port: int) -> ByteStream:
        return Spoilt(await self._inner.connect(host, port), self)


GARBAGE: Mapping[str, Callable[[bytes], bytes]] = {
    "a-length-of-2-GiB": lambda _: b"\x7f\xff\xff\xff",
    "HTTP": lambda _: b"HTTP/1.1 400 Bad Request\r\n",
    "a-negative-length": lambda _: b"\xff\xff\xff\xfe",
    "no-length": lambda _: bytes(4),
    "a-count-of-4-thousand-million": lambda p: frame(p[:5] + b"\xff\xff\xff\xff\x0f" + p[6:]),
    "a-varint-without-end": lambda p: frame(p[:5] + b"\xff" * 9 + p[6:]),
    "an-end-in-the-middle": lambda p: frame(p[:-3]),
    "another-correlation-id": lambda p: frame(b"\0\0\x7f\xff" + p[4:]),
    "the-answer-twice": lambda p: frame(p) * 2,
    "a-byte-too-many": lambda p: frame(p + b"\0"),
    "random-bytes": lambda _: bytes(range(200, 256)) * 4,
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_closes_the_connection_and_nothing_is_lost_or_written_twice(kind: str) -> None:
    """A garbled answer ends its connection, and its batches, which are in doubt, are sent again."""

    async def main() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            cluster.create_topic("t", partitions=1)
            spoiling = Spoiling(cluster.connector, GARBAGE[kind])
            async with Producer(cluster.bootstrap_servers, connector=spoiling) as producer:
                first = await producer.send("t", b"0")
                assert spoiling.done
                second = await producer.send("t", b"1")
                assert spoiling.closed
                if kind != "the-answer-twice":
                    assert producer.statistics().batches_retried == 1
            assert (first.offset, second.offset) == (0, 1)
            [zero, one] = [r.value for batch in cluster.batches("t") for r in batch.records()]
            assert (zero, one) == (b"0", b"1")

    in_virtual_time(main)


class Dripping(Spoilt):
    """Announces an answer of 50 KiB, and sends one byte of it per second."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._spoiling.done and not self._answers.pending:
            await anyio.sleep(1.0)  # virtual time
            return b"\0"
        return await super().receive(max_bytes)


def test_an_answer_that_drips_does_not_hold_up_its_records() -> None:
    """An answer that arrives byte by byte does not keep its record past the record's deadline."""

    async def main() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            cluster.create_topic("t", partitions=1)
            spoiling = Spoiling(cluster.connector, lambda _: (50 << 10).to_bytes(4, "big"))

            class Connecting:
                async def connect(self, host: str, port: int) -> ByteStream:
                    stream = await cluster.connector.connect(host, port)
                    return (Spoilt if spoiling.done else Dripping)(stream, spoiling)

            producer = Producer(
                cluster.bootstrap_servers,
                connector=Connecting(),
                request_timeout=2.0,
                delivery_timeout=10.0,
            )
            async with producer:
                began = anyio.current_time()
                with pytest.raises(errors.KafkaError):
                    await producer.send("t", b"0")
                assert anyio.current_time() - began <= 12.1
                assert (await producer.send("t", b"1")).offset == 1

    in_virtual_time(main)


def test_an_answer_longer_than_its_request_can_need_is_not_waited_for() -> None:
    """A length prefix larger than any answer to the request ends the connection at once."""

    async def main() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            cluster.create_topic("t", partitions=1)
            spoiling = Spoiling(cluster.connector, lambda _: (1 << 20).to_bytes(4, "big"))
            async with Producer(cluster.bootstrap_servers, connector=spoiling) as producer:
                began = anyio.current_time()
                assert (await producer.send("t", b"0")).offset == 0
                assert anyio.current_time() - began <= 2.0
            assert spoiling.closed

    in_virtual_time(main)


# --- what metadata may say ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_id", "host", "port"),
    [
        *[(1, "", 9092), (1, "a", 0), (1, "a", 70_000), (1, "a", -1), (-1, "a", 9092)],
        *[(1, "a\nb", 9092), (1, "a b", 9092), (1, "a\0", 9092), (1, ".", 9092), (1, ".a", 9092)],
        *[(1, "x" * 256, 9092), (1, "a/b", 9092), (1, "u@a", 9092), (1, "\u202eb", 9092)],
    ],
)
def test_an_address_that_cannot_be_one_is_left_out(node_id: int, host: str, port: int) -> None:
    """A broker with an impossible address in Metadata is ignored, and the others are kept."""
    schema: Any = response_type(ApiKey.METADATA, 12)
    module = __import__(schema.__module__, fromlist=["MetadataResponseBroker"])
    brokers = tuple(
        filled(module.MetadataResponseBroker, node_id=each[0], host=each[1], port=each[2])
        for each in [(node_id, host, port), (2, "kafka_1.example.org.", 9092), (3, "fe80::1%lo", 1)]
    )
    update = metadata_update(filled(schema, brokers=brokers))
    assert [broker.node_id for broker in update.brokers] == [2, 3]
    assert not BrokerAddress(node_id, host, port).possible


class OtherCluster(Rig):
    """A cluster whose Metadata answers contain invented topics."""

    invented = 0

    def metadata(self, topics: Iterable[str]) -> MetadataUpdate:
        update = super().metadata(topics)
        known = update.topics[0]
        more = [
            TopicUpdate(f"invented-{number}", None, 0, known.partitions)
            for number in range(self.invented)
        ]
        return update._replace(topics=(*update.topics, *more))


def test_another_cluster_id_is_reported_once() -> None:
    """A changed cluster ID is reported once, in printable text."""
    rig = OtherCluster()
    rig.start()
    rig.send()
    rig.ack_all()
    assert not [event for event in rig.events if "the cluster changed" in event]
    rig.cluster_id = "another\n"
    for _ in range(3):
        rig.core.metadata.want()
        rig.tick(3.0)
    [event] = [event for event in rig.events if "the cluster changed" in event]
    assert event.isprintable()
    assert "cluster to another\\n" in event


def test_topics_that_were_not_asked_for_are_not_kept() -> None:
    """The producer ignores topics that it did not ask for, so a broker cannot fill its memory."""
    rig = OtherCluster()
    rig.start()
    rig.invented = 100
    rig.send()
    rig.ack_all()
    assert set(rig.core.cluster.topics) == {T}


def test_brokers_that_are_gone_are_forgotten_when_they_are_many() -> None:
    """The producer forgets removed brokers if there are many, which bounds its memory."""
    connections = Connections(ProducerConfig.build("a:1,b:2"), lambda: 0.5)
    for answer in range(50):
        connections.learn([BrokerAddress(answer * 100 + n, "a", 9092) for n in range(100)])
    assert len(connections.nodes) <= 1102
    assert {-1, -2, *range(4900, 5000)} <= set(connections.nodes)


def test_a_new_leaders_address_is_taken_of_leaders_only() -> None:
    """Of the addresses in a Produce answer, the producer keeps only those of new leaders."""
    rig = Rig().start()
    rig.send()
    request = rig.outstanding()[0]
    rig.hold = (steps.OpenLink,)
    invented = tuple(LeaderNode(1000 + number, "a", 9092) for number in range(100))
    entry = rig.entry(request, request.only, 6, leader_id=1007, leader_epoch=9)
    rig.answer(request, [entry], leaders=invented, poll=False)
    assert [node for node in rig.core.cluster.brokers if node >= 1000] == [1007]


# --- text -----------------------------------------------------------------------------------------


def test_what_a_scram_server_says_is_escaped_and_cut() -> None:
    """The error text of a SCRAM server is escaped and shortened."""
    client = Scram("SCRAM-SHA-256", "user", Secret("pencil"), "abc")
    client.first()
    client.next(b"r=abcdef,s=" + b"A" * 16 + b",i=4096")
    with pytest.raises(errors.AuthenticationFailedError) as caught:
        client.next(b"e=\x1b[2Jnew\nline" + b"x" * 4000)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_the_servers_whole_nonce_goes_back() -> None:
    """SCRAM's last message has the server's whole nonce (CVE-2024-56128, KAFKA-13464)."""
    client = Scram("SCRAM-SHA-256", "user", Secret("pencil"), "abc")
    client.first()
    proof = client.next(b"r=abcdef,s=" + b"A" * 16 + b",i=4096")
    assert proof is not None
    assert proof.startswith(b"c=biws,r=abcdef,p=")


# --- callers' code --------------------------------------------------------------------------------


class BoomError(Exception):
    """Raised by the caller's code."""


def _headers() -> Iterator[tuple[str, bytes]]:
    yield "a", b"b"
    raise BoomError


@pytest.mark.parametrize("chosen", [7, -1, None, "0", []], ids=repr)
def test_a_partitioner_that_chooses_nonsense_is_refused(chosen: Any) -> None:
    """A partition that cannot exist is refused at the call, and the next record is delivered."""

    async def main() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            cluster.create_topic("t", partitions=1)
            async with Producer(
                cluster.bootstrap_servers,
                connector=cluster.connector,
                partitioner=lambda *_: chosen,
            ) as producer:
                with pytest.raises(
                    errors.RecordError, match="which is none of the 1 partitions of topic 't'"
                ):
                    await producer.send("t", b"x", key=b"k")
                assert (await producer.send("t", b"1", partition=0)).offset == 0

    in_virtual_time(main)


@pytest.mark.parametrize("known", [True, False], ids=["topic known", "topic new"])
def test_a_headers_iterator_or_a_partitioner_that_raises_takes_no_sequence(known: bool) -> None:
    """An exception of the caller's code takes no sequence number (franz-go c733b9d)."""
    fails = [False]

    def partitioner(_key: bytes | None, everything: Any, _available: Any) -> int:
        if fails[0]:
            raise BoomError
        chosen: int = everything[0]
        return chosen

    async def main() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            cluster.create_topic("t", partitions=1)
            async with Producer(
                cluster.bootstrap_servers, connector=cluster.connector, partitioner=partitioner
            ) as producer:
                if known:
                    await producer.send("t", b"0", partition=0)
                headers: Any = _headers()
                with pytest.raises(BoomError):
                    await producer.send("t", b"x", headers=headers)
                fails[0] = True
                with pytest.raises(errors.RecordError, match="Boom"):
                    await producer.send("t", b"x", key=b"k")
                with pytest.raises(errors.RecordError):
                    await producer.send_many("t", [b"x"], key=b"k")
                fails[0] = False
                assert (await producer.send("t", b"1")).offset == int(known)
                assert producer.statistics().buffer_bytes_used == 0

    in_virtual_time(main)


def test_a_values_iterator_may_send_and_may_raise() -> None:
    """The iterator given to `send_many` may itself send records, and may raise."""

    async def main() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            cluster.create_topic("t", partitions=1)
            async with Producer(cluster.bootstrap_servers, connector=cluster.connector) as producer:

                def values() -> Iterator[bytes]:
                    yield b"0"
                    producer.send_nowait("t", b"within", partition=0)
                    yield b"1"
                    raise BoomError

                with pytest.raises(errors.PartialDeliveryError) as raised:
                    await producer.send_many("t", values(), partition=0)
                assert isinstance(raised.value.__cause__, BoomError)
                assert len(raised.value.deliveries) == 2
                await producer.send("t", b"2", partition=0)
            stored = [r.value for batch in cluster.batches("t") for r in batch.records()]
            assert sorted(str(value) for value in stored) == sorted(
                str(value) for value in (b"0", b"within", b"1", b"2")
            )

    in_virtual_time(main)


def test_a_serializer_that_raises_takes_no_sequence() -> None:
    """In the aiokafka drop-in a serializer's exception reaches the caller; no sequence is used."""

    def serializer(value: Any) -> bytes:
        if value == "boom":
            raise BoomError
        raw: bytes = value.encode()
        return raw

    async def main() -> None:
        async with EmbeddedCluster() as cluster:
            cluster.create_topic("t", partitions=1)
            async with AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers,
                value_serializer=serializer,
                enable_idempotence=True,
            ) as producer:
                assert (await producer.send_and_wait("t", "0")).offset == 0
                with pytest.raises(BoomError):
                    await producer.send("t", "boom")
                assert (await producer.send_and_wait("t", "1")).offset == 1

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "aioidem")
