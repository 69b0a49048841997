"""Frames on a byte stream: four bytes of length, then that many bytes. No IO.

Invariants:

- A length is judged as soon as its four bytes are there, before anything of the frame is kept:
  zero, negative and above the limit are refused. Memory therefore grows with what was received,
  never with what was announced.
- Frames completed before a bad length are handed out first; the error comes with the next call.
- After the error the splitter stays unusable: behind a bad length nothing on the stream has a
  place.
- The first four bytes of a stranger are words of another protocol. Read as a length they are
  absurd, so they are looked up (TLS, HTTP, SSH, ...) and the peer is named.

Rejected: a preallocated buffer of the announced size (an announcement is free, KIP-498).
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
    """`payload` behind its length."""
    return _LENGTH.pack(len(payload)) + payload


def recognise(first_bytes: bytes) -> str | None:
    """The protocol of which a stream's first bytes are typical, or None."""
    for prefix, name in _STRANGERS:
        if first_bytes.startswith(prefix):
            return name
    return None


class FrameLimit(NamedTuple):
    """How long one frame may be, and what to say where a longer one is refused."""

    max_bytes: int
    what: str = "frame"
    cure: str = ""


class FrameSplitter:
    """Cuts a stream into frames.

    :param max_frame_bytes: the largest frame taken. It may be changed between calls: a peer that
        has not shown yet that it is a broker deserves less.
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
        """What is wrong with the stream, once it is known; the frames before it came out whole."""
        return self._error

    @property
    def pending(self) -> bytes:
        """The bytes of a frame that is not complete yet."""
        return bytes(self._buffer)

    def feed(
        self,
        data: bytes | bytearray | memoryview,
        limit_of: Callable[[int], FrameLimit] | None = None,
    ) -> list[bytes]:
        """Take bytes of the stream; return the payloads of all frames they complete, in order.

        :param limit_of: how long the n-th of these frames may be, from 0 on. None: as long as
            `max_frame_bytes` says.
        :raises NotKafkaError: the first frame's length is impossible, so the peer is no broker.
        :raises ProtocolError: a later length is impossible. (Either is raised by the next call
            instead, if frames were completed in front of it; see `error`.)
        """
        if self._error is not None:
            raise self._error
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
