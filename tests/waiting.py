"""Wait in a test for a condition that no event signals."""

from __future__ import annotations

from collections.abc import Callable

import anyio

__all__ = ["until"]


async def until(condition: Callable[[], bool], *, pause: float = 0) -> None:
    """Let other tasks run until the condition is true; the caller sets the time limit.

    Args:
        condition: checked after each pause.
        pause: seconds between two checks; 0 lets the other tasks run once.
    """
    while not condition():  # noqa: ASYNC110 - no event signals it
        await anyio.sleep(pause)
