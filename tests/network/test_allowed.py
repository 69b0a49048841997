"""A cluster can direct its clients only to addresses that `allowed_brokers` permits."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream

from aioidem import Producer
from aioidem._broker.intercept import Action, RequestSeen, Rewrite
from aioidem._config import ProducerConfig
from aioidem._network.allowed import AllowedConnector, limited
from aioidem.broker import EmbeddedCluster
from aioidem.errors import BrokerNotAllowedError, ConfigError, KafkaConnectionError, KafkaError

pytestmark = pytest.mark.anyio


class Noting:
    """A connector that notes each address and connects to none."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def connect(self, host: str, port: int) -> ByteStream:
        self.asked.append((host, port))
        await anyio.lowlevel.checkpoint()
        return None  # type: ignore[return-value]


ALLOWED = ["kafka.example.org", "*.brokers.example.org", "10.1.0.0/16", "127.0.0.0/8", "fd00::/8"]


@pytest.mark.parametrize(
    "host",
    [
        *("kafka.example.org", "KAFKA.example.ORG", "b1.brokers.example.org", "boot.example.com"),
        *("10.1.2.3", "127.0.0.1", "fd00::1"),
    ],
)
async def test_what_is_allowed_is_connected_to(host: str) -> None:
    """A client connects to the bootstrap hosts and to addresses that `allowed_brokers` permits."""
    noting = Noting()
    await AllowedConnector(noting, ALLOWED, ["boot.example.com"]).connect(host, 9092)
    assert noting.asked == [(host, 9092)]


@pytest.mark.parametrize("host", ["10.2.0.1", "169.254.169.254", "192.168.0.1", "::1", "fe80::1"])
async def test_an_address_outside_of_the_networks_is_refused(host: str) -> None:
    """An address outside `allowed_brokers` raises BrokerNotAllowedError before any connection."""
    noting = Noting()
    with pytest.raises(BrokerNotAllowedError, match="no connection was made"):
        await AllowedConnector(noting, ALLOWED[:3], []).connect(host, 9092)
    assert noting.asked == []


@pytest.mark.parametrize(
    "host",
    [
        *("brokers.example.org", "evilbrokers.example.org", ".example.org", "example.org"),
        *("b1.brokers.example.org.example.com", "b1.brokers.example.org."),
    ],
)
async def test_a_domain_has_only_the_names_below_it(host: str) -> None:
    """``*.brokers.example.org`` allows only names that end in `.brokers.example.org`."""
    noting = Noting()
    with pytest.raises(BrokerNotAllowedError, match="no connection was made"):
        await AllowedConnector(noting, ["*.brokers.example.org"], []).connect(host, 9092)
    assert noting.asked == []


@pytest.mark.parametrize(
    "host", ["fe80::1%x.example.org", "10.0.0.1:80.example.org", "::1%.example.org"]
)
async def test_an_address_with_a_zone_is_in_no_domain(host: str) -> None:
    """An address with a zone or port is in no allowed domain, whatever it ends with."""
    noting = Noting()
    with pytest.raises(BrokerNotAllowedError):
        await AllowedConnector(noting, ["*.example.org"], []).connect(host, 9092)
    assert noting.asked == []


async def test_a_name_is_connected_to_by_the_address_that_was_checked() -> None:
    """A connection to a host name goes to the resolved address that was checked."""
    noting = Noting()
    await AllowedConnector(noting, ["127.0.0.0/8", "::1/128"], []).connect("localhost", 9092)
    assert noting.asked in ([("127.0.0.1", 9092)], [("::1", 9092)])
    with pytest.raises(BrokerNotAllowedError):
        await AllowedConnector(noting, ["10.0.0.0/8"], []).connect("localhost", 9092)
    assert len(noting.asked) == 1


class Half(Noting):
    """A connector that can connect to all addresses but the given ones."""

    def __init__(self, *dead: str) -> None:
        super().__init__()
        self._dead = dead

    async def connect(self, host: str, port: int) -> ByteStream:
        stream = await super().connect(host, port)
        if host in self._dead:
            raise KafkaConnectionError(f"{host}: refused")
        return stream


async def test_each_allowed_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of a broker's addresses does not accept connections, another one may do."""
    addresses = ["10.9.0.1", "10.1.0.1", "10.1.0.2"]

    def look_up(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 9092)) for ip in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    half = Half("10.1.0.1")
    await AllowedConnector(half, ALLOWED, []).connect("b.example.com", 9092)
    assert half.asked == [("10.1.0.1", 9092), ("10.1.0.2", 9092)]
    with pytest.raises(KafkaConnectionError, match=r"10\.1\.0\.1: refused; 10\.1\.0\.2: refused"):
        await AllowedConnector(Half(*addresses), ALLOWED, []).connect("b.example.com", 9092)


@pytest.mark.parametrize(
    "odd", [OSError("no"), RuntimeError("no"), KafkaConnectionError(), asyncio.CancelledError()]
)
async def test_a_connector_that_raises_something_else_is_asked_for_the_next_address(
    odd: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ["10.1.0.1", "10.1.0.2"]

    def look_up(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 9092)) for ip in addresses]

    class Odd(Noting):
        bad = frozenset({"10.1.0.1"})

        async def connect(self, host: str, port: int) -> ByteStream:
            stream = await super().connect(host, port)
            if host in self.bad:
                raise odd
            return stream

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    half = Odd()
    await AllowedConnector(half, ALLOWED, []).connect("b.example.com", 9092)
    assert half.asked == [("10.1.0.1", 9092), ("10.1.0.2", 9092)]
    half.bad = frozenset(addresses)
    with pytest.raises(
        KafkaConnectionError, match=r"cannot connect to 10\.1\.0\.1:9092: "
    ) as raised:
        await AllowedConnector(half, ALLOWED, []).connect("b.example.com", 9092)
    assert str(raised.value).endswith(repr(odd))


def test_without_the_option_nothing_is_limited() -> None:
    noting = Noting()
    assert limited(noting, ProducerConfig.build("h")) is noting


async def test_a_broker_that_names_an_address_elsewhere_is_not_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A producer connects to no address in metadata that is outside `allowed_brokers`."""

    def elsewhere(answer: Any) -> Any:
        brokers = tuple(
            dataclasses.replace(each, host="127.0.0.2", port=9) for each in answer.brokers
        )
        return dataclasses.replace(answer, brokers=brokers)

    def intercept(seen: RequestSeen) -> Action | None:
        return Rewrite(elsewhere) if seen.api_key == 3 else None

    allowed = "10.0.0.0/8,kafka.example.org"
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        async with Producer(cluster.bootstrap_servers, allowed_brokers=allowed) as producer:
            await producer.send("t", b"x")  # bootstrap servers are always allowed
        cluster.intercept(intercept)
        producer = Producer(
            cluster.bootstrap_servers,
            allowed_brokers=allowed,
            delivery_timeout=1.0,
            request_timeout=0.5,
        )
        with caplog.at_level("WARNING"), pytest.raises(KafkaError):
            async with producer:
                await producer.send("t", b"x")
    assert "at 127.0.0.2:9, which is not in allowed_brokers" in caplog.text


@pytest.mark.parametrize(
    "given", ["a b", "10.0.0.0/33", "*", "*.*.org", "x*", "http://h", "[::1]", ["h", 3], []]
)
def test_what_names_no_place_is_refused(given: Any) -> None:
    """`allowed_brokers` refuses an entry that is no host, domain pattern or network."""
    with pytest.raises(ConfigError, match="allowed_brokers"):
        ProducerConfig.build("h", allowed_brokers=given)


def test_forms_of_the_option() -> None:
    """`allowed_brokers` may be a list, or a text with commas as in a properties file."""
    expected = ("kafka.example.org", "*.example.org", "10.0.0.0/8")
    text = "kafka.example.org, *.example.org,10.0.0.0/8"
    assert ProducerConfig.build("h", allowed_brokers=text).allowed_brokers == expected
    assert ProducerConfig.build("h", allowed_brokers=expected).allowed_brokers == expected
    properties = {"bootstrap.servers": "h", "allowed.brokers": text}
    assert ProducerConfig.from_properties(properties).allowed_brokers == expected
