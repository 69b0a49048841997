"""Events that a plain function can set: a faster `anyio.Event` for asyncio.

Making an `anyio.Event` looks up the running loop and wraps asyncio's event, which wraps a future. A
producer's `send` that is awaited before the next one needs four events, and making them took a
sixth of the time of the `send`. So on asyncio a `Signal` consists of the futures only; on trio it
is anyio's event.

Invariants: cancelling one waiter does not affect another; waiting for a signal that is already set
returns at once. A signal belongs to one event loop; nothing here may be called from another thread.

Rejected: one future shared by all waiters: cancelling one of them cancels it for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import anyio
import anyio.lowlevel

__all__ = [
    "Signal",
    "Waiter",
    "Wakeup",
    "add_waiter",
    "in_task_of_asyncio",
    "new_signal",
    "wake",
]


class Signal(Protocol):
    """An event that is set once and stays set; any number of tasks may wait for it."""

    def set(self) -> None:
        """Set the signal, which wakes every waiting task."""
        ...

    async def wait(self) -> None:
        """Return when the signal is set."""
        ...


def new_signal() -> Signal:
    """Make a signal for the event loop that runs the current task."""
    return _FutureSignal() if in_task_of_asyncio() else anyio.Event()


def in_task_of_asyncio() -> bool:
    """Return whether the caller runs in a task of asyncio, and not of trio."""
    try:
        # There is no current task in a callback, nor where trio runs as a guest on asyncio's loop.
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class _FutureSignal:
    """A signal with one asyncio future per waiting task."""

    __slots__ = ("_given", "_waiters")

    def __init__(self, first: asyncio.Future[None] | None = None) -> None:
        self._given = False
        self._waiters: list[asyncio.Future[None]] = [] if first is None else [first]

    def set(self) -> None:
        self._given = True
        for waiter in self._waiters:
            # Setting a future's result raises if its loop is closed, and then no task waits for it.
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


Waiter = asyncio.Future[None] | Signal
"""What tasks wait for: on asyncio a bare future while only one task waits; else a signal."""


def _maker() -> Callable[[], Waiter]:
    """Return a function that makes what one task waits for, on the loop of the current task."""
    return asyncio.get_running_loop().create_future if in_task_of_asyncio() else anyio.Event


def add_waiter(waiting: Waiter | None) -> Waiter:
    """Return what the current task has to wait for.

    The caller must keep the result in place of `waiting`, for `wake` and for the next task.

    Args:
        waiting: What other tasks wait for; None if no task waits.
    """
    if waiting is None:
        return _maker()()
    return _FutureSignal(waiting) if isinstance(waiting, asyncio.Future) else waiting


def wake(waiter: Waiter) -> None:
    """Wake every task that waits for `waiter`."""
    if not isinstance(waiter, asyncio.Future):
        waiter.set()
    elif not waiter.done():
        try:
            waiter.set_result(None)
        except RuntimeError:
            # The loop is closed, so that no task waits for the future.
            if not waiter.get_loop().is_closed():
                raise


class Wakeup:
    """A flag that one task waits for and that any plain function may raise, any number of times.

    Attributes:
        raised: Whether the flag is up; then `set` does nothing.
    """

    __slots__ = ("_make", "_waiter", "raised")

    def __init__(self) -> None:
        self.raised = False
        self._waiter: Waiter | None = None
        # Makes what the task waits for; the first `wait` finds out which event loop runs.
        self._make: Callable[[], Waiter] | None = None

    def set(self) -> None:
        """Raise the flag."""
        if not self.raised:
            self.raised = True
            if self._waiter is not None:
                wake(self._waiter)

    async def wait(self) -> None:
        """Wait until the flag is raised, and lower it; other tasks always get to run meanwhile."""
        if self.raised:
            await anyio.lowlevel.checkpoint()
        else:
            if self._make is None:
                self._make = _maker()
            waiter = self._waiter = self._make()
            try:
                await (waiter if isinstance(waiter, asyncio.Future) else waiter.wait())
            finally:
                self._waiter = None
        self.raised = False
