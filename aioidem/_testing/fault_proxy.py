"""FaultProxy: a TCP proxy that knows Kafka's frames, in front of any broker.

A client that connects to it reaches the broker behind it, over a link whose round-trip time, jitter
and bandwidth are set here, and whose frames a hook may delay, hold, drop, cut at a byte, or
rewrite. With a `RetentionFace` the broker behind it shows KIP-1269's face.

The broker must advertise the proxy's address, or clients go past it: see `KafkaCluster`, and
`listen_port`.

Invariants
    Order is TCP's: nothing overtakes, and behind a frame that is not to arrive nothing arrives on
    that connection (``silent=False`` breaks this on purpose). What a client sent before it closed
    still reaches the broker, after the link's delay: that is how appends happen long after their
    connection's end. A frame nobody asked for passes byte for byte, without being copied or waited
    for to its end. Random delays come from the seed, the connection and the direction alone.
    Leaving the ``async with`` ends every connection and the listener.

Rejected
    netem and iptables (root, and they know no frames); delaying whole frames only (a frame's
    transmission time would count twice); a thread per connection (the hooks would need locks).
"""

from __future__ import annotations

import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskGroup, TaskStatus

from aioidem._broker.link import Lane
from aioidem._network.listening import Listening
from aioidem._network.transport import Connector, TcpConnector
from aioidem._protocol.frames import frame
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
from aioidem.errors import ConfigError, KafkaConnectionError

__all__ = [
    "Action",
    "BlackHole",
    "Cut",
    "Delay",
    "Drop",
    "FaultProxy",
    "FrameHook",
    "FrameSeen",
    "Hold",
    "Inspect",
    "Rewrite",
]

_READ_BYTES: Final = 1 << 18
_SEND_BYTES: Final = 1 << 16
# On a thin link bytes arrive bit by bit, not all when the last one has left.
_STEP_BYTES: Final = 1 << 14
# What may wait for a slow reader; with a delay much more is on its way at any time.
_WAITING_BYTES: Final = 1 << 20
_TRAVELLING_BYTES: Final = 1 << 26
_TRACED: Final = 4096
_VERSION_AT: Final = 6
_INT16: Final = struct.Struct(">h")
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_STREAM_ENDED: Final = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class FrameSeen:
    """A frame that has begun to arrive at the proxy.

    For an answer, API, version and client id are its request's (API key -1: the proxy saw none).
    The version is the client's, also where the broker is spoken to in another one. ``at``: seconds
    on the event loop's clock; ``size``: bytes behind the frame's length.
    """

    connection: int
    answer: bool
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    size: int
    at: float


@dataclass(frozen=True, slots=True)
class Delay:
    """Let it and all behind it arrive so many seconds later than the link would."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Let it and all behind it arrive no earlier than `release` is called."""

    released: anyio.Event = field(default_factory=anyio.Event)

    def release(self) -> None:
        """Let go; it may be called again."""
        self.released.set()


@dataclass(frozen=True, slots=True)
class Drop:
    """It does not arrive, and (``silent``) nothing behind it in this direction either."""

    silent: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """Let its first bytes arrive (its length is the first four), then close the connection.

    A negative ``after`` counts from the frame's end. ``reset``: close with RST, not FIN.
    """

    after: int = 0
    reset: bool = False


@dataclass(frozen=True, slots=True)
class BlackHole:
    """Nothing arrives any more in either direction; the connection stays open."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Let ``change(payload)`` arrive instead; payloads are without their length."""

    change: Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Decide when it is complete, by its payload."""

    decide: Callable[[bytes], Action | None]


Action: TypeAlias = Delay | Hold | Drop | Cut | BlackHole | Rewrite | Inspect

FrameHook: TypeAlias = Callable[[FrameSeen], Action | None]
"""Called once per frame, in order per direction and connection; must be quick and not await."""


class FaultProxy:
    """A listener in front of one broker. Belongs to one event loop.

    :param host: the broker's, and ``port``: may be changed later through `upstream`.
    :param listen_host: where to listen, and ``listen_port``: 0 takes a free one.
    :param rtt: round-trip time of every connection, seconds.
    :param jitter: up to so many seconds more each way, at random; order is kept.
    :param bandwidth: of every connection and direction, bytes per second; None: unlimited.
    :param retention: what the broker shall be said to retain (KIP-1269); None: nothing is said.
    :param connector: how the broker is reached; None: TCP.
    :param seed: of the jitter.
    :raises ConfigError: a negative delay, or a bandwidth that is not positive.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listen_host: str = "127.0.0.1",
        listen_port: int = 0,
        rtt: float = 0.0,
        jitter: float = 0.0,
        bandwidth: float | None = None,
        retention: RetentionFace | None = None,
        connector: Connector | None = None,
        seed: int = 0,
    ) -> None:
        self.upstream = (host, port)
        self.host = listen_host
        self.port = listen_port
        self.retention = retention
        self.on_request: FrameHook | None = None
        self.on_answer: FrameHook | None = None
        self.trace: deque[tuple[FrameSeen, Action | None]] = deque(maxlen=_TRACED)
        self.set_link(rtt=rtt, jitter=jitter, bandwidth=bandwidth)
        self._connector = connector or TcpConnector()
        self._seed = seed
        self._opened = 0
        self._relays: dict[int, _Relay] = {}
        self._frozen: anyio.Event | None = None
        self._changed: anyio.Event | None = None
        self._exits = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._listening: Listening | None = None

    def __repr__(self) -> str:
        host, port = self.upstream
        state = "listening" if self._listening is not None else "not listening"
        return (
            f"<FaultProxy {self.host}:{self.port} -> {host}:{port}, {state}, "
            f"{len(self._relays)} connections>"
        )

    async def __aenter__(self) -> Self:
        """Listen.

        :raises OSError: the address cannot be listened at.
        """
        self._tasks = await self._exits.enter_async_context(anyio.create_task_group())
        try:
            await self.accept()
        except BaseException:
            await self._shut()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every connection and the listener."""
        await self._shut()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._relays)

    @property
    def opened(self) -> int:
        """How many connections were opened since the start."""
        return self._opened

    def outstanding(self, api_key: int | None = None) -> int:
        """Requests (of one API) on open connections whose answer has not begun to come back."""
        return sum(
            api_key is None or asked.seen.api_key == api_key
            for relay in self._relays.values()
            for asked in relay.asked.values()
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds; it is evaluated at each frame and each change of connections."""
        while not condition():
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()

    # -- the link ----------------------------------------------------------------------------------

    def set_link(
        self, *, rtt: float = 0.0, jitter: float = 0.0, bandwidth: float | None = None
    ) -> None:
        """Change the link of every connection, for what arrives from now on."""
        if rtt < 0 or jitter < 0 or (bandwidth is not None and bandwidth <= 0):
            raise ConfigError(
                f"rtt={rtt}, jitter={jitter}, bandwidth={bandwidth}: delays are 0 or more, and a "
                "bandwidth is more than 0 or None"
            )
        self.rtt, self.jitter, self.bandwidth = rtt, jitter, bandwidth

    # -- faults for all connections ----------------------------------------------------------------

    def disconnect(self, *, reset: bool = False) -> None:
        """Close every connection now, losing what is on its way. ``reset``: with RST, not FIN."""
        for relay in list(self._relays.values()):
            relay.close(reset=reset)

    def freeze(self) -> None:
        """Let nothing arrive any more, on new connections neither, and keep them open."""
        if self._frozen is None:
            self._frozen = anyio.Event()

    def thaw(self) -> None:
        """End `freeze`: everything arrives that was on its way."""
        if self._frozen is not None:
            self._frozen.set()
            self._frozen = None

    async def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones stay."""
        if self._listening is not None:
            listening, self._listening = self._listening, None
            await listening.end()

    async def accept(self) -> None:
        """Listen (again), at the same port.

        :raises OSError: the address cannot be listened at.
        """
        if self._listening is not None or self._tasks is None:
            return
        listener = await anyio.create_tcp_listener(local_host=self.host, local_port=self.port)
        self.port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
        listening = Listening(listener, anyio.CancelScope(), anyio.Event())
        try:
            # Started, not only scheduled: `end` waits for it to close the listener.
            await self._tasks.start(self._serve, listening)
        except BaseException:
            await anyio.aclose_forcefully(listener)
            raise
        self._listening = listening

    # -- inside ------------------------------------------------------------------------------------

    async def _serve(self, listening: Listening, *, task_status: TaskStatus[None]) -> None:
        try:
            async with listening.listener:
                task_status.started()
                with listening.scope:
                    # Connections outlive the listener: see `refuse`.
                    await listening.listener.serve(self._relay, self._tasks)
        finally:
            listening.done.set()

    async def _relay(self, client: ByteStream) -> None:
        self._opened += 1
        number = self._opened
        _no_delay(client)
        try:
            broker = await self._connector.connect(*self.upstream)
        except KafkaConnectionError:
            # The client is past the point where it could be refused.
            _reset_on_close(client)
            await anyio.aclose_forcefully(client)
            return
        relay = self._relays[number] = _Relay(self, number, client, broker)
        self.notify()
        try:
            await relay.run()
        finally:
            del self._relays[number]
            self.notify()

    def notify(self) -> None:
        """Have conditions of `until` looked at."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def pass_gate(self) -> None:
        """Return when nothing is frozen."""
        while self._frozen is not None:
            await self._frozen.wait()

    def lane(self, connection: int, direction: str) -> _JitteryLane:
        """One direction of a new connection."""
        return _JitteryLane(self, Random(f"{self._seed}/{connection}/{direction}"))

    async def _shut(self) -> None:
        tasks, self._tasks = self._tasks, None
        with anyio.CancelScope(shield=True):
            await self.refuse()
        if tasks is not None:
            tasks.cancel_scope.cancel()
        await self._exits.aclose()


class _JitteryLane:
    """When bytes arrive over the link as it is set at the time."""

    __slots__ = ("_lane", "_proxy", "_random")

    def __init__(self, proxy: FaultProxy, random: Random) -> None:
        self._proxy = proxy
        self._random = random
        self._lane = Lane(0.0, None)

    @property
    def travelling_bytes(self) -> int:
        """How much may be on its way."""
        slow = self._proxy.rtt or self._proxy.jitter or self._proxy.bandwidth is not None
        return _TRAVELLING_BYTES if slow else _WAITING_BYTES

    def due(self, now: float, size: int, extra: float = 0.0) -> float:
        proxy, lane = self._proxy, self._lane
        jitter = self._random.uniform(0.0, proxy.jitter) if proxy.jitter else 0.0
        lane.delay = proxy.rtt / 2 + jitter + extra
        lane.bandwidth = proxy.bandwidth
        return lane.due(now, size)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that went on to the broker, and what its answer will need."""

    seen: FrameSeen
    topics: Asked = frozenset()


@dataclass(frozen=True, slots=True)
class _Item:
    """Something to be done when its time has come and everything before it is done."""

    due: float
    data: bytes | memoryview = b""
    then: Literal["go on", "end", "reset", "close"] = "go on"
    hold: anyio.Event | None = None


class _Relay:
    """One client's connection, and the proxy's own to the broker."""

    def __init__(
        self, proxy: FaultProxy, number: int, client: ByteStream, broker: ByteStream
    ) -> None:
        self.proxy = proxy
        self.number = number
        self.asked: dict[int, _Asked] = {}
        self._streams = (client, broker)
        self._scope = anyio.CancelScope()
        self._up = _Upward(self, client, broker, "up")
        self._down = _Downward(self, broker, client, "down")

    async def run(self) -> None:
        """Relay until both directions have ended or the connection was closed."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    for direction in (self._up, self._down):
                        tasks.start_soon(direction.read)
                        tasks.start_soon(direction.write)
        finally:
            for stream in self._streams:
                # Shielded inside: it must be closed also when this task is cancelled.
                with anyio.CancelScope(shield=True):
                    await anyio.aclose_forcefully(stream)

    def close(self, *, reset: bool) -> None:
        """Close both sides now."""
        if reset:
            for stream in self._streams:
                _reset_on_close(stream)
        self._scope.cancel()

    def swallow(self) -> None:
        """Let nothing arrive any more, and keep both sides open."""
        self._up.swallow()
        self._down.swallow()


class _Direction(ABC):
    """From one side of a relay to the other."""

    def __init__(self, relay: _Relay, source: ByteStream, sink: ByteStream, name: str) -> None:
        self._relay = relay
        self._source = source
        self._sink = sink
        self._lane = relay.proxy.lane(relay.number, name)
        self._queue: deque[_Item] = deque()
        self._queued = 0
        self._filled = anyio.Event()
        self._emptied = anyio.Event()
        self._muted = False
        self._swallowed = False

    # -- reading -----------------------------------------------------------------------------------

    async def read(self) -> None:
        """Take in what arrives, and queue it for when it is due on the other side."""
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
                # Not read any more: as on a dead link, the sender's buffers fill up.
                await anyio.sleep_forever()

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Look at the frames in what arrived, and queue what becomes of it."""

    def _due(self, size: int, extra: float = 0.0) -> float:
        return self._lane.due(anyio.current_time(), size, extra)

    def swallow(self) -> None:
        """Let nothing arrive any more."""
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
        """Do with a whole frame what the hook said."""
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
        """Hand on what is due, in order."""
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
                continue  # swallowed meanwhile
            if item.then == "go on":
                await self._send(self._take_due())
                continue
            self._queue.popleft()
            if item.then == "end":
                with suppress(*_STREAM_ENDED, RuntimeError):  # uvloop's word for a closed stream
                    await self._sink.send_eof()
                return
            self._relay.close(reset=item.then == "reset")

    def _take_due(self) -> bytes | memoryview:
        """The first item's bytes, with those of others that may go with them."""
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
            # The other direction's reader sees why; what still comes has nowhere to go.
            self._muted = True


class _Upward(_Direction):
    """From the client to the broker."""

    def __init__(self, relay: _Relay, source: ByteStream, sink: ByteStream, name: str) -> None:
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
            # It does not arrive whole, so nothing will answer it.
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
    """From the broker to the client."""

    def __init__(self, relay: _Relay, source: ByteStream, sink: ByteStream, name: str) -> None:
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


def _no_delay(stream: ByteStream) -> None:
    raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _reset_on_close(stream: ByteStream) -> None:
    # ValueError: uvloop's socket, once it is closed.
    with suppress(OSError, ValueError, anyio.TypedAttributeLookupError):
        raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    # Before 4.16 anyio's stream shuts itself down as it is closed: the peer reads an end, no reset.
    abort = getattr(getattr(stream, "_transport", None), "abort", None)
    if abort is not None:
        abort()
