"""Restrict which addresses a cluster may send its clients to (`allowed_brokers`).

A client connects to whatever addresses the brokers advertise, and presents its credentials there.
If not every host may receive credentials, the option lists the hosts, domains and networks that
may. The bootstrap servers come from the user and are always allowed.

Invariants: nothing is sent to an address that is not allowed, not even a TCP handshake. A host name
that is allowed only because its address is in an allowed network is resolved here, and the
connection goes to an address that was checked, so a different DNS answer later changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from anyio.abc import ByteStream

from aioidem._config import ProducerConfig
from aioidem._network.cancellation import ends_task
from aioidem._network.happy_eyeballs import race
from aioidem._network.names import addresses_of
from aioidem._network.transport import Connector, address
from aioidem._protocol.foreign_text import printable
from aioidem.errors import BrokerNotAllowedError, KafkaConnectionError

__all__ = ["AllowedConnector", "limited"]

_Network: TypeAlias = IPv4Network | IPv6Network


def limited(connector: Connector, config: ProducerConfig) -> Connector:
    """Return the connector, restricted to `allowed_brokers` if that option is set."""
    if config.allowed_brokers is None:
        return connector
    bootstrap = [host for host, _ in config.bootstrap_servers]
    return AllowedConnector(connector, config.allowed_brokers, bootstrap)


class AllowedConnector:
    """A `Connector`, which opens byte streams to brokers, for allowed addresses only.

    Args:
        inner: The connector that opens the connection.
        allowed: Host names, domains such as ``*.example.org``, and networks such as
            ``10.1.0.0/16``.
        bootstrap: The hosts of the bootstrap servers, which are allowed too.
    """

    def __init__(self, inner: Connector, allowed: Iterable[str], bootstrap: Iterable[str]) -> None:
        self._inner = inner
        self._networks: list[_Network] = []
        self._names = {name.lower() for name in bootstrap}
        self._domains: list[str] = []
        for each in allowed:
            if each.startswith("*."):
                self._domains.append(each[1:].lower())
            elif _is_network(each):
                self._networks.append(ip_network(each, strict=False))
            else:
                self._names.add(each.lower())

    async def connect(self, host: str, port: int) -> ByteStream:
        """Open a stream to this address; see `Connector.connect`.

        Raises:
            BrokerNotAllowedError: The address is not allowed; nothing was sent to it.
            KafkaConnectionError: The address cannot be reached.
        """
        name = host.lower()
        if name in self._names or self._in_a_domain(name):
            return await self._inner.connect(host, port)
        allowed = [
            found
            for found in await self._addresses(host, port)
            if any(ip_address(found) in network for network in self._networks)
        ]
        if allowed:
            return await self._connect_to_first(allowed, port)
        raise BrokerNotAllowedError(
            f"the cluster named a broker at {printable(address(host, port))}, which "
            "is not in allowed_brokers: no connection was made"
        )

    async def _connect_to_first(self, addresses: Sequence[str], port: int) -> ByteStream:
        """Return a stream to the first of these IP addresses that accepts the connection."""
        if len(addresses) == 1:
            return await self._inner.connect(addresses[0], port)

        async def connect(ip: str) -> ByteStream:
            try:
                return await self._inner.connect(ip, port)
            except BaseException as error:
                if isinstance(error, KafkaConnectionError) and error.args:
                    raise
                # The connector, which may be the user's, has raised what it should not.
                if ends_task(error):
                    raise
                raise KafkaConnectionError(
                    f"cannot connect to {address(ip, port)}: {error!r}"
                ) from error

        failures: list[KafkaConnectionError] = []
        connected = await race(addresses, connect, KafkaConnectionError, failures)
        if connected:
            return connected[0]
        reasons = "; ".join(str(each.args[0]) for each in failures)
        raise KafkaConnectionError(reasons) from failures[0]

    def _in_a_domain(self, name: str) -> bool:
        # A host with a colon or a percent sign is an IPv6 address. The zone after the percent sign
        # may look like a domain and must not count as one.
        return name.isascii() and not {":", "%"} & {*name} and name.endswith((*self._domains,))

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Return the host's IP addresses, or none if there are no networks to compare them with."""
        if not self._networks:
            return []
        if _is_network(host):
            return [host]
        try:
            return await addresses_of(host, port)
        except (OSError, ValueError) as error:
            shown = printable(address(host, port))
            raise KafkaConnectionError(f"cannot connect to {shown}: {error}") from error


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
