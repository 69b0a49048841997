"""Measure how long one answer of a hostile broker blocks the event loop of a producer.

    python benchmarks/hostile_answers.py [--mebibytes 1,6,16]

A producer writes to the embedded broker, in one process and on one event loop. One answer is
replaced by a well-formed one of the given size. A ticker on the same loop measures the longest time
between two of its ticks. An answer that is refused is refused because of its length, so it does not
block the loop. The last two answers are honest: they concern 80,000 records, which the first one
settles and the second one assigns to partitions.

The smallest of three runs is shown, because a busy machine can only add to the time. It includes
garbage collections of the answer's objects, but not of those that existed before: the broker in
this process, all schemas, and the waiting records. With hundreds of thousands of objects Python's
full collection takes a tenth of a second, whatever the answer is.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import ByteStream

from aioidem import Producer
from aioidem._network.transport import Connector
from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.messages import decode_request
from aioidem._protocol.versions import ApiKey
from aioidem.broker import EmbeddedCluster
from aioidem.errors import KafkaError

_CHUNK: Final = 1 << 16
_RUNS: Final = 3
_GIVE_UP: Final = 60.0
_TICK: Final = 0.001
_RECORDS: Final = 10_000
_CONCERNED: Final = 80_000
_PARTITIONS: Final = 12
_OPTIONS: Final[Mapping[str, Any]] = {
    "max_block": 30.0,
    "request_timeout": 1.0,
    "delivery_timeout": 2.0,
    "batch_size": 1 << 20,
    "linger": 0.01,
    "metadata_max_age": 1000.0,
}

Load = Callable[[Producer], Awaitable[None]]
"""A function that lets a producer work during the measurement."""

Forge = Callable[[bytes, int, int], bytes]
"""A function that forges an answer from the honest one, its version and a size in bytes."""


class Case(NamedTuple):
    """One kind of answer, with the work of the producer that receives it."""

    what: str
    api_key: ApiKey
    forge: Forge
    load: Load
    options: Mapping[str, Any] = {}
    sized: bool = True
    """Whether the case is measured with each size of the answer."""


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


_PARTITION: Final = Struct(">hiiiBBBB")
_INT32: Final = Struct(">i")


def _metadata(topics: list[tuple[str, bytes]], version: int, honest: bytes) -> bytes:
    # The bytes before the topics, which name the brokers, are those of the honest answer.
    made = _array([_topic(name, partitions) for name, partitions in topics])
    return honest[: _topics_at(honest)] + made + (b"\0\0\0" if version >= 13 else b"\0")


def _topics_at(honest: bytes) -> int:
    at = 4 + 1 + 4
    brokers, at = honest[at] - 1, at + 1
    for _ in range(brokers):
        at += 4
        at += honest[at]
        at += 4
        at += max(honest[at], 1)
        at += 1
    return at + max(honest[at], 1) + 4


def _array(items: list[bytes]) -> bytes:
    return _uvarint(len(items) + 1) + b"".join(items)


_IDS: Final[dict[str, bytes]] = {}


def _topic(name: str, partitions: bytes) -> bytes:
    raw = name.encode()
    topic_id = _IDS.get(name, bytes(15) + b"\x09")
    count = len(partitions) // _PARTITION.size
    return (
        b"\0\0"
        + _uvarint(len(raw) + 1)
        + raw
        + topic_id
        + b"\0"
        + _uvarint(count + 1)
        + partitions
        + b"\x80\0\0\0\0"
    )


def _partitions(count: int) -> bytes:
    return b"".join(_PARTITION.pack(0, index, 0, 0, 1, 1, 1, 0) for index in range(count))


def asked_topic(honest: bytes, version: int, nbytes: int) -> bytes:
    """Forge Metadata in which the requested topic has as many partitions as fit."""
    at = honest.find(b"\x02t")
    if at < 0:
        return honest
    _IDS["t"] = honest[at + 2 : at + 18]
    count = (nbytes - 1000) // _PARTITION.size
    return _metadata([("t", _partitions(count))], version, honest)


def other_topics(honest: bytes, version: int, nbytes: int) -> bytes:
    """Forge Metadata with the requested topic and as many other topics as fit."""
    at = honest.find(b"\x02t")
    if at < 0:
        return honest
    _IDS["t"] = honest[at + 2 : at + 18]
    one = _partitions(1)
    size = len(_topic("x" * 9, one))
    others = [(f"x{number:08}", one) for number in range((nbytes - 1000) // size)]
    return _metadata([("t", one), *others], version, honest)


def record_errors(honest: bytes, version: int, nbytes: int) -> bytes:
    """Forge a Produce answer that refuses one partition, with as many record errors as fit."""
    if version < 13:
        return honest
    at = 4 + 1 + 1
    topic_id = honest[at : at + 16]
    # A partition: index, INVALID_RECORD, no offset, no times, record errors, no message, no tags.
    item = b"\0\0\0\0" + b"\x02x" + b"\0"
    count = (nbytes - 100) // len(item)
    errors = b"".join(_INT32.pack(number) + b"\x02x\0" for number in range(count))
    part = (
        b"\0\0\0\0"
        + (87).to_bytes(2, "big")
        + b"\xff" * 24
        + _uvarint(count + 1)
        + errors
        + b"\0"
        + b"\0"
    )
    return honest[:5] + b"\x02" + topic_id + b"\x02" + part + b"\0" + bytes(4) + b"\0"


def configs(honest: bytes, version: int, nbytes: int) -> bytes:
    """Forge a DescribeConfigs answer with as many configs as fit."""
    if version < 4:
        return honest
    # A config: name, value, read only, source, sensitive, synonyms, type, documentation, tags.
    item = b"\x02x" + b"\x02y" + b"\0" + b"\x05" + b"\0" + b"\x01" + b"\x01" + b"\0" + b"\0"
    count = (nbytes - 100) // len(item)
    return (
        honest[:5]
        + bytes(4)
        + b"\x02"
        + b"\0\0"
        + b"\0"
        + b"\x02"
        + b"\x02t"
        + _uvarint(count + 1)
        + item * count
        + b"\0"
        + b"\0"
    )


def honest_produce(honest: bytes, _version: int, _nbytes: int) -> bytes:
    """Return the Produce answer unchanged."""
    return bytes(bytearray(honest))


def honest_metadata(honest: bytes, _version: int, _nbytes: int) -> bytes:
    """Return the Metadata answer unchanged, once it contains the topic."""
    return honest if honest.find(b"\x02t") < 0 else bytes(bytearray(honest))


async def _send(producer: Producer) -> None:
    # There are so many records that the limit of their answer allows an error text for each.
    await producer.send_many("t", [b"x"] * _RECORDS, partition=0)
    await producer.send("t", b"x", key=b"k")


async def _settle(producer: Producer) -> None:
    await producer.partitions_for("t")
    for _ in range(_CONCERNED):  # one batch
        producer.send_nowait("t", b"x", partition=0)
    await producer.flush()


async def _assign(producer: Producer) -> None:
    for number in range(_CONCERNED):
        producer.send_nowait("t", b"x", key=b"%d" % number)
    # The records linger, because the time to send them and for the broker to read them must not
    # count.
    await asyncio.sleep(1.0)


CASES: Final = (
    Case("Metadata, partitions", ApiKey.METADATA, asked_topic, _send),
    Case("Metadata, other topics", ApiKey.METADATA, other_topics, _send),
    Case("Produce, record errors", ApiKey.PRODUCE, record_errors, _send),
    Case("DescribeConfigs", ApiKey.DESCRIBE_CONFIGS, configs, _send),
    Case("Produce, 80,000 records", ApiKey.PRODUCE, honest_produce, _settle, sized=False),
    Case(
        "Metadata, 80,000 wait",
        ApiKey.METADATA,
        honest_metadata,
        _assign,
        {"linger": 60.0, "delivery_timeout": 120.0},
        sized=False,
    ),
)


class Forging:
    """A connector that forges the first answer of one kind."""

    def __init__(self, inner: Connector, case: Case, nbytes: int) -> None:
        self._inner = inner
        self.case = case
        self.nbytes = nbytes
        self.forged = 0
        self.taken = 0
        self.began = 0.0

    async def connect(self, host: str, port: int) -> ByteStream:
        """Open a stream whose answers pass through this object."""
        return _Stream(await self._inner.connect(host, port), self)


class _Stream(ByteStream):
    def __init__(self, inner: ByteStream, forging: Forging) -> None:
        self._inner = inner
        self._forging = forging
        self._requests = FrameSplitter(1 << 30)
        self._answers = FrameSplitter(1 << 30)
        self._asked: deque[tuple[int, int]] = deque()
        self._ready = memoryview(b"")

    async def send(self, item: bytes) -> None:
        for payload in self._requests.feed(item):
            header, _ = decode_request(payload)
            self._asked.append((header.api_key, header.api_version))
        await self._inner.send(item)

    async def receive(self, max_bytes: int = _CHUNK) -> bytes:
        forging = self._forging
        while not self._ready:
            passed = b""
            for payload in self._answers.feed(await self._inner.receive(max_bytes)):
                api_key, version = self._asked.popleft()
                made = payload
                if api_key == forging.case.api_key and not forging.forged:
                    made = forging.case.forge(payload, version, forging.nbytes)
                if made is not payload:
                    forging.forged = len(made)
                    # The measurement starts here, after the answer was made.
                    gc.collect()
                    gc.freeze()
                    await anyio.sleep(0.02)
                    forging.began = time.perf_counter()
                    await anyio.sleep(0.005)  # lets the ticker run before the answer
                passed += frame(made)
            self._ready = memoryview(passed)
        await anyio.lowlevel.checkpoint()
        data, self._ready = bytes(self._ready[:max_bytes]), self._ready[max_bytes:]
        return data

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}


class Ticker:
    """A task that measures the longest time between two of its ticks since a given moment."""

    def __init__(self, forging: Forging) -> None:
        self._forging = forging
        self.longest = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        last = time.perf_counter()
        while True:
            await asyncio.sleep(_TICK)
            now = time.perf_counter()
            if self._forging.began and last >= self._forging.began:
                self.longest = max(self.longest, now - last - _TICK)
            last = now


class Row(NamedTuple):
    """The results of one run."""

    forged: int
    longest: float
    outcome: str


async def measure(case: Case, nbytes: int) -> Row:
    """Run one producer that receives one such answer, and measure how long its loop is blocked."""
    async with EmbeddedCluster(transport="memory", retain=20) as cluster:
        cluster.create_topic("t", partitions=1 if case.sized else _PARTITIONS)
        forging = Forging(cluster.connector, case, nbytes)
        ticker = Ticker(forging)
        ticking = asyncio.create_task(ticker.run())
        outcome = "taken"
        try:
            async with Producer(
                cluster.bootstrap_servers, connector=forging, **{**_OPTIONS, **case.options}
            ) as producer:
                try:
                    with anyio.fail_after(_GIVE_UP):
                        await case.load(producer)
                except (KafkaError, TimeoutError) as error:
                    outcome = type(error).__name__
                await asyncio.sleep(0.1)
                ticking.cancel()
                await producer.close(0)
        finally:
            ticking.cancel()
        return Row(forging.forged, ticker.longest, outcome)


class _Refusals(logging.Handler):
    """A log handler that notes when an answer was refused because of its size."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "announced" in text or "items" in text:
            self.seen = text


def main() -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", default="1,6,16", help="sizes, in MiB, with commas")
    parser.add_argument("--only", default="", help="cases with this in their name")
    asked = parser.parse_args()
    heard = _Refusals()
    logger = logging.getLogger("aioidem")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(heard)
    sys.stdout.write(f"{'answer':24} {'bytes':>11} {'longest hold':>13}  outcome\n")
    for case in CASES:
        if asked.only not in case.what:
            continue
        for size in asked.mebibytes.split(",") if case.sized else ["0"]:
            nbytes = int(float(size) * (1 << 20))
            rows = []
            for _ in range(_RUNS):
                heard.seen = ""
                gc.collect()
                gc.freeze()
                rows.append(asyncio.run(measure(case, nbytes)))
                gc.unfreeze()
                if rows[-1].longest > 1.0:
                    break
            best = min(rows, key=lambda row: row.longest)
            ended = f"refused: {heard.seen}" if heard.seen else best.outcome
            sys.stdout.write(
                f"{case.what:24} {best.forged:>11,} {best.longest * 1000:>10.1f} ms  {ended}\n"
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
