"""A request that a broker fails on ends its own connection, and is raised at the cluster's end."""

from __future__ import annotations

import logging
import socket
from typing import Any, NoReturn

import pytest

from aioidem._broker.dispatch import HANDLERS
from aioidem._broker.entities import build
from aioidem._broker.requests import Now
from aioidem._broker.virtual import VirtualCluster
from aioidem._protocol.messages import encode_request, request_type
from aioidem.broker import EmbeddedCluster
from aioidem.errors import InternalError

from .wire import Wire, connected

METADATA = 3
ABOUT_ALL: dict[str, Any] = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


def fail(*_: Any) -> NoReturn:
    """Serve no request."""
    raise ZeroDivisionError("a handler's slip")


@pytest.fixture
def slips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANDLERS, METADATA, fail)


async def fails(wire: Wire) -> bool:
    """Send a request, and return whether the connection ends without an answer."""
    await wire.send(METADATA, 12, ABOUT_ALL)
    return await wire.ended()


@pytest.mark.anyio
@pytest.mark.usefixtures("slips")
async def test_other_connections_live_and_the_failure_is_raised_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use() -> None:
        async with EmbeddedCluster(transport="memory") as cluster, connected(cluster) as other:
            for _ in range(3):
                async with connected(cluster) as one:
                    assert await fails(one)
            assert (await other.ask(18, 0, {})).error_code == 0

    with pytest.raises(InternalError, match="broker 0 failed on a MetadataRequest v12") as raised:
        await use()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert "client 'w'" in str(raised.value)
    told = [record for record in caplog.records if record.name == "aioidem.broker"]
    assert [record.levelno for record in told] == [logging.ERROR] * 3


@pytest.mark.anyio
@pytest.mark.usefixtures("slips")
async def test_a_failure_replaces_no_error_of_the_test() -> None:
    async def use() -> None:
        async with EmbeddedCluster(transport="memory") as cluster:
            async with connected(cluster) as one:
                assert await fails(one)
            raise LookupError("the test's own")

    with pytest.raises(LookupError, match="the test's own"):
        await use()


@pytest.mark.anyio
async def test_an_answer_that_cannot_be_written_is_a_failure_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use() -> None:
        async with EmbeddedCluster(transport="memory") as cluster, connected(cluster) as one:
            assert await fails(one)

    monkeypatch.setitem(HANDLERS, METADATA, lambda *_: Now(object()))
    with pytest.raises(InternalError, match="failed on a MetadataRequest v12"):
        await use()


@pytest.mark.usefixtures("slips")
def test_a_thread_raises_it_at_its_end() -> None:
    schema = request_type(METADATA, 12)
    assert schema is not None
    asked = encode_request(build(schema, ABOUT_ALL), correlation_id=1, client_id="w")

    def use() -> None:
        with EmbeddedCluster.in_thread() as cluster:
            host, _, port = cluster.bootstrap_servers.partition(":")
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(asked)
                assert client.recv(1) == b""

    with pytest.raises(InternalError, match="broker 0 failed"):
        use()


@pytest.mark.usefixtures("slips")
def test_a_simulation_raises_it_at_once() -> None:
    client = VirtualCluster().client()
    with pytest.raises(ZeroDivisionError):
        client.ask(METADATA, 12, ABOUT_ALL)
