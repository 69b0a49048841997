"""BackgroundTask: one task on the running event loop, asyncio's or trio's, outside task groups.

An anyio task group must be left by the task that entered it, but a producer may be started in one
task and stopped in another (the lifespan hooks of web frameworks). So the producer's main loop runs
as an asyncio task or a trio system task. Inside that task everything uses anyio.

Invariants: an exception of `main` never reaches the event loop, where it would end a whole trio
program; `on_crash` gets it. KeyboardInterrupt and SystemExit go on to asyncio's loop after that, as
from any callback; trio's gets nothing but cancellation. Any task may cancel the background task,
and does not have to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import anyio

from aioidem._log import LogLine, write
from aioidem.errors import InternalError

__all__ = ["BackgroundTask", "loop_clock", "on_asyncio", "without_cancellation"]


def on_asyncio() -> bool:
    """Return whether the caller runs on asyncio's event loop (uvloop's is one) and not on trio's.

    The answer is anyio's, also where trio runs as a guest on asyncio's loop, because the rest of
    the producer uses the loop that anyio detects. anyio has no public function for this question,
    but its cancellation exceptions have a different class on each kind of loop.

    Raises:
        InternalError: No supported event loop is running.
    """
    try:
        return anyio.get_cancelled_exc_class() is asyncio.CancelledError
    except (RuntimeError, ImportError) as error:  # no loop, or one that anyio does not know
        raise InternalError("no event loop of asyncio or trio is running here") from error


def loop_clock() -> Callable[[], float]:
    """Return the running event loop's clock, a function that returns seconds.

    The function returns what `anyio.current_time` returns, without searching for the loop at each
    call: that search took an eighth of the time of queueing a record. It can be called from any
    thread, because metrics are read by threads that have no loop.

    Raises:
        InternalError: No supported event loop is running.
    """
    if on_asyncio():
        loop = asyncio.get_running_loop()
        if type(loop).time is asyncio.BaseEventLoop.time:
            return time.monotonic  # which that method returns, at twice the cost
        return loop.time
    import trio

    return trio.lowlevel.current_clock().current_time


def without_cancellation(error: BaseException) -> BaseException | None:
    """Return what a task has failed with; None if it was only cancelled, or given up by its loop.

    Args:
        error: What the task has raised: an exception, or the group of several that its task group
            has made of them.
    """
    if isinstance(error, GeneratorExit):  # perhaps no loop runs any more
        return None
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        return error.split(cancelled)[1]
    return None if isinstance(error, cancelled) else error


class BackgroundTask:
    """A task that runs `main()` until it returns or is cancelled.

    Args:
        main: The function to run. It must not refer to the producer, which would then never be
            garbage collected.
        on_crash: Called with the exception if `main` raises one.
        on_end: Called when the task has ended, in whatever way.
    """

    def __init__(
        self,
        main: Callable[[], Awaitable[None]],
        on_crash: Callable[[BaseException], None],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._main = main
        self._on_crash = on_crash
        self._on_end = on_end
        self._scope = anyio.CancelScope()
        self._finished = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trio_token: object = None

    def start(self, name: str) -> None:
        """Start the task on the running event loop.

        Args:
            name: The task's name, for debuggers.

        Raises:
            InternalError: No supported event loop is running.
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
        except BaseException as error:
            failure = without_cancellation(error)
            if failure is None:
                raise
            text = "the producer's background task failed"
            write(LogLine.BACKGROUND_FAILED, text, error=failure)
            self._on_crash(failure)
            ending = _ending(failure)
            if ending is not None and self._task is not None:
                raise ending from None
        finally:
            self._finished.set()
            if self._on_end is not None:
                self._on_end()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The asyncio event loop of the task; None on trio and before the start."""
        return None if self._task is None else self._task.get_loop()

    @property
    def finished(self) -> bool:
        """Whether the task has ended."""
        return self._finished.is_set()

    def cancel(self) -> None:
        """Cancel the task; this may be called on the task's event loop only."""
        self._scope.cancel()

    def cancel_from_anywhere(self) -> None:
        """Cancel the task, from any thread; do nothing if its event loop has ended."""
        self.soon(self._scope.cancel)

    def soon(self, call: Callable[[], object]) -> bool:
        """Have a function called on the task's event loop soon; this may be called in any thread.

        Returns:
            False if the event loop has ended, or was not started.
        """
        try:
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(call)
                return True
        except RuntimeError:  # the loop is closed
            return False
        if self._trio_token is not None:
            import trio

            token = self._trio_token
            if isinstance(token, trio.lowlevel.TrioToken):
                try:
                    token.run_sync_soon(call)
                except trio.RunFinishedError:
                    return False
                return True
        return False

    async def wait(self) -> None:
        """Wait until the task has ended."""
        await self._finished.wait()


def _ending(error: BaseException) -> BaseException | None:
    """Return the KeyboardInterrupt or SystemExit in an exception or a group; None if it has none.

    asyncio knows only a bare one; one in a group would end the task and not the program.
    """
    if isinstance(error, BaseExceptionGroup):
        found = (_ending(each) for each in error.exceptions)
        return next((each for each in found if each is not None), None)
    return error if isinstance(error, KeyboardInterrupt | SystemExit) else None
