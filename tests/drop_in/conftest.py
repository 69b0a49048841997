"""The event loop and the broker of the drop-in's tests; the loop is asyncio's by default."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioidem.broker import EmbeddedCluster

from .leaks import leaks_of_aiokafka

_LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run the test on asyncio, unless the test's parameters name another event loop."""
    return _LOOPS[getattr(request, "param", "asyncio")]


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """Provide one broker over TCP."""
    async with EmbeddedCluster(transport="tcp") as running:
        yield running


@pytest.fixture
async def theirs_may_leak(anyio_backend_name: str) -> AsyncIterator[None]:
    """Ignore the errors that aiokafka's producer leaves behind in tests that run both producers."""
    if anyio_backend_name != "asyncio":
        yield
        return
    with leaks_of_aiokafka(asyncio.get_running_loop()):
        yield
