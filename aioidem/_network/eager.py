"""TCP on asyncio, read as it arrives: the one place below anyio where bytes move.

anyio's stream lets its transport read only while somebody is in `receive`: each frame costs two
changes of what the selector watches and a pass of the loop, and each `send` a cancel scope and
another pass. `EagerStream` is the same stream with the transport's protocol taken over: what
arrives is kept, up to a bound, and `send` waits only while the transport is full.

Invariants: at most `_READ_AHEAD` bytes and one read more are kept unread; a `send` returns when its
bytes are the kernel's. What was received before the end is handed out before the end is told. Where
anyio's stream has already heard something, or is not made as expected, it is used as it is: nothing
depends on `eager` but speed.

Rejected: asyncio's own happy eyeballs, to be rid of two private names of anyio's: uvloop has none,
and a host with one dead address would not be reached there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import ByteStream

__all__ = ["EagerStream", "eager"]

_READ_AHEAD: Final = 1 << 18


def eager(stream: ByteStream) -> ByteStream:
    """The stream anyio has just opened, made eager if it is one of asyncio's."""
    transport: Any = getattr(stream, "_transport", None)
    heard = getattr(getattr(stream, "_protocol", None), "read_event", None)
    if heard is None or heard.is_set() or not hasattr(transport, "set_protocol"):
        return stream
    return EagerStream(stream, transport)


class EagerStream(ByteStream, asyncio.Protocol):
    """See the module. One task receives; `send` may be called by any."""

    def __init__(self, stream: ByteStream, transport: asyncio.Transport) -> None:
        self._stream = stream
        self._transport = transport
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._resting = False
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Event | None = None
        self._ended = False
        self._lost: Exception | None = None
        self._closed = False
        transport.set_protocol(self)
        transport.resume_reading()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Bytes of the peer."""
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
        if self._resting and self._unread < _READ_AHEAD and not self._ended:
            self._resting = False
            self._transport.resume_reading()
        return chunk

    async def send(self, item: bytes) -> None:
        """Returns when the kernel has it all; without letting others run if that is at once."""
        await self._kernel_takes()
        if self._transport.is_closing():
            raise anyio.BrokenResourceError
        self._transport.write(item)
        await self._kernel_takes()

    async def _kernel_takes(self) -> None:
        while self._room is not None:
            await self._room.wait()
        over = self._over()
        if over is not None:
            raise over

    async def send_eof(self) -> None:
        """The peer reads the end after what was sent."""
        if self._transport.can_write_eof():
            self._transport.write_eof()

    async def aclose(self) -> None:
        """Close it; what was not sent is dropped."""
        self._closed = True
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of anyio's stream."""
        return self._stream.extra_attributes

    @property
    def unread(self) -> int:
        """Bytes that came and were not received yet."""
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

    # -- what the transport calls ------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """More of the peer's bytes."""
        self._chunks.append(bytes(data))  # Windows' loop can give a bytearray
        self._unread += len(data)
        if self._unread >= _READ_AHEAD and not self._resting:
            self._resting = True
            self._transport.pause_reading()
        self._wake_reader()

    def eof_received(self) -> bool:
        """The peer sends no more; it may still read."""
        self._ended = True
        self._wake_reader()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Neither side sends any more."""
        self._lost = exc
        self._ended = True
        self.resume_writing()
        self._wake_reader()

    def pause_writing(self) -> None:
        """The transport is full."""
        self._room = asyncio.Event()

    def resume_writing(self) -> None:
        """It has room again."""
        room, self._room = self._room, None
        if room is not None:
            room.set()
