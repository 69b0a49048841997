"""TLS accepts trusted certificates only, and an error names a peer that does not speak TLS."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream
from anyio.streams.tls import TLSStream

from aioidem import AIOKafkaProducer, Producer
from aioidem._broker.memory import MemoryStream, stream_pair
from aioidem._config import ProducerConfig
from aioidem._network.tls import OneAtATime, TlsConnector, client_context
from aioidem._network.transport import Connector, TcpConnector
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from aioidem.errors import (
    ConfigError,
    KafkaConnectionError,
    NotKafkaError,
    SslAuthenticationError,
)
from tests.waiting import until

from .tools import Authority, bounded

pytestmark = pytest.mark.anyio

CA = Authority()
TRUST: Mapping[str, Any] = {"security_protocol": "SSL", "ssl_truststore_certificates": CA.pem}


class Renamed:
    """A connector that leads every host name and port to one port on 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def connect(self, _host: str, _port: int) -> ByteStream:
        return await TcpConnector().connect("127.0.0.1", self._port)


@bounded(30)
async def test_certificates_that_cannot_be_read_have_the_time_of_their_connection() -> None:
    """A file system that hangs holds up neither the timeout of the connection nor a `close()`."""
    begun, release = threading.Event(), threading.Event()

    def hangs() -> ssl.SSLContext:
        begun.set()
        assert release.wait(20)
        return ssl.create_default_context()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(TlsConnector(TcpConnector(), hangs).connect, "127.0.0.1", 9)
            await until(begun.is_set, pause=0.001)
            tasks.cancel_scope.cancel()
        assert not release.is_set()
    finally:
        release.set()


@asynccontextmanager
async def peer(handle: Callable[[SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    """Yield the port of a listener on 127.0.0.1, whose connections `handle` serves."""
    multi = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = multi.listeners[0]
    assert isinstance(listener, SocketListener)

    async def run(stream: SocketStream) -> None:
        async with stream:
            # `except*`: a handler with tasks of its own raises their errors as a group.
            try:
                await handle(stream)
            except* (anyio.BrokenResourceError, anyio.EndOfStream, ssl.SSLError, OSError):
                pass

    async with multi, anyio.create_task_group() as tasks:
        tasks.start_soon(multi.serve, run)
        yield listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
        tasks.cancel_scope.cancel()


def shaking(context: ssl.SSLContext) -> Callable[[SocketStream], Awaitable[None]]:
    """Return a handler that makes the server's TLS handshake and keeps the connection open.

    If the handshake fails, the handler sends the TLS alert to the client; anyio's TLS stream would
    send none.
    """

    async def handle(stream: SocketStream) -> None:
        heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(heard, said, server_side=True)
        step: Callable[[], object] = tls.do_handshake
        while True:
            try:
                step()
                step = tls.read
            except ssl.SSLWantReadError:
                await stream.send(said.read())
                heard.write(await stream.receive())
            except ssl.SSLError:
                await stream.send(said.read())
                return

    return handle


async def connect(port: int, host: str = "localhost", **options: Any) -> None:
    """Make the TLS handshake with the peer and close the connection."""
    config = ProducerConfig.build("h", **{**TRUST, **options})
    connector: Connector = TlsConnector(Renamed(port), lambda: client_context(config))
    stream = await connector.connect(host, 9093)
    await anyio.aclose_forcefully(stream)


PEM_OF_NOTHING = "-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----\n"


# --- certificates ---------------------------------------------------------------------------------


@bounded(20)
async def test_records_go_through_tls() -> None:
    """A producer sends records over TLS."""
    security = BrokerSecurity(tls=CA.server("127.0.0.1"))
    async with EmbeddedCluster(security=security) as cluster:
        async with Producer(cluster.bootstrap_servers, **TRUST) as producer:
            await producer.send_many("t", [b"x" * 1000] * 2000, partition=0)
        assert cluster.log_end_offset("t") == 2000


class Guarded(MemoryStream):
    """A stream on which two sends at the same time are an error, as on sockets."""

    sending = False

    async def send(self, item: bytes) -> None:
        if self.sending:
            raise anyio.BusyResourceError("writing to")
        self.sending = True
        await super().send(item)
        self.sending = False


@bounded(20)
async def test_two_sends_at_once_wait_for_one_another() -> None:
    """Concurrent sends on one TLS stream wait for one another.

    TLS may have to send something of its own while a request is being written.
    """
    ours, theirs = stream_pair()
    ours.__class__ = Guarded
    stream = OneAtATime(ours)
    async with anyio.create_task_group() as tasks:
        for each in (b"a", b"b", b"c"):
            tasks.start_soon(stream.send, each)
    heard = b""
    while len(heard) < 3:
        heard += await theirs.receive()
    assert sorted(heard) == sorted(b"abc")


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("kafka-1.example.org", ["kafka-1.example.org"]),
        ("kafka-1.example.org.", ["kafka-1.example.org"]),  # trailing dot (librdkafka #5253)
        ("KAFKA-1.example.org", ["kafka-1.example.org"]),
        ("kafka-1.example.org", ["*.example.org"]),
        ("10.1.2.3", ["10.1.2.3"]),
        ("::1", ["::1"]),
    ],
)
@bounded(20)
async def test_a_certificate_for_this_host_is_accepted(host: str, names: list[str]) -> None:
    """A certificate matches by name, wild card or address, also with a trailing dot."""
    async with peer(shaking(CA.server(*names))) as port:
        await connect(port, host)


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("other.example.org", ["kafka-1.example.org"]),
        ("a.b.example.org", ["*.example.org"]),
        ("10.1.2.3", ["10.1.2.4"]),
        ("10.1.2.3", ["ten.example.org"]),  # an address is not resolved to a name
        ("127.0.0.1", ["localhost"]),
        ("localhost", ["127.0.0.1"]),
    ],
)
@bounded(20)
async def test_a_certificate_for_another_host_is_refused(host: str, names: list[str]) -> None:
    """A certificate for another host is refused, unless an explicit option turns the check off."""
    async with peer(shaking(CA.server(*names))) as port:
        with pytest.raises(SslAuthenticationError, match=r"certificate is not accepted: .*match"):
            await connect(port, host)
        await connect(port, host, ssl_endpoint_identification_algorithm="")


@bounded(20)
async def test_an_unknown_authority_is_refused_even_without_the_check_of_the_host() -> None:
    """A certificate of an unknown authority is refused, even without the check of the host name."""
    async with peer(shaking(Authority().server("localhost"))) as port:
        with pytest.raises(SslAuthenticationError, match="certificate is not accepted"):
            await connect(port, ssl_endpoint_identification_algorithm="")
        with pytest.raises(SslAuthenticationError, match="certificate is not accepted"):
            await connect(port, ssl_truststore_certificates=None)


@bounded(20)
async def test_an_expired_certificate_is_refused() -> None:
    """An expired certificate is refused, and the error says so."""
    import datetime as dt

    past = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    async with peer(shaking(CA.server("localhost", not_after=past))) as port:
        with pytest.raises(SslAuthenticationError, match="expired"):
            await connect(port)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
@bounded(20)
async def test_tls_before_1_2_is_not_spoken() -> None:
    """TLS 1.0 and 1.1 are refused, also with a caller's context that allows them."""
    old = CA.server("localhost")
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    lax = ssl.create_default_context(cadata=CA.pem)
    lax.set_ciphers("DEFAULT@SECLEVEL=0")
    lax.minimum_version = ssl.TLSVersion.TLSv1_1
    async with peer(shaking(old)) as port:
        with pytest.raises(SslAuthenticationError, match=r"TLS failed: .*VERSION"):
            await connect(port)
        with pytest.raises(SslAuthenticationError, match=r"TLSv1\.1.*TLSv1\.2 is the oldest"):
            await connect(port, ssl_truststore_certificates=None, ssl_context=lax)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@bounded(20)
async def test_a_client_certificate_is_shown_where_one_is_asked_for(
    version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """A producer presents its certificate to a broker that requires one, over TLS 1.2 and 1.3."""
    tls = CA.server("127.0.0.1", clients=True)
    tls.minimum_version = tls.maximum_version = version
    mine = CA.identity("me@example.org")
    file = tmp_path / "me.pem"
    file.write_text(mine.both)
    async with EmbeddedCluster(security=BrokerSecurity(tls=tls)) as cluster:
        identities: list[Mapping[str, Any]] = [
            {"ssl_keystore_location": str(file)},
            {"ssl_keystore_key": mine.key, "ssl_keystore_certificate_chain": mine.chain},
        ]
        for identity in identities:
            async with Producer(cluster.bootstrap_servers, **TRUST, **identity) as producer:
                await producer.send("t", b"x")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@bounded(20)
async def test_the_error_of_a_client_without_the_right_certificate_says_so(
    version: ssl.TLSVersion,
) -> None:
    """A missing or wrong client certificate fails `start` with an error that says so."""
    tls = CA.server("127.0.0.1", clients=True)
    tls.minimum_version = tls.maximum_version = version
    strange = Authority().identity("me@example.org")
    wrong: Mapping[str, Any] = {
        "ssl_keystore_key": strange.key,
        "ssl_keystore_certificate_chain": strange.chain,
    }
    async with peer(shaking(tls)) as port:
        nothing: Mapping[str, Any] = {}
        for options in (nothing, wrong):
            producer = Producer(f"127.0.0.1:{port}", **TRUST, **options)
            with pytest.raises(SslAuthenticationError, match=r"TLS failed: .*(ALERT|CERT)"):
                await producer.start()


@bounded(20)
async def test_files_that_were_replaced_are_the_ones_used(tmp_path: Path) -> None:
    """Each new connection reads the certificate files again."""
    file = tmp_path / "ca.pem"
    file.write_text(Authority().pem)
    only: Mapping[str, Any] = {
        "ssl_truststore_certificates": None,
        "ssl_truststore_location": str(file),
    }
    async with peer(shaking(CA.server("localhost"))) as port:
        with pytest.raises(SslAuthenticationError):
            await connect(port, **only)
        await anyio.Path(file).write_text(CA.pem)
        await connect(port, **only)


_MISSING = os.strerror(errno.ENOENT)
_STORES = ("ssl_truststore_location", "ssl_keystore_location")


@pytest.mark.parametrize("option", _STORES)
def test_a_store_that_is_missing_is_named_with_its_path_when_the_producer_is_made(
    option: str,
) -> None:
    """A missing certificate file fails the constructor; the error names the option and the path."""
    for make in (Producer, AIOKafkaProducer):
        options: Mapping[str, Any] = {"security_protocol": "SSL", option: "/nowhere/it.pem"}
        with pytest.raises(ConfigError) as caught:
            make(bootstrap_servers="h:1", **options)
        assert caught.value.args[0] == f"{option}='/nowhere/it.pem' cannot be loaded: {_MISSING}"


@pytest.mark.parametrize("option", _STORES)
@pytest.mark.parametrize("content", ["", "canary", PEM_OF_NOTHING])
def test_a_store_that_is_no_pem_is_named_with_its_path(
    option: str, content: str, tmp_path: Path
) -> None:
    """The error about a file that is not PEM names its option and path, but quotes no content."""
    file = tmp_path / "store.pem"
    file.write_text(content)
    options: Mapping[str, Any] = {"security_protocol": "SSL", option: str(file)}
    with pytest.raises(ConfigError) as caught:
        Producer("h:1", **options)
    assert f"{option}={str(file)!r} cannot be loaded: expected PEM" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_store_that_may_not_be_read_is_named_with_its_path(tmp_path: Path) -> None:
    """The error about an unreadable certificate file (here a folder) names its path."""
    with pytest.raises(ConfigError, match=r"ssl_truststore_location=.*cannot be loaded") as caught:
        Producer("h:1", security_protocol="SSL", ssl_truststore_location=str(tmp_path))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("text", ["canary", "canary\u00e9", "canary\0", "canary\ud800"])
def test_a_text_of_authorities_that_is_no_pem_is_named_and_not_shown(text: str) -> None:
    """The error about trusted certificates that are not PEM names the option, not the text."""
    named = "ssl_truststore_certificates cannot be loaded: expected PEM"
    with pytest.raises(ConfigError, match=named) as caught:
        Producer("h:1", security_protocol="SSL", ssl_truststore_certificates=text)
    assert "canary" not in str(caught.value)


@bounded(20)
async def test_a_text_of_a_key_that_is_no_pem_is_named_at_the_start_and_not_shown() -> None:
    """A key text that is not PEM fails `start`; the error names the option, not the text."""
    async with EmbeddedCluster(security=BrokerSecurity(tls=CA.server("127.0.0.1"))) as cluster:
        producer = Producer(
            cluster.bootstrap_servers,
            **TRUST,
            ssl_keystore_key="canary",
            ssl_keystore_certificate_chain="canary",
        )
        named = "ssl_keystore_key, ssl_keystore_certificate_chain cannot be loaded: expected PEM"
        with pytest.raises(ConfigError, match=named) as caught:
            await producer.start()
    assert "canary" not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    """A key that does not belong to its certificate is refused."""
    mine, other = CA.identity("me@example.org"), CA.identity("other@example.org")
    file = tmp_path / "me.pem"
    file.write_text(f"{other.key}\n{mine.chain}")
    with pytest.raises(
        ConfigError, match=r"me\.pem' cannot be loaded: .*does not belong to the certificate"
    ):
        Producer("h:1", security_protocol="SSL", ssl_keystore_location=str(file))


@bounded(20)
async def test_a_store_that_goes_while_the_producer_runs_is_named_too(tmp_path: Path) -> None:
    """If a certificate file is removed before `start`, `start` fails and names the file."""
    file = tmp_path / "ca.pem"
    file.write_text(CA.pem)
    async with EmbeddedCluster(security=BrokerSecurity(tls=CA.server("127.0.0.1"))) as cluster:
        producer = Producer(
            cluster.bootstrap_servers, security_protocol="SSL", ssl_truststore_location=str(file)
        )
        await anyio.Path(file).unlink()
        with pytest.raises(ConfigError, match=f"{re.escape(str(file))}.* cannot be loaded"):
            await producer.start()


@bounded(20)
async def test_an_encrypted_key_needs_its_password_and_asks_no_terminal() -> None:
    """An encrypted key without its password is refused; OpenSSL does not ask on the terminal."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    mine = CA.identity("me@example.org")
    key = load_pem_private_key(mine.key.encode(), None)
    locked = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"canary")
    ).decode()
    options: Mapping[str, Any] = {
        "ssl_keystore_key": locked,
        "ssl_keystore_certificate_chain": mine.chain,
    }
    async with peer(shaking(CA.server("localhost", clients=True))) as port:
        await connect(port, **options, ssl_key_password="canary")
        nothing: Mapping[str, Any] = {}
        for wrong in (nothing, {"ssl_key_password": "other"}):
            with pytest.raises(ConfigError, match="cannot be loaded"):
                await connect(port, **options, **wrong)


# --- peers without TLS ----------------------------------------------------------------------------


@bounded(20)
async def test_plaintext_to_a_tls_listener_is_named() -> None:
    """Plaintext to a TLS listener fails with an error that says that the peer speaks TLS."""
    async with EmbeddedCluster(security=BrokerSecurity(tls=CA.server("127.0.0.1"))) as cluster:
        with pytest.raises(NotKafkaError, match="it speaks TLS"):
            await Producer(cluster.bootstrap_servers).start()


@bounded(20)
async def test_tls_to_a_plaintext_listener_is_named() -> None:
    """TLS to a plaintext listener fails with an error that says so."""
    async with EmbeddedCluster() as cluster:
        with pytest.raises(NotKafkaError, match="does not speak TLS, but plaintext Kafka"):
            await Producer(cluster.bootstrap_servers, **TRUST).start()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 50, b"SSH-2.0-x\r\n"]
)
@bounded(20)
async def test_tls_to_a_stranger_is_named(answer: bytes) -> None:
    """TLS to a server of another protocol fails with an error that says so."""

    async def handle(stream: SocketStream) -> None:
        await stream.receive()
        await stream.send(answer)

    async with peer(handle) as port:
        with pytest.raises(NotKafkaError, match="does not speak TLS"):
            await connect(port)


@bounded(20)
async def test_a_peer_that_hangs_up_in_the_handshake_may_only_be_going_down() -> None:
    """A peer that closes the connection in the TLS handshake causes a retriable error."""

    async def handle(stream: SocketStream) -> None:
        await stream.receive()

    async with peer(handle) as port:
        with pytest.raises(KafkaConnectionError, match="closed the connection in") as caught:
            await connect(port)
    assert caught.value.retriable


@bounded(20)
async def test_a_peer_that_stays_silent_in_the_handshake_has_the_setup_timeout() -> None:
    """A TLS handshake that the peer never answers fails after connection_setup_timeout."""

    async def handle(_: SocketStream) -> None:
        await anyio.sleep_forever()

    async with peer(handle) as port:
        producer = Producer(f"127.0.0.1:{port}", **TRUST, connection_setup_timeout=0.3)
        with pytest.raises(KafkaConnectionError, match=r"in 0\.3 s, TLS handshake included"):
            await producer.start()


# --- truncation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("polite", [True, False])
@bounded(20)
async def test_the_end_of_the_stream_is_a_lost_connection_with_and_without_close_notify(
    polite: bool,
) -> None:
    """A batch whose answer is cut off by the end of the stream is sent again, and stored once."""
    cuts = 1
    async with EmbeddedCluster() as cluster:
        host, port = cluster.bootstrap_servers.split(":")

        async def relay(stream: SocketStream) -> None:
            nonlocal cuts
            front = await TLSStream.wrap(
                stream, server_side=True, ssl_context=CA.server("127.0.0.1")
            )
            back = await TcpConnector().connect(host, int(port))
            async with back, anyio.create_task_group() as tasks:

                async def up() -> None:
                    async for data in front:
                        await back.send(data)

                tasks.start_soon(up)
                async for data in back:
                    if cuts and cluster.state.topics.get("t") and cluster.log_end_offset("t"):
                        cuts -= 1
                        await front.send(data[: len(data) // 2])
                        tasks.cancel_scope.cancel()
                        break
                    await front.send(data)
            if polite:
                with contextlib.suppress(anyio.BusyResourceError):
                    await front.unwrap()

        async with peer(relay) as relayed:
            # `Renamed` connects to the relay, whatever address the cluster advertises.
            connector = Renamed(relayed)
            async with Producer(
                cluster.bootstrap_servers, connector=connector, **TRUST
            ) as producer:
                metadata = await producer.send("t", b"once")
            assert metadata.offset == 0
        assert cuts == 0
        assert cluster.log_end_offset("t") == 1
