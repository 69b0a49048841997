"""Open the byte stream of a connection to a broker: over TCP, or over TLS.

`Connection` gets its stream from a `Connector` and knows nothing else about it. TLS is a connector
that wraps another one. Its host name check needs the host that the broker advertises, so `connect`
takes names and not sockets. SASL consists of Kafka requests on the stream, so `Connection` does it
over any connector. The embedded cluster's in-memory transport is a connector too.

Invariants: a failed `connect` leaves nothing open and raises `KafkaConnectionError`, which names
the address and the reason of every attempt. An impossible address is refused before it is looked
up, because an empty host would mean this machine.
"""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from typing import Protocol

from anyio.abc import ByteStream, SocketAttribute

from aioidem._network.eager import eager
from aioidem._network.happy_eyeballs import connect_to_first
from aioidem._network.names import addresses_of
from aioidem.errors import KafkaConnectionError

__all__ = ["Connector", "TcpConnector", "address", "no_delay"]


class Connector(Protocol):
    """An object that opens byte streams to brokers."""

    async def connect(self, host: str, port: int) -> ByteStream:
        """Open a stream to this address, given as the cluster advertises it.

        This method has no timeout: the caller cancels a call that takes too long.

        Raises:
            KafkaConnectionError: The address cannot be reached.
        """
        ...


class TcpConnector:
    """A connector for TCP.

    It tries each address of the host (RFC 8305), and turns Nagle's algorithm off.
    """

    __slots__ = ()

    async def connect(self, host: str, port: int) -> ByteStream:
        """Open a stream to this address; see `Connector.connect`."""
        if not host or not 0 < port < 65536:
            raise KafkaConnectionError(f"{address(host, port)} is not an address to connect to")
        try:
            addresses = [host] if _is_ip(host) else await addresses_of(host, port)
            stream = await connect_to_first(addresses, port)
        except (OSError, ValueError) as error:
            # ValueError means a host name that cannot be encoded for DNS.
            cause = _underlying(error)
            raise KafkaConnectionError(
                f"cannot connect to {address(host, port)}: {_reason(cause)}"
            ) from cause
        no_delay(stream)
        raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return eager(stream)


def no_delay(stream: ByteStream) -> None:
    """Switch off Nagle's algorithm, so that small frames are sent at once."""
    raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def address(host: str, port: int) -> str:
    """Format an address as ``host:port``, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _underlying(error: BaseException) -> BaseException:
    """Return the OSError, or the group of them, behind "All connection attempts failed"."""
    below = error.__cause__
    return below if isinstance(below, OSError | BaseExceptionGroup) else error


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_reason(each) for each in error.exceptions))
    if isinstance(error, socket.gaierror):  # its error numbers are not those of errno
        return error.strerror or "the host name cannot be looked up"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)  # asyncio says "Connect call failed" for every reason
    return str(error) or type(error).__name__
