"""Find Kafka's frames in a stream of bytes, without IO, so that a proxy can decide about each.

`FrameCutter` takes the bytes of a stream and yields them again. Frames that need no change are
yielded as slices of the input, and one slice may contain several frames. So the common case costs
one look at the first bytes of each frame, and no copy. A `Patch` replaces a few bytes of a frame on
the way. A frame that the caller is to change in another way is yielded whole (`WHOLE`).

Invariants
    Every byte (or its replacement) is yielded once and in order, in a slice or in a whole frame.
    Only two things are kept back: the incomplete head of a frame (the first bytes, by which the
    caller decides about the frame), and an incomplete frame that is to be yielded whole.
    After a length that no broker accepts, the rest of the stream is passed on unread: a proxy must
    not hide from a broker what a client sent.

Rejected
    Decoding every message: decoding a Fetch response costs more than everything else a proxy does.
    The client's `FrameSplitter`: it copies each frame and holds it until its last byte has arrived,
    which would add the frame's transmission time to every hop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, Generic, TypeAlias, TypeVar

__all__ = [
    "MAX_FRAME_BYTES",
    "PASS",
    "WHOLE",
    "FrameCutter",
    "Patch",
    "Piece",
    "RequestHead",
    "Verdict",
    "WholeFrame",
    "request_head",
    "response_head",
]

H = TypeVar("H")

MAX_FRAME_BYTES: Final = 100 << 20
"""Kafka's default of ``socket.request.max.bytes``; a broker accepts no larger frame."""

_LENGTH: Final = Struct(">i")
_HEAD: Final = Struct(">hhih")
_INT16: Final = Struct(">h")
_PRODUCE: Final = 0
_FIRST_FLEXIBLE_PRODUCE: Final = 9


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The beginning of a request. ``answered`` is False for Produce with acks=0."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    size: int
    """Size of the frame in bytes, without the four bytes of its length field."""
    answered: bool = True


@dataclass(frozen=True, slots=True)
class Patch:
    """The verdict to forward a frame with ``data`` in place of its bytes at offset ``at``.

    Offset 0 is the first byte of the frame's length field.
    """

    at: int
    data: bytes


class _Verdict:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


PASS: Final = _Verdict("PASS")
"""Pass the frame on unchanged."""

WHOLE: Final = _Verdict("WHOLE")
"""Yield the frame as a whole, when it is complete."""

Verdict: TypeAlias = _Verdict | Patch


@dataclass(frozen=True, slots=True)
class WholeFrame(Generic[H]):
    """A complete frame; ``data`` includes the four bytes of its length."""

    head: H
    data: bytes


Piece: TypeAlias = bytes | memoryview | WholeFrame[H]

Parse: TypeAlias = Callable[[bytes, int, int], H | None]
"""Reads a frame's head from (data, offset of the payload, size); None if bytes are missing."""


def request_head(data: bytes, at: int, size: int) -> RequestHead | None:
    """Return a request's head, with API key -1 if malformed; None if bytes have not arrived yet."""
    have = min(len(data) - at, size)
    if have < 10 and have < size:
        return None
    if size < 10:
        return RequestHead(-1, -1, -1, None, size)
    api_key, version, correlation_id, length = _HEAD.unpack_from(data, at)
    end = 10 + max(length, 0)
    if end > size:
        return RequestHead(-1, -1, -1, None, size)
    if end > have:
        return None
    client_id = None if length < 0 else data[at + 10 : at + end].decode(errors="replace")
    answered: bool | None = True
    if api_key == _PRODUCE:
        answered = _answered(data[at + end : at + have], version)
        if answered is None and have < size:
            return None
    return RequestHead(api_key, version, correlation_id, client_id, size, answered is not False)


def _answered(body: bytes, version: int) -> bool | None:
    """Return whether the field acks is not 0; None if that field has not arrived yet."""
    if version < _FIRST_FLEXIBLE_PRODUCE:
        at = 0
        if version >= 3:
            if len(body) < 2:
                return None
            at = 2 + max(_INT16.unpack_from(body)[0], 0)
    else:
        # The request header ends with tagged fields, and Kafka defines none there. A request with
        # such fields is not parsed further, and counts as answered.
        if len(body) < 3:
            return None
        if body[0] != 0:
            return True
        length, at = body[1], 2
        if length >= 0x80:
            length, at = (length & 0x7F) | body[2] << 7, 3
        at += max(length - 1, 0)
    if len(body) < at + 2:
        return None
    acks: int = _INT16.unpack_from(body, at)[0]
    return acks != 0


def response_head(data: bytes, at: int, size: int) -> tuple[int, int] | None:
    """Return a response's correlation id and size; None if the id has not arrived yet.

    The id is -1 if the response is too short to have one.
    """
    if size < 4:
        return -1, size
    if len(data) - at < 4:
        return None
    return _LENGTH.unpack_from(data, at)[0], size


class FrameCutter(Generic[H]):
    """Cuts the bytes of one direction of a connection into frames.

    Args:
        parse: Reads a frame's head; None if bytes of the head are missing.
        judge: Called with each frame's head, in order, as soon as the head has arrived; decides
            whether the frame is passed on, patched, or yielded whole.
    """

    __slots__ = ("_judge", "_left", "_opaque", "_parse", "_rest", "_wanted", "_whole")

    def __init__(self, parse: Parse[H], judge: Callable[[H], Verdict]) -> None:
        self._parse = parse
        self._judge = judge
        self._left = 0
        self._rest = b""
        self._whole = bytearray()
        self._wanted: tuple[H, int] | None = None
        self._opaque = False

    def __repr__(self) -> str:
        state = "opaque" if self._opaque else f"{self._left} bytes left of a frame"
        return f"<FrameCutter {state}, {len(self._rest)} bytes of a head>"

    @property
    def opaque(self) -> bool:
        """Return whether a length came that no broker accepts; the rest is passed on unread."""
        return self._opaque

    def feed(self, data: bytes) -> Iterator[Piece[H]]:
        """Take bytes of the stream, and yield the slices and whole frames that can be passed on.

        The function `judge` may be called for a frame before the bytes ahead of the frame are
        yielded, because one slice may contain several frames. The caller must exhaust the iterator.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        at = passed = 0
        while at < len(data):
            if self._opaque:
                at = len(data)
            elif self._wanted is not None:
                at = passed = yield from self._gather(data, at)
            elif self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
            else:
                begun = self._begin(data, at)
                if begun is None:
                    break
                if begun is PASS:
                    continue
                yield from _slice(data, passed, at)
                passed = at
                if isinstance(begun, Patch):
                    passed = at = yield from self._patch(data, at, begun)
        rest = data[at:]
        yield from _slice(data, passed, at)
        self._rest = rest

    def _begin(self, data: bytes, at: int) -> Verdict | None:
        """Call `judge` for the frame at ``at``; return None if the head is incomplete."""
        if len(data) - at < 4:
            return None
        size: int = _LENGTH.unpack_from(data, at)[0]
        if not 0 < size <= MAX_FRAME_BYTES:
            self._opaque = True
            return PASS
        head = self._parse(data, at + 4, size)
        if head is None:
            return None
        verdict = self._judge(head)
        if verdict is WHOLE:
            self._wanted = (head, size + 4)
        else:
            self._left = size + 4
        return verdict

    def _patch(self, data: bytes, at: int, patch: Patch) -> Generator[Piece[H], None, int]:
        """Yield the patched bytes of a frame and those before them; return the position after."""
        start = at + patch.at
        yield from _slice(data, at, start)
        yield patch.data
        self._left -= patch.at + len(patch.data)
        return start + len(patch.data)

    def _gather(self, data: bytes, at: int) -> Generator[Piece[H], None, int]:
        """Collect a frame, and yield it when whole; return the position after the bytes used."""
        if self._wanted is None:
            return at
        head, missing = self._wanted
        end = min(at + missing, len(data))
        self._whole += data[at:end]
        if end - at < missing:
            self._wanted = (head, missing - (end - at))
            return end
        whole, self._whole, self._wanted = bytes(self._whole), bytearray(), None
        yield WholeFrame(head, whole)
        return end


def _slice(data: bytes, start: int, end: int) -> Iterator[bytes | memoryview]:
    if start == 0 and end == len(data):
        yield data
    elif start < end:
        yield memoryview(data)[start:end]
