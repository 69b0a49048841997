"""A request that no other request has to precede is sent within the call of `write`.

All other requests are queued for the connection's writing task. In the same way a short response
that arrives whole is passed on as it arrives, and the reading task takes all other data. The tests
look at the order of events, not at the time that they take.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from aioidem._network.connection import SHORT_RESPONSE, Connection
from aioidem._network.eager import DirectStream, EagerStream
from aioidem._network.transport import TcpConnector
from aioidem._protocol.frames import FrameSplitter
from aioidem.errors import InternalError, KafkaConnectionError, ProtocolError

from .test_connection import LIMIT, PIECE, VERSIONS, Peer, Pipe, request, response

pytestmark = pytest.mark.anyio


class DirectPipe(Pipe):
    """A pipe with `try_send`, which sends without awaiting."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.error: Exception | None = None
        self._offer: Callable[[bytes], bool] | None = None
        # Not None while the kernel takes no bytes; `take` lets it take them all.
        self.kernel: anyio.Event | None = None

    def try_send(self, item: bytes) -> bool:
        if self.error is not None:
            raise self.error
        if self.full or self.closed or self.broken:
            return False
        assert self.peer is not None
        self.sent.append(item)
        self.peer.arrive(item)
        return True

    @property
    def drained(self) -> bool:
        return self.kernel is None

    async def drain(self) -> None:
        if self.kernel is not None:
            await self.kernel.wait()

    def listen(self, take: Callable[[bytes], bool]) -> None:
        self._offer = take

    def offer(self, data: bytes) -> bool:
        """Offer bytes of the broker as a stream does while `receive` waits."""
        assert self._offer is not None
        return self._offer(data)

    def take(self) -> None:
        assert self.kernel is not None
        kernel, self.kernel = self.kernel, None
        kernel.set()


class DirectPeer(Peer):
    """A connection over a `DirectPipe`, and the broker's end of the pipe."""

    def __init__(self) -> None:
        super().__init__()
        self.pipe = DirectPipe()
        self.near = self.pipe
        self.near.peer, self.far.peer = self.far, self.near
        self.connection = Connection(
            self.near, "broker", 9092, versions=VERSIONS, splitter=FrameSplitter(LIMIT)
        )

    def directly(self, body: bytes = b"") -> tuple[int, bool]:
        """Write a request; return its correlation id, and what `write` returned."""
        correlation_id = self.connection.next_correlation_id()
        frame = request(correlation_id, body)
        return correlation_id, self.connection.write(frame, correlation_id=correlation_id)

    @property
    def ids(self) -> list[int]:
        """The correlation ids of the requests that were sent, in order."""
        ids, data = [], b"".join(self.near.sent)
        while data:
            ids.append(int.from_bytes(data[8:12], "big"))
            data = data[4 + int.from_bytes(data[:4], "big") :]
        return ids


async def settle() -> None:
    """Let every task that has something to do run until it waits."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def running() -> AsyncIterator[DirectPeer]:
    """Yield a peer whose connection runs and has nothing to send."""
    with anyio.fail_after(10):
        peer = DirectPeer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            await settle()
            yield peer
            await peer.connection.aclose()


async def test_a_request_is_sent_before_write_returns_and_no_callback_is_called() -> None:
    """`write` sends a request at once and calls no callback.

    Its caller may be inside the engine, which `on_progress` would enter a second time.
    """
    async with running() as peer:
        (first, sent), oldest = peer.directly(), peer.connection.sends_oldest
        (second, also), later = peer.directly(), peer.connection.sends_oldest
        assert (oldest, later) == (True, False)
        assert (sent, also, peer.ids) == (True, True, [first, second])
        assert peer.connection.started(first)
        assert peer.written == 0
        await peer.answer(first, second)
        await peer.until(lambda: len(peer.responses) == 2)
        assert [each for each, _ in peer.responses] == [first, second]
        assert peer.written == 0, "a whole request that the kernel took at once is no progress"


async def test_a_short_response_that_comes_whole_is_passed_on_as_it_arrives() -> None:
    """A short response that arrives whole while the reading task waits needs no task."""
    async with running() as peer:
        first, second = peer.directly()[0], peer.directly()[0]
        assert peer.pipe.offer(response(first))
        assert peer.pipe.offer(response(second))
        assert peer.responses == [(each, response(each)[4:]) for each in (first, second)]
        assert peer.read == 0, "the response is the report of its progress"


async def test_other_data_are_left_to_the_reading_task() -> None:
    """A part of a response, two at once, a long one and an unexpected one are for the task."""
    async with running() as peer:
        assert not peer.pipe.offer(response(0)), "none is due"
        first, second = peer.directly()[0], peer.directly()[0]
        both = response(first) + response(second)
        long = response(first, bytes(SHORT_RESPONSE))
        for data in (both[:3], both[:-1], both, long):
            assert not peer.pipe.offer(data)
        assert peer.responses == []
        await peer.far.send(both[:7])
        await settle()
        assert not peer.pipe.offer(both[7:]), "the reading task has the beginning"
        await peer.far.send(both[7:])
        await peer.until(lambda: len(peer.responses) == 2)


async def test_a_short_response_that_is_refused_ends_the_connection() -> None:
    """A wrong correlation id ends the connection also where no task reads the response."""
    async with running() as peer:
        first = peer.directly()[0]
        assert peer.pipe.offer(response(first + 1))
        await peer.ended.wait()
        assert isinstance(peer.cause, ProtocolError)
        assert peer.responses == []
        assert not peer.pipe.offer(response(first)), "nothing is passed on after the end"


async def test_an_exception_of_on_frame_is_raised_by_run_where_no_task_reads() -> None:
    """An exception of `on_frame` ends the connection, and `run` raises it."""
    peer = DirectPeer()

    def broken(_id: int, _frame: bytes) -> None:
        raise ValueError("broken")

    peer.on_response = broken

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            await settle()
            assert peer.pipe.offer(response(peer.directly()[0]))

    with anyio.fail_after(10), pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(ValueError, match="broken")


async def test_a_request_written_before_run_waits_for_it() -> None:
    peer = DirectPeer()
    only, sent = peer.directly()
    assert not sent
    assert not peer.connection.started(only)
    assert peer.near.sent == []
    await peer.connection.aclose()
    assert not peer.connection.started(only)


async def test_a_request_that_the_stream_does_not_take_is_queued_and_has_not_started() -> None:
    """A request that a full stream refuses is queued, and so are the requests after it."""
    async with running() as peer:
        peer.pipe.full = True
        peer.pipe.hold = anyio.Event()
        first, sent = peer.directly()
        assert (sent, peer.near.sent) == (False, [])
        assert not peer.connection.started(first)
        peer.pipe.full = False
        second, sent = peer.directly()
        assert (sent, peer.near.sent) == (False, [])
        assert not peer.connection.started(second)
        peer.pipe.hold.set()
        await peer.until(lambda: peer.connection.started(second))
        await settle()
        assert peer.ids == [first, second]
        assert peer.written == len(b"".join(peer.near.sent))
        third, sent = peer.directly()
        assert (sent, peer.ids[-1]) == (True, third)


async def test_nothing_comes_between_the_pieces_of_a_long_request() -> None:
    """While the writing task sends a long request in pieces, later ones wait."""
    async with running() as peer:
        first, sent = peer.directly(bytes(3 * PIECE))
        assert not sent, "a long request is sent in pieces, so that its progress shows"
        later = []
        while len(peer.near.sent) < 4:
            await anyio.lowlevel.checkpoint()
            later.append(peer.directly()[0])
        await settle()
        assert peer.ids == [first, *later]


async def test_what_the_kernel_takes_later_is_reported_then() -> None:
    """Bytes that the kernel does not take at once count as progress only when it has taken them."""
    async with running() as peer:
        peer.pipe.kernel = anyio.Event()
        first, sent = peer.directly()
        assert not sent
        assert peer.connection.started(first), "its bytes may be sent at any time"
        await settle()
        assert peer.written == 0
        peer.pipe.take()
        second, sent = peer.directly()
        assert not sent, "the first one is to be reported yet"
        await settle()
        assert peer.ids == [first, second]
        assert peer.written == len(b"".join(peer.near.sent))
        assert peer.directly()[1]


async def test_a_request_behind_bytes_that_were_not_reported_is_reported_with_them() -> None:
    """Requests whose bytes the kernel takes before the writing task runs all count as progress."""
    async with running() as peer:
        peer.pipe.kernel = anyio.Event()
        first, sent = peer.directly()
        peer.pipe.take()
        second, also = peer.directly()
        assert (sent, also, peer.ids) == (False, False, [first, second])
        await settle()
        assert peer.written == len(b"".join(peer.near.sent))


async def test_after_the_end_nothing_is_sent_and_nothing_has_started() -> None:
    """Once a connection is to be closed or its task is cancelled, `write` sends no byte."""
    async with running() as peer:
        peer.connection.close_soon("enough")
        with pytest.raises(KafkaConnectionError, match="enough"):
            peer.directly()
        assert peer.near.sent == []
        await peer.ended.wait()
        with pytest.raises(KafkaConnectionError, match="enough"):
            peer.directly()
        assert peer.near.sent == []


async def test_a_cancelled_connection_sends_what_has_started_and_nothing_else() -> None:
    """While `run` is being cancelled, `started` is True only of the requests that were sent."""
    peer = DirectPeer()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            await settle()
            tasks.cancel_scope.cancel()
            ids = [peer.directly()[0]]
            with anyio.CancelScope(shield=True):
                while not peer.connection.closed:
                    ids.append(peer.directly()[0])
                    await anyio.lowlevel.checkpoint()
    assert [each for each in ids if peer.connection.started(each)] == peer.ids
    with pytest.raises(KafkaConnectionError):
        peer.directly()


@pytest.mark.parametrize("error", [OSError("reset"), anyio.BrokenResourceError(), ValueError("?")])
async def test_a_stream_that_fails_ends_the_connection_and_the_request_is_in_doubt(
    error: Exception,
) -> None:
    """If sending a request raises, the request has started: bytes of it may have been sent."""
    peer = DirectPeer()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            await settle()
            peer.pipe.error = error
            only, sent = peer.directly()
            assert not sent
            assert peer.connection.started(only)
            await peer.ended.wait()
    assert peer.near.closed
    assert isinstance(peer.cause, KafkaConnectionError)


async def test_a_peer_that_hangs_up_leaves_what_was_sent_in_doubt() -> None:
    """A request that was sent directly counts as started, even if the connection ends at once."""
    async with running() as peer:
        only, _ = peer.directly()
        await peer.far.aclose()
        await peer.ended.wait()
        assert isinstance(peer.cause, KafkaConnectionError)
        assert "1 response was due" in str(peer.cause)
        assert peer.connection.started(only)
        with pytest.raises(InternalError):
            await peer.run()


async def test_tcp_a_request_is_at_the_peer_without_a_pass_of_the_loop() -> None:
    """On asyncio and uvloop the peer's kernel has a request before any other task has run."""
    with anyio.fail_after(10), socket.create_server(("127.0.0.1", 0)) as server:
        stream = await TcpConnector().connect("127.0.0.1", server.getsockname()[1])
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(5)
            if not isinstance(stream, EagerStream):
                assert not isinstance(stream, DirectStream)
                await stream.aclose()
                return
            assert isinstance(stream, DirectStream)
            connection = Connection(
                stream, "broker", 9092, versions=VERSIONS, splitter=FrameSplitter(LIMIT)
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connection.run, lambda _id, _frame: None, lambda _w, _r: None)
                await settle()
                frame = request(connection.next_correlation_id())
                assert connection.write(frame, correlation_id=0)
                assert accepted.recv(len(frame)) == frame
                await connection.aclose()


async def test_tcp_a_full_socket_takes_no_request_directly_and_loses_none() -> None:
    """`try_send` keeps the bytes that a full socket does not take, and then refuses more bytes."""
    with anyio.fail_after(20), socket.create_server(("127.0.0.1", 0)) as server:
        stream = await TcpConnector().connect("127.0.0.1", server.getsockname()[1])
        accepted, _ = server.accept()
        with accepted:
            if not isinstance(stream, EagerStream):
                await stream.aclose()
                return
            block, sent = bytes(range(256)) * 256, 0
            while stream.drained:
                assert stream.try_send(block)
                sent += len(block)
            assert not stream.try_send(b"more")
            accepted.setblocking(False)
            got = b""
            while len(got) < sent:
                try:
                    got += accepted.recv(1 << 16)
                except BlockingIOError:
                    await anyio.lowlevel.checkpoint()
            await stream.drain()
            assert got == block * (sent // len(block))
            assert stream.try_send(b"!")
            await stream.aclose()
            assert not stream.try_send(b"?")
            with pytest.raises(anyio.ClosedResourceError):
                await stream.drain()
