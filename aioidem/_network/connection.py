"""One pipelined connection to one broker, which carries whole frames over a byte stream.

A frame is a request or a response, with its length prefix. The connection writes requests, and
checks that responses come in the order of the requests. Its user, the producer's `Sender`, decides
what a request means, when a response is late and whether to reconnect.

Invariants:

- Frames leave in the order of the calls to `write`. A short frame leaves within the call, if the
  stream can send without a task (`DirectStream`) and no earlier frame waits to be sent. `write`
  calls no callback.
- A short response that arrives alone and whole is passed on in the pass of the event loop in which
  its bytes arrive, outside of any task, if the stream is a `DirectStream` and no earlier response
  is being handled. The reading task takes everything else.
- A response is accepted only if it belongs to the oldest unanswered request, that is, carries its
  correlation id. Anything else ends the connection: a response matched to the wrong request would
  acknowledge the wrong records.
- Each request has a limit on the bytes of its response. A response whose length prefix announces
  more ends the connection before any of it is kept.
- A request has *started* once it was handed to the stream; from then on a response is due.
  `started` never returns False for a request of which a byte may have been sent. It can still be
  called after the connection has ended, because only a batch whose request has not started may be
  reported as never sent.
- `run` ends once, with a cause, and by then the stream is closed. Frames that were complete before
  the end have been delivered; after `close_soon` no frame is delivered.
- Cancellation never leaves the stream open: closing it is shielded, and bounded in time.
- While the connection is being opened (API versions, SASL), the peer may send at most 64 KiB and
  must answer within the setup timeout. If the peer does not speak Kafka and its protocol can be
  recognised, the error names that protocol.
- A SASL session that nears its end is renewed on the same connection (KIP-368): requests wait in
  the queue, outstanding responses are awaited, then only the authentication exchange uses the
  connection. If that exchange fails, no response is outstanding, and the queued requests have not
  started.

Rejected: a future per request (the producer already has the state of each batch, and a second copy
of that state could contradict it); a lock around `send` (a single writer task needs none, and can
combine all frames that are queued at one moment into one write); every frame through the writer
task, which costs each request a pass of the event loop and two changes of task.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from aioidem._build import __version__
from aioidem._config.secret import Secret
from aioidem._network.cancellation import ends_task
from aioidem._network.eager import DirectStream
from aioidem._network.tls import TlsConnector, tls_failure
from aioidem._network.tls_probe import PROBE_SECONDS, answers_tls, speaks
from aioidem._network.traffic import NoTraffic, Traffic
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

if TYPE_CHECKING:
    from aioidem._network.sasl.authentication import Authentication
    from aioidem._network.sasl.client import SaslClient

__all__ = ["SHORT_RESPONSE", "Connection", "OnFrame", "OnProgress"]

OnFrame = Callable[[int, bytes], Awaitable[None] | None]
"""A function that receives a response: its correlation id, and its frame without the length prefix.

If the function returns an awaitable, that is awaited before the next response is read, and is
cancelled if the connection ends first. For a response of at most `SHORT_RESPONSE` bytes it returns
None, because such a response may come outside of any task.
"""

SHORT_RESPONSE: Final = 1 << 12
"""The most bytes of a response that may be passed on outside of the reading task."""

OnProgress = Callable[[int, int], None]
"""A function that receives how many bytes were just written and read; one of the two is 0.

It is not called for a response that comes outside of the reading task: `OnFrame` is, at once.
"""

_HANDSHAKE_FRAME_BYTES: Final = 1 << 16
"""The longest answer that is accepted before it is certain that the peer is a broker, in bytes.

Decoding 64 KiB blocks the event loop for about 20 ms; an answer to ApiVersions has 2 KiB.
"""
_HANDSHAKE_LIMIT: Final = FrameLimit(_HANDSHAKE_FRAME_BYTES)
_UNASKED_LIMIT: Final = FrameLimit(1 << 16, "unexpected answer")
_READ_BYTES: Final = 1 << 16
_SEND_BYTES: Final = 1 << 17
_CLOSE_SECONDS: Final = 1.0
_LAST_CORRELATION_ID: Final = 2**31 - 1


_SOFTWARE: Final = ("aioidem", __version__)

_STREAM_ERRORS: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

Cause = KafkaConnectionError | ProtocolError | AuthenticationFailedError
"""The reason why a connection ended."""


class Connection:
    """A connection to a broker, opened by `open`, with any number of requests outstanding.

    A connection belongs to one event loop; no method may be called from another thread.
    """

    __slots__ = (
        "_answered",
        "_authentication",
        "_cause",
        "_count_answer",
        "_count_request",
        "_crash",
        "_direct",
        "_done_reading",
        "_due",
        "_ended",
        "_exchange",
        "_handed",
        "_idle",
        "_last_id",
        "_queue",
        "_ran",
        "_scope",
        "_setup_timeout",
        "_splitter",
        "_stopped",
        "_stream",
        "_traffic",
        "_unstarted",
        "_wake",
        "host",
        "port",
        "sends_oldest",
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
        traffic: Traffic | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.versions = versions
        self.sends_oldest = False
        """Whether the bytes that were sent last show that the peer still takes bytes.

        They do if they belong to the oldest request without an answer, or if the kernel took them
        after it had been full. The kernel takes any others even if the peer is gone.
        """
        self._traffic = traffic or NoTraffic()
        self._count_request = self._traffic.requests.append
        self._count_answer = self._traffic.answers.append
        self._stream = stream
        self._direct = stream if isinstance(stream, DirectStream) else None
        # Whether the writing task waits for work: only then may `write` use the stream.
        self._idle = False
        # The number of bytes that `write` handed to the stream and the kernel has not taken yet.
        self._handed = 0
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
        # What a renewal of the session waits for: one response, or all outstanding ones. None while
        # no renewal waits.
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
        traffic: Traffic | None = None,
    ) -> Connection:
        """Connect, negotiate API versions and authenticate.

        Args:
            connector: Opens the byte stream.
            host: The host as the cluster advertises it.
            port: The port as the cluster advertises it.
            client_id: The client id in each request's header, or None.
            setup_timeout: The most seconds for opening, and for each later SASL reauthentication.
            max_frame_bytes: The largest response accepted once the connection is open.
            sasl: The credentials to authenticate with; None means no authentication.
            traffic: Counts the connection's frames; None counts nothing.

        Raises:
            AuthenticationFailedError: The broker rejects the client, or the client the broker.
            NotKafkaError: The peer speaks another protocol, which is named if it can be recognised.
            KafkaConnectionError: The peer cannot be reached, closed the connection, or did not
                answer within `setup_timeout`. A peer that stays silent is probed for TLS and HTTP
                in that time.
            IncompatibleBrokerVersion: Client and broker have no version of an API in common.
            BrokerResponseError: The broker answered ApiVersions with an error.
            ProtocolError: The broker's answer is malformed.
        """
        peer = _Peer(connector, host, port)
        failure: KafkaError | None = None
        connection: Connection | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.probe, setup_timeout)
                try:
                    with anyio.move_on_after(setup_timeout):
                        connection = await cls._open(
                            peer, client_id, setup_timeout, max_frame_bytes, sasl, traffic
                        )
                # The error is raised below, outside the task group: the group would wrap it in an
                # ExceptionGroup.
                except KafkaError as error:
                    failure = error
                except BaseException as error:
                    # The connector, which may be the user's, has raised what it should not; or the
                    # system permits no more threads.
                    if ends_task(error):
                        raise
                    failure = KafkaConnectionError(f"{peer}: cannot connect: {error!r}")
                    failure.__cause__ = error
                tasks.cancel_scope.cancel()
        # If the call is cancelled while `probe` ends, the open connection gets no owner: close it.
        except BaseException:
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
        traffic: Traffic | None,
    ) -> Connection:
        connector, host, port = peer.connector, peer.host, peer.port
        stream = await connector.connect(host, port)
        peer.stage = _Stage.GREETING
        try:
            connection = await cls._greet(
                stream, host, port, client_id, max_frame_bytes, setup_timeout, traffic
            )
            peer.stage = _Stage.AUTHENTICATING
            peer.connection = connection
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
        traffic: Traffic | None,
    ) -> Connection:
        splitter = FrameSplitter(min(max_frame_bytes, _HANDSHAKE_FRAME_BYTES))
        negotiation = VersionNegotiation(client_id, _SOFTWARE)
        versions: ApiVersionTable | None = None
        correlation_id = -1
        while versions is None:
            correlation_id += 1
            request = negotiation.request(correlation_id)
            await stream.send(request)
            frame = await _only_frame(stream, splitter)
            if traffic is not None:
                traffic.requests.append(len(request))
                traffic.answers.append(len(frame))
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
            traffic=traffic,
        )

    async def _authenticate(self, sasl: SaslClient, client_id: str | None) -> None:
        """Authenticate for the first time, while nothing else uses the connection."""

        async def ask(correlation_id: int, frame: Secret[bytes]) -> bytes:
            self._count_request(await _send_hidden(self._stream, frame))
            answer = await _only_frame(self._stream, self._splitter, "to authenticate")
            self._count_answer(len(answer))
            _check_id(correlation_id_of(answer), correlation_id)
            return answer

        from aioidem._network.sasl.authentication import Authentication

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
        """The reason why the connection has ended or is about to end; None while it is open."""
        return self._cause

    @property
    def closed(self) -> bool:
        """Whether the connection accepts no more requests."""
        return self._cause is not None

    @property
    def awaited(self) -> str:
        """What the authentication waits for, as the end of a message; empty if there is none."""
        authentication = self._authentication
        return "" if authentication is None else f"; it waits for {authentication.waits_for}"

    def next_correlation_id(self) -> int:
        """Return an id that none of the last 2^31 - 1 requests on this connection had."""
        self._last_id = 0 if self._last_id == _LAST_CORRELATION_ID else self._last_id + 1
        return self._last_id

    def write(
        self,
        frame: bytes,
        *,
        correlation_id: int,
        expects_response: bool = True,
        limit: FrameLimit | None = None,
    ) -> bool:
        """Send a request at once if that is possible; else queue it, and `run` sends it.

        The callbacks of `run` change the producer's state, and the caller may be in the middle of
        changing it. So `write` calls none of them.

        Args:
            frame: The request, with its length prefix.
            correlation_id: The id inside the frame, from `next_correlation_id`.
            expects_response: False for a request that brokers do not answer (Produce with acks=0).
            limit: How many bytes the response may have; None means `max_frame_bytes` of `open`.

        Returns:
            True if the kernel has the whole request, and `run` will not report its progress. False
            if `run` will, by calling its `on_progress`.

        Raises:
            KafkaConnectionError: The connection has ended; no byte of the frame was or will be
                sent.
        """
        if self._cause is not None:
            raise KafkaConnectionError(f"nothing can be sent: {self._cause.args[0]}")
        if not expects_response:
            limit = None
        elif limit is None:
            limit = FrameLimit(self._splitter.max_frame_bytes)
        if self._send_directly(frame, correlation_id, limit):
            return self._cause is None and not self._handed
        self._queue.append((frame, correlation_id, limit))
        self._unstarted.add(correlation_id)
        self._wake.set()
        return False

    def _send_directly(self, frame: bytes, correlation_id: int, limit: FrameLimit | None) -> bool:
        """Hand a request to the stream, without queueing it, if that is possible now.

        Returns:
            False if no byte was sent and the request must be queued. True if the stream has got the
            request, or has failed while it sent the request.
        """
        direct = self._direct
        if direct is None or not self._idle or self._queue or len(frame) > _SEND_BYTES:
            return False
        if self._authentication is not None and self._authentication.due:
            return False
        try:
            if not direct.try_send(frame):
                return False
        except Exception as error:  # noqa: BLE001 - it becomes the cause
            # Some bytes may have been sent, so the request has started.
            self._fail(error if isinstance(error, _STREAM_ERRORS) else _odd(error))
            self._stop()
            return True
        self._count_request(len(frame))
        self.sends_oldest = not self._due
        if limit is not None:
            self._due.append((correlation_id, limit))
        if self._handed or not direct.drained:
            self._handed += len(frame)
            self._wake.set()
        return True

    def started(self, correlation_id: int) -> bool:
        """Return whether any byte of this request may have been sent.

        The result is False only for a request that was passed to `write` and is still queued, or
        was still queued when the connection ended.
        """
        return correlation_id not in self._unstarted

    async def run(self, on_frame: OnFrame, on_progress: OnProgress) -> Cause:
        """Send and receive until the connection ends, and return the cause; call this once.

        The stream is closed when `run` returns or raises. A `ProtocolError`, a
        `KafkaConnectionError` or an `AuthenticationFailedError` raised by a callback ends the
        connection with that error as its cause; `run` raises any other exception of a callback.

        Raises:
            InternalError: `run` was called before.
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
        """End the connection for this reason without waiting; `run` returns soon afterwards.

        Queued requests are not sent, and no further response is passed on.
        """
        self._end(KafkaConnectionError(f"{self._where}: {reason}"))
        self._stop()

    async def aclose(self) -> None:
        """End the connection and wait until the stream is closed; further calls are harmless."""
        self.close_soon("closed by this side")
        if self._ended is None:
            self._ended = anyio.Event()
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
        """Stop accepting requests; keep the first cause of the connection's end, and return it."""
        if self._cause is None:
            self._cause = cause
        return self._cause

    def _stop(self) -> None:
        """Send no queued request, pass on no more responses, and make `run` return."""
        self._stopped = True
        # The writing task, if it has been woken already, is cancelled only when it waits again.
        self._queue.clear()
        if self._scope is not None:
            self._scope.cancel()

    def _fail(self, error: Exception) -> None:
        """End the connection because reading or writing failed with this error."""
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
                # The peer may have sent responses before it closed the connection: read those.
                with anyio.move_on_after(_CLOSE_SECONDS):
                    await self._done_reading.wait()
        self._stop()

    async def _send_queued(self, on_progress: OnProgress) -> None:
        while True:
            while self._queue:
                if self._authentication is not None and self._authentication.due:
                    await self._renew(self._authentication, on_progress)
                    if not self._queue:
                        break  # the connection was to end meanwhile
                data = self._start_next()
                if len(data) <= _SEND_BYTES:
                    await self._put(data)
                    on_progress(len(data), 0)
                    continue
                for at in range(0, len(data), _SEND_BYTES):
                    # A long frame is sent in pieces so that its progress can be reported.
                    piece = data[at : at + _SEND_BYTES]
                    await self._put(piece)
                    on_progress(len(piece), 0)
            if self._handed and self._direct is not None:
                handed, self._handed = self._handed, 0
                await self._direct.drain()
                self.sends_oldest = True  # the kernel was full, and took bytes again
                on_progress(handed, 0)
                continue
            self._idle = True
            try:
                await self._wake.wait()
            finally:
                self._idle = False

    async def _put(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except _STREAM_ERRORS:
            raise
        except BaseException as error:
            raise _odd(error) from error

    async def _renew(self, authentication: Authentication, on_progress: OnProgress) -> None:
        """Authenticate again, on the writing task, so that no queued request is sent meanwhile."""

        async def ask(correlation_id: int, frame: Secret[bytes]) -> bytes:
            exchange = self._exchange = _Exchange(correlation_id)
            self._due.append((correlation_id, _HANDSHAKE_LIMIT))
            sent = await _send_hidden(self._stream, frame)
            self._count_request(sent)
            on_progress(sent, 0)
            return await exchange.wait()

        try:
            if self._due:
                # This wait needs no limit of its own: each outstanding request has a timeout.
                self._exchange = _Exchange(None)
                await self._exchange.wait()
            began = anyio.current_time()
            with anyio.move_on_after(self._setup_timeout):
                try:
                    await authentication.run(ask)
                except AuthenticationFailedError:
                    self._traffic.refusals.append(1)
                    raise
                except KafkaError as error:
                    if isinstance(error, Cause):
                        raise
                    # The user's callable may raise any, also one that `run` would raise.
                    raise KafkaConnectionError(f"the session was not renewed: {error}") from error
                self._traffic.renewals.append(anyio.current_time() - began)
                return
        finally:
            self._exchange = None
        raise KafkaConnectionError(
            f"the session was not renewed within {self._setup_timeout:g} s{self.awaited}"
        )

    def _start_next(self) -> bytes:
        """Take the queued frames that fit into one write, but at least one; mark them started."""
        queue = self._queue
        self.sends_oldest = not self._due
        first = self._start(queue.popleft())
        if not queue:
            return first
        taken, size = [first], len(first)
        while queue and size + len(queue[0][0]) <= _SEND_BYTES:
            frame = self._start(queue.popleft())
            taken.append(frame)
            size += len(frame)
        return b"".join(taken)

    def _start(self, queued: tuple[bytes, int, FrameLimit | None]) -> bytes:
        """Mark a queued request as started, and return its frame."""
        frame, correlation_id, limit = queued
        self._unstarted.discard(correlation_id)
        self._count_request(len(frame))
        if limit is not None:
            self._due.append((correlation_id, limit))
        return frame

    async def _receive(self, on_frame: OnFrame, on_progress: OnProgress) -> None:
        try:
            await self._read_frames(on_frame, on_progress)
        except Exception as error:  # noqa: BLE001 - it becomes the cause, or is raised by run()
            self._fail(error)
        self._done_reading.set()
        self._stop()

    def _read_directly(self, on_frame: OnFrame, data: bytes) -> bool:
        """Pass on a short response that has arrived alone and whole, while the reading task waits.

        That saves a pass of the event loop and a change of task per request.

        Returns:
            False if the data are for the reading task: then nothing was done.
        """
        if not self._due or len(data) > SHORT_RESPONSE or self._stopped or self._exchange:
            return False
        frame = self._splitter.whole(data, self._due[0][1])
        if frame is None:
            return False
        self._answered = True
        try:
            came = self._due_next(frame)
            rest = on_frame(came, frame)
        except Exception as error:  # noqa: BLE001 - it becomes the cause, or is raised by run()
            self._fail(error)
            self._stop()
        else:
            if rest is not None:
                self._fail(InternalError("a short response was not handled at once"))
                self._stop()
        return True

    async def _read_frames(self, on_frame: OnFrame, on_progress: OnProgress) -> None:
        if self._direct is not None:
            self._direct.listen(partial(self._read_directly, on_frame))
        while True:
            try:
                data = await self._stream.receive(_READ_BYTES)
            except anyio.EndOfStream:
                raise self._hung_up() from None
            except _STREAM_ERRORS:
                raise
            except BaseException as error:
                raise _odd(error) from error
            on_progress(0, len(data))
            for place, frame in enumerate(self._splitter.feed(data, self._limit_of)):
                if place:
                    # Let the writing task run between two responses, so that requests which the
                    # first response made possible are sent at once, and not in a burst after the
                    # last response.
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
        """Return the limit for the response to outstanding request number `place`, from 0 on."""
        return self._due[place][1] if place < len(self._due) else _UNASKED_LIMIT

    def _due_next(self, frame: bytes) -> int:
        """Match a response with the oldest outstanding request, and return its correlation id.

        Raises:
            ProtocolError: The response has another correlation id, or no request is outstanding.
        """
        came = correlation_id_of(frame)
        self._count_answer(len(frame))
        if not self._due:
            raise ProtocolError(
                f"a response with correlation id {came} came, but none was expected"
            )
        due, _ = self._due.popleft()
        _check_id(came, due)
        return due

    def _hung_up(self) -> KafkaConnectionError:
        part = " in the middle of a frame" if self._splitter.pending else ""
        due = len(self._due)
        were = "response was" if due == 1 else "responses were"
        text = f"the broker hung up{part}; {due} {were} due"
        if self._due and not self._answered and self._authentication is None:
            text += ", the first ones on this connection: the listener may want SASL"
        return KafkaConnectionError(text)


class _Exchange:
    """What the renewal of a SASL session waits for.

    Args:
        correlation_id: the id of the response that the renewal waits for. None: the renewal waits
            until no response is due any more.
    """

    __slots__ = ("_correlation_id", "_frame", "_over")

    def __init__(self, correlation_id: int | None) -> None:
        self._correlation_id = correlation_id
        self._frame = b""
        self._over = anyio.Event()

    def takes(self, correlation_id: int, frame: bytes) -> bool:
        """Keep the response if it is the awaited one, and return whether it is."""
        if correlation_id != self._correlation_id:
            return False
        self._frame = frame
        self._over.set()
        return True

    def quiet(self) -> None:
        """Note that no response is due any more; this ends a wait for all outstanding ones."""
        if self._correlation_id is None:
            self._over.set()

    async def wait(self) -> bytes:
        """Wait, and return the awaited response, or b"" if no particular response was awaited."""
        await self._over.wait()
        return self._frame


def _check_id(came: int, due: int) -> None:
    """Refuse a response with another correlation id than that of the request which it answers."""
    if came != due:
        raise ProtocolError(f"a response with correlation id {came} came instead of {due}")


async def _send_hidden(stream: ByteStream, frame: Secret[bytes]) -> int:
    """Send a frame that contains credentials, and return its length in bytes.

    If the stream fails, a new error is raised, not chained to the stream's own error: the traceback
    of that error holds the credentials in a local variable.
    """
    try:
        await stream.send(frame.reveal())
    except _STREAM_ERRORS as error:
        reason = str(error.__cause__ or error) or "the other end was closed"
    except BaseException as error:
        if ends_task(error):
            raise
        reason = type(error).__name__  # the connector may be the user's
    else:
        return len(frame.reveal())
    raise KafkaConnectionError(f"the connection was lost: {reason}")


async def _only_frame(
    stream: ByteStream, splitter: FrameSplitter, asked: str = "for its API versions"
) -> bytes:
    """Return a peer's answer to a request that is the only one outstanding."""
    while True:
        try:
            data = await stream.receive(_READ_BYTES)
        except anyio.EndOfStream:
            raise _hung_up_at_once(splitter.pending, asked) from None
        frames = splitter.feed(data)
        if len(frames) > 1 or splitter.error is not None:
            raise ProtocolError("the peer sent more than one answer")
        if frames:
            return frames[0]


class _SilentHangUpError(KafkaConnectionError):
    """The peer closed the connection after our first request, without having sent a byte."""


_NO_LISTENER: Final = "the peer is not a plaintext Kafka listener"
_TLS_LISTENER: Final = f"{_NO_LISTENER}: it speaks TLS"


def _hung_up_at_once(sent: bytes, asked: str) -> KafkaConnectionError:
    name = recognise(sent)
    if name is not None:
        return NotKafkaError(f"{_NO_LISTENER}: it speaks {name}")
    after = f"after {sent[:16]!r}" if sent else "without sending a byte"
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
    """The peer of a connection that is being opened, and how far the opening has come."""

    def __init__(self, connector: Connector, host: str, port: int) -> None:
        self.connector = connector
        self.host = host
        self.port = port
        self.stage = _Stage.CONNECTING
        self.connection: Connection | None = None
        self._secure = isinstance(connector, TlsConnector)
        self._speaks: str | None = None

    def __str__(self) -> str:
        return address(self.host, self.port)

    async def probe(self, setup_timeout: float) -> None:
        """Identify the protocol of a peer that is still silent near the end of the timeout."""
        await anyio.sleep(max(setup_timeout - PROBE_SECONDS, setup_timeout / 2))
        if self.stage is _Stage.GREETING and not self._secure:
            self._speaks = await speaks(self.connector, self.host, self.port)

    def too_late(self, waited: float) -> KafkaConnectionError:
        """Return the error for an opening that has not finished after this many seconds."""
        match self.stage:
            case _Stage.CONNECTING:
                return self._not_connected(waited)
            case _Stage.GREETING:
                return self._silent(waited)
            case _Stage.AUTHENTICATING:
                awaited = "" if self.connection is None else self.connection.awaited
                return _timed_out(
                    f"{self}: authentication did not finish within {waited:g} s{awaited}"
                )

    def _not_connected(self, waited: float) -> KafkaConnectionError:
        shaking = ", TLS handshake included" if self._secure else ""
        return _timed_out(
            f"cannot connect to {self}: timed out, no connection in {waited:g} s{shaking}"
        )

    def _silent(self, waited: float) -> KafkaConnectionError:
        if self._speaks is not None:
            return NotKafkaError(f"{self}: {_NO_LISTENER}: it speaks {self._speaks}")
        wants = "something else than Kafka" if self._secure else "TLS, or something else than Kafka"
        return _timed_out(
            f"{self}: the peer accepted the connection but did not answer ApiVersions in "
            f"{waited:g} s; the broker may be stuck, or the listener expects {wants}"
        )


def _timed_out(text: str) -> KafkaConnectionError:
    error = KafkaConnectionError(text)
    error.__cause__ = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return error


async def _close(stream: ByteStream) -> None:
    # The wait is shielded, so that a cancelled task does not leave a socket open, and bounded,
    # because TLS first waits for the peer's close_notify.
    with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
        try:
            await stream.aclose()
        except _STREAM_ERRORS:
            pass
        except BaseException as error:  # noqa: BLE001 - the stream is of no more use
            _odd(error)


def _odd(error: BaseException) -> KafkaConnectionError:
    """Return the error of a connection whose stream, a user's, has raised what it should not.

    Raises:
        BaseException: The given one, if it is the cancellation of this task.
    """
    if ends_task(error):
        raise error
    return KafkaConnectionError(f"the connection was lost: {error!r}")


def _placed(error: BaseException, where: str) -> BaseException:
    """Return the error to show to users: with the peer's address in front of its text.

    An error of the stream becomes a KafkaError; any other exception that is no KafkaError is
    returned unchanged.
    """
    if isinstance(error, _STREAM_ERRORS):
        refusal = tls_failure(error)
        if refusal is not None:
            return type(refusal)(f"{where}: {refusal.args[0]}")
        reason = str(error.__cause__ or error) or "the other end was closed"
        return KafkaConnectionError(f"{where}: the connection was lost: {reason}")
    if isinstance(error, KafkaError) and error.args:
        error.args = (f"{where}: {error.args[0]}", *error.args[1:])
    return error
