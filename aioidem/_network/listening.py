"""A listening port with its accept loop."""

from __future__ import annotations

from typing import NamedTuple

import anyio
from anyio.abc import ByteStream, Listener

__all__ = ["Listening"]


class Listening(NamedTuple):
    """A listener, the cancel scope of its accept loop, and an event set when the loop has ended."""

    listener: Listener[ByteStream]
    scope: anyio.CancelScope
    done: anyio.Event

    async def end(self) -> None:
        """Stop accepting connections, and return when the port is free."""
        self.scope.cancel()
        await self.done.wait()
