"""Worlds a test of the whole producer runs in.

"virtual" is trio on a clock that jumps whenever every task waits, with brokers in memory: a minute
of protocol time takes a millisecond, and the same test gives the same instants every time. It is
the default. The others are the real loops over TCP; a test asks for them with `EVERY_WORLD` or
`REAL_LOOPS` of `tools`.

Invariant: a component that is missing is skipped with a reason, but on CI it fails the test.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any, Literal

import pytest
import trio.testing

_REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run the test on the event loop of its world."""
    world = getattr(request, "param", "virtual")
    if world == "virtual":
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
    if importlib.util.find_spec(world) is None and os.environ.get("CI", "").lower() != "true":
        pytest.skip(f"{world} is not installed")
    return _REAL[world]


@pytest.fixture
def transport(anyio_backend: tuple[str, dict[str, Any]]) -> Literal["tcp", "memory"]:
    """How the brokers of this world are reached: the virtual clock must not wait for sockets."""
    return "memory" if "clock" in anyio_backend[1] else "tcp"
