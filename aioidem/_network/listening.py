"""A listening port with its accept loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
from anyio.abc import ByteStream, Listener, TaskGroup, TaskStatus

__all__ = ["Listening"]


class Listening(NamedTuple):
    """A listener, the cancel scope of its accept loop, and an event set when the loop has ended."""

    listener: Listener[ByteStream]
    scope: anyio.CancelScope
    done: anyio.Event

    async def accept(
        self,
        serve: Callable[[ByteStream], Any],
        connections: TaskGroup | None,
        *,
        task_status: TaskStatus[None],
    ) -> None:
        """Accept connections until `end` is called; `serve` runs for each, in `connections`.

        Connections do not run in the scope of this loop, so that those that are open outlive it.
        """
        try:
            async with self.listener:
                task_status.started()
                with self.scope:
                    try:
                        await self.listener.serve(serve, connections)
                    except* anyio.ClosedResourceError:
                        pass  # `end` has closed it
        finally:
            self.done.set()

    async def end(self) -> None:
        """Stop accepting connections, and return when the port is free.

        The listener is closed before the loop is cancelled: if a connection is there at the moment
        at which asyncio's `sock_accept` is cancelled, that raises InvalidStateError in the loop and
        leaks the connection, which anyio's listener knows how to avoid when it is closed.
        """
        with anyio.CancelScope(shield=True):
            await self.listener.aclose()
        self.scope.cancel()
        await self.done.wait()
