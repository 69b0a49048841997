"""If a peer does not answer as expected, find out which protocol it speaks, for the error message.

Plaintext sent to TLS: Kafka's own TLS listener answers with a TLS alert, which `frames.py`
recognises. A TLS listener of OpenSSL (a proxy, a load balancer) closes the connection without an
answer, and so does a broker that is shutting down. To such a peer this module sends a ClientHello
on a second connection: if the answer is a TLS record, the peer speaks TLS. Nothing is negotiated,
no certificate is checked, and the connection is closed.

TLS sent to plaintext: a plaintext listener of Kafka reads a ClientHello as the length of a far too
long frame, and closes the connection. So a peer that closes during the TLS handshake is asked for
its API versions in plaintext. That request contains no secret.

A peer that stays silent may be a web server, which reads our request as the start of an HTTP
request and waits for the rest. This module sends it an HTTP request and a ClientHello, on two other
connections.

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
"""How many seconds a probe waits for an answer."""
_HANDSHAKE, _ALERT = 0x16, 0x15
# An ApiVersions v0 request with correlation id 0x616f and no client id, and the first bytes of its
# answer after the length.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 0000616f ffff")
_ANSWER = bytes.fromhex("0000616f")
_HTTP = b"GET / HTTP/1.0\r\n\r\n"


def client_hello(host: str) -> bytes:
    """Return the first bytes that a TLS client sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # The handshake is never completed, so the peer's identity does not matter.
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with suppress(ssl.SSLWantReadError):  # expected: the client waits for the server's answer
        client.do_handshake()
    return outgoing.read()


async def answers_tls(connector: Connector, host: str, port: int) -> bool:
    """Return whether the peer answers a ClientHello with a TLS record, within two seconds."""
    first = await _answer(connector, host, port, client_hello(host), 1)
    return first[:1] in {bytes((_HANDSHAKE,)), bytes((_ALERT,))}


async def answers_plaintext(connector: Connector, host: str, port: int) -> bool:
    """Return whether the peer answers ApiVersions in plaintext, within two seconds."""
    return (await _answer(connector, host, port, _API_VERSIONS, 8))[4:8] == _ANSWER


async def speaks(connector: Connector, host: str, port: int) -> str | None:
    """Return the protocol in which the peer answers a probe: "TLS", "HTTP" or None.

    The peer has two seconds. If it answers both probes, the protocol of the first answer counts.
    """
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
    """Return the answer's first `wanted` bytes, or fewer if the peer closes or time runs out."""
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
