"""A long answer is decoded in a thread, one at a time, and delays neither other work nor `close`.

No time is measured here (benchmarks/hostile_answers.py does that). The tests look at the thread in
which an answer is decoded, at what runs on the loop meanwhile, and at what is refused.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Container, Iterator

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream

from aioidem import Producer
from aioidem._network.transport import Connector
from aioidem._producer import questions
from aioidem._producer.sender import LONG_ANSWER
from aioidem._protocol.metadata import MetadataUpdate
from aioidem._protocol.metadata_reader import read_metadata
from aioidem.broker import EmbeddedCluster
from aioidem.errors import ProducerClosed
from tests.waiting import until

MANY = 5_000


class Reading:
    """Decodes Metadata answers, and notes the length and the thread of each.

    The decoding of a long answer waits while `go_on` is not set.
    """

    def __init__(self) -> None:
        self.read: list[tuple[int, bool]] = []
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.ended = threading.Event()
        self._loop_thread = threading.get_ident()

    def __call__(self, version: int, frame: bytes, wanted: Container[str]) -> MetadataUpdate:
        here = threading.get_ident() == self._loop_thread
        self.read.append((len(frame), here))
        if len(frame) > LONG_ANSWER:
            self.began.set()
            self.go_on.wait(20)
        try:
            return read_metadata(version, frame, wanted)
        finally:
            if len(frame) > LONG_ANSWER:
                self.ended.set()


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    made = Reading()
    monkeypatch.setattr(questions, "read_metadata", made)
    yield made
    made.go_on.set()


class Kept:
    """A connector that keeps the streams it opened."""

    def __init__(self, inner: Connector) -> None:
        self._inner = inner
        self.streams: list[ByteStream] = []

    async def connect(self, host: str, port: int) -> ByteStream:
        self.streams.append(await self._inner.connect(host, port))
        return self.streams[-1]


def run(main: Callable[[Producer, Kept], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(60):
            async with EmbeddedCluster(transport="memory") as cluster:
                cluster.create_topic("many", partitions=MANY)
                cluster.create_topic("few", partitions=2)
                kept = Kept(cluster.connector)
                producer = Producer(cluster.bootstrap_servers, connector=kept)
                try:
                    await producer.start()
                    await main(producer, kept)
                finally:
                    await producer.close(5.0)

    asyncio.run(bounded())


def test_long_answers_are_read_in_a_thread_and_short_ones_are_not(reading: Reading) -> None:
    """Long answers are decoded in a thread, and short ones in the event loop."""

    async def main(producer: Producer, _kept: Kept) -> None:
        await producer.send("few", b"1", partition=0)
        assert await producer.partitions_for("many") == set(range(MANY))
        report = await producer.send("many", b"1", partition=MANY - 1)
        assert report.offset == 0

    run(main)
    assert {size > LONG_ANSWER for size, _ in reading.read} == {False, True}
    for size, on_the_loop in reading.read:
        assert on_the_loop == (size <= LONG_ANSWER)


def test_other_connections_go_on_while_one_is_read(reading: Reading) -> None:
    """Other connections go on while an answer is decoded; later answers are not lost."""

    async def main(producer: Producer, _kept: Kept) -> None:
        await producer.send("few", b"1", partition=0)
        reading.go_on.clear()
        told = asyncio.ensure_future(producer.partitions_for("many"))
        sent = asyncio.ensure_future(producer.send("few", b"2", partition=0))
        await until(reading.began.is_set)
        assert not told.done()
        reading.go_on.set()
        assert len(await told) == MANY
        assert (await sent).offset == 1

    run(main)


def test_closing_does_not_wait_for_what_is_being_read(reading: Reading) -> None:
    """`close` does not wait for an answer that is being decoded."""

    async def main(producer: Producer, _kept: Kept) -> None:
        await producer.send("few", b"1", partition=0)
        reading.go_on.clear()
        told = asyncio.ensure_future(producer.partitions_for("many"))
        await until(reading.began.is_set)
        with anyio.fail_after(10):
            await producer.close(0.0)
        assert not reading.ended.is_set()
        with pytest.raises(ProducerClosed):
            await told
        reading.go_on.set()
        await until(reading.ended.is_set)

    run(main)


def test_a_connection_that_is_lost_meanwhile_loses_nothing(reading: Reading) -> None:
    """An answer is used even if its connection breaks while it is decoded."""

    async def main(producer: Producer, kept: Kept) -> None:
        await producer.send("few", b"1", partition=0)
        reading.go_on.clear()
        told = asyncio.ensure_future(producer.partitions_for("many"))
        await until(reading.began.is_set)
        for stream in list(kept.streams):
            await stream.aclose()
        reading.go_on.set()
        assert len(await told) == MANY
        assert (await producer.send("many", b"1", partition=MANY - 1)).offset == 0

    run(main)
