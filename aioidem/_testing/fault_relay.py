"""The connections of a `FaultProxy`: bytes are read from one side, and later written to the other.

A `Relay` is one client's connection together with the proxy's own connection to the broker. Each of
its two directions reads bytes, cuts them into frames, calls the hooks, and queues the result of
each frame with the time at which it is to be written.

Invariants
    As with TCP, order is kept, and after a frame that is lost nothing arrives on the same
    connection. Only ``Drop(silent=False)`` breaks this rule.
    Bytes that a client sent before it closed the connection still reach the broker, after the
    link's delay: so a broker may append a batch long after its connection ended.
    A frame that no hook changes passes byte for byte; it is neither copied nor held until its end.

Rejected
    Delaying only whole frames: the time that a frame takes on the link would count twice, while the
    relay reads the frame and again while it passes the frame on.
"""

from __future__ import annotations

import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, Protocol

import anyio
from anyio.abc import ByteStream, SocketAttribute

from aioidem._broker.link import Lane
from aioidem._protocol.frames import frame
from aioidem._testing.fault_actions import (
    Action,
    BlackHole,
    Cut,
    Delay,
    Drop,
    FrameHook,
    FrameSeen,
    Hold,
    Inspect,
    Rewrite,
)
from aioidem._testing.kafka_frames import (
    PASS,
    WHOLE,
    FrameCutter,
    Patch,
    RequestHead,
    Verdict,
    WholeFrame,
    request_head,
    response_head,
)
from aioidem._testing.kafka_retention import Asked, RetentionFace

__all__ = ["JitteryLane", "Relay", "RelayOwner", "reset_on_close"]

_READ_BYTES: Final = 1 << 18
_SEND_BYTES: Final = 1 << 16
# With a bandwidth, a large frame is passed on in steps of this many bytes, because on a real link
# its first bytes arrive long before its last.
_STEP_BYTES: Final = 1 << 14
# How many bytes may wait for a slow reader, and how many may be in transit on a link with a delay.
_WAITING_BYTES: Final = 1 << 20
_TRAVELLING_BYTES: Final = 1 << 26
_VERSION_AT: Final = 6
_INT16: Final = struct.Struct(">h")
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_STREAM_ENDED: Final = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)


class RelayOwner(Protocol):
    """The part of a proxy that its relays use.

    A relay reads the attributes anew at each frame, so that a change applies to the next frame.
    """

    rtt: float
    jitter: float
    bandwidth: float | None
    retention: RetentionFace | None
    on_request: FrameHook | None
    on_answer: FrameHook | None
    trace: deque[tuple[FrameSeen, Action | None]]

    def notify(self) -> None:
        """Wake the tasks that wait for a frame or a change of connections."""

    async def pass_gate(self) -> None:
        """Return once the proxy is not frozen."""


class JitteryLane:
    """Computes when bytes arrive, from the delay, jitter and bandwidth set when they are read.

    Args:
        proxy: The proxy that has the delay, jitter and bandwidth.
        seed: Seed of the jitter.
        connection: Number of the connection, from 1.
        direction: "up" to the broker, or "down" to the client.
    """

    __slots__ = ("_lane", "_proxy", "_random")

    def __init__(self, proxy: RelayOwner, seed: int, connection: int, direction: str) -> None:
        self._proxy = proxy
        self._random = Random(f"{seed}/{connection}/{direction}")
        self._lane = Lane(0.0, None)

    @property
    def travelling_bytes(self) -> int:
        """Return the most bytes that may be in transit (read, but not yet passed on)."""
        slow = self._proxy.rtt or self._proxy.jitter or self._proxy.bandwidth is not None
        return _TRAVELLING_BYTES if slow else _WAITING_BYTES

    def due(self, now: float, size: int, extra: float = 0.0) -> float:
        """Return when ``size`` bytes that were read at ``now`` arrive; ``extra`` seconds are added.

        Times are in seconds on the event loop's clock.
        """
        proxy, lane = self._proxy, self._lane
        jitter = self._random.uniform(0.0, proxy.jitter) if proxy.jitter else 0.0
        lane.delay = proxy.rtt / 2 + jitter + extra
        lane.bandwidth = proxy.bandwidth
        return lane.due(now, size)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that was passed on to the broker.

    ``topics`` are those of a DescribeConfigs request for `producer.state.batches.to.retain`
    (KIP-1269), if the relay changes that config in answers (`RetentionFace`); else empty.
    """

    seen: FrameSeen
    topics: Asked = frozenset()


@dataclass(frozen=True, slots=True)
class _Item:
    """Bytes to write, or an end of the connection, at the time ``due`` on the event loop's clock.

    Items are carried out in the order in which they were queued.
    """

    due: float
    data: bytes | memoryview = b""
    then: Literal["go on", "end", "reset", "close"] = "go on"
    hold: anyio.Event | None = None


class Relay:
    """One client's connection, and the proxy's own connection to the broker.

    Args:
        proxy: The proxy of the connection.
        number: Number of the connection, from 1.
        seed: Seed of the proxy's jitter.
        client: Stream to the client.
        broker: Stream to the broker.
    """

    def __init__(
        self, proxy: RelayOwner, number: int, seed: int, client: ByteStream, broker: ByteStream
    ) -> None:
        self.proxy = proxy
        self.number = number
        self.seed = seed
        self.asked: dict[int, _Asked] = {}
        self._streams = (client, broker)
        self._scope = anyio.CancelScope()
        self._up = _Upward(self, client, broker, "up")
        self._down = _Downward(self, broker, client, "down")

    async def run(self) -> None:
        """Relay until both directions have ended or `close` was called."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    for direction in (self._up, self._down):
                        tasks.start_soon(direction.read)
                        tasks.start_soon(direction.write)
        finally:
            for stream in self._streams:
                # Shielded: the streams must be closed even when this task is cancelled.
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)

    def close(self, *, reset: bool) -> None:
        """Close both sides now, with RST if ``reset`` is set."""
        if reset:
            for stream in self._streams:
                reset_on_close(stream)
        self._scope.cancel()

    def swallow(self) -> None:
        """Discard everything from now on in both directions, and keep both sides open."""
        self._up.swallow()
        self._down.swallow()


class _Direction(ABC):
    """One direction of a relay: reads from ``source``, writes to ``sink``."""

    def __init__(self, relay: Relay, source: ByteStream, sink: ByteStream, name: str) -> None:
        self._relay = relay
        self._source = source
        self._sink = sink
        self._lane = JitteryLane(relay.proxy, relay.seed, relay.number, name)
        self._queue: deque[_Item] = deque()
        self._queued = 0
        self._filled = anyio.Event()
        self._emptied = anyio.Event()
        self._muted = False
        self._swallowed = False

    # -- reading -----------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read the bytes that arrive, and queue them until they are due on the other side."""
        while True:
            try:
                data = await self._source.receive(_READ_BYTES)
            except anyio.EndOfStream:
                return self._put(_Item(self._due(0), then="end"))
            except _STREAM_ENDED:
                return self._put(_Item(self._due(0), then="reset"))
            self._take(data)
            while self._queued > self._lane.travelling_bytes:
                self._emptied = anyio.Event()
                await self._emptied.wait()
            if self._swallowed:
                # Stop reading, so that the sender's buffers fill up as they would on a dead link.
                await anyio.sleep_forever()

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Cut ``data`` into frames, ask the proxy's hook about each, and queue what may pass."""

    def _due(self, size: int, extra: float = 0.0) -> float:
        return self._lane.due(anyio.current_time(), size, extra)

    def swallow(self) -> None:
        """Discard what is queued and whatever is read later."""
        self._muted = self._swallowed = True
        self._queue.clear()
        self._queued = 0

    def _put(self, item: _Item) -> None:
        if self._swallowed or (self._muted and item.data):
            return
        self._queue.append(item)
        self._queued += len(item.data)
        self._filled.set()

    def _pass(self, data: bytes | memoryview) -> None:
        if self._relay.proxy.bandwidth is None or len(data) <= _STEP_BYTES:
            self._put(_Item(self._due(len(data)), data))
            return
        for at in range(0, len(data), _STEP_BYTES):
            part = memoryview(data)[at : at + _STEP_BYTES]
            self._put(_Item(self._due(len(part)), part))

    def _act(self, action: Action | None, payload: bytes) -> None:
        """Apply a hook's action to a whole frame."""
        whole = frame(payload)
        match action:
            case None:
                self._pass(whole)
            case Inspect(decide):
                self._act(decide(payload), payload)
            case Rewrite(change):
                self._pass(frame(change(payload)))
            case Delay(seconds):
                self._put(_Item(self._due(len(whole), seconds), whole))
            case Hold(released):
                self._put(_Item(self._due(len(whole)), whole, hold=released))
            case Drop(silent):
                self._muted = self._muted or silent
            case Cut(after, reset):
                part = whole[:after]
                due = self._due(len(part))
                self._put(_Item(due, part))
                self._put(_Item(due, then="reset" if reset else "close"))
                self._muted = True
            case BlackHole():
                self._relay.swallow()

    # -- writing -----------------------------------------------------------------------------------

    async def write(self) -> None:
        """Carry out the queued actions when they are due, in order."""
        while True:
            while not self._queue:
                self._filled = anyio.Event()
                await self._filled.wait()
            item = self._queue[0]
            if item.hold is not None:
                await item.hold.wait()
            if item.due > anyio.current_time():
                await anyio.sleep_until(item.due)
            await self._relay.proxy.pass_gate()
            if not self._queue or self._queue[0] is not item:
                continue  # `swallow` has emptied the queue
            if item.then == "go on":
                await self._send(self._take_due())
                continue
            self._queue.popleft()
            if item.then == "end":
                # uvloop raises RuntimeError for a closed stream.
                with suppress(*_STREAM_ENDED, RuntimeError):
                    await self._sink.send_eof()
                return
            self._relay.close(reset=item.then == "reset")

    def _take_due(self) -> bytes | memoryview:
        """Remove the first item and the following ones that are due, and return their bytes."""
        now = anyio.current_time()
        first = self._queue.popleft().data
        size = len(first)
        more = [first]
        while self._queue and size < _SEND_BYTES:
            item = self._queue[0]
            if item.due > now or item.then != "go on" or item.hold is not None:
                break
            more.append(self._queue.popleft().data)
            size += len(item.data)
        self._queued -= size
        if self._queued <= self._lane.travelling_bytes:
            self._emptied.set()
        return first if len(more) == 1 else b"".join(more)

    async def _send(self, data: bytes | memoryview) -> None:
        try:
            await self._sink.send(data)  # type: ignore[arg-type]  # any buffer is taken
        except _STREAM_ENDED:
            # The other direction reads from this sink, so it sees the end and passes it on.
            self._muted = True


class _Upward(_Direction):
    """Carries requests from the client to the broker."""

    def __init__(self, relay: Relay, source: ByteStream, sink: ByteStream, name: str) -> None:
        super().__init__(relay, source, sink, name)
        self._cutter = FrameCutter(request_head, self._judge)
        self._action: Action | None = None

    def _take(self, data: bytes) -> None:
        for piece in self._cutter.feed(data):
            if isinstance(piece, WholeFrame):
                self._complete(piece.head, piece.data[4:])
            else:
                self._pass(piece)

    def _judge(self, head: RequestHead) -> Verdict:
        if self._muted:
            return PASS
        relay, proxy = self._relay, self._relay.proxy
        seen = FrameSeen(
            relay.number,
            False,
            head.api_key,
            head.api_version,
            head.correlation_id,
            head.client_id,
            head.size,
            anyio.current_time(),
        )
        if head.answered:
            relay.asked[head.correlation_id] = _Asked(seen)
        self._action = proxy.on_request(seen) if proxy.on_request is not None else None
        proxy.trace.append((seen, self._action))
        proxy.notify()
        face = proxy.retention
        if self._action is not None or (face is not None and face.reads_request(head.api_key)):
            return WHOLE
        if face is not None:
            version = face.forwarded_version(head.api_key, head.api_version)
            if version != head.api_version:
                return Patch(_VERSION_AT, _INT16.pack(version))
        return PASS

    def _complete(self, head: RequestHead, payload: bytes) -> None:
        action, self._action = self._action, None
        if isinstance(action, Inspect):
            action = action.decide(payload)
        if isinstance(action, Drop | Cut | BlackHole):
            # The broker does not get the whole request, so it will not respond to it.
            self._relay.asked.pop(head.correlation_id, None)
        face = self._relay.proxy.retention
        if face is not None:
            if isinstance(action, Rewrite):
                payload, action = action.change(payload), None
            payload = self._translated(face, head, payload)
        self._act(action, payload)

    def _translated(self, face: RetentionFace, head: RequestHead, payload: bytes) -> bytes:
        asked = self._relay.asked.get(head.correlation_id)
        if asked is not None and face.reads_request(head.api_key):
            self._relay.asked[head.correlation_id] = _Asked(asked.seen, face.request(payload))
        version = face.forwarded_version(head.api_key, head.api_version)
        return payload[:2] + _INT16.pack(version) + payload[4:] if len(payload) >= 4 else payload


class _Downward(_Direction):
    """Carries responses from the broker to the client."""

    def __init__(self, relay: Relay, source: ByteStream, sink: ByteStream, name: str) -> None:
        super().__init__(relay, source, sink, name)
        self._cutter = FrameCutter(response_head, self._judge)
        self._action: Action | None = None
        self._asked: _Asked | None = None

    def _take(self, data: bytes) -> None:
        for piece in self._cutter.feed(data):
            if isinstance(piece, WholeFrame):
                self._complete(piece.data[4:])
            else:
                self._pass(piece)

    def _judge(self, head: tuple[int, int]) -> Verdict:
        correlation_id, size = head
        relay, proxy = self._relay, self._relay.proxy
        self._asked = asked = relay.asked.pop(correlation_id, None)
        if self._muted:
            return PASS
        key, version, client_id = (
            (-1, -1, None)
            if asked is None
            else (asked.seen.api_key, asked.seen.api_version, asked.seen.client_id)
        )
        seen = FrameSeen(
            relay.number, True, key, version, correlation_id, client_id, size, anyio.current_time()
        )
        self._action = proxy.on_answer(seen) if proxy.on_answer is not None else None
        proxy.trace.append((seen, self._action))
        proxy.notify()
        face = proxy.retention
        if self._action is not None or (face is not None and face.reads_response(key, version)):
            return WHOLE
        return PASS

    def _complete(self, payload: bytes) -> None:
        action, self._action = self._action, None
        asked, self._asked = self._asked, None
        face = self._relay.proxy.retention
        if face is not None and asked is not None:
            seen = asked.seen
            if face.reads_response(seen.api_key, seen.api_version):
                payload = face.response(seen.api_key, seen.api_version, payload, asked.topics)
        self._act(action, payload)


def reset_on_close(stream: ByteStream) -> None:
    """Let the next close of the stream send RST instead of FIN."""
    # uvloop raises ValueError for a socket that is closed.
    with suppress(OSError, ValueError, anyio.TypedAttributeLookupError):
        raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    # Before 4.16, anyio shuts a stream down before it closes it, and the peer would see a FIN.
    abort = getattr(getattr(stream, "_transport", None), "abort", None)
    if abort is not None:
        abort()
