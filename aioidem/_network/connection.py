"""One pipelined connection to one broker: a pump between a byte stream and whole frames.

It moves bytes and checks order; what a request means, when it is late and whether to reconnect is
the Sender's business.

Invariants:

- Frames leave in the order of `write`. A response is accepted only if it is the next one due and
  carries that request's correlation id; anything else ends the connection (an answer taken for
  the wrong request would acknowledge the wrong records).
- How long a response may be is known of the request it answers: one announced as longer ends the
  connection before any of it is kept.
- A request is due an answer once it has *started*, that is, once it was handed to the stream. It
  is never said not to have started when a byte of it may have left: `started` stays answerable
  after the end, because "not started" is what lets a batch be called never sent.
- `run` ends with a cause, once, and the stream is closed by then. Frames that were complete
  before the end were delivered; after `close_soon` none is.
- Whatever is cancelled, the stream is closed: closing is shielded, and bounded.
- Before the peer has shown that it is a broker, and authenticated us where that is configured, it
  gets 64 KiB and the setup timeout, and what it speaks is named if it is not Kafka.
- A session that nears its end is renewed where it is (KIP-368): what is queued is parked, what is
  due is waited for, then the exchange has the connection to itself. Nothing is lost by it: what was
  parked has not started.

Rejected: a future per request here (the engine has the state of each batch; a second copy would
differ from it some day); a lock around `send` (one writer task needs none, and it is what lets
frames of one moment go out together).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from aioidem._config.secret import Secret
from aioidem._network.sasl.authentication import Authentication
from aioidem._network.sasl.client import SaslClient
from aioidem._network.tls import TlsConnector, tls_failure
from aioidem._network.tls_probe import PROBE_SECONDS, answers_tls, speaks
from aioidem._network.transport import Connector, address
from aioidem._network.waiting import Wakeup
from aioidem._protocol.frames import FrameLimit, FrameSplitter, recognise
from aioidem._protocol.messages import correlation_id_of
from aioidem._protocol.versions import ApiVersionTable, VersionNegotiation
from aioidem.errors import (
    AuthenticationFailedError,
    InternalError,
    KafkaConnectionError,
    KafkaError,
    NotKafkaError,
    ProtocolError,
)

__all__ = ["Connection", "OnFrame", "OnProgress"]

OnFrame = Callable[[int, bytes], Awaitable[None] | None]
"""Takes a response: its correlation id and the whole frame without its length, header included.

What it returns is awaited before the next response is looked at, and cancelled if the connection
ends meanwhile.
"""

OnProgress = Callable[[int, int], None]
"""Takes the bytes just written and just read; one of them is 0."""

_HANDSHAKE_FRAME_BYTES: Final = 1 << 16
"""Some 20 ms of decoding, on the event loop; brokers need 2 KiB."""
_HANDSHAKE_LIMIT: Final = FrameLimit(_HANDSHAKE_FRAME_BYTES)
_UNASKED_LIMIT: Final = FrameLimit(1 << 16, "answer that nobody asked for,")
_READ_BYTES: Final = 1 << 16
_SEND_BYTES: Final = 1 << 17
_CLOSE_SECONDS: Final = 1.0
_LAST_CORRELATION_ID: Final = 2**31 - 1


def _own_version() -> str:
    try:
        return version("aioidem")
    except PackageNotFoundError:
        return "0"


# Looked up on import: it reads files, which no event loop should wait for.
_SOFTWARE: Final = ("aioidem", _own_version())

_STREAM_ERRORS: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

Cause = KafkaConnectionError | ProtocolError | AuthenticationFailedError
"""Why a connection ended."""


class Connection:
    """A connection on which requests may be outstanding in any number. Make one with `open`.

    Belongs to one event loop; no method may be called from another thread.
    """

    __slots__ = (
        "_answered",
        "_authentication",
        "_cause",
        "_crash",
        "_done_reading",
        "_due",
        "_ended",
        "_exchange",
        "_last_id",
        "_queue",
        "_ran",
        "_scope",
        "_setup_timeout",
        "_splitter",
        "_stopped",
        "_stream",
        "_unstarted",
        "_wake",
        "host",
        "port",
        "versions",
    )

    def __init__(
        self,
        stream: ByteStream,
        host: str,
        port: int,
        *,
        versions: ApiVersionTable,
        splitter: FrameSplitter,
        last_correlation_id: int = -1,
        setup_timeout: float = 10.0,
    ) -> None:
        self.host = host
        self.port = port
        self.versions = versions
        self._stream = stream
        self._splitter = splitter
        self._last_id = last_correlation_id
        self._queue: deque[tuple[bytes, int, FrameLimit | None]] = deque()
        self._unstarted: set[int] = set()
        self._due: deque[tuple[int, FrameLimit]] = deque()
        self._wake = Wakeup()
        self._ended: anyio.Event | None = None
        self._scope: anyio.CancelScope | None = None
        self._cause: Cause | None = None
        self._authentication: Authentication | None = None
        self._setup_timeout = setup_timeout
        # While the session is renewed: what the exchange waits for, an answer or all answers.
        self._exchange: _Exchange | None = None
        self._answered = False
        self._crash: Exception | None = None
        self._ran = False
        self._stopped = False
        self._done_reading = anyio.Event()

    @classmethod
    async def open(
        cls,
        connector: Connector,
        host: str,
        port: int,
        *,
        client_id: str | None,
        setup_timeout: float,
        max_frame_bytes: int,
        sasl: SaslClient | None = None,
    ) -> Connection:
        """Connect, agree on versions, and authenticate.

        :param setup_timeout: seconds for all of it, and for each renewal of a session.
        :param max_frame_bytes: the largest response taken from then on.
        :param sasl: who to authenticate as; None: nobody.
        :raises AuthenticationFailedError: one side does not accept the other.
        :raises NotKafkaError: the peer speaks something else, named if it can be recognised.
        :raises KafkaConnectionError: it cannot be reached, hung up, or did not answer in time. A
            peer that says nothing is asked what it speaks, within the same time.
        :raises IncompatibleBrokerVersion: there is no version in common.
        :raises BrokerResponseError: the broker refused to tell its versions.
        :raises ProtocolError: its answer is malformed.
        """
        peer = _Peer(connector, host, port)
        failure: KafkaError | None = None
        connection: Connection | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.wonder, setup_timeout)
                try:
                    with anyio.move_on_after(setup_timeout):
                        connection = await cls._open(
                            peer, client_id, setup_timeout, max_frame_bytes, sasl
                        )
                except KafkaError as error:  # not through the task group, which would wrap it
                    failure = error
                tasks.cancel_scope.cancel()
        except BaseException:  # cancelled while `wonder` ends: nobody else knows of the connection
            if connection is not None:
                await _close(connection._stream)  # noqa: SLF001 - our own class
            raise
        if failure is not None:
            raise failure
        if connection is None:
            raise peer.too_late(setup_timeout)
        return connection

    @classmethod
    async def _open(
        cls,
        peer: _Peer,
        client_id: str | None,
        setup_timeout: float,
        max_frame_bytes: int,
        sasl: SaslClient | None,
    ) -> Connection:
        connector, host, port = peer.connector, peer.host, peer.port
        stream = await connector.connect(host, port)
        peer.stage = _Stage.GREETING
        try:
            connection = await cls._greet(
                stream, host, port, client_id, max_frame_bytes, setup_timeout
            )
            peer.stage = _Stage.AUTHENTICATING
            if sasl is not None:
                await connection._authenticate(sasl, client_id)  # noqa: SLF001 - our own class
        except (_SilentHangUpError, *_STREAM_ERRORS) as error:
            await _close(stream)
            secure = isinstance(connector, TlsConnector)
            if not secure and await answers_tls(connector, host, port):
                raise NotKafkaError(f"{peer}: {_TLS_LISTENER}") from error
            silent = isinstance(error, _SilentHangUpError)
            cause = KafkaConnectionError(*error.args) if silent else error
            raise _placed(cause, str(peer)) from error
        except BaseException as error:
            await _close(stream)
            placed = _placed(error, str(peer))
            if placed is error:
                raise
            raise placed from error
        connection._splitter.max_frame_bytes = max_frame_bytes  # noqa: SLF001
        return connection

    @classmethod
    async def _greet(
        cls,
        stream: ByteStream,
        host: str,
        port: int,
        client_id: str | None,
        max_frame_bytes: int,
        setup_timeout: float,
    ) -> Connection:
        splitter = FrameSplitter(min(max_frame_bytes, _HANDSHAKE_FRAME_BYTES))
        negotiation = VersionNegotiation(client_id, _SOFTWARE)
        versions: ApiVersionTable | None = None
        correlation_id = -1
        while versions is None:
            correlation_id += 1
            await stream.send(negotiation.request(correlation_id))
            frame = await _only_frame(stream, splitter)
            if correlation_id_of(frame) != correlation_id:
                raise NotKafkaError(f"answered ApiVersions with {frame[:16]!r}, which is not Kafka")
            versions = negotiation.answer(frame)
        return cls(
            stream,
            host,
            port,
            versions=versions,
            splitter=splitter,
            last_correlation_id=correlation_id,
            setup_timeout=setup_timeout,
        )

    async def _authenticate(self, sasl: SaslClient, client_id: str | None) -> None:
        """For the first time: nothing else is on the connection yet."""

        async def ask(_: int, frame: Secret[bytes]) -> bytes:
            await _send_hidden(self._stream, frame)
            return await _only_frame(self._stream, self._splitter, "to authenticate")

        self._authentication = Authentication(
            sasl, self.host, client_id, self.versions, self.next_correlation_id
        )
        await self._authentication.run(ask)

    def __repr__(self) -> str:
        state = f"ended: {self._cause}" if self._cause else "open"
        counts = f"{len(self._due)} due, {len(self._queue)} queued"
        return f"<Connection {address(self.host, self.port)}, {counts}, {state}>"

    @property
    def cause(self) -> Cause | None:
        """Why it ended or is about to; None while it is open."""
        return self._cause

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._cause is not None

    def next_correlation_id(self) -> int:
        """An id no request on this connection has (until 2^31 of them were made)."""
        self._last_id = 0 if self._last_id == _LAST_CORRELATION_ID else self._last_id + 1
        return self._last_id

    def write(
        self,
        frame: bytes,
        *,
        correlation_id: int,
        expects_response: bool = True,
        limit: FrameLimit | None = None,
    ) -> None:
        """Queue a request; `run` sends it.

        :param frame: with its length.
        :param correlation_id: the one inside the frame, from `next_correlation_id`.
        :param expects_response: False for what a broker does not answer (Produce with acks=0).
        :param limit: how long its answer may be; None: as long as the splitter allows.
        :raises KafkaConnectionError: the connection has ended; nothing of the frame was or will be
            sent.
        """
        if self._cause is not None:
            raise KafkaConnectionError(f"nothing can be sent: {self._cause.args[0]}")
        if not expects_response:
            limit = None
        elif limit is None:
            limit = FrameLimit(self._splitter.max_frame_bytes)
        self._queue.append((frame, correlation_id, limit))
        self._unstarted.add(correlation_id)
        self._wake.set()

    def started(self, correlation_id: int) -> bool:
        """Whether any byte of this request may have left.

        False only for a request that was written here and is, or was at the end, still queued.
        """
        return correlation_id not in self._unstarted

    async def run(self, on_frame: OnFrame, on_progress: OnProgress) -> Cause:
        """Send and receive until the connection ends; return why it did. Call it once.

        The stream is closed when this returns or raises. A `ProtocolError`, a
        `KafkaConnectionError` or an `AuthenticationFailedError` raised by a callback ends the
        connection with that as its cause; any other exception of a callback is raised from here.

        :raises InternalError: it was called before.
        """
        if self._ran:
            raise InternalError("Connection.run was called twice")
        self._ran = True
        if self._ended is not None and self._cause is not None:
            return self._cause
        self._ended = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                if self._cause is not None:
                    self._scope.cancel()
                tasks.start_soon(self._send, on_progress)
                tasks.start_soon(self._receive, on_frame, on_progress)
        finally:
            cause = self._end(KafkaConnectionError(f"{self._where}: the task in it was cancelled"))
            self._queue.clear()
            try:
                await _close(self._stream)
            finally:
                self._ended.set()
        if self._crash is not None:
            raise self._crash
        return cause

    def close_soon(self, reason: str) -> None:
        """End the connection with this reason, without waiting: `run` returns soon.

        What is queued is not sent and no further response is delivered.
        """
        self._end(KafkaConnectionError(f"{self._where}: {reason}"))
        self._stop()

    async def aclose(self) -> None:
        """End the connection and wait until the stream is closed. It may be called again."""
        self.close_soon("closed by this side")
        if self._ended is None:
            self._ended = anyio.Event()
            self._queue.clear()
            try:
                await _close(self._stream)
            finally:
                self._ended.set()
        else:
            await self._ended.wait()

    @property
    def _where(self) -> str:
        return address(self.host, self.port)

    def _end(self, cause: Cause) -> Cause:
        """Take no more requests; the first cause stays. Returns it."""
        if self._cause is None:
            self._cause = cause
        return self._cause

    def _stop(self) -> None:
        """Deliver no more responses and let `run` return."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    def _fail(self, error: Exception) -> None:
        """End because of what a loop ran into."""
        cause = _placed(error, self._where)
        if isinstance(cause, Cause):
            self._end(cause)
        else:
            self._crash = error
            self._end(KafkaConnectionError(f"{self._where}: closed after {error!r} on this side"))

    async def _send(self, on_progress: OnProgress) -> None:
        try:
            await self._send_queued(on_progress)
        except Exception as error:  # noqa: BLE001 - it becomes the cause, or is raised by run()
            self._fail(error)
            if isinstance(error, _STREAM_ERRORS):
                # What the peer answered before it hung up may still be on its way to the reader.
                with anyio.move_on_after(_CLOSE_SECONDS):
                    await self._done_reading.wait()
        self._stop()

    async def _send_queued(self, on_progress: OnProgress) -> None:
        while True:
            while self._queue:
                if self._authentication is not None and self._authentication.due:
                    await self._renew(self._authentication, on_progress)
                data = self._start_next()
                for at in range(0, len(data), _SEND_BYTES):
                    # A long frame goes in pieces, so that its progress shows before its end.
                    piece = data[at : at + _SEND_BYTES] if len(data) > _SEND_BYTES else data
                    await self._stream.send(piece)
                    on_progress(len(piece), 0)
            await self._wake.wait()

    async def _renew(self, authentication: Authentication, on_progress: OnProgress) -> None:
        """Authenticate again. The writer does it, so nothing that is queued can leave meanwhile."""

        async def ask(correlation_id: int, frame: Secret[bytes]) -> bytes:
            exchange = self._exchange = _Exchange(correlation_id)
            self._due.append((correlation_id, _HANDSHAKE_LIMIT))
            on_progress(await _send_hidden(self._stream, frame), 0)
            return await exchange.wait()

        try:
            if self._due:
                # However long the broker needs: whoever is waited for has a timeout of his own.
                self._exchange = _Exchange(None)
                await self._exchange.wait()
            with anyio.move_on_after(self._setup_timeout):
                await authentication.run(ask)
                return
        finally:
            self._exchange = None
        raise KafkaConnectionError(
            f"waited {self._setup_timeout:g} s for the session to be renewed"
        )

    def _start_next(self) -> bytes:
        """Take as many frames off the queue as go well into one send, and mark them started."""
        taken: list[bytes] = []
        size = 0
        while self._queue and (not taken or size + len(self._queue[0][0]) <= _SEND_BYTES):
            frame, correlation_id, limit = self._queue.popleft()
            self._unstarted.discard(correlation_id)
            if limit is not None:
                self._due.append((correlation_id, limit))
            taken.append(frame)
            size += len(frame)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    async def _receive(self, on_frame: OnFrame, on_progress: OnProgress) -> None:
        try:
            await self._read_frames(on_frame, on_progress)
        except Exception as error:  # noqa: BLE001 - it becomes the cause, or is raised by run()
            self._fail(error)
        self._done_reading.set()
        self._stop()

    async def _read_frames(self, on_frame: OnFrame, on_progress: OnProgress) -> None:
        while True:
            try:
                data = await self._stream.receive(_READ_BYTES)
            except anyio.EndOfStream:
                raise self._hung_up() from None
            on_progress(0, len(data))
            for place, frame in enumerate(self._splitter.feed(data, self._limit_of)):
                if place:
                    # What an answer made room for leaves before the next answer is looked at: a
                    # burst of answers does not stay a burst of requests, with every one behind the
                    # last.
                    await anyio.lowlevel.checkpoint()
                if self._stopped:
                    return
                self._answered = True
                came = self._due_next(frame)
                if self._exchange is None or not self._exchange.takes(came, frame):
                    rest = on_frame(came, frame)
                    if rest is not None:
                        await rest
                if self._exchange is not None and not self._due:
                    self._exchange.quiet()
            if self._splitter.error is not None:
                raise self._splitter.error

    def _limit_of(self, place: int) -> FrameLimit:
        """How long the answer may be that comes behind so many others."""
        return self._due[place][1] if place < len(self._due) else _UNASKED_LIMIT

    def _due_next(self, frame: bytes) -> int:
        """The correlation id of a response, which must be the one that is due."""
        came = correlation_id_of(frame)
        if not self._due:
            raise ProtocolError(f"response {came} came, but none is due")
        due, _ = self._due.popleft()
        if came != due:
            raise ProtocolError(f"response {came} came where {due} is due")
        return due

    def _hung_up(self) -> KafkaConnectionError:
        part = " in the middle of a frame" if self._splitter.pending else ""
        text = f"the broker hung up{part}; {len(self._due)} responses were due"
        if self._due and not self._answered and self._authentication is None:
            text += ", the first ones on this connection: the listener may want SASL"
        return KafkaConnectionError(text)


class _Exchange:
    """What the renewal of a session waits for: the answer with this id; None: all that are due."""

    __slots__ = ("_correlation_id", "_frame", "_over")

    def __init__(self, correlation_id: int | None) -> None:
        self._correlation_id = correlation_id
        self._frame = b""
        self._over = anyio.Event()

    def takes(self, correlation_id: int, frame: bytes) -> bool:
        """Whether this answer is the one."""
        if correlation_id != self._correlation_id:
            return False
        self._frame = frame
        self._over.set()
        return True

    def quiet(self) -> None:
        """Nothing is due any more."""
        if self._correlation_id is None:
            self._over.set()

    async def wait(self) -> bytes:
        """Until it has come; returns it."""
        await self._over.wait()
        return self._frame


async def _send_hidden(stream: ByteStream, frame: Secret[bytes]) -> int:
    """Send what nobody may see. An exception is not chained: its frames would have it as a local.

    Returns how many bytes that were.
    """
    try:
        await stream.send(frame.reveal())
    except _STREAM_ERRORS as error:
        reason = str(error.__cause__ or error) or "the other end was closed"
    else:
        return len(frame.reveal())
    raise KafkaConnectionError(f"the connection was lost: {reason}")


async def _only_frame(
    stream: ByteStream, splitter: FrameSplitter, asked: str = "for its API versions"
) -> bytes:
    """The answer of a peer that was asked one thing."""
    while True:
        try:
            data = await stream.receive(_READ_BYTES)
        except anyio.EndOfStream:
            raise _hung_up_at_once(splitter.pending, asked) from None
        frames = splitter.feed(data)
        if len(frames) > 1 or splitter.error is not None:
            raise ProtocolError("it sent more than it was asked for")
        if frames:
            return frames[0]


class _SilentHangUpError(KafkaConnectionError):
    """The peer closed the connection on our first words, without one of its own."""


_NO_LISTENER: Final = "the peer is not a plaintext Kafka listener"
_TLS_LISTENER: Final = f"{_NO_LISTENER}: it speaks TLS"


def _hung_up_at_once(sent: bytes, asked: str) -> KafkaConnectionError:
    name = recognise(sent)
    if name is not None:
        return NotKafkaError(f"{_NO_LISTENER}: it speaks {name}")
    after = f"after {sent[:16]!r}" if sent else "without a word"
    kind = KafkaConnectionError if sent else _SilentHangUpError
    return kind(
        f"it hung up {after} when asked {asked}; the broker may be going down, "
        "or the listener wants TLS or SASL, or it is not Kafka"
    )


class _Stage(Enum):
    """How far the opening of a connection has come."""

    CONNECTING = "connecting"
    GREETING = "greeting"
    AUTHENTICATING = "authenticating"


class _Peer:
    """Whom a connection is being opened to, and what to say if that takes too long."""

    def __init__(self, connector: Connector, host: str, port: int) -> None:
        self.connector = connector
        self.host = host
        self.port = port
        self.stage = _Stage.CONNECTING
        self._secure = isinstance(connector, TlsConnector)
        self._speaks: str | None = None

    def __str__(self) -> str:
        return address(self.host, self.port)

    async def wonder(self, setup_timeout: float) -> None:
        """Towards the end, ask a peer that has said nothing what it speaks."""
        await anyio.sleep(max(setup_timeout - PROBE_SECONDS, setup_timeout / 2))
        if self.stage is _Stage.GREETING and not self._secure:
            self._speaks = await speaks(self.connector, self.host, self.port)

    def too_late(self, waited: float) -> KafkaConnectionError:
        """What the wait of that many seconds was for."""
        match self.stage:
            case _Stage.CONNECTING:
                return self._not_connected(waited)
            case _Stage.GREETING:
                return self._silent(waited)
            case _Stage.AUTHENTICATING:
                return KafkaConnectionError(f"{self}: waited {waited:g} s for authentication")

    def _not_connected(self, waited: float) -> KafkaConnectionError:
        shaking = ", TLS handshake included" if self._secure else ""
        error = KafkaConnectionError(
            f"cannot connect to {self}: timed out, no connection in {waited:g} s{shaking}"
        )
        error.__cause__ = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        return error

    def _silent(self, waited: float) -> KafkaConnectionError:
        if self._speaks is not None:
            return NotKafkaError(f"{self}: {_NO_LISTENER}: it speaks {self._speaks}")
        wants = "something else than Kafka" if self._secure else "TLS, or something else than Kafka"
        return KafkaConnectionError(
            f"{self}: the peer accepted the connection but did not answer ApiVersions in "
            f"{waited:g} s; the broker may be stuck, or the listener expects {wants}"
        )


async def _close(stream: ByteStream) -> None:
    # Shielded: a cancelled task must not leave a socket behind. Bounded: TLS says goodbye first.
    with (
        anyio.move_on_after(_CLOSE_SECONDS, shield=True),
        suppress(*_STREAM_ERRORS),
    ):
        await stream.aclose()


def _placed(error: BaseException, where: str) -> BaseException:
    """The error as users see it: a lost connection typed, and ours with the peer's address."""
    if isinstance(error, _STREAM_ERRORS):
        refusal = tls_failure(error)
        if refusal is not None:
            return type(refusal)(f"{where}: {refusal.args[0]}")
        reason = str(error.__cause__ or error) or "the other end was closed"
        return KafkaConnectionError(f"{where}: the connection was lost: {reason}")
    if isinstance(error, KafkaError) and error.args:
        error.args = (f"{where}: {error.args[0]}", *error.args[1:])
    return error
