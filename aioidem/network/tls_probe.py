"""Does a peer that hung up on plaintext speak TLS? Asked once, to name the mistake.

Kafka's own TLS listener answers plaintext with an alert, which the frame splitter recognises. One
of OpenSSL (a proxy, a load balancer) closes without a word, as a broker that is going down does. So
such a peer gets a ClientHello on a second connection: whatever answers it with a TLS record is
one. Nothing is negotiated, no certificate is looked at, and the connection is closed.

Rejected: guessing by the port number.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

import anyio
from anyio.abc import ByteStream

from aioidem.errors import KafkaConnectionError
from aioidem.network.transport import Connector

__all__ = ["answers_tls", "client_hello"]

_SECONDS = 2.0
_HANDSHAKE, _ALERT = 0x16, 0x15


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
    with anyio.move_on_after(_SECONDS):
        try:
            stream = await connector.connect(host, port)
        except KafkaConnectionError:
            return False
        try:
            return await _first_byte(stream, client_hello(host)) in {_HANDSHAKE, _ALERT}
        finally:
            with anyio.move_on_after(_SECONDS, shield=True):
                await anyio.aclose_forcefully(stream)
    return False


async def _first_byte(stream: ByteStream, hello: bytes) -> int | None:
    try:
        await stream.send(hello)
        return (await stream.receive(1))[0]
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return None
