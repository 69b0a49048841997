"""TCP streams behave alike on every event loop, though some read data before `receive` is called.

On asyncio and uvloop the connector's stream is an `EagerStream`; on trio it is anyio's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream

from aioidem._network.eager import EagerStream, eager
from aioidem._network.transport import TcpConnector

Script = Callable[[SocketStream], Awaitable[None]]
MEGABYTE = 1 << 20


@asynccontextmanager
async def connected(script: Script) -> AsyncIterator[ByteStream]:
    """Yield a stream to a peer that runs `script` and then closes the connection."""
    multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = multi.listeners[0]
    assert isinstance(listener, SocketListener)

    async def handle(stream: SocketStream) -> None:
        async with stream:
            await script(stream)

    with anyio.fail_after(20):
        async with multi, anyio.create_task_group() as tasks:
            tasks.start_soon(multi.serve, handle)
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
            stream = await TcpConnector().connect("127.0.0.1", port)
            async with stream:
                yield stream
            tasks.cancel_scope.cancel()


async def nothing(_: SocketStream) -> None:
    """Do nothing, so that the peer of `connected` closes the connection at once."""


def uvloop_runs(backend: str) -> bool:
    if backend != "asyncio":
        return False
    return type(asyncio.get_running_loop()).__module__.startswith("uvloop")


async def echo(stream: SocketStream) -> None:
    async for data in stream:
        await stream.send(data)


async def speaks_first(stream: SocketStream) -> None:
    await stream.send(b"220 welcome")


@pytest.mark.anyio
async def test_which_stream_it_is(anyio_backend_name: str) -> None:
    """On asyncio the connector returns an EagerStream, and on every loop sets TCP_NODELAY."""
    async with connected(echo) as stream:
        assert isinstance(stream, EagerStream) == (anyio_backend_name == "asyncio")
        raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.anyio
async def test_bytes_come_back_in_order_and_no_more_than_asked_for() -> None:
    async with connected(echo) as stream:
        await stream.send(b"0123456789")
        got = b""
        while len(got) < 10:
            piece = await stream.receive(3)
            assert 0 < len(piece) <= 3
            got += piece
        assert got == b"0123456789"


@pytest.mark.anyio
async def test_what_came_before_the_end_is_handed_out_before_the_end() -> None:
    """Bytes that came before the end of a stream are received before EndOfStream."""

    async def speak(stream: SocketStream) -> None:
        await stream.send(b"words")

    async with connected(speak) as stream:
        got = b""
        while len(got) < 5:
            got += await stream.receive(2)
        assert got == b"words"
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()


@pytest.mark.anyio
async def test_a_peer_that_is_not_read_is_not_taken_into_memory() -> None:
    """A stream that is not read buffers at most a bounded number of the peer's bytes."""
    size = 32 * MEGABYTE
    sent = anyio.Event()
    block = bytes(MEGABYTE)
    written = 0

    async def flood(stream: SocketStream) -> None:
        nonlocal written
        for _ in range(size // MEGABYTE):
            await stream.send(block)
            written += MEGABYTE
        sent.set()

    async with connected(flood) as stream:
        await stream.receive(1)
        before = -1
        while before != written:  # until the count no longer rises
            before = written
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
        if isinstance(stream, EagerStream):
            assert stream.unread <= 2 * MEGABYTE
        assert not sent.is_set()
        got = 1
        while got < size:
            got += len(await stream.receive())
        await sent.wait()


@pytest.mark.anyio
async def test_a_send_waits_for_a_peer_that_does_not_read(anyio_backend_name: str) -> None:
    go = anyio.Event()
    size = 32 * MEGABYTE
    got = 0

    async def read_late(stream: SocketStream) -> None:
        nonlocal got
        await go.wait()
        async for data in stream:
            got += len(data)

    async with connected(read_late) as stream:
        async with anyio.create_task_group() as tasks:
            done = anyio.Event()

            async def send() -> None:
                await stream.send(bytes(size))
                done.set()

            tasks.start_soon(send)
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            # uvloop's transport reports data as sent before it has sent them.
            assert not done.is_set() or uvloop_runs(anyio_backend_name)
            go.set()
        assert done.is_set()
        await stream.send_eof()
        while got < size:
            await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_cancelled_receive_loses_nothing() -> None:
    async with connected(echo) as stream:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await stream.receive()
        assert scope.cancelled_caught
        with anyio.move_on_after(0.01):
            await stream.receive()
        await stream.send(b"x")
        assert await stream.receive() == b"x"


@pytest.mark.anyio
async def test_closing_ends_a_waiting_receive_and_refuses_sends() -> None:
    """Closing a stream ends a waiting `receive`, and later calls of `send` raise."""
    async with connected(echo) as stream:
        caught: list[Exception] = []

        async def receive() -> None:
            try:
                await stream.receive()
            except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
                caught.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            await stream.aclose()
        assert len(caught) == 1
        with pytest.raises(anyio.ClosedResourceError):
            await stream.send(b"x")
        await stream.aclose()


@pytest.mark.anyio
async def test_sending_to_a_peer_that_has_gone_is_a_broken_stream() -> None:
    """Sending to a peer that has closed its connection raises BrokenResourceError."""

    async def send_on(stream: ByteStream) -> None:
        while True:
            await stream.send(b"x" * 1000)
            await anyio.lowlevel.checkpoint()

    async with connected(nothing) as stream:
        with pytest.raises(anyio.BrokenResourceError):
            await send_on(stream)


def test_a_stream_that_has_heard_something_is_left_as_it_is() -> None:
    """`eager` does not wrap a stream to which data has already come."""

    async def heard() -> None:
        async with connected(speaks_first) as stream:
            assert isinstance(stream, EagerStream)
            inner = stream._stream  # noqa: SLF001 - of anyio
            protocol = inner._protocol  # type: ignore[attr-defined]  # noqa: SLF001 - of anyio
            protocol.read_event.set()
            assert eager(inner) is inner

    asyncio.run(heard())


def test_data_are_offered_before_receive_returns_them() -> None:
    """While a task waits in `receive`, `listen` is offered the data first; what it leaves comes."""
    offered: list[bytes] = []

    def take(data: bytes) -> bool:
        offered.append(data)
        return data == b"taken"

    async def offer() -> None:
        async with connected(echo) as stream:
            assert isinstance(stream, EagerStream)
            stream.listen(take)
            await stream.send(b"early")
            while not stream.unread:
                await anyio.lowlevel.checkpoint()
            assert await stream.receive() == b"early"
            assert offered == [], "no task was waiting"

            async def send() -> None:
                await stream.send(b"taken")
                while not offered:
                    await anyio.lowlevel.checkpoint()
                await stream.send(b"left")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                assert await stream.receive() == b"left"
            assert offered == [b"taken", b"left"]

    asyncio.run(offer())
