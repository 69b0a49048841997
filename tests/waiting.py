"""Waiting in tests for what no event tells."""

from __future__ import annotations

from collections.abc import Callable

import anyio

__all__ = ["until"]


async def until(condition: Callable[[], bool], *, pause: float = 0) -> None:
    """Let other tasks run until the condition is true; the caller bounds the wait.

    Args:
        condition: it is looked at after each pause.
        pause: seconds; 0 gives way to the other tasks once.
    """
    while not condition():  # noqa: ASYNC110 - no event tells
        await anyio.sleep(pause)
