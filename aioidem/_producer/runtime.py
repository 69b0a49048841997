"""Hosts one background task on the running event loop, asyncio's or trio's.

A task group would tie `start()` and `stop()` to one task: anyio's must be left by the task that
entered it. A producer is started in one task and stopped in another (a web framework's lifespan
hooks), so its main loop runs as an asyncio task or a trio system task. Inside it everything is
anyio again.

Invariants: the hosted function's exceptions never escape into the loop (an exception in a trio
system task would take the whole program down): they are handed to `on_crash`. Cancelling is a plain
call that any task may make.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import anyio

from aioidem.errors import InternalError

__all__ = ["BackgroundTask", "loop_clock", "on_asyncio"]

logger = logging.getLogger("aioidem")


def on_asyncio() -> bool:
    """Whether the caller runs on asyncio's loop (uvloop's is one) and not on trio's.

    Asks anyio, which has the two, by the one thing of it that is public and tells them apart: what
    anyio believes is what the rest of the producer runs on, in trio's guest mode too.

    Raises:
        InternalError: no supported event loop is running.
    """
    try:
        return anyio.get_cancelled_exc_class() is asyncio.CancelledError
    except (RuntimeError, ImportError) as error:  # no loop, or one that anyio does not know
        raise InternalError("no event loop of asyncio or trio is running here") from error


def loop_clock() -> Callable[[], float]:
    """The running loop's clock, in seconds.

    What `anyio.current_time` returns, without its search for the loop: that search was an eighth of
    queuing a record.

    Raises:
        InternalError: no supported event loop is running.
    """
    if on_asyncio():
        return asyncio.get_running_loop().time
    import trio

    return trio.current_time


class BackgroundTask:
    """Runs `main()` until it returns or is cancelled.

    Args:
        main: what to run; it must not refer to the object that owns this one, or that is never
        collected.
        on_crash: called with the exception if `main` raises one.
    """

    def __init__(
        self, main: Callable[[], Awaitable[None]], on_crash: Callable[[Exception], None]
    ) -> None:
        self._main = main
        self._on_crash = on_crash
        self._scope = anyio.CancelScope()
        self._finished = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trio_token: object = None

    def start(self, name: str) -> None:
        """Spawn the task on the running loop.

        Raises:
            InternalError: no supported event loop is running.
        """
        if on_asyncio():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)
            return
        import trio

        self._trio_token = trio.lowlevel.current_trio_token()
        trio.lowlevel.spawn_system_task(self._run, name=name)

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._main()
        except Exception as error:
            logger.exception("the producer's background task failed")
            self._on_crash(error)
        finally:
            self._finished.set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The asyncio loop that it runs on; None on trio, and before the start."""
        return None if self._task is None else self._task.get_loop()

    @property
    def finished(self) -> bool:
        """Whether the task has ended."""
        return self._finished.is_set()

    def cancel(self) -> None:
        """Ask the task to end. From a task of the same loop."""
        self._scope.cancel()

    def cancel_from_anywhere(self) -> None:
        """Ask the task to end from a finaliser, in whatever thread and state the loop may be."""
        if self._task is not None:
            loop = self._task.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._scope.cancel)
        elif self._trio_token is not None:
            import trio

            token = self._trio_token
            if isinstance(token, trio.lowlevel.TrioToken):
                try:
                    token.run_sync_soon(self._scope.cancel)
                except trio.RunFinishedError:
                    return

    async def wait(self) -> None:
        """Wait until the task has ended."""
        await self._finished.wait()
