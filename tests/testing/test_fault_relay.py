"""Arrival times of bytes through a `Relay` between two streams in memory, on a virtual clock."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest
import trio.testing

from aioidem._broker.memory import MemoryStream, stream_pair
from aioidem._testing.fault_relay import Relay
from aioidem._testing.kafka_retention import RetentionFace
from aioidem.testing import Action, Delay, FrameHook, FrameSeen

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
    ),
]


class Owner:
    """A stand-in for the `FaultProxy` that owns a relay; it is never frozen."""

    def __init__(
        self, *, rtt: float = 0.0, jitter: float = 0.0, bandwidth: float | None = None
    ) -> None:
        self.rtt, self.jitter, self.bandwidth = rtt, jitter, bandwidth
        self.retention: RetentionFace | None = None
        self.on_request: FrameHook | None = None
        self.on_answer: FrameHook | None = None
        self.trace: deque[tuple[FrameSeen, Action | None]] = deque()

    def notify(self) -> None:
        pass

    async def pass_gate(self) -> None:
        pass


@asynccontextmanager
async def relayed(owner: Owner) -> AsyncIterator[tuple[MemoryStream, MemoryStream]]:
    """Yield the client's and the broker's end of a connection through a relay."""
    client, inner_client = stream_pair()
    broker, inner_broker = stream_pair()
    relay = Relay(owner, 1, 0, inner_client, inner_broker)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay.run)
        yield client, broker
        relay.close(reset=False)


def request(number: int, size: int = 10) -> bytes:
    """Return a frame of an ApiVersions request with ``size`` bytes after its length."""
    return struct.pack(">ihhih", size, 18, 0, number, -1) + bytes(size - 10)


def answer(number: int) -> bytes:
    return struct.pack(">ii", 34, number) + bytes(range(30))


async def arrival(stream: anyio.abc.ByteReceiveStream, data: bytes) -> float:
    """Read as many bytes as ``data`` has, check them, and return when the last one arrived."""
    arrived = b""
    while len(arrived) < len(data):
        arrived += await stream.receive()
    assert arrived == data
    return anyio.current_time()


async def test_each_direction_takes_half_of_the_round_trip_time() -> None:
    """A link with a round-trip time of 0.2 s delivers bytes after 0.1 s in either direction."""
    async with relayed(Owner(rtt=0.2)) as (client, broker):
        for source, sink, data in (
            (client, broker, request(1)),
            (broker, client, answer(1)),
        ):
            start = anyio.current_time()
            await source.send(data)
            assert await arrival(sink, data) - start == pytest.approx(0.1)


async def test_a_changed_link_applies_to_open_connections() -> None:
    """A changed round-trip time applies to open connections from the next bytes on."""
    owner = Owner(rtt=0.2)
    async with relayed(owner) as (client, broker):
        owner.rtt = 2.0
        start = anyio.current_time()
        await client.send(request(1))
        assert await arrival(broker, request(1)) - start == pytest.approx(1.0)


async def test_a_delayed_link_is_pipelined() -> None:
    """Five requests that are sent 10 ms apart over a delayed link arrive 10 ms apart."""
    async with relayed(Owner(rtt=0.2)) as (client, broker):
        sent = []

        async def send() -> None:
            for number in range(5):
                sent.append(anyio.current_time())
                await client.send(request(number))
                await anyio.sleep(0.01)  # virtual time

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            arrived = [await arrival(broker, request(number)) for number in range(5)]
        assert arrived == pytest.approx([at + 0.1 for at in sent])


async def test_bytes_take_their_time_on_a_thin_link() -> None:
    """At 1,000,000 bytes/s 300,000 bytes take 0.3 s, and the first arrive within 0.02 s."""
    data = request(1, 299_996)
    async with (
        relayed(Owner(bandwidth=1_000_000)) as (client, broker),
        anyio.create_task_group() as tasks,
    ):
        start = anyio.current_time()
        tasks.start_soon(client.send, data)
        first = await broker.receive()
        assert anyio.current_time() - start < 0.02
        end = await arrival(broker, data[len(first) :])
        assert end - start == pytest.approx(0.3)


async def test_a_delay_is_added_to_the_link_and_keeps_the_order() -> None:
    """A request that is delayed by 0.5 s, and the one behind it, arrive 0.5 s later than usual."""
    owner = Owner(rtt=0.2)
    owner.on_request = lambda seen: Delay(0.5) if seen.correlation_id == 1 else None
    async with relayed(owner) as (client, broker):
        start = anyio.current_time()
        await client.send(request(1) + request(2))
        end = await arrival(broker, request(1) + request(2))
        assert end - start == pytest.approx(0.6)


@pytest.mark.parametrize("link", [{}, {"rtt": 0.001}], ids=["bare", "delayed-and-watched"])
async def test_untouched_frames_are_passed_on_in_few_writes(link: dict[str, Any]) -> None:
    """Unchanged frames that are read in one piece are written in one piece, even with a hook."""
    seen = 0

    def count(_: FrameSeen) -> None:
        nonlocal seen
        seen += 1

    owner = Owner(**link)
    if link:
        owner.on_request = count
    data = b"".join(request(number, 900) for number in range(64))
    async with relayed(owner) as (client, broker):
        for _ in range(3):
            await client.send(data)
            assert await broker.receive(1 << 20) == data
        assert seen == (3 * 64 if link else 0)
