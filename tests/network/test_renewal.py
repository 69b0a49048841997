"""A SASL session is renewed on an open connection without losing a request (KIP-368).

Queued requests wait, outstanding ones are answered, the client authenticates, and sending goes on.
The peer is a script that sees every frame. It answers late and in order, so that many responses are
due when the renewal begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

import anyio
import pytest
import trio.testing
from anyio.abc import ByteStream
from anyio.streams.memory import MemoryObjectReceiveStream
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import respond
from aioidem._broker.memory import MemoryStream, stream_pair
from aioidem._config import ProducerConfig
from aioidem._network.connection import Connection
from aioidem._network.sasl.client import SaslClient
from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.messages import encode_response
from aioidem.errors import (
    AuthenticationFailedError,
    ConfigError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    ProtocolError,
    SaslAuthenticationFailed,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "anyio_backend",
        [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
        ids=["virtual"],
    ),
]

LIMIT = 1 << 20
HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
PAUSE = 0.2
"""The seconds between the arrival of a request and its answer."""


class Broker:
    """A peer that answers requests in order, `PAUSE` seconds each, and keeps what it received."""

    def __init__(self, stream: MemoryStream, *, lifetime: float) -> None:
        self.stream = stream
        self.lifetime = lifetime
        self.answered_at = 0.0
        self.seen: list[tuple[int, int, float]] = []
        self.on_authenticate: Callable[[Broker, int], Awaitable[bool]] | None = None

    @property
    def kinds(self) -> list[int]:
        """Return the API key of each request that arrived, in order."""
        return [key for key, _, _ in self.seen]

    async def run(self) -> None:
        """Read requests as they arrive, and answer them one after the other."""
        arrived, waiting = anyio.create_memory_object_stream[tuple[int, int, int]](1000)
        splitter = FrameSplitter(LIMIT)
        async with arrived, anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve, waiting)
            with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
                while True:
                    for each in splitter.feed(await self.stream.receive()):
                        key, version = (int.from_bytes(each[at : at + 2], "big") for at in (0, 2))
                        correlation_id = int.from_bytes(each[4:8], "big")
                        self.seen.append((key, correlation_id, anyio.current_time()))
                        arrived.send_nowait((key, version, correlation_id))
            tasks.cancel_scope.cancel()

    async def _serve(self, waiting: MemoryObjectReceiveStream[tuple[int, int, int]]) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with waiting:
                async for request in waiting:
                    await self._take(*request)

    async def _take(self, key: int, version: int, correlation_id: int) -> None:
        odd = self.on_authenticate if key == AUTHENTICATE else None
        if odd is not None and await odd(self, correlation_id):
            return
        if key not in {HANDSHAKE, API_VERSIONS, AUTHENTICATE}:
            with anyio.move_on_after(PAUSE):
                await anyio.sleep_forever()
        await self.answer(key, version, correlation_id)
        self.answered_at = anyio.current_time()

    async def answer(self, key: int, version: int, correlation_id: int) -> None:
        match key:
            case 18:
                keys = [(0, 0, 9), (3, 0, 12), (17, 0, 1), (18, 0, 4), (36, 0, 2)]
                values: dict[str, Any] = {
                    "error_code": ErrorCode.none,
                    "api_keys": [
                        {"api_key": k, "min_version": low, "max_version": high}
                        for k, low, high in keys
                    ],
                    "throttle_time": timedelta(0),
                }
            case 17:
                values = {"error_code": ErrorCode.none, "mechanisms": ("PLAIN",)}
            case 36:
                values = {
                    "error_code": ErrorCode.none,
                    "error_message": None,
                    "auth_bytes": b"",
                    "session_lifetime": timedelta(seconds=self.lifetime),
                }
            case _:
                await self.stream.send(frame(correlation_id.to_bytes(4, "big") + b"answer"))
                return
        await self.stream.send(encode_response(respond(key, version, values), correlation_id))


class World:
    """A running connection and the broker at its other end."""

    def __init__(self, connection: Connection, broker: Broker) -> None:
        self.connection = connection
        self.broker = broker
        self.answers: list[int] = []
        self.progress = 0
        self.ended = anyio.Event()
        self.cause: object = None
        self.changed = anyio.Event()

    async def run(self) -> None:
        def on_frame(correlation_id: int, _: bytes) -> None:
            self.answers.append(correlation_id)
            self.changed.set()
            self.changed = anyio.Event()

        def on_progress(written: int, read: int) -> None:
            self.progress += written + read

        self.cause = await self.connection.run(on_frame, on_progress)
        self.ended.set()

    def write(self, count: int) -> list[int]:
        """Queue this many requests, and return their correlation ids."""
        ids = [self.connection.next_correlation_id() for _ in range(count)]
        for each in ids:
            body = b"\0\x03\0\x0c" + each.to_bytes(4, "big") + b"\xff\xff"
            self.connection.write(frame(body), correlation_id=each)
        return ids

    async def until_answered(self, ids: list[int]) -> None:
        while self.answers[-len(ids) :] != ids:
            await self.changed.wait()


class To:
    """A connector whose only connection is made already."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def connect(self, host: str, port: int) -> ByteStream:
        del host, port
        return self._stream


class Direct(ByteStream):
    """A stream that notes each attempt to send without waiting, and refuses it."""

    def __init__(self, inner: MemoryStream) -> None:
        self._inner = inner
        self.tried = 0
        self.drained = True

    def try_send(self, item: bytes) -> bool:
        del item
        self.tried += 1
        return False

    def listen(self, take: Callable[[bytes], bool]) -> None:
        del take

    async def drain(self) -> None:
        raise AssertionError("nothing was sent without waiting")

    async def send(self, item: bytes) -> None:
        await self._inner.send(item)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._inner.receive(max_bytes)

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()


class Credentials:
    """The user's callable that returns credentials, with a count of its calls."""

    def __init__(self) -> None:
        self.name = "alice"
        self.asked = 0
        self.error: Exception | None = None
        self.hold: anyio.Event | None = None

    async def __call__(self) -> tuple[str, str]:
        self.asked += 1
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        return self.name, "secret"


@asynccontextmanager
async def world(
    credentials: Credentials,
    *,
    lifetime: float = 2.0,
    setup_timeout: float = 5.0,
    direct: Callable[[MemoryStream], ByteStream] = lambda stream: stream,
) -> AsyncIterator[World]:
    ours, theirs = stream_pair()
    stream = direct(theirs)
    broker = Broker(ours, lifetime=lifetime)
    config = ProducerConfig.build(
        "h",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_credentials=credentials,
        sasl_allow_plaintext=True,
    )
    connector = To(stream)
    with anyio.fail_after(1e8):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(broker.run)
            connection = await Connection.open(
                connector,
                "h",
                9092,
                client_id="me",
                setup_timeout=setup_timeout,
                max_frame_bytes=LIMIT,
                sasl=SaslClient(config),
            )
            it = World(connection, broker)
            tasks.start_soon(it.run)
            yield it
            await connection.aclose()
            tasks.cancel_scope.cancel()


async def pass_time(seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


async def test_what_is_due_is_answered_first_and_what_is_queued_goes_after() -> None:
    """Requests in flight are answered before a renewal, and queued ones sent after it."""
    async with world(Credentials()) as it:
        early = it.write(8)  # answered after 1.6 seconds
        await pass_time(1.95)
        late = it.write(3)
        await it.until_answered(early + late)
        kinds = it.broker.kinds
        at = kinds.index(HANDSHAKE, 3)
        assert kinds == [18, 17, 36, *[3] * 8, 17, 36, *[3] * 3]
        assert [cid for _, cid, _ in it.broker.seen[at + 2 :]] == late
        # Every request was answered once, those before the renewal first.
        assert it.answers == early + late


async def test_no_request_goes_past_a_renewal_that_is_due() -> None:
    """Even a request that `write` could send at once waits while a renewal is due or under way."""
    made: list[Direct] = []

    def direct(inner: MemoryStream) -> Direct:
        made.append(Direct(inner))
        return made[0]

    credentials = Credentials()
    async with world(credentials, direct=direct) as it:
        await pass_time(0.1)
        await it.until_answered(it.write(1))
        assert made[0].tried == 1, "nothing is in front of the request"
        await pass_time(1.75)
        credentials.hold = anyio.Event()
        late = it.write(2)
        assert made[0].tried == 1, "the session is to be renewed"
        await pass_time(0.5)
        late += it.write(1)
        assert made[0].tried == 1, "the session is being renewed"
        credentials.hold.set()
        await it.until_answered(late)
        assert it.broker.kinds == [18, 17, 36, 3, 17, 36, 3, 3, 3]
        await it.until_answered(it.write(1))
        assert made[0].tried == 2


async def test_requests_in_the_pipe_are_drained_before_the_exchange_begins() -> None:
    """A renewal begins only when all requests in flight have been answered."""
    async with world(Credentials()) as it:
        await pass_time(1.6)
        early = it.write(3)  # answered after 1.8, 2.0 and 2.2 seconds
        await pass_time(0.35)
        late = it.write(5)  # 1.95 s into a session of 2 s
        await it.until_answered(early)
        drained = it.broker.answered_at
        await it.until_answered(early + late)
        begun = [at for key, _, at in it.broker.seen if key == HANDSHAKE]
        assert begun[1] >= drained >= begun[0] + 2.2 - 1e-6


async def test_parked_requests_have_not_started_and_a_failure_leaves_them_so() -> None:
    """Requests that wait for a renewal have not started, even if the renewal fails."""
    credentials = Credentials()
    async with world(credentials) as it:
        await pass_time(3)
        credentials.error = LookupError("no more")
        ids = it.write(4)
        await it.ended.wait()
        assert isinstance(it.cause, AuthenticationFailedError)
        assert not any(it.connection.started(each) for each in ids)
        assert 3 not in it.broker.kinds


async def test_it_is_done_again_and_again_and_only_when_there_is_something_to_send() -> None:
    """An expired session is renewed each time that there is a request to send."""
    credentials = Credentials()
    async with world(credentials) as it:
        for _ in range(5):
            await pass_time(10)
            await it.until_answered(it.write(3))
        assert credentials.asked == 6
        assert it.broker.kinds.count(HANDSHAKE) == 6


async def test_a_session_without_an_end_is_not_renewed() -> None:
    async with world(Credentials(), lifetime=0) as it:
        await pass_time(100_000)
        await it.until_answered(it.write(3))
        assert it.broker.kinds.count(HANDSHAKE) == 1


async def test_an_absurd_lifetime_keeps_us_neither_busy_nor_for_ever() -> None:
    """Renewals are at least one second apart, and a session lasts for one month at most."""
    async with world(Credentials(), lifetime=0.001) as it:
        for _ in range(20):
            await it.until_answered(it.write(1))
        begun = [at for key, _, at in it.broker.seen if key == HANDSHAKE]
        assert all(later - earlier > 1 for earlier, later in pairwise(begun))
    async with world(Credentials(), lifetime=3e11) as it:
        await pass_time(30 * 86400)
        await it.until_answered(it.write(1))
        assert it.broker.kinds.count(HANDSHAKE) == 2


async def test_another_user_name_ends_the_connection_once_nothing_is_due() -> None:
    """If the credentials name another user, the connection ends once it is idle."""
    credentials = Credentials()
    async with world(credentials) as it:
        early = it.write(8)
        await pass_time(1.95)
        credentials.name = "bob"
        late = it.write(3)
        await it.ended.wait()
        assert isinstance(it.cause, KafkaConnectionError)
        assert it.answers == early
        assert not any(it.connection.started(each) for each in late)


async def test_a_provider_that_hangs_has_the_setup_timeout() -> None:
    """If the callable for credentials hangs, the renewal fails after the setup timeout."""
    credentials = Credentials()
    async with world(credentials, setup_timeout=3.0) as it:
        await pass_time(3)
        credentials.hold = anyio.Event()
        began = anyio.current_time()
        it.write(1)
        await it.ended.wait()
        awaited = "the session was not renewed within 3 s; it waits for sasl_credentials"
        assert awaited in str(it.cause)
        assert 3 <= anyio.current_time() - began < 4.5


@pytest.mark.parametrize(
    "error", [KafkaError("no vault"), ConfigError("no vault"), KafkaTimeoutError("no vault")]
)
async def test_any_error_of_a_provider_ends_the_connection_alone(error: KafkaError) -> None:
    """It is no error of this client, which would end the producer with all its connections."""
    credentials = Credentials()
    async with world(credentials) as it:
        await pass_time(3)
        credentials.error = error
        it.write(1)
        await it.ended.wait()
        assert isinstance(it.cause, KafkaConnectionError)
        assert "h:9092: " in str(it.cause)
        assert "no vault" in str(it.cause)


async def test_a_refusal_is_the_cause() -> None:
    """If the broker refuses a renewal, its error is the cause of the connection's end."""

    async def refuse(broker: Broker, correlation_id: int) -> bool:
        if broker.kinds.count(AUTHENTICATE) < 2:
            return False
        values = {
            "error_code": ErrorCode.sasl_authentication_failed,
            "error_message": "no longer",
            "auth_bytes": b"",
        }
        await broker.stream.send(encode_response(respond(36, 2, values), correlation_id))
        return True

    async with world(Credentials()) as it:
        it.broker.on_authenticate = refuse
        await pass_time(3)
        it.write(1)
        await it.ended.wait()
        assert isinstance(it.cause, SaslAuthenticationFailed)
        assert "h:9092: " in str(it.cause)
        assert "no longer" in str(it.cause)


class OddStream(Direct):
    """A stream that raises this exception where the next bytes are sent."""

    error: BaseException | None = None

    async def send(self, item: bytes) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        await super().send(item)


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), asyncio.CancelledError("secret")])
async def test_a_stream_that_raises_something_else_in_a_renewal_is_the_cause(
    error: BaseException,
) -> None:
    """Its text is not shown: the frame that it was to send has the password."""
    streams: list[OddStream] = []

    def odd(stream: MemoryStream) -> ByteStream:
        streams.append(OddStream(stream))
        return streams[0]

    async with world(Credentials(), direct=odd) as it:
        await pass_time(3)
        streams[0].error = error
        it.write(1)
        await it.ended.wait()
        assert isinstance(it.cause, KafkaConnectionError)
        assert str(it.cause).endswith(f"the connection was lost: {type(error).__name__}")


@pytest.mark.parametrize("what", ["another id", "garbage", "end", "two"])
async def test_a_broker_that_breaks_the_exchange_ends_the_connection(what: str) -> None:
    """A renewal answer that is missing, malformed, doubled or of another id ends the connection."""

    async def break_it(broker: Broker, correlation_id: int) -> bool:
        if broker.kinds.count(AUTHENTICATE) < 2:
            return False
        match what:
            case "another id":
                await broker.answer(AUTHENTICATE, 2, correlation_id + 1)
            case "garbage":
                await broker.stream.send(frame(correlation_id.to_bytes(4, "big") + b"\xff" * 7))
            case "end":
                await broker.stream.aclose()
            case _:
                await broker.answer(AUTHENTICATE, 2, correlation_id)
                await broker.answer(AUTHENTICATE, 2, correlation_id)
        return True

    async with world(Credentials()) as it:
        it.broker.on_authenticate = break_it
        await pass_time(3)
        ids = it.write(1)
        await it.ended.wait()
        assert isinstance(it.cause, KafkaConnectionError | ProtocolError)
        if what != "two":
            assert not it.connection.started(ids[0])


async def test_closing_in_the_middle_of_an_exchange_leaves_nothing_behind() -> None:
    async def stay_silent(broker: Broker, _: int) -> bool:
        return broker.kinds.count(AUTHENTICATE) >= 2

    async with world(Credentials()) as it:
        it.broker.on_authenticate = stay_silent
        await pass_time(3)
        ids = it.write(2)
        await pass_time(1)
        it.connection.close_soon("enough")
        await it.ended.wait()
        assert "enough" in str(it.cause)
        assert not any(it.connection.started(each) for each in ids)


class WatchedStream(Direct):
    """A stream that calls a function when the reading task wants more, before it waits."""

    def __init__(self, inner: MemoryStream) -> None:
        super().__init__(inner)
        self.before: Callable[[], None] = lambda: None

    async def receive(self, max_bytes: int = 65536) -> bytes:
        self.before()
        return await super().receive(max_bytes)


async def test_closing_just_after_the_last_answer_of_an_exchange_sends_nothing() -> None:
    """A connection that is closed when its session was just renewed ends with that reason."""
    streams: list[WatchedStream] = []

    def watched(stream: MemoryStream) -> ByteStream:
        streams.append(WatchedStream(stream))
        return streams[0]

    async with world(Credentials(), direct=watched) as it:
        await pass_time(3)
        ids = it.write(2)

        def close() -> None:
            if it.broker.kinds.count(AUTHENTICATE) == 2:
                it.connection.close_soon("enough")

        streams[0].before = close
        await it.ended.wait()
        assert "enough" in str(it.cause)
        assert it.broker.kinds == [18, 17, 36, 17, 36]
        assert not any(it.connection.started(each) for each in ids)


async def test_the_bytes_of_an_exchange_are_progress() -> None:
    """The bytes of a renewal are reported as progress."""
    async with world(Credentials()) as it:
        await it.until_answered(it.write(1))
        before = it.progress
        await pass_time(3)
        await it.until_answered(it.write(1))
        assert it.progress - before > 2 * (4 + 8 + 2)
