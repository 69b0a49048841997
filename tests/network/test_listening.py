"""A port stops listening without a trace, also if a connection comes at that moment."""

from __future__ import annotations

import socket
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream, SocketAttribute

from aioidem._network.listening import Listening

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])]


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_that_comes_at_the_end_does_no_harm(turns: int) -> None:
    """Whenever the loop learns of a connection, the port is free after the end.

    On asyncio, an accept that was cancelled in the same turn raised InvalidStateError in the loop.
    """

    async def serve(stream: ByteStream) -> None:
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
    listening = Listening(listener, anyio.CancelScope(), anyio.Event())
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(listening.accept, serve, tasks))
        await anyio.wait_all_tasks_blocked()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await listening.end()
        assert listening.done.is_set()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
