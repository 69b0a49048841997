"""Byte streams between client and broker without sockets.

Invariants
    Chunks of bytes are passed on without a copy. When `BUFFER_BYTES` wait in one direction, the
    sender waits, as with a full socket buffer. As with TCP, bytes that were sent before the peer
    closed can still be read, and sending to a closed peer fails.

Rejected
    anyio's memory object streams: their bound is a number of objects and not of bytes, and they
    close in another order than a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from aioidem.errors import KafkaConnectionError

__all__ = ["BUFFER_BYTES", "MemoryConnector", "MemoryStream", "stream_pair"]

BUFFER_BYTES: Final = 1 << 20


class _Pipe:
    """One direction of a connection."""

    __slots__ = ("broken", "changed", "chunks", "ended", "size")

    def __init__(self) -> None:
        self.chunks: deque[bytes | memoryview] = deque()
        self.size = 0
        self.ended = False
        self.broken = False
        self.changed = anyio.Event()

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class MemoryStream(ByteStream):
    """One end of a connection in memory."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._in = incoming
        self._out = outgoing
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStream in={self._in.size} out={self._out.size} closed={self._closed}>"

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return bytes from the peer.

        Raises:
            anyio.EndOfStream: The peer has closed, and everything was read.
            anyio.ClosedResourceError: This end is closed.
        """
        await anyio.lowlevel.checkpoint()
        pipe = self._in
        while not pipe.chunks:
            if self._closed:
                raise anyio.ClosedResourceError
            if pipe.ended:
                raise anyio.EndOfStream
            await pipe.changed.wait()
        chunk = pipe.chunks.popleft()
        if len(chunk) > max_bytes:
            pipe.chunks.appendleft(memoryview(chunk)[max_bytes:])
            chunk = chunk[:max_bytes]
        pipe.size -= len(chunk)
        pipe.notify()
        return bytes(chunk)

    async def send(self, item: bytes) -> None:
        """Send bytes, and return when there is room for more.

        Raises:
            anyio.BrokenResourceError: The peer has closed.
            anyio.ClosedResourceError: This end is closed.
        """
        await anyio.lowlevel.checkpoint()
        pipe = self._out
        if self._closed:
            raise anyio.ClosedResourceError
        if pipe.broken or pipe.ended:
            raise anyio.BrokenResourceError
        if item:
            pipe.chunks.append(bytes(item))
            pipe.size += len(item)
            pipe.notify()
        while pipe.size > BUFFER_BYTES and not pipe.broken:
            if self._closed:
                raise anyio.ClosedResourceError
            await pipe.changed.wait()

    async def send_eof(self) -> None:
        """Close this direction: the peer reads the bytes that were sent, and then the end."""
        self._out.ended = True
        self._out.notify()
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close both directions; the peer can still read what was sent."""
        self._closed = True
        self._out.ended = True
        self._in.broken = True
        self._in.notify()
        self._out.notify()
        await anyio.lowlevel.checkpoint()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Return no attributes: there is no socket."""
        return {}


def stream_pair() -> tuple[MemoryStream, MemoryStream]:
    """Return both ends of a new connection."""
    there, back = _Pipe(), _Pipe()
    return MemoryStream(back, there), MemoryStream(there, back)


class MemoryConnector:
    """A connector whose connections are pairs of streams in memory.

    Args:
        accept: Called as ``accept(host, port)``; returns the client's end of a new connection, or
            None to refuse it.
    """

    __slots__ = ("_accept",)

    def __init__(self, accept: Callable[[str, int], MemoryStream | None]) -> None:
        self._accept = accept

    async def connect(self, host: str, port: int) -> ByteStream:
        """Open a new connection.

        Raises:
            KafkaConnectionError: No broker listens at this address.
        """
        await anyio.lowlevel.checkpoint()
        stream = self._accept(host, port)
        if stream is None:
            raise KafkaConnectionError(f"cannot connect to {host}:{port}: no broker listens there")
        return stream
