"""What does a peer that hung up on us, or keeps silent, speak? Asked once, to name the mistake.

Kafka's own TLS listener answers plaintext with an alert, which the frame splitter recognises. One
of OpenSSL (a proxy, a load balancer) closes without a word, as a broker that is going down does. So
such a peer gets a ClientHello on a second connection: whatever answers it with a TLS record is
one. Nothing is negotiated, no certificate is looked at, and the connection is closed.

The other way round a plaintext listener of Kafka takes a ClientHello for the length of a frame that
is far too long, and closes. So a peer that hangs up in the handshake is asked for its API versions
in plaintext; that question holds nothing that is secret.

A peer that keeps silent may be a web server, which takes our question for the beginning of a
request and waits for its end. It gets a request on a connection of its own, beside the ClientHello.

Rejected: guessing by the port number.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

import anyio

from aioidem._network.transport import Connector
from aioidem.errors import KafkaConnectionError

__all__ = ["PROBE_SECONDS", "answers_plaintext", "answers_tls", "client_hello", "speaks"]

PROBE_SECONDS = 2.0
"""How long a peer is asked for."""
_HANDSHAKE, _ALERT = 0x16, 0x15
# ApiVersions v0, correlation id 0x616f, no client id; and what the answer has after its length.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 0000616f ffff")
_ANSWER = bytes.fromhex("0000616f")
_HTTP = b"GET / HTTP/1.0\r\n\r\n"


def client_hello(host: str) -> bytes:
    """The first bytes of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is never completed: no identity is relied on
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with suppress(ssl.SSLWantReadError):  # as it should: it has spoken and waits for the server
        client.do_handshake()
    return outgoing.read()


async def answers_tls(connector: Connector, host: str, port: int) -> bool:
    """Whether the peer answers a ClientHello with a TLS record, within two seconds."""
    first = await _answer(connector, host, port, client_hello(host), 1)
    return first[:1] in {bytes((_HANDSHAKE,)), bytes((_ALERT,))}


async def answers_plaintext(connector: Connector, host: str, port: int) -> bool:
    """Whether the peer answers ApiVersions in plaintext, within two seconds."""
    return (await _answer(connector, host, port, _API_VERSIONS, 8))[4:8] == _ANSWER


async def speaks(connector: Connector, host: str, port: int) -> str | None:
    """What a silent peer speaks, TLS or HTTP, if it says so within two seconds."""
    found: list[str] = []

    async def over_tls() -> None:
        if await answers_tls(connector, host, port):
            found.append("TLS")
            tasks.cancel_scope.cancel()

    async def over_http() -> None:
        if await _answer(connector, host, port, _HTTP, 5) == b"HTTP/":
            found.append("HTTP")
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(over_tls)
        tasks.start_soon(over_http)
    return found[0] if found else None


async def _answer(connector: Connector, host: str, port: int, said: bytes, wanted: int) -> bytes:
    """The first bytes of what a peer answers, fewer than wanted if it hangs up."""
    heard = b""
    with anyio.move_on_after(PROBE_SECONDS):
        try:
            stream = await connector.connect(host, port)
        except KafkaConnectionError:
            return heard
        try:
            await stream.send(said)
            while len(heard) < wanted:
                heard += await stream.receive(wanted - len(heard))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass
        finally:
            with anyio.move_on_after(PROBE_SECONDS, shield=True):
                await anyio.aclose_forcefully(stream)
    return heard
