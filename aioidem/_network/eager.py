"""A faster TCP stream for asyncio, which reads data as it arrives; trio uses anyio's own stream.

anyio's stream lets its transport read only while a task is in `receive`: each frame costs two
changes of the selector's registration and one pass of the event loop, and each `send` costs a
cancel scope and another pass. `EagerStream` replaces the protocol of the same transport: it keeps
bytes that arrive, up to a limit, and its `send` waits only if the kernel does not take all bytes at
once. Plain functions can send too (`try_send`), in the pass of the loop in which they are called,
and receive (`listen`), in the pass in which the data arrive.

Invariants: at most `_READ_AHEAD` bytes plus one read are kept unread. `send` returns once the
kernel has its bytes. Data received before the end of the stream is returned before the end is
reported. If anyio's stream has already received something, or does not have the attributes that
this module expects, `eager` returns that stream unchanged: only speed depends on this module.

Rejected: opening connections with asyncio itself, which would avoid two private names of anyio.
uvloop does not race a host's addresses (RFC 8305), so one dead address would make a host
unreachable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import anyio
from anyio.abc import ByteStream

__all__ = ["DirectStream", "EagerStream", "eager"]

_READ_AHEAD: Final = 1 << 18


@runtime_checkable
class DirectStream(Protocol):
    """A byte stream with methods by which functions that are not async can send and receive."""

    def try_send(self, item: bytes) -> bool:
        """Send bytes now, or return False; then no byte was or will be sent."""
        ...

    @property
    def drained(self) -> bool:
        """Whether the kernel has every byte that was sent."""
        ...

    async def drain(self) -> None:
        """Return once the kernel has every byte that was sent."""
        ...

    def listen(self, take: Callable[[bytes], bool]) -> None:
        """Offer data to a function first, if they arrive while a task waits in `receive`.

        Args:
            take: Returns whether it has taken the data; then no `receive` returns them, and the
                task goes on waiting. It is called outside of any task, and must not raise.
        """
        ...


def eager(stream: ByteStream) -> ByteStream:
    """Return an `EagerStream` around a stream just opened by anyio; on trio the same stream."""
    transport: Any = getattr(stream, "_transport", None)
    heard = getattr(getattr(stream, "_protocol", None), "read_event", None)
    if heard is None or heard.is_set() or not hasattr(transport, "set_protocol"):
        return stream
    return EagerStream(stream, transport)


class EagerStream(ByteStream, asyncio.Protocol):
    """A byte stream that reads data before `receive` asks for it.

    One task may call `receive`; any task may call `send`.
    """

    def __init__(self, stream: ByteStream, transport: asyncio.Transport) -> None:
        self._stream = stream
        self._transport = transport
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._paused = False
        self._reader: asyncio.Future[None] | None = None
        self._take: Callable[[bytes], bool] | None = None
        self._room: asyncio.Event | None = None
        self._ended = False
        self._lost: Exception | None = None
        self._closed = False
        transport.set_protocol(self)
        transport.resume_reading()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes from the peer, at most `max_bytes`."""
        if self._chunks or self._ended:
            await asyncio.sleep(0)
        else:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if not self._chunks:
            raise self._over() or anyio.EndOfStream
        chunk = self._chunks.popleft()
        if len(chunk) > max_bytes:
            self._chunks.appendleft(chunk[max_bytes:])
            chunk = chunk[:max_bytes]
        self._unread -= len(chunk)
        if self._paused and self._unread < _READ_AHEAD and not self._ended:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    async def send(self, item: bytes) -> None:
        """Send bytes, and return once the kernel has all of them.

        If the kernel accepts the bytes at once, no other task runs before `send` returns.
        """
        await self.drain()
        if self._transport.is_closing():
            raise anyio.BrokenResourceError
        self._transport.write(item)
        await self.drain()

    def try_send(self, item: bytes) -> bool:
        """Send bytes now, unless the kernel still has to take earlier ones or the stream has ended.

        The transport keeps the bytes that the kernel does not take at once, and sends them later.

        Returns:
            False if no byte was sent, nor will be.
        """
        if self._room is not None or self._closed or self._lost is not None:
            return False
        if self._transport.is_closing():
            return False
        self._transport.write(item)
        return True

    @property
    def drained(self) -> bool:
        """Whether the kernel has every byte that was sent."""
        return self._room is None

    async def drain(self) -> None:
        """Return once the kernel has every byte that was sent.

        Raises:
            BrokenResourceError: The connection was lost.
            ClosedResourceError: The stream was closed.
        """
        while self._room is not None:
            await self._room.wait()
        over = self._over()
        if over is not None:
            raise over

    def listen(self, take: Callable[[bytes], bool]) -> None:
        """Offer data to `take` first, if they arrive while a task waits in `receive`."""
        self._take = take

    async def send_eof(self) -> None:
        """Tell the peer that no more data follows."""
        if self._transport.can_write_eof():
            self._transport.write_eof()

    async def aclose(self) -> None:
        """Close the stream; data that was not sent is dropped."""
        self._closed = True
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The attributes of anyio's stream."""
        return self._stream.extra_attributes

    @property
    def unread(self) -> int:
        """The number of bytes that have arrived and were not yet returned by `receive`."""
        return self._unread

    def _over(self) -> Exception | None:
        if self._closed:
            return anyio.ClosedResourceError()
        if self._lost is not None:
            error = anyio.BrokenResourceError()
            error.__cause__ = self._lost
            return error
        return None

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # -- called by the transport -------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass on bytes that came from the peer, or store them until `receive` takes them."""
        data = bytes(data)  # the Proactor loop of Windows can pass a bytearray
        # While a task waits in `receive` and was not woken yet, no earlier data are stored.
        waits = self._reader is not None and not self._reader.done()
        if waits and self._take is not None and self._take(data):
            return
        self._chunks.append(data)
        self._unread += len(data)
        if self._unread >= _READ_AHEAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def eof_received(self) -> bool:
        """Note that the peer sends no more data; the peer may still read."""
        self._ended = True
        self._wake_reader()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is closed in both directions."""
        self._lost = exc
        self._ended = True
        self.resume_writing()
        self._wake_reader()

    def pause_writing(self) -> None:
        """Note that the transport keeps bytes which the kernel has not taken yet."""
        self._room = asyncio.Event()

    def resume_writing(self) -> None:
        """Note that the kernel has taken every byte that the transport kept."""
        room, self._room = self._room, None
        if room is not None:
            room.set()
