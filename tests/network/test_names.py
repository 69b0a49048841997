"""Host names are looked up in threads of their own, and each of their addresses is tried."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio.testing
from anyio.abc import SocketAttribute, SocketListener

from aioidem._network.happy_eyeballs import connect_to_first
from aioidem._network.names import addresses_of
from aioidem._network.transport import TcpConnector
from aioidem.errors import KafkaConnectionError
from tests.waiting import until

pytestmark = pytest.mark.anyio

VIRTUAL = pytest.mark.parametrize(
    "anyio_backend",
    [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
    ids=["virtual"],
)
REFUSED = errno.ECONNREFUSED
SIX, FOUR, OTHER_FOUR = "2001:db8::1", "192.0.2.1", "192.0.2.2"


# --- look-ups -------------------------------------------------------------------------------------


def answering(*found: tuple[Any, ...]) -> Any:
    """Return a `getaddrinfo` that finds these socket addresses."""

    def look_up(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in found]

    return look_up


class Silent:
    """A system's resolver that does not answer until the test ends."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.release = threading.Event()

    def __call__(self, host: object, *_: object, **__: object) -> list[Any]:
        self.asked.append(host)
        assert self.release.wait(20)
        return []


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    resolver = Silent()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.release.set()


async def test_a_look_up_that_hangs_can_be_cancelled(silent: Silent) -> None:
    """A cancelled look-up ends at once, although its thread still waits for the resolver."""
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(TcpConnector().connect, "broker.example", 9092)
            await until(lambda: bool(silent.asked), pause=0.001)
            tasks.cancel_scope.cancel()
    assert silent.asked == [b"broker.example"]
    assert not silent.release.is_set()


async def test_an_ip_address_is_not_looked_up(silent: Silent) -> None:
    with anyio.fail_after(10):
        for ip in ("127.0.0.1", "::1"):
            with pytest.raises(KafkaConnectionError):
                await TcpConnector().connect(ip, 1)
    assert silent.asked == []


async def test_every_address_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates are dropped, and the zone of an IPv6 address is kept as a number."""
    found = (FOUR, 9092), (FOUR, 9092), ("fe80::1%eth0", 9092, 0, 3), ("fe80::2", 9092, 0, 0)
    monkeypatch.setattr(socket, "getaddrinfo", answering(*found))
    assert await addresses_of("broker", 9092) == [FOUR, "fe80::1%3", "fe80::2"]


async def test_a_name_without_a_usable_address_is_a_connection_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where IPv6 is disabled, the system may answer with IPv6 addresses as numbers only."""
    monkeypatch.setattr(socket, "getaddrinfo", answering((10, b"")))
    with pytest.raises(KafkaConnectionError, match="broker:9092: broker has no address"):
        await TcpConnector().connect("broker", 9092)


async def test_a_name_of_other_letters_is_looked_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is encoded as DNS wants it."""
    asked: list[object] = []

    async def look_up(host: object, port: int, **_: object) -> list[Any]:
        asked.append((host, port))
        await anyio.lowlevel.checkpoint()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (FOUR, port))]

    monkeypatch.setattr(anyio, "getaddrinfo", look_up)
    assert await addresses_of("bröker.example", 9092) == [FOUR]
    assert asked == [("bröker.example", 9092)]


async def test_a_name_leads_to_the_address_that_listens() -> None:
    """A name with several addresses is connected to where the broker listens."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as multi:
        listener = multi.listeners[0]
        assert isinstance(listener, SocketListener)
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
        with anyio.fail_after(10):
            stream = await TcpConnector().connect("localhost", port)
        async with stream:
            peer = stream.extra(SocketAttribute.remote_address)  # noqa: S610 - not Django's
            assert peer == ("127.0.0.1", port)


# --- attempts -------------------------------------------------------------------------------------


class Stream:
    """A stream that only knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True
        await anyio.lowlevel.checkpoint()


class Network:
    """A network in place of `anyio.connect_tcp`.

    Attributes:
        tried: Each address that was tried, with the time in seconds.
        given_up: The addresses whose attempts were cancelled.
        streams: The stream to each address that has accepted.

    Args:
        answers: For each address, after how many seconds it accepts, or the error number with
            which it refuses at once. An address that is not named never answers.
    """

    def __init__(self, **answers: float | OSError) -> None:
        self.tried: list[tuple[str, float]] = []
        self.given_up: list[str] = []
        self.streams: dict[str, Stream] = {}
        self._answers = answers
        self._began = anyio.current_time()

    async def connect_tcp(self, ip: str, _port: int) -> Stream:
        self.tried.append((ip, round(anyio.current_time() - self._began, 6)))
        answer = self._answers.get(ip, float("inf"))
        try:
            if isinstance(answer, OSError):
                await anyio.lowlevel.checkpoint()
                raise OSError("All connection attempts failed") from answer
            with anyio.move_on_after(answer, shield=answer < 1):
                await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.given_up.append(ip)
            raise
        stream = self.streams[ip] = Stream()
        return stream


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts a network in the place of the real one."""

    def replace(**answers: float | OSError) -> Network:
        network = Network(**answers)
        monkeypatch.setattr(anyio, "connect_tcp", network.connect_tcp)
        return network

    return replace


def refusal(number: int = REFUSED) -> OSError:
    return OSError(number, os.strerror(number))


@VIRTUAL
async def test_an_address_that_does_not_answer_delays_the_next_by_a_quarter_of_a_second(
    on: Any,
) -> None:
    """IPv6 is tried first, then IPv4; a refusal does not delay the next address."""
    network = on(**{FOUR: refusal(), OTHER_FOUR: 0.1})
    stream = await connect_to_first([FOUR, OTHER_FOUR, SIX], 9092)
    assert network.tried == [(SIX, 0), (FOUR, 0.25), (OTHER_FOUR, 0.25)]
    assert stream is network.streams[OTHER_FOUR]
    assert network.given_up == [SIX]
    assert not network.streams[OTHER_FOUR].closed


@VIRTUAL
async def test_only_the_first_of_two_addresses_that_accept_is_kept(on: Any) -> None:
    """An attempt that succeeds although another one has, too, is closed again."""
    network = on(**{SIX: 0.9, FOUR: 0.5})  # attempts of less than a second cannot be cancelled here
    stream = await connect_to_first([SIX, FOUR], 9092)
    assert stream is network.streams[FOUR]
    assert {ip: each.closed for ip, each in network.streams.items()} == {SIX: True, FOUR: False}


@VIRTUAL
async def test_a_cancelled_attempt_leaves_no_stream_open(on: Any) -> None:
    """A call that is cancelled just as one address has accepted closes that stream."""
    network = on(**{SIX: 0.9, FOUR: 0.5})
    with anyio.move_on_after(0.8) as scope:
        await connect_to_first([SIX, FOUR], 9092)
    assert scope.cancelled_caught
    assert {ip: each.closed for ip, each in network.streams.items()} == {SIX: True, FOUR: True}


async def test_an_error_has_the_reason_of_each_address(
    on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(**{SIX: refusal(errno.ENETUNREACH), FOUR: refusal(), OTHER_FOUR: refusal()})
    found = (SIX, 9092, 0, 0), (FOUR, 9092), (OTHER_FOUR, 9092)
    monkeypatch.setattr(socket, "getaddrinfo", answering(*found))
    expected = "broker:9092: Network is unreachable; Connection refused$"
    with pytest.raises(KafkaConnectionError, match=expected) as caught:
        await TcpConnector().connect("broker", 9092)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    numbers = [getattr(each, "errno", None) for each in caught.value.__cause__.exceptions]
    assert numbers == [errno.ENETUNREACH, REFUSED, REFUSED]
