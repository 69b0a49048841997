"""Split a byte stream into frames, without IO: four bytes of length, then that many bytes.

Invariants:

- A length is checked as soon as its four bytes have arrived, before anything of the frame is kept:
  zero, negative lengths and those above the limit are refused. Memory thus grows with what was
  received, never with what was announced.
- Frames that were complete before a bad length are returned first; the error comes with the next
  call.
- After an error the splitter stays unusable, because the next frame's start is unknown.
- If the first length is impossible, the peer probably speaks another protocol. Its first bytes are
  compared with those of TLS, HTTP, SSH and others, so that the error can name the protocol.

Rejected: allocating a buffer of the announced size (announcing costs a peer nothing, KIP-498).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from aioidem.errors import NotKafkaError, ProtocolError

__all__ = ["FrameLimit", "FrameSplitter", "frame", "recognise"]

_LENGTH: Final = Struct(">i")

_STRANGERS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x15\x03", "TLS (it sent an alert)"),
    (b"\x16\x03", "TLS (it sent a handshake)"),
    (b"HTTP", "HTTP"),
    (b"SSH-", "SSH"),
    (b"AMQP", "AMQP"),
    (b"-ERR", "Redis or POP3"),
    (b"220 ", "SMTP or FTP"),
    (b"220-", "SMTP or FTP"),
    (b"E\x00\x00\x00", "PostgreSQL"),
    (b"GET ", "HTTP (it sent a request)"),
    (b"POST", "HTTP (it sent a request)"),
    (b"PUT ", "HTTP (it sent a request)"),
    (b"HEAD", "HTTP (it sent a request)"),
)


def frame(payload: bytes) -> bytes:
    """Prepend the length to `payload`."""
    return _LENGTH.pack(len(payload)) + payload


def recognise(first_bytes: bytes) -> str | None:
    """Return the protocol whose streams typically start with these bytes, or None."""
    for prefix, name in _STRANGERS:
        if first_bytes.startswith(prefix):
            return name
    return None


class FrameLimit(NamedTuple):
    """How long one frame may be, and how an error describes one that is longer."""

    max_bytes: int
    what: str = "frame"
    cure: str = ""


class FrameSplitter:
    """Cuts a byte stream into frames.

    Args:
        max_frame_bytes: The largest frame accepted. It may be changed between calls, because a peer
            that has not yet proved to be a broker gets a lower limit.
    """

    __slots__ = ("_buffer", "_error", "_frames", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._frames = 0
        self._error: ProtocolError | NotKafkaError | None = None

    def __repr__(self) -> str:
        state = "broken" if self._error else f"{len(self._buffer)} bytes waiting"
        return f"<FrameSplitter after {self._frames} frames, {state}>"

    @property
    def error(self) -> ProtocolError | NotKafkaError | None:
        """What is wrong with the stream, after its last good frame; None if nothing is."""
        return self._error

    @property
    def pending(self) -> bytes:
        """The bytes received of a frame that is not complete yet."""
        return bytes(self._buffer)

    def feed(
        self,
        data: bytes | bytearray | memoryview,
        limit_of: Callable[[int], FrameLimit] | None = None,
    ) -> list[bytes]:
        """Take bytes of the stream; return the payloads of all frames that they complete, in order.

        If frames were complete before a bad length, the error is raised by the next call; see
        `error`.

        Args:
            data: The bytes received.
            limit_of: Returns how long the n-th frame of this call may be, counted from 0. None
                limits each of them to `max_frame_bytes`.

        Raises:
            NotKafkaError: The first frame's length is impossible, so the peer is not a broker.
            ProtocolError: A later length is impossible.
        """
        if self._error is not None:
            raise self._error
        if len(data) > _LENGTH.size:
            frame = self.whole(data, self._limit() if limit_of is None else limit_of(0))
            if frame is not None:
                return [frame]
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        at = 0
        while len(buffer) - at >= 4:
            length: int = _LENGTH.unpack_from(buffer, at)[0]
            limit = self._limit() if limit_of is None else limit_of(len(frames))
            if length <= 0 or length > limit.max_bytes:
                self._error = self._refusal(length, limit, bytes(buffer[at : at + 64]))
                break
            end = at + 4 + length
            if end > len(buffer):
                break
            frames.append(bytes(buffer[at + 4 : end]))
            self._frames += 1
            at = end
        del buffer[:at]
        if self.error is not None:
            buffer.clear()
            if not frames:
                raise self.error
        return frames

    def whole(self, data: bytes | bytearray | memoryview, limit: FrameLimit) -> bytes | None:
        """Take bytes of the stream if they are exactly the next frame, and return its payload.

        This is the common case. In any other case nothing is taken, and the result is None: `feed`
        takes the bytes, or says what is wrong with them.

        Args:
            data: The bytes received.
            limit: How long the frame may be.
        """
        length = len(data) - _LENGTH.size
        if length <= 0 or length > limit.max_bytes or self._buffer or self._error is not None:
            return None
        if _LENGTH.unpack_from(data)[0] != length:
            return None
        self._frames += 1
        return bytes(data[_LENGTH.size :])

    def _limit(self) -> FrameLimit:
        return FrameLimit(self.max_frame_bytes)

    def _refusal(
        self, length: int, limit: FrameLimit, first_bytes: bytes
    ) -> ProtocolError | NotKafkaError:
        if self._frames:
            return ProtocolError(
                f"{limit.what} of {length} bytes announced; 1 to {limit.max_bytes} are possible"
                f"{limit.cure}"
            )
        name = recognise(first_bytes)
        speaks = f"speaks {name}" if name else "speaks something else"
        return NotKafkaError(
            f"the peer is not a plaintext Kafka listener: it {speaks}; "
            f"its first bytes are {first_bytes[:16]!r}"
        )
