"""Waiting for a plain function's word: `Signal`, an event that is given once.

`anyio.Event` looks for the running loop whenever one is made, and wraps asyncio's, which wraps a
future. A record that is awaited by itself needs four of them, and they were a sixth of what it
costs. So on asyncio a signal is those futures and nothing else; on trio it is anyio's event.

Invariants: a waiter that is cancelled takes no other one with it; whoever waits after the signal
was given does not wait. Belongs to one event loop; nothing here may be called from another thread.

Rejected: one future shared by all waiters: cancelling one of them cancels it for all.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import anyio
import anyio.lowlevel

__all__ = ["Signal", "Wakeup", "new_signal"]


class Signal(Protocol):
    """Given once; any number of tasks may wait for it."""

    def set(self) -> None:
        """Give it: who waits goes on."""
        ...

    async def wait(self) -> None:
        """Return when it was given."""
        ...


def new_signal() -> Signal:
    """A signal for the loop that the caller's task runs on."""
    try:
        # No task: a callback, or trio as a guest on asyncio's loop.
        on_asyncio = asyncio.current_task() is not None
    except RuntimeError:
        on_asyncio = False
    return _FutureSignal() if on_asyncio else anyio.Event()


class _FutureSignal:
    """A future for each who waits."""

    __slots__ = ("_given", "_waiters")

    def __init__(self) -> None:
        self._given = False
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        self._given = True
        for waiter in self._waiters:
            # A loop that was closed wakes nobody, and raises when it is asked to.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self) -> None:
        if self._given:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not self._given:
                self._waiters.remove(waiter)
            raise


class Wakeup:
    """A flag that one task waits for and any plain function may raise, again and again."""

    __slots__ = ("_raised", "_signal")

    def __init__(self) -> None:
        self._raised = False
        self._signal: Signal | None = None

    def set(self) -> None:
        """Raise the flag."""
        if not self._raised:
            self._raised = True
            if self._signal is not None:
                self._signal.set()

    async def wait(self) -> None:
        """Wait for the flag, and lower it. Always lets other tasks run."""
        if self._raised:
            await anyio.lowlevel.checkpoint()
        else:
            self._signal = new_signal()
            try:
                await self._signal.wait()
            finally:
                self._signal = None
        self._raised = False
