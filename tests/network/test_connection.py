"""An open connection keeps order, knows which requests have started, and ends cleanly.

A request has started once any byte of it may have been sent. Most tests use a pipe in memory, so
that the test decides how many bytes arrive and when. The last ones repeat the important
cases over TCP on the loopback interface.
"""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream

from aioidem._network.connection import Connection
from aioidem._network.transport import TcpConnector
from aioidem._protocol.frames import FrameLimit, FrameSplitter, frame
from aioidem._protocol.messages import request_head
from aioidem._protocol.versions import ApiVersionTable
from aioidem.errors import InternalError, KafkaConnectionError, KafkaError, ProtocolError

pytestmark = pytest.mark.anyio

LIMIT = 1 << 20
PIECE = 1 << 17  # the most bytes that the connection passes to one send
VERSIONS = ApiVersionTable({0: (3, 13)})


class Pipe(ByteStream):
    """One end of a pipe in memory; ``sent`` keeps each send, ``hold`` makes every send wait."""

    def __init__(self) -> None:
        self.peer: Pipe | None = None
        self.sent: list[bytes] = []
        self.closed = False
        self.broken = False
        self.hold: anyio.Event | None = None
        self._incoming = bytearray()
        self.changed = anyio.Event()

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self.hold is not None:
            await self.hold.wait()
        if self.closed:
            raise anyio.ClosedResourceError
        assert self.peer is not None
        if self.broken or self.peer.closed:
            raise anyio.BrokenResourceError
        self.sent.append(item)
        self.peer.arrive(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        assert self.peer is not None
        while not self._incoming:
            if self.closed:
                raise anyio.ClosedResourceError
            if self.peer.closed:
                raise anyio.EndOfStream
            self.changed = anyio.Event()
            await self.changed.wait()
        data = bytes(self._incoming[:max_bytes])
        del self._incoming[:max_bytes]
        return data

    async def send_eof(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self.closed = True
        self.changed.set()
        if self.peer is not None:
            self.peer.changed.set()
        await anyio.lowlevel.checkpoint()

    def arrive(self, data: bytes) -> None:
        self._incoming += data
        self.changed.set()


class Peer:
    """A connection over a pipe in memory, the broker's end of the pipe, and the callbacks' data."""

    def __init__(self) -> None:
        self.near, self.far = Pipe(), Pipe()
        self.near.peer, self.far.peer = self.far, self.near
        self.connection = Connection(
            self.near, "broker", 9092, versions=VERSIONS, splitter=FrameSplitter(LIMIT)
        )
        self.responses: list[tuple[int, bytes]] = []
        self.written = 0
        self.read = 0
        self.cause: KafkaError | None = None
        self.ended = anyio.Event()
        self.on_response: Callable[[int, bytes], Awaitable[None] | None] = lambda _id, _frame: None

    def on_frame(self, correlation_id: int, payload: bytes) -> Awaitable[None] | None:
        self.responses.append((correlation_id, payload))
        return self.on_response(correlation_id, payload)

    def on_progress(self, written: int, read: int) -> None:
        assert (written > 0) != (read > 0)
        self.written += written
        self.read += read

    async def run(self) -> None:
        self.cause = await self.connection.run(self.on_frame, self.on_progress)
        self.ended.set()

    def write(
        self,
        body: bytes = b"",
        *,
        expects_response: bool = True,
        limit: FrameLimit | None = None,
    ) -> int:
        correlation_id = self.connection.next_correlation_id()
        self.connection.write(
            request(correlation_id, body),
            correlation_id=correlation_id,
            expects_response=expects_response,
            limit=limit,
        )
        return correlation_id

    async def arrives(self, count: int) -> bytes:
        """Receive at the broker's end until `count` bytes or more have arrived, and return them."""
        data = b""
        while len(data) < count:
            data += await self.far.receive()
        return data

    async def answer(self, *correlation_ids: int) -> None:
        for each in correlation_ids:
            await self.far.send(response(each))

    async def until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            await anyio.lowlevel.checkpoint()


def request(correlation_id: int, body: bytes = b"") -> bytes:
    return frame(request_head(0, 13, correlation_id, "me", flexible=True) + body)


def response(correlation_id: int, body: bytes = b"ok") -> bytes:
    return frame(correlation_id.to_bytes(4, "big") + body)


@asynccontextmanager
async def running() -> AsyncIterator[Peer]:
    """Yield a peer whose connection runs for at most ten seconds and is closed at the end."""
    with anyio.fail_after(10):
        peer = Peer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            yield peer
            await peer.connection.aclose()
        assert peer.near.closed


# --- requests -------------------------------------------------------------------------------------


async def test_requests_leave_in_the_order_they_were_written() -> None:
    async with running() as peer:
        ids = [peer.write(bytes([each]) * each) for each in range(50)]
        expected = b"".join(request(each, bytes([at]) * at) for at, each in enumerate(ids))
        assert await peer.arrives(len(expected)) == expected


async def test_requests_of_one_moment_leave_in_few_sends() -> None:
    """Requests that are written together leave in one send."""
    async with running() as peer:
        size = sum(len(request(peer.write(bytes(1000)), bytes(1000))) for _ in range(100))
        await peer.arrives(size)
        assert len(peer.near.sent) == 1
        assert peer.written == size


async def test_a_long_request_leaves_in_pieces_so_that_its_progress_shows() -> None:
    """A long request leaves in pieces of 128 KiB at most."""
    async with running() as peer:
        body = bytes(3 * PIECE)
        size = len(request(peer.write(body), body))
        await peer.arrives(size)
        assert [len(each) for each in peer.near.sent] == [PIECE] * 3 + [size - 3 * PIECE]
        await peer.until(lambda: peer.written == size)


async def test_only_the_oldest_unanswered_request_shows_that_the_peer_takes_bytes() -> None:
    """The kernel also takes later requests if the peer is gone, so these extend no timeout."""
    async with running() as peer:

        async def sent(body: bytes) -> bool:
            before = peer.written
            size = len(request(peer.write(body), body))
            await peer.until(lambda: peer.written == before + size)
            return peer.connection.sends_oldest

        assert await sent(b"first")
        assert not await sent(b"second")
        assert not await sent(bytes(2 * PIECE))
        await peer.far.send(b"".join(response(number) for number in range(3)))
        await peer.until(lambda: len(peer.responses) == 3)
        assert await sent(b"fourth")


async def test_correlation_ids_never_repeat_and_wrap_to_zero() -> None:
    async with running() as peer:
        assert [peer.connection.next_correlation_id() for _ in range(3)] == [0, 1, 2]
    last = Connection(
        Pipe(),
        "broker",
        9092,
        versions=VERSIONS,
        splitter=FrameSplitter(LIMIT),
        last_correlation_id=2**31 - 2,
    )
    assert [last.next_correlation_id() for _ in range(2)] == [2**31 - 1, 0]


# --- responses ------------------------------------------------------------------------------------


async def test_responses_are_delivered_in_order_with_their_headers() -> None:
    """Responses are delivered in the order of their requests."""
    async with running() as peer:
        ids = [peer.write() for _ in range(20)]
        await peer.until(lambda: peer.connection.started(ids[-1]))
        await peer.answer(*ids)
        await peer.until(lambda: len(peer.responses) == 20)
        assert peer.responses == [(each, response(each)[4:]) for each in ids]
        assert peer.read == sum(len(response(each)) for each in ids)


async def test_responses_may_come_byte_by_byte() -> None:
    async with running() as peer:
        ids = [peer.write(), peer.write()]
        await peer.until(lambda: peer.connection.started(ids[-1]))
        for byte in response(ids[0]) + response(ids[1]):
            await peer.far.send(bytes([byte]))
        await peer.until(lambda: len(peer.responses) == 2)


async def test_a_request_without_an_answer_does_not_shift_the_others() -> None:
    """If a request expects no answer, the next answer belongs to the next request."""
    async with running() as peer:
        peer.write(expects_response=False)
        second = peer.write()
        await peer.until(lambda: peer.connection.started(second))
        await peer.answer(second)
        await peer.until(lambda: len(peer.responses) == 1)
        assert peer.responses[0][0] == second


async def test_unsolicited_response_ends_the_connection() -> None:
    async with running() as peer:
        await peer.answer(0)
        await peer.ended.wait()
    assert isinstance(peer.cause, ProtocolError)
    assert "none was expected" in str(peer.cause)
    assert peer.responses == []


async def test_wrong_correlation_id_ends_the_connection() -> None:
    async with running() as peer:
        first, second = peer.write(), peer.write()
        await peer.until(lambda: peer.connection.started(second))
        await peer.answer(second, first)
        await peer.ended.wait()
    assert isinstance(peer.cause, ProtocolError)
    assert f"correlation id {second} came instead of {first}" in str(peer.cause)
    assert "broker:9092" in str(peer.cause)
    assert peer.responses == []


async def test_response_to_a_request_that_has_none_ends_the_connection() -> None:
    async with running() as peer:
        only = peer.write(expects_response=False)
        await peer.until(lambda: peer.connection.started(only))
        await peer.answer(only)
        await peer.ended.wait()
    assert isinstance(peer.cause, ProtocolError)


async def test_response_to_a_request_still_queued_ends_the_connection() -> None:
    async with running() as peer:
        peer.near.hold = anyio.Event()
        first = peer.write(bytes(PIECE))
        second = peer.write()
        await peer.until(lambda: peer.connection.started(first))
        await peer.answer(first, second)
        await peer.ended.wait()
    assert isinstance(peer.cause, ProtocolError)
    assert [each for each, _ in peer.responses] == [first]
    assert not peer.connection.started(second)


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"HTTP"])
async def test_impossible_length_ends_the_connection_after_the_frames_before_it(
    head: bytes,
) -> None:
    async with running() as peer:
        first, second = peer.write(), peer.write()
        await peer.until(lambda: peer.connection.started(second))
        await peer.far.send(response(first) + head)
        await peer.ended.wait()
    assert isinstance(peer.cause, ProtocolError)
    assert [each for each, _ in peer.responses] == [first]


async def test_an_answer_longer_than_its_request_allows_is_refused_by_its_length_alone() -> None:
    """An answer longer than its own request allows is refused as soon as its length is read."""
    async with running() as peer:
        first = peer.write(limit=FrameLimit(100, "Metadata answer"))
        second = peer.write(limit=FrameLimit(50, "EndTxn answer"))
        await peer.until(lambda: peer.connection.started(second))
        await peer.far.send(response(first, bytes(96)) + (51).to_bytes(4, "big"))
        await peer.ended.wait()
    assert [each for each, _ in peer.responses] == [first]
    assert isinstance(peer.cause, ProtocolError)
    assert str(peer.cause).endswith(
        "broker:9092: EndTxn answer of 51 bytes announced; 1 to 50 are possible"
    )


async def test_a_handler_that_awaits_is_finished_before_the_next_answer_is_handled() -> None:
    """If `on_frame` returns an awaitable, the next response is delivered when that is done."""
    async with running() as peer:
        go_on = anyio.Event()
        done: list[int] = []

        async def read(correlation_id: int) -> None:
            await go_on.wait()
            done.append(correlation_id)

        first, second = peer.write(), peer.write()
        peer.on_response = lambda each, _: read(each) if each == first else done.append(each)
        await peer.until(lambda: peer.connection.started(second))
        await peer.answer(first, second)
        await peer.until(lambda: bool(peer.responses))
        await anyio.wait_all_tasks_blocked()
        assert [each for each, _ in peer.responses] == [first]
        go_on.set()
        await peer.until(lambda: len(done) == 2)
        assert done == [first, second]


async def test_a_handler_that_awaits_is_cancelled_when_the_connection_ends() -> None:
    """Closing a connection cancels an awaitable that `on_frame` has returned."""
    async with running() as peer:
        given_up = anyio.Event()

        async def read() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                given_up.set()

        peer.on_response = lambda _id, _frame: read()
        only = peer.write()
        await peer.until(lambda: peer.connection.started(only))
        await peer.answer(only)
        await peer.until(lambda: bool(peer.responses))
        peer.connection.close_soon("that was all")
        await peer.ended.wait()
        assert given_up.is_set()
    assert "that was all" in str(peer.cause)


async def test_response_shorter_than_its_header_ends_the_connection() -> None:
    async with running() as peer:
        only = peer.write()
        await peer.until(lambda: peer.connection.started(only))
        await peer.far.send(frame(b"\0\0"))
        await peer.ended.wait()
    assert isinstance(peer.cause, ProtocolError)


@pytest.mark.parametrize("seed", range(40))
async def test_a_mutated_stream_delivers_answers_in_order_or_ends_with_a_typed_cause(
    seed: int,
) -> None:
    rng = random.Random(seed)
    async with running() as peer:
        ids = [peer.write() for _ in range(10)]
        await peer.until(lambda: bool(peer.near.sent))
        stream = bytearray(
            b"".join(response(each, rng.randbytes(rng.randrange(9))) for each in ids)
        )
        for _ in range(rng.randrange(4)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        while stream:
            cut = rng.randrange(1, len(stream) + 1)
            peer.near.arrive(bytes(stream[:cut]))
            del stream[:cut]
            await anyio.lowlevel.checkpoint()
        await peer.far.aclose()
        await peer.ended.wait()
    assert isinstance(peer.cause, KafkaConnectionError | ProtocolError)
    delivered = [each for each, _ in peer.responses]
    assert delivered == ids[: len(delivered)]
    assert peer.near.closed


# --- what has started -----------------------------------------------------------------------------


async def test_a_request_has_started_once_it_was_handed_to_the_stream() -> None:
    async with running() as peer:
        peer.near.hold = anyio.Event()
        first = peer.write(bytes(PIECE))
        second = peer.write()
        assert not peer.connection.started(first)
        await peer.until(lambda: peer.connection.started(first))
        assert not peer.connection.started(second)
        assert peer.near.sent == []
        peer.near.hold.set()
        peer.near.hold = None
        await peer.until(lambda: peer.connection.started(second))


async def test_requests_that_share_a_send_start_together() -> None:
    async with running() as peer:
        peer.near.hold = anyio.Event()
        ids = [peer.write() for _ in range(5)]
        await peer.until(lambda: peer.connection.started(ids[0]))
        assert all(peer.connection.started(each) for each in ids)


async def test_what_never_started_stays_known_after_the_end() -> None:
    """For a request that was never sent, `started` stays False after the connection has ended."""
    async with running() as peer:
        peer.near.hold = anyio.Event()
        first = peer.write(bytes(PIECE))
        second = peer.write()
        await peer.until(lambda: peer.connection.started(first))
        peer.connection.close_soon("enough")
        await peer.ended.wait()
        assert peer.connection.started(first)
        assert not peer.connection.started(second)
        assert peer.near.sent == []


async def test_close_soon_keeps_back_what_the_woken_writer_was_about_to_send() -> None:
    """A queued request is not sent after `close_soon`, though the writing task is awake already.

    The request has not started, so its records end as not written and are not in doubt.
    """
    async with running() as peer:
        await anyio.wait_all_tasks_blocked()
        only = peer.write(bytes(PIECE))
        peer.connection.close_soon("enough")
        assert not peer.connection.started(only)
        await peer.ended.wait()
        assert not peer.connection.started(only)
        assert peer.near.sent == []


async def test_an_id_never_written_counts_as_started() -> None:
    """`started` is True for an unknown correlation id, because its request may have been sent."""
    async with running() as peer:
        assert peer.connection.started(12345)


async def test_nothing_starts_before_run() -> None:
    """A request is not sent before `run`, nor if the connection is closed without `run`."""
    peer = Peer()
    only = peer.write()
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    assert not peer.connection.started(only)
    await peer.connection.aclose()
    assert not peer.connection.started(only)
    assert peer.near.sent == []


# --- how it ends ----------------------------------------------------------------------------------


async def test_a_peer_that_hangs_up_is_the_cause() -> None:
    """If the peer closes the connection, the cause names the number of missing responses."""
    async with running() as peer:
        peer.write()
        peer.write()
        await peer.until(lambda: bool(peer.near.sent))
        await peer.far.aclose()
        await peer.ended.wait()
    assert isinstance(peer.cause, KafkaConnectionError)
    assert "hung up; 2 responses were due" in str(peer.cause)
    assert peer.connection.cause is peer.cause


async def test_a_peer_that_hangs_up_within_a_frame_is_named_as_the_cause() -> None:
    """If the peer closes the connection within a frame, the cause says so."""
    async with running() as peer:
        only = peer.write()
        await peer.until(lambda: bool(peer.near.sent))
        await peer.far.send(response(only)[:-1])
        await peer.far.aclose()
        await peer.ended.wait()
    assert "in the middle of a frame" in str(peer.cause)
    assert peer.responses == []


async def test_answers_that_came_before_the_peer_hung_up_are_delivered() -> None:
    """Responses that came before the peer closed are delivered, even if a send fails."""
    async with running() as peer:
        ids = [peer.write() for _ in range(3)]
        await peer.until(lambda: bool(peer.near.sent))
        peer.near.hold = anyio.Event()
        late = peer.write()
        await peer.until(lambda: peer.connection.started(late))
        # All at one moment: two responses, the end of the stream, and a send that fails because of
        # that end.
        peer.near.arrive(response(ids[0]) + response(ids[1]))
        peer.far.closed = True
        peer.near.hold.set()
        await peer.ended.wait()
    assert [each for each, _ in peer.responses] == ids[:2]
    assert isinstance(peer.cause, KafkaConnectionError)


async def test_a_writer_that_fails_waits_for_answers_still_to_be_read() -> None:
    """After a failed send the connection delivers responses until the stream ends."""
    async with running() as peer:
        peer.near.broken = True
        only = peer.write()
        await peer.until(lambda: peer.connection.closed)
        assert not peer.ended.is_set()
        peer.near.arrive(response(only))
        await peer.until(lambda: len(peer.responses) == 1)
        peer.far.closed = True
        peer.near.arrive(b"")
        await peer.ended.wait()
    assert "lost" in str(peer.cause)


async def test_a_send_that_fails_is_the_cause_even_if_the_peer_stays_silent() -> None:
    """A failed send ends the connection even if the peer neither answers nor closes."""
    async with running() as peer:
        peer.near.broken = True
        only = peer.write()
        await peer.ended.wait()
    assert isinstance(peer.cause, KafkaConnectionError)
    assert "lost" in str(peer.cause)
    assert peer.connection.started(only)


async def test_nothing_can_be_written_after_the_end() -> None:
    async with running() as peer:
        peer.connection.close_soon("enough")
        with pytest.raises(KafkaConnectionError, match="enough"):
            peer.write()
        await peer.ended.wait()
        with pytest.raises(KafkaConnectionError, match="enough"):
            peer.write()
    assert peer.connection.closed


async def test_close_soon_gives_the_cause_and_the_first_one_stays() -> None:
    """The reason of the first `close_soon` is the cause of the connection's end."""
    async with running() as peer:
        peer.connection.close_soon("request 7 timed out")
        peer.connection.close_soon("something else")
        await peer.ended.wait()
    assert isinstance(peer.cause, KafkaConnectionError)
    assert "broker:9092: request 7 timed out" in str(peer.cause)


async def test_after_close_soon_no_response_is_delivered() -> None:
    async with running() as peer:
        ids = [peer.write() for _ in range(3)]
        await peer.until(lambda: peer.connection.started(ids[-1]))
        peer.on_response = lambda _id, _frame: peer.connection.close_soon("enough")
        await peer.far.send(b"".join(map(response, ids)))
        await peer.ended.wait()
    assert len(peer.responses) == 1


async def test_close_soon_before_run_lets_run_return_at_once() -> None:
    async with anyio.create_task_group() as tasks:
        peer = Peer()
        peer.write()
        peer.connection.close_soon("changed my mind")
        with anyio.fail_after(5):
            tasks.start_soon(peer.run)
            await peer.ended.wait()
    assert peer.near.sent == []
    assert peer.near.closed


async def test_aclose_waits_until_the_stream_is_closed_and_may_be_repeated() -> None:
    async with running() as peer:
        await peer.connection.aclose()
        assert peer.near.closed
        await peer.connection.aclose()
    assert "closed by this side" in str(peer.cause)


async def test_aclose_without_run_closes_the_stream_and_run_then_returns_the_cause() -> None:
    peer = Peer()
    with anyio.fail_after(5):
        await peer.connection.aclose()
        assert peer.near.closed
        await peer.run()
    assert "closed by this side" in str(peer.cause)


async def test_aclose_within_a_cancelled_scope_closes_the_stream() -> None:
    peer = Peer()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await peer.connection.aclose()
    assert peer.near.closed


async def test_run_cancelled_from_outside_closes_the_stream_and_has_a_cause() -> None:
    with anyio.fail_after(10):
        peer = Peer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            peer.near.hold = anyio.Event()
            first, second = peer.write(bytes(PIECE)), peer.write()
            await peer.until(lambda: peer.connection.started(first))
            tasks.cancel_scope.cancel()
    assert peer.near.closed
    assert "cancelled" in str(peer.connection.cause)
    assert peer.connection.started(first)
    assert not peer.connection.started(second)
    with pytest.raises(KafkaConnectionError):
        peer.write()


async def test_run_twice_is_our_error() -> None:
    """A second `run` raises InternalError, and the connection stays open."""
    async with running() as peer:
        only = peer.write()
        await peer.until(lambda: peer.connection.started(only))
        with pytest.raises(InternalError):
            await peer.connection.run(peer.on_frame, peer.on_progress)
        assert not peer.connection.closed


async def test_a_protocol_error_of_the_callback_is_the_cause() -> None:
    """A ProtocolError that `on_frame` raises is the cause of the connection's end."""

    def refuse(_id: int, _frame: bytes) -> None:
        raise ProtocolError("1 bytes follow the message")

    async with running() as peer:
        only = peer.write()
        peer.on_response = refuse
        await peer.until(lambda: peer.connection.started(only))
        await peer.answer(only)
        await peer.ended.wait()
    assert isinstance(peer.cause, ProtocolError)
    assert "broker:9092: 1 bytes follow" in str(peer.cause)


@pytest.mark.parametrize("where", ["on_frame", "on_progress"])
async def test_any_other_error_of_a_callback_comes_out_of_run_with_the_stream_closed(
    where: str,
) -> None:
    """An unexpected error of a callback closes the stream, and `run` raises that error."""

    def broken(_one: int, _two: object) -> None:
        raise LookupError(where)

    peer = Peer()
    callbacks = {"on_frame": peer.on_frame, "on_progress": peer.on_progress} | {where: broken}
    only = peer.write()

    async def broker() -> None:
        await peer.far.receive()
        with suppress(anyio.BrokenResourceError):
            await peer.answer(only)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(broker)
            with pytest.raises(LookupError, match=where):
                await peer.connection.run(**callbacks)  # type: ignore[arg-type]
    assert peer.near.closed
    assert "LookupError" in str(peer.connection.cause)


async def test_repr_tells_the_state() -> None:
    async with running() as peer:
        peer.write()
        assert repr(peer.connection) == "<Connection broker:9092, 0 due, 1 queued, open>"
        peer.connection.close_soon("enough")
        assert "enough" in repr(peer.connection)


# --- over TCP -------------------------------------------------------------------------------------

Script = Callable[[SocketStream], Awaitable[None]]


@asynccontextmanager
async def over_tcp(script: Script) -> AsyncIterator[Connection]:
    """Open a connection to a listener on 127.0.0.1 that runs `script`."""
    multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = multi.listeners[0]
    assert isinstance(listener, SocketListener)
    port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
    done = anyio.Event()

    async def handle(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                await script(stream)
        done.set()

    with anyio.fail_after(20):
        async with multi, anyio.create_task_group() as tasks:
            tasks.start_soon(multi.serve, handle)
            stream = await TcpConnector().connect("127.0.0.1", port)
            connection = Connection(
                stream, "127.0.0.1", port, versions=VERSIONS, splitter=FrameSplitter(LIMIT)
            )
            yield connection
            await connection.aclose()
            await done.wait()
            tasks.cancel_scope.cancel()


async def echo_ids(stream: SocketStream) -> None:
    """Answer every request in order, as a broker does."""
    splitter = FrameSplitter(LIMIT)
    async for data in stream:
        for each in splitter.feed(data):
            await stream.send(response(int.from_bytes(each[4:8], "big")))


async def test_tcp_a_thousand_pipelined_requests_are_answered_in_order() -> None:
    async with over_tcp(echo_ids) as connection:
        seen: list[int] = []
        outstanding = 0

        def fill() -> None:
            nonlocal outstanding
            while outstanding < 20 and not connection.closed:
                outstanding += 1
                correlation_id = connection.next_correlation_id()
                connection.write(
                    request(correlation_id, bytes(3000)), correlation_id=correlation_id
                )

        def on_frame(correlation_id: int, _frame: bytes) -> None:
            nonlocal outstanding
            seen.append(correlation_id)
            outstanding -= 1
            if len(seen) == 1000:
                connection.close_soon("enough")
            fill()

        fill()
        cause = await connection.run(on_frame, lambda _written, _read: None)
        assert isinstance(cause, KafkaConnectionError)
        assert seen == list(range(1000))


async def test_tcp_a_reader_that_never_reads_stops_progress_but_not_closing() -> None:
    """Over TCP a peer that does not read stops the sending, but not `aclose`."""
    stay = anyio.Event()

    async def never_read(_stream: SocketStream) -> None:
        await stay.wait()

    async with over_tcp(never_read) as connection:
        written = 0
        stuck = anyio.Event()

        def on_progress(count: int, _read: int) -> None:
            nonlocal written
            written += count

        async def run() -> None:
            await connection.run(lambda _id, _frame: None, on_progress)
            stuck.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            ids = []
            for _ in range(64):
                correlation_id = connection.next_correlation_id()
                ids.append(correlation_id)
                connection.write(
                    request(correlation_id, bytes(1 << 20)), correlation_id=correlation_id
                )
            while not connection.started(ids[0]):
                await anyio.lowlevel.checkpoint()
            await connection.aclose()
            await stuck.wait()
        stay.set()
        assert written < 64 << 20
        assert not connection.started(ids[-1])


async def test_tcp_a_peer_that_dies_ends_the_connection() -> None:
    async def read_one(stream: SocketStream) -> None:
        await stream.receive()

    async with over_tcp(read_one) as connection:
        for _ in range(3):
            correlation_id = connection.next_correlation_id()
            connection.write(request(correlation_id), correlation_id=correlation_id)
        cause = await connection.run(lambda _id, _frame: None, lambda _written, _read: None)
        assert isinstance(cause, KafkaConnectionError)


async def test_tcp_nothing_is_left_open_when_run_is_cancelled() -> None:
    async def wait_for_end(stream: SocketStream) -> None:
        async for _ in stream:
            pass

    async with over_tcp(wait_for_end) as connection:
        correlation_id = connection.next_correlation_id()
        connection.write(request(correlation_id, bytes(100)), correlation_id=correlation_id)
        with anyio.CancelScope() as scope:
            await connection.run(
                lambda _id, _frame: None,
                lambda _written, _read: scope.cancel(),
            )
        assert connection.closed
    del connection
    gc.collect()  # an unclosed socket would warn here, and warnings are errors
