"""Helpers for tests of the whole producer: time limits, records to send, and a tap on the wire.

The tap decodes the frames of every connection, and so does not depend on the engine's own counts.
It counts two things that the embedded broker does not count: the requests in flight on each
connection, and the span of each partition at each broker, also after the leader has moved. The span
is the number of batches from a producer's oldest unresolved batch to the newest one that the broker
has read.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import anyio
import pytest
from anyio.abc import ByteStream

from aioidem import Producer
from aioidem._broker.batch import parse_single_batch
from aioidem._broker.entities import build
from aioidem._broker.spans import PartitionSpans, Verdict
from aioidem._network.transport import Connector
from aioidem._producer.metrics import PartitionStatistics
from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.messages import (
    decode_request,
    decode_response,
    encode_request,
    request_type,
    response_type,
)
from aioidem.broker import EmbeddedCluster

P = ParamSpec("P")
T = TypeVar("T")

PRODUCE, METADATA, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = 0, 3, 22, 32
RETAIN = "producer.state.batches.to.retain"
CLUSTER_RETAIN = "log.producer.state.batches.to.retain"

EVERY_WORLD = pytest.mark.parametrize(
    "anyio_backend", ["virtual", "asyncio", "uvloop", "trio"], indirect=True
)
REAL_LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)
ASYNCIO_LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)
ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)

# Options for one record per batch: the span, in batches, is then the number of records.
ONE_EACH: Mapping[str, Any] = {"batch_size": 1, "late_sealing": False}


def bounded(
    seconds: float,
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Fail a test that takes longer than `seconds`, in virtual time if the test runs in that."""

    def decorate(test: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(test)
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            with anyio.fail_after(seconds):
                return await test(*args, **kwargs)

        return run

    return decorate


async def virtual_time(seconds: float) -> None:
    """Wait for `seconds`: in virtual time the clock jumps, and on a real clock this is a sleep."""
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


def producer_for(
    cluster: EmbeddedCluster, *, connector: Connector | None = None, **options: Any
) -> Producer:
    """Make a producer for this cluster; the caller starts the producer."""
    return Producer(cluster.bootstrap_servers, connector=connector or cluster.connector, **options)


def partition_of(producer: Producer, topic: str = "t", partition: int = 0) -> PartitionStatistics:
    """Return the producer's statistics of one partition."""
    [found] = [
        each
        for each in producer.statistics().partitions
        if (each.topic, each.partition) == (topic, partition)
    ]
    return found


def stored_values(cluster: EmbeddedCluster, topic: str = "t", partition: int = 0) -> list[Any]:
    """Return the values of the records in the leader's log of a partition, in order."""
    return [
        record.value for batch in cluster.batches(topic, partition) for record in batch.records()
    ]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return the values of `count` records: the numbers from `start` on, as text."""
    return [b"%d" % number for number in range(start, start + count)]


async def ask(
    cluster: EmbeddedCluster, api_key: int, version: int, *, broker: int = 0, **of: Any
) -> Any:
    """Send one request to one broker over the wire, and return the answer."""
    schema, answer = request_type(api_key, version), response_type(api_key, version)
    assert schema is not None
    assert answer is not None
    request = build(schema, of)
    host, port = cluster.bootstrap_servers.split(",")[broker].rsplit(":", 1)
    stream = await cluster.connector.connect(host, int(port))
    try:
        await stream.send(encode_request(request, correlation_id=1, client_id="test"))
        splitter = FrameSplitter(1 << 20)
        while not (frames := splitter.feed(await stream.receive(65536))):
            pass
    finally:
        await anyio.aclose_forcefully(stream)
    return decode_response(answer, frames[0])[1]


class Wire:
    """One tapped connection, and its requests that have no answer yet."""

    def __init__(self, tap: Tap, address: tuple[str, int]) -> None:
        self.address = address
        self.outstanding: deque[tuple[int, int, int, list[tuple[Any, int, int, int]]]] = deque()
        self.max_outstanding = 0
        self._tap = tap
        self._sent = FrameSplitter(1 << 27)
        self._received = FrameSplitter(1 << 27)

    def send(self, data: bytes) -> None:
        for payload in self._sent.feed(data):
            header, request = decode_request(payload)
            batches = _batches(request) if header.api_key == PRODUCE else []
            for place, pid, epoch, sequence in batches:
                self._tap.spans(self.address, place).read(pid, epoch, sequence)
            self._tap.requests.append((self.address, header.api_key, header.api_version))
            if getattr(request, "acks", -1) == 0:
                continue
            self.outstanding.append(
                (header.api_key, header.api_version, header.correlation_id, batches)
            )
            self.max_outstanding = max(self.max_outstanding, len(self.outstanding))

    def receive(self, data: bytes) -> bytes:
        passed = []
        for payload in self._received.feed(data):
            api_key, version, _, batches = self.outstanding.popleft()
            rewritten = self._tap.rewrite(api_key, version, payload)
            passed.append(frame(rewritten))
            if batches:
                self._answered(version, rewritten, batches)
        return b"".join(passed)

    def _answered(
        self, version: int, payload: bytes, batches: list[tuple[Any, int, int, int]]
    ) -> None:
        schema = response_type(PRODUCE, version)
        assert schema is not None
        response: Any = decode_response(schema, payload)[1]
        verdicts = {
            (getattr(topic, "topic_id", None) or topic.name, part.index): _verdict(part)
            for topic in response.responses
            for part in topic.partition_responses
        }
        for place, pid, epoch, sequence in batches:
            self._tap.spans(self.address, place).answered(pid, epoch, sequence, verdicts[place])


def _batches(request: Any) -> list[tuple[Any, int, int, int]]:
    found = []
    for topic in request.topic_data:
        for part in topic.partition_data:
            header = parse_single_batch(part.records)
            place = (getattr(topic, "topic_id", None) or topic.name, part.index)
            found.append((place, header.producer_id, header.producer_epoch, header.base_sequence))
    return found


def _verdict(part: Any) -> Verdict:
    if int(part.error_code) == 0:
        return Verdict.STORED
    return Verdict.REFUSED if part.base_offset < 0 else Verdict.UNSURE


class Tap:
    """A connector that taps every connection, and can change answers on their way.

    Args:
        connector: the connector that opens the connections.
        rewrite: takes the API key, the version and the payload of an answer, and returns the
            payload to hand on.
    """

    def __init__(
        self,
        connector: Connector,
        rewrite: Callable[[int, int, bytes], bytes] = lambda _key, _version, payload: payload,
    ) -> None:
        self.rewrite = rewrite
        self.wires: list[Wire] = []
        self.requests: list[tuple[tuple[str, int], int, int]] = []
        self._connector = connector
        self._spans: dict[tuple[tuple[str, int], Any], PartitionSpans] = {}

    async def connect(self, host: str, port: int) -> ByteStream:
        stream = await self._connector.connect(host, port)
        wire = Wire(self, (host, port))
        self.wires.append(wire)
        return _Tapped(stream, wire)

    def spans(self, address: tuple[str, int], place: Any) -> PartitionSpans:
        """Return the object that counts the batches in flight of one partition at one broker."""
        return self._spans.setdefault((address, place), PartitionSpans())

    def max_span(self, port_or_host: str | int) -> int:
        """Return the largest span of a partition at the broker of this host or port, in batches."""
        return max(
            (s.max_span() for (address, _), s in self._spans.items() if port_or_host in address),
            default=0,
        )

    def versions(self, api_key: int) -> list[int]:
        """Return the versions of the requests of one API, in order."""
        return [version for _, key, version in self.requests if key == api_key]


class _Tapped(ByteStream):
    def __init__(self, stream: ByteStream, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    async def send(self, item: bytes) -> None:
        self._wire.send(item)
        await self._stream.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while True:
            passed = self._wire.receive(await self._stream.receive(max_bytes))
            if passed:
                return passed

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes
