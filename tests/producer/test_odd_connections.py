"""What goes wrong with one connection, in whatever way, is the end of that connection alone.

The user's connector raises what it should not, a source of credentials waits for a task that was
cancelled, or the system permits no more threads: the producer connects again.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

import anyio
import pytest
from anyio.abc import ByteStream

from aioidem import Producer, errors
from aioidem._network.transport import Connector
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from tests.security.tools import password

from .tools import ASYNCIO, EVERY_WORLD, bounded, producer_for


def plain(credentials: Callable[[], Awaitable[tuple[str, str]]], **more: Any) -> dict[str, Any]:
    """Return the options of a producer that asks a callable for its name and password."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_allow_plaintext": True,
        "sasl_credentials": credentials,
        "reconnect_backoff": 0.01,
        **more,
    }


pytestmark = pytest.mark.anyio
Transport = Literal["tcp", "memory"]


class OddConnector:
    """A connector that raises an exception of this class, as long as there is one."""

    def __init__(self, connector: Connector) -> None:
        self.raises: type[BaseException] | None = None
        self.raised = 0
        self._connector = connector

    async def connect(self, host: str, port: int) -> ByteStream:
        if self.raises is not None:
            self.raised += 1
            raise self.raises("odd")
        return await self._connector.connect(host, port)


class OddStream(ByteStream):
    """A stream that raises an exception of this class, once, where it is told to."""

    def __init__(self, stream: ByteStream, odd: dict[str, type[BaseException]]) -> None:
        self._stream, self._odd = stream, odd

    def _raise(self, where: str) -> None:
        kind = self._odd.pop(where, None)
        if kind is not None:
            raise kind("odd")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        self._raise("receive")
        return data

    async def send(self, item: bytes) -> None:
        self._raise("send")
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._raise("aclose")


class OddStreams:
    """A connector whose streams raise what `odd` says, by the method that raises it."""

    def __init__(self, connector: Connector) -> None:
        self.odd: dict[str, type[BaseException]] = {}
        self._connector = connector

    async def connect(self, host: str, port: int) -> ByteStream:
        return OddStream(await self._connector.connect(host, port), self.odd)


async def restart(cluster: EmbeddedCluster) -> None:
    await cluster.stop_broker(0)
    await cluster.start_broker(0)


@EVERY_WORLD
@pytest.mark.parametrize("kind", [OSError, RuntimeError, ZeroDivisionError, asyncio.CancelledError])
@bounded(20)
async def test_a_connector_that_raises_something_else_is_asked_again(
    transport: Transport, kind: type[BaseException]
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        connector = OddConnector(cluster.connector)
        async with producer_for(cluster, connector=connector, reconnect_backoff=0.01) as producer:
            await producer.send("t", b"x")
            connector.raises = kind
            await restart(cluster)
            delivery = producer.send_nowait("t", b"y")
            while connector.raised < 2:
                await anyio.lowlevel.checkpoint()
                if transport == "memory":
                    await anyio.sleep(0.01)
            connector.raises = None
            assert (await delivery).offset == 1


@EVERY_WORLD
@pytest.mark.parametrize("where", ["send", "receive", "aclose"])
@pytest.mark.parametrize("kind", [ZeroDivisionError, RuntimeError, asyncio.CancelledError])
@bounded(20)
async def test_a_stream_that_raises_something_else_is_replaced(
    transport: Transport, where: str, kind: type[BaseException]
) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        connector = OddStreams(cluster.connector)
        async with producer_for(cluster, connector=connector, reconnect_backoff=0.01) as producer:
            await producer.send("t", b"x")
            connector.odd[where] = kind
            delivery = producer.send_nowait("t", b"y")
            await restart(cluster)
            assert (await delivery).offset == 1
            assert (await producer.send("t", b"z")).offset == 2
            assert not connector.odd


@EVERY_WORLD
@bounded(20)
async def test_a_start_whose_connector_raises_says_what_it_has_raised(transport: Transport) -> None:
    async with EmbeddedCluster(transport=transport) as cluster:
        connector = OddConnector(cluster.connector)
        connector.raises = OSError
        producer = producer_for(cluster, connector=connector)
        with pytest.raises(errors.KafkaConnectionError, match=r"cannot connect: OSError\('odd'\)"):
            await producer.start()


class _ProxyError(errors.KafkaConnectionError):
    """A user's error whose constructor takes something else than the text."""

    def __init__(self, reason: str, *, code: int) -> None:
        super().__init__(f"the proxy is {reason}", code)


class _RefusedByProxy:
    """A connector that raises the user's error while it is refused."""

    def __init__(self, connector: Connector) -> None:
        self.refused = False
        self._connector = connector

    async def connect(self, host: str, port: int) -> ByteStream:
        if self.refused:
            raise _ProxyError("busy", code=7)
        return await self._connector.connect(host, port)


@EVERY_WORLD
@bounded(20)
async def test_a_connectors_own_class_of_error_is_the_cause_of_what_times_out(
    transport: Transport,
) -> None:
    """The error is copied for each record; its class need not be made from its arguments."""
    async with EmbeddedCluster(transport=transport) as cluster:
        connector = _RefusedByProxy(cluster.connector)
        options: dict[str, Any] = {"delivery_timeout": 1.0, "request_timeout": 0.4, "linger": 0.0}
        options["reconnect_backoff_max"] = 0.1
        async with producer_for(cluster, connector=connector, **options) as producer:
            await producer.send("t", b"x")
            connector.refused = True
            await restart(cluster)
            with pytest.raises(errors.DeliveryTimeoutError, match="the proxy is busy") as raised:
                await producer.send("t", b"y")
            assert isinstance(raised.value.__cause__, _ProxyError)
            connector.refused = False
            # A busy machine may take longer than `delivery_timeout` to connect.
            sent = None
            while sent is None:
                with suppress(errors.DeliveryTimeoutError):
                    sent = await producer.send("t", b"z")
            assert sent.offset >= 1
        connector.refused = True
        with pytest.raises(_ProxyError, match=r"Unable to bootstrap from .*: the proxy is busy"):
            await producer_for(cluster, connector=connector).start()


@EVERY_WORLD
@bounded(20)
async def test_credentials_that_wait_for_a_cancelled_task_are_asked_for_again(
    transport: Transport,
) -> None:
    """`await task` raises CancelledError then, which does not cancel the task of the connection."""
    asked, bad = 0, False

    async def credentials() -> tuple[str, str]:
        nonlocal asked, bad
        asked += 1
        if bad and asked > 3:
            bad = False
        await anyio.lowlevel.checkpoint()
        if bad:
            raise asyncio.CancelledError
        return "u", "p"

    security = BrokerSecurity(mechanisms=("PLAIN",), users={"u": "p"})
    async with EmbeddedCluster(transport=transport, security=security) as cluster:
        options = plain(credentials)
        async with producer_for(cluster, **options) as producer:
            await producer.send("t", b"x")
            bad = True
            await restart(cluster)
            assert (await producer.send("t", b"y")).offset == 1
            assert asked > 3


@EVERY_WORLD
@bounded(20)
async def test_credentials_that_raise_one_error_again_do_not_make_it_longer(
    transport: Transport,
) -> None:
    """As a callable does that awaits one task, or asks one future for its result, each time."""
    down = errors.KafkaConnectionError("no vault")
    asked = 0

    async def credentials() -> tuple[str, str]:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise down
        return "alice", "alice-secret"

    security = BrokerSecurity(mechanisms=("PLAIN",), users={"alice": "alice-secret"})
    async with EmbeddedCluster(transport=transport, security=security) as cluster:
        options = plain(credentials, delivery_timeout=2.0, request_timeout=0.4)
        async with producer_for(cluster, **options) as producer:
            await producer.send("t", b"x")
            await restart(cluster)
            with pytest.raises(errors.DeliveryTimeoutError) as raised:
                await producer.send("t", b"x")
        assert asked > 3
        assert down.args == ("no vault",)
        assert re.search(r"attempts: [^ ]+: no vault", str(raised.value))


@ASYNCIO
@bounded(30)
async def test_without_a_thread_a_long_answer_is_decoded_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("big", partitions=2000)
        async with producer_for(cluster) as producer:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", no_thread)
                assert len(await producer.partitions_for("big")) == 2000
            await producer.send("t", b"x")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@ASYNCIO
@bounded(20)
async def test_without_a_thread_the_credentials_are_not_to_blame(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a connection that cannot be opened, and no refusal, which would end the producer."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    security = BrokerSecurity(mechanisms=(mechanism,), users={"alice": "alice-secret"})
    async with EmbeddedCluster(security=security) as cluster:
        producer = Producer(cluster.bootstrap_servers, **password(mechanism))
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(errors.KafkaConnectionError, match="can't start new thread"):
                await producer.start()


@ASYNCIO
@bounded(20)
async def test_a_producer_whose_task_was_cancelled_does_not_say_that_the_loop_has_ended() -> None:
    async with EmbeddedCluster(transport="memory") as cluster:
        producer: Producer = producer_for(cluster, client_id="mine")
        await producer.start()
        [task] = [each for each in asyncio.all_tasks() if each.get_name().endswith("of mine")]
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(errors.ProducerClosed, match="background task was cancelled"):
            producer.send_nowait("t", b"x")
        await producer.close()
