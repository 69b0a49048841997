"""What a hook of the `FaultProxy` gets to know about a frame, and the actions it can return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio

__all__ = [
    "Action",
    "BlackHole",
    "Cut",
    "Delay",
    "Drop",
    "FrameHook",
    "FrameSeen",
    "Hold",
    "Inspect",
    "Rewrite",
]


@dataclass(frozen=True, slots=True)
class FrameSeen:
    """A frame whose first bytes have arrived at the proxy.

    Attributes:
        connection: Number of the connection, counted from 1 in the order of opening.
        answer: True for a response of the broker, False for a request of the client.
        api_key: API of the request; -1 for a response whose request the proxy did not see.
        api_version: Version that the client used, even if the proxy passes the request on in
            another one; -1 as for ``api_key``.
        correlation_id: Correlation id in the frame's header.
        client_id: Client id of the request.
        size: Bytes of the frame, without the four bytes of its length.
        at: When it began to arrive, in seconds on the event loop's clock.
    """

    connection: int
    answer: bool
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    size: int
    at: float


@dataclass(frozen=True, slots=True)
class Delay:
    """Delay the frame, and everything after it on this connection, by ``seconds``.

    The delay is added to the delay of the link.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the frame, and everything after it on this connection, until `release` is called."""

    released: anyio.Event = field(default_factory=anyio.Event)

    def release(self) -> None:
        """Let the frame pass. Calling this more than once has no further effect."""
        self.released.set()


@dataclass(frozen=True, slots=True)
class Drop:
    """Discard the frame.

    Attributes:
        silent: Also discard everything after the frame in this direction, as with TCP when a
            segment never arrives. With False only this frame is lost, which no real network does.
    """

    silent: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """Pass on only the beginning of the frame, then close the connection.

    Attributes:
        after: How many bytes to pass on, the four bytes of the frame's length included. A negative
            number counts from the frame's end.
        reset: Close the connection with RST instead of FIN.
    """

    after: int = 0
    reset: bool = False


@dataclass(frozen=True, slots=True)
class BlackHole:
    """Discard this frame and everything later in both directions; keep the connection open."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Pass on ``change(payload)`` instead of the frame; a payload excludes the frame's length."""

    change: Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Wait for the whole frame, then apply the action that ``decide(payload)`` returns.

    If ``decide`` returns None, the frame is passed on unchanged.
    """

    decide: Callable[[bytes], Action | None]


Action: TypeAlias = Delay | Hold | Drop | Cut | BlackHole | Rewrite | Inspect
"""A fault that is applied to one frame."""

FrameHook: TypeAlias = Callable[[FrameSeen], Action | None]
"""A function that returns the action for a frame; None passes the frame on unchanged.

The proxy calls the function once per frame. For one direction of one connection, the calls come in
the order of the frames. The function runs in the event loop and must not block.
"""
