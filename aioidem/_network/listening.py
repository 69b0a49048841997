"""A listening port and its accept loop, ended so that the port is free when that returns."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
from anyio.abc import ByteStream, Listener

__all__ = ["Listening"]


@dataclass(frozen=True, slots=True)
class Listening:
    """A listener and the scope its accept loop runs in."""

    listener: Listener[ByteStream]
    scope: anyio.CancelScope
    done: anyio.Event

    async def end(self) -> None:
        """Returns when the port is free."""
        self.scope.cancel()
        await self.done.wait()
