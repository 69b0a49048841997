"""The worlds that a test of the producer can run in: an event loop, a clock and a transport.

The default, "virtual", is trio on a clock that jumps ahead whenever every task waits, with brokers
in memory: a minute of protocol time takes a millisecond, and every run of a test sees the same
instants. The other worlds are the real event loops over TCP; a test asks for them with
`EVERY_WORLD` or `REAL_LOOPS` of `tools`.

Invariant: a test whose event loop is not installed is skipped with a reason, but on CI it fails.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import anyio
import pytest
import trio.testing

from aioidem import errors
from aioidem._engine.steps import Compress
from aioidem._producer.compressing import CompressionThreads, compressed
from aioidem._records import BatchBody
from tests.ci import CI

_REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


async def _without_thread(
    _threads: CompressionThreads, step: Compress
) -> BatchBody | errors.KafkaError:
    await anyio.lowlevel.checkpoint()
    return compressed(step)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Return the event loop of the test's world, as anyio's pytest plugin wants it."""
    world = getattr(request, "param", "virtual")
    if world == "virtual":
        # The virtual clock jumps ahead when every task waits, also if one waits for a thread. So
        # batches are compressed without a thread.
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        patch.setattr(CompressionThreads, "compress", _without_thread)
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
    if importlib.util.find_spec(world) is None and not CI:
        pytest.skip(f"{world} is not installed")
    return _REAL[world]


@pytest.fixture
def transport(anyio_backend: tuple[str, dict[str, Any]]) -> Literal["tcp", "memory"]:
    """Return how clients reach the embedded brokers in the test's world.

    The world "virtual" has no sockets: its clock would jump ahead while a task waits for one.
    """
    return "memory" if "clock" in anyio_backend[1] else "tcp"
