"""Opening a connection negotiates versions, and recognises a peer that is not a Kafka broker.

Peers are scripts on a loopback listener. For every peer, `open` ends in time and leaves no socket
open, and its error has the address and the reason.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream
from kio.schema.errors import ErrorCode

from aioidem._network.connection import Connection
from aioidem._network.transport import TcpConnector, address
from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.messages import (
    RequestHeader,
    UnsupportedRequestError,
    decode_request,
    encode_response,
    response_type,
)
from aioidem._protocol.versions import ApiKey
from aioidem.errors import (
    IncompatibleBrokerVersion,
    InvalidRequestError,
    KafkaConnectionError,
    NotKafkaError,
    ProtocolError,
)

pytestmark = pytest.mark.anyio

Script = Callable[[SocketStream], Awaitable[None]]
LIMIT = 1 << 20


@asynccontextmanager
async def peer(script: Script) -> AsyncIterator[int]:
    """Yield the port of a listener on 127.0.0.1 that runs `script` for each connection."""
    multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = multi.listeners[0]
    assert isinstance(listener, SocketListener)

    async def handle(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                await script(stream)

    with anyio.fail_after(20):
        async with multi, anyio.create_task_group() as tasks:
            tasks.start_soon(multi.serve, handle)
            yield listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
            tasks.cancel_scope.cancel()


async def open_to(
    port: int, *, setup_timeout: float = 10.0, connector: Any = None, limit: int = LIMIT
) -> Connection:
    return await Connection.open(
        connector or TcpConnector(),
        "127.0.0.1",
        port,
        client_id="me",
        setup_timeout=setup_timeout,
        max_frame_bytes=limit,
    )


def says(*chunks: bytes) -> Script:
    """Return a peer that reads something, sends these bytes, and closes the connection."""

    async def script(stream: SocketStream) -> None:
        await stream.receive()
        for each in chunks:
            await stream.send(each)

    return script


async def requests(stream: SocketStream) -> AsyncIterator[RequestHeader]:
    """Yield the headers of all requests that a client sends."""
    splitter = FrameSplitter(LIMIT)
    async for data in stream:
        for each in splitter.feed(data):
            try:
                yield decode_request(each)[0]
            except UnsupportedRequestError as error:
                yield error.header


def versions(
    version: int,
    *ranges: tuple[int, int, int],
    error: Any = ErrorCode.none,
    correlation_id: int = 0,
) -> bytes:
    """Return the frame of an ApiVersions answer."""
    kind: Any = response_type(18, version)
    module = importlib.import_module(kind.__module__)
    keys = tuple(
        module.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, low, high in ranges
    )
    more = {"throttle_time": timedelta(0)} if version >= 1 else {}
    return encode_response(kind(error_code=error, api_keys=keys, **more), correlation_id)


def broker(newest: int, *ranges: tuple[int, int, int], hint: bool = True) -> Script:
    """Return a broker that knows ApiVersions up to version `newest`.

    Newer requests get UNSUPPORTED_VERSION; with `hint`, the refusal names the versions it knows.
    """

    async def script(stream: SocketStream) -> None:
        async for header in requests(stream):
            if header.api_version > newest:
                hinted = [(18, 0, newest)] if hint else []
                answer = versions(
                    0,
                    *hinted,
                    error=ErrorCode.unsupported_version,
                    correlation_id=header.correlation_id,
                )
            else:
                answer = versions(header.api_version, *ranges, correlation_id=header.correlation_id)
            await stream.send(answer)

    return script


# --- brokers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("newest", "hint"), [(4, True), (3, True), (2, True), (0, True), (0, False)]
)
async def test_a_broker_of_any_age_is_understood(newest: int, hint: bool) -> None:
    """`open` negotiates ApiVersions v0 to v4, even if a broker's refusal names no version."""
    async with peer(broker(newest, (0, 0, 13), (3, 0, 12), hint=hint)) as port:
        connection = await open_to(port)
        assert connection.versions.choose(ApiKey.PRODUCE) == 13
        assert connection.versions.choose(ApiKey.METADATA) == 12
        assert connection.port == port
        assert not connection.closed
        await connection.aclose()


async def test_correlation_ids_go_on_where_opening_stopped() -> None:
    """Correlation ids continue after those that the opening has used."""
    async with peer(broker(0, (0, 0, 13), hint=False)) as port:
        connection = await open_to(port)
        assert connection.next_correlation_id() == 2
        await connection.aclose()


async def test_an_opened_connection_carries_requests() -> None:
    async with peer(broker(4, (0, 3, 14))) as port:
        connection = await open_to(port)
        seen: list[int] = []

        def on_frame(correlation_id: int, _frame: bytes) -> None:
            seen.append(correlation_id)
            connection.close_soon("enough")

        correlation_id = connection.next_correlation_id()
        head = b"\0\x12\0\0" + correlation_id.to_bytes(4, "big") + b"\xff\xff"
        connection.write(frame(head), correlation_id=correlation_id)
        cause = await connection.run(on_frame, lambda _written, _read: None)
        assert "enough" in str(cause)
        assert seen == [correlation_id]


async def test_after_opening_frames_may_be_as_large_as_allowed() -> None:
    """After the opening, responses may be as large as `max_frame_bytes` allows."""
    big = b"\0\0\0\1" + bytes(2 * LIMIT)

    async def script(stream: SocketStream) -> None:
        await stream.receive()
        await stream.send(versions(4, (0, 0, 13)))
        await stream.receive()
        await stream.send(frame(big))

    async with peer(script) as port:
        connection = await open_to(port, limit=3 * LIMIT)
        sizes: list[int] = []

        def on_frame(_id: int, payload: bytes) -> None:
            sizes.append(len(payload))
            connection.close_soon("enough")

        connection.write(frame(b"\0\x12\0\0\0\0\0\1\xff\xff"), correlation_id=1)
        await connection.run(on_frame, lambda _written, _read: None)
        assert sizes == [len(big)]


async def test_broker_without_produce_is_refused() -> None:
    async with peer(broker(4, (3, 0, 12))) as port:
        with pytest.raises(IncompatibleBrokerVersion, match=f"127.0.0.1:{port}: .*PRODUCE"):
            await open_to(port)


async def test_broker_that_always_says_unsupported_is_refused_after_few_questions() -> None:
    """A broker that refuses every version of ApiVersions is asked once for each version."""
    asked: list[int] = []

    async def script(stream: SocketStream) -> None:
        async for header in requests(stream):
            asked.append(header.api_version)
            await stream.send(
                versions(
                    0,
                    (18, 0, max(header.api_version - 1, 0)),
                    error=ErrorCode.unsupported_version,
                    correlation_id=header.correlation_id,
                )
            )

    async with peer(script) as port:
        with pytest.raises(IncompatibleBrokerVersion, match="ApiVersions"):
            await open_to(port)
    assert asked == [4, 3, 2, 1, 0]


async def test_another_error_is_the_brokers() -> None:
    """An error code other than UNSUPPORTED_VERSION in an ApiVersions answer is raised."""
    async with peer(says(versions(4, error=ErrorCode.invalid_request))) as port:
        with pytest.raises(InvalidRequestError, match=f"127.0.0.1:{port}"):
            await open_to(port)


# --- peers that are not Kafka ---------------------------------------------------------------------

STRANGERS = [
    pytest.param([b"\x15\x03\x03\x00\x02\x02\x28"], "TLS", id="TLS-alert"),
    pytest.param([b"\x15", b"\x03\x03\x00\x02\x02\x50"], "TLS", id="TLS-alert-in-two"),
    pytest.param([b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"], "HTTP", id="HTTP"),
    pytest.param([b"SSH-2.0-OpenSSH_9.6p1\r\n"], "SSH", id="SSH"),
    pytest.param([b"220 mail.example.org ESMTP\r\n"], "SMTP", id="SMTP"),
    pytest.param([b"-ERR unknown command\r\n"], "Redis", id="Redis"),
    pytest.param([b"E\0\0\0\x8fSFATAL\0"], "PostgreSQL", id="PostgreSQL"),
    pytest.param([b"\x15\x03"], "TLS", id="TLS-cut-short"),
    pytest.param([b"who are you?\n"], "something else", id="text"),
    pytest.param([bytes(64)], "something else", id="zeroes"),
    pytest.param([b"\xff" * 64], "something else", id="ones"),
    pytest.param([(2 * LIMIT).to_bytes(4, "big")], "something else", id="length-of-2-MiB"),
    pytest.param([frame(b"\xca\xfe\xba\xbe is not our id")], "not Kafka", id="framed-garbage"),
]


@pytest.mark.parametrize(("chunks", "name"), STRANGERS)
async def test_a_stranger_is_recognised_and_named(chunks: list[bytes], name: str) -> None:
    """The error for a peer that is no Kafka broker names the protocol of the peer."""
    async with peer(says(*chunks)) as port:
        with pytest.raises(NotKafkaError, match=name) as caught:
            await open_to(port, limit=100 << 20)
        assert f"127.0.0.1:{port}" in str(caught.value)


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x20half of a frame"])
async def test_the_error_for_a_peer_that_hangs_up_names_the_likely_reasons(
    sent: bytes,
) -> None:
    """If the peer closes without an answer, the error names TLS and SASL as reasons."""
    async with peer(says(sent) if sent else says()) as port:
        with pytest.raises(KafkaConnectionError, match="TLS or SASL") as caught:
            await open_to(port)
        assert f"127.0.0.1:{port}" in str(caught.value)
        assert not isinstance(caught.value, NotKafkaError)


async def test_the_error_for_a_peer_that_resets_the_connection_names_it() -> None:
    """If the peer resets the connection, the error names its address."""

    async def reset(stream: SocketStream) -> None:
        raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await stream.receive()

    async with peer(reset) as port:
        with pytest.raises(KafkaConnectionError, match=f"127.0.0.1:{port}"):
            await open_to(port)


async def test_a_silent_peer_is_given_up_after_the_setup_timeout() -> None:
    async def silent(stream: SocketStream) -> None:
        async for _ in stream:
            pass

    async with peer(silent) as port:
        with pytest.raises(KafkaConnectionError) as caught:
            await open_to(port, setup_timeout=0.05)
        told = str(caught.value)
        assert "accepted the connection but did not answer ApiVersions in 0.05 s" in told
        assert "TLS" in told
        assert f"127.0.0.1:{port}" in told


async def test_a_web_server_that_waits_for_the_end_of_a_line_is_recognised() -> None:
    """A web server is recognised even if it waits silently for the rest of a request."""

    async def web(stream: SocketStream) -> None:
        heard = b""
        async for data in stream:
            heard += data
            if heard.startswith(b"GET ") and b"\r\n\r\n" in heard:
                await stream.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    async with peer(web) as port:
        with pytest.raises(NotKafkaError, match=f"127.0.0.1:{port}.* HTTP"):
            await open_to(port, setup_timeout=1.0)


async def test_a_tls_listener_that_waits_for_more_is_recognised() -> None:
    """A TLS listener that does not answer ApiVersions is recognised: it answers a TLS greeting."""

    async def patient(stream: SocketStream) -> None:
        async for data in stream:
            if data[0] == 0x16:
                await stream.send(b"\x15\x03\x03\x00\x02\x02\x28")

    async with peer(patient) as port:
        with pytest.raises(NotKafkaError, match=f"127.0.0.1:{port}.* TLS"):
            await open_to(port, setup_timeout=1.0)


async def test_slow_drip_ends_with_the_setup_timeout() -> None:
    """A peer that sends its answer byte by byte is given up after the setup timeout."""

    async def drip(stream: SocketStream) -> None:
        await stream.receive()
        await stream.send(b"\0\x08\0\0")
        while True:
            await stream.send(b"x")
            await anyio.lowlevel.checkpoint()

    async with peer(drip) as port:
        with pytest.raises(KafkaConnectionError):
            await open_to(port, setup_timeout=0.05)


async def test_malformed_versions_are_a_protocol_error() -> None:
    async with peer(says(frame(bytes(4) + b"\0\0\x7f\x01\x02"))) as port:
        with pytest.raises(ProtocolError, match=f"127.0.0.1:{port}.*ApiVersionsResponse"):
            await open_to(port)


async def test_more_frames_than_were_asked_for_are_refused() -> None:
    async with peer(says(versions(4, (0, 0, 13)) * 2)) as port:
        with pytest.raises(ProtocolError, match="more than one answer"):
            await open_to(port)


# --- addresses ------------------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a port without a listener, bound so that no other process takes it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def test_a_refused_connection_names_the_address_and_the_reason(closed_port: int) -> None:
    with anyio.fail_after(10), pytest.raises(KafkaConnectionError) as caught:
        await open_to(closed_port)
    assert f"127.0.0.1:{closed_port}" in str(caught.value)
    assert "refused" in str(caught.value).lower() or "failed" in str(caught.value).lower()


@pytest.mark.parametrize(
    ("host", "port"),
    [("", 9092), ("127.0.0.1", 0), ("127.0.0.1", 70_000), ("127.0.0.1", -1), ("a" * 300, 9092)],
)
async def test_impossible_address_is_refused(host: str, port: int) -> None:
    with anyio.fail_after(10), pytest.raises(KafkaConnectionError) as caught:
        await TcpConnector().connect(host, port)
    assert str(port) in str(caught.value)


def test_addresses_are_shown_as_people_write_them() -> None:
    assert address("broker", 9092) == "broker:9092"
    assert address("::1", 9092) == "[::1]:9092"


async def test_small_frames_are_sent_at_once() -> None:
    """TCP connections have TCP_NODELAY and SO_KEEPALIVE set."""
    async with peer(broker(4, (0, 0, 13))) as port:
        stream = await TcpConnector().connect("127.0.0.1", port)
        async with stream:
            raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# --- cancellation and time ------------------------------------------------------------------------


class Recorder:
    """A connector that keeps the streams it opens, or never finishes connecting."""

    def __init__(self, *, hang: bool = False) -> None:
        self.streams: list[ByteStream] = []
        self.hang = hang
        self.reached = anyio.Event()

    async def connect(self, host: str, port: int) -> ByteStream:
        self.reached.set()
        if self.hang:
            await anyio.sleep_forever()
        stream = await TcpConnector().connect(host, port)
        self.streams.append(stream)
        return stream


async def test_a_connector_that_never_connects_is_given_up_after_the_setup_timeout() -> None:
    with (
        anyio.fail_after(10),
        pytest.raises(KafkaConnectionError, match="timed out, no connection"),
    ):
        await open_to(9092, setup_timeout=0.02, connector=Recorder(hang=True))


@pytest.mark.parametrize("hang", [True, False])
async def test_opening_can_be_cancelled_and_leaves_nothing_open(hang: bool) -> None:
    async def silent(stream: SocketStream) -> None:
        async for _ in stream:
            asked.set()
        hung_up.set()

    asked, hung_up = anyio.Event(), anyio.Event()
    async with peer(silent) as port:
        connector = Recorder(hang=hang)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: open_to(port, connector=connector))
            await (connector.reached if hang else asked).wait()
            tasks.cancel_scope.cancel()
        if not hang:
            await hung_up.wait()
            with pytest.raises(anyio.ClosedResourceError):
                await connector.streams[0].send(b"x")


async def test_a_stream_is_closed_when_opening_fails() -> None:
    async with peer(says(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        connector = Recorder()
        with pytest.raises(NotKafkaError):
            await open_to(port, connector=connector)
        with pytest.raises(anyio.ClosedResourceError):
            await connector.streams[0].send(b"x")


async def test_a_stranger_may_answer_in_64_kib_which_does_not_hold_the_loop() -> None:
    """Until a peer has proved to be a broker, an answer of more than 64 KiB is refused."""
    many = tuple((key, 0, 13) for key in range(9_000))
    async with peer(says(versions(3, *many))) as port:
        connection = await open_to(port)
        await connection.aclose()
    async with peer(says(versions(3, *many, *many[:400]))) as port:
        with pytest.raises(NotKafkaError, match="speaks something else"):
            await open_to(port)
