"""Threads of our own, for what would block the event loop: counted apart from the program's.

anyio and asyncio let a program have a limited number of worker threads at once. Such a thread may
send a record and wait for its outcome (`anyio.from_thread.run(producer.send, ...)`). If all of them
wait so while a connection to a broker must be opened anew, and that needed one more thread of the
same number, the thread would never come, and the records would wait until their deadlines. So what
opens a connection has threads of its own (`OwnThreads`).

Invariants: each kind of work has its own count, so that one that hangs (a look-up of a name, a
user's token provider) holds up no other. A call that hangs keeps its thread after nobody waits for
it any more; when 40 calls of one kind do so, in all event loops of the process, no further call is
begun until one of them has ended. No idle thread keeps a process alive, also if its event loop was
stopped without `close()`.

Rejected: anyio's threads on asyncio. An idle one ends with the task that runs the loop; if the
program stops its loop before that task has ended, the interpreter waits for the thread for ever.
They are used only when the main thread has ended: no pool takes work any more then.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from aioidem._network.waiting import in_task_of_asyncio
from aioidem.errors import KafkaConnectionError

__all__ = ["OwnThreads", "Threads", "run_alone"]

T = TypeVar("T")

_MOST: Final = 40
"""How many calls are waited for at once, and how many may hang; anyio gives a program as many."""


class Threads:
    """Threads of one event loop; idle ones end with this object, or at `end`.

    Args:
        most: How many threads at once.
    """

    __slots__ = ("_limiter", "_most", "_pool")

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, and return what it returns, or raise what it raises.

        If this is cancelled, the thread is abandoned: it ends when the function does.

        Raises:
            RuntimeError: The system permits no more threads.
        """
        if in_task_of_asyncio():
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most, "aioidem")
            try:
                call = asyncio.get_running_loop().run_in_executor(self._pool, function)
            except RuntimeError:
                # The main thread has ended, and with it all pools, but this one goes on; or the
                # system permits no more threads, which is raised again below.
                pass
            else:
                return await call
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._most)
        # trio's own threads do not keep a process alive.
        return await anyio.to_thread.run_sync(
            function, abandon_on_cancel=True, limiter=self._limiter
        )

    def end(self) -> None:
        """End the threads, each when it has nothing more to do; `run` may not be called again."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)


async def run_alone(function: Callable[[], T]) -> T:
    """Call a function in a thread that ends with the call; see `Threads.run`."""
    thread = Threads(1)
    try:
        return await thread.run(function)
    finally:
        thread.end()


class OwnThreads:
    """The threads of one kind of work that is rare: each ends with its call.

    Of the calls that are waited for, each event loop has its own count, which all producers on it
    share. Of those that hang although nobody waits any more, there is one count for the process.

    Args:
        name: What the threads do.
    """

    __slots__ = ("_lock", "_name", "_of_this_loop", "_under_way")

    def __init__(self, name: str) -> None:
        self._name = name
        self._of_this_loop = RunVar[anyio.CapacityLimiter](f"aioidem: {name}")
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Count from 0, as in a child process after `fork()`: it has no threads of its parent."""
        self._lock = threading.Lock()
        self._under_way: set[_Call] = set()

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, and return what it returns, or raise what it raises.

        If this is cancelled, the thread is abandoned: it ends when the function does.

        Raises:
            KafkaConnectionError: The system permits no more threads, or too many calls hang.
        """
        limiter = self._of_this_loop.get(None)
        if limiter is None:
            limiter = anyio.CapacityLimiter(_MOST)
            self._of_this_loop.set(limiter)
        async with limiter:
            self._refuse_if_many_hang()
            call = _Call()
            try:
                called = await run_alone(partial(self._perform, call, function))
            except RuntimeError as error:
                raise KafkaConnectionError(f"no thread for {self._name}: {error}") from error
            finally:
                call.awaited = False
        return called.result()

    def _refuse_if_many_hang(self) -> None:
        with self._lock:
            hanging = [each.began for each in self._under_way if not each.awaited]
        if len(hanging) >= _MOST:
            seconds = time.monotonic() - min(hanging)
            raise KafkaConnectionError(
                f"no thread for {self._name}: {len(hanging)} earlier calls hang, the oldest for "
                f"{seconds:.0f} s"
            )

    def _perform(self, call: _Call, function: Callable[[], T]) -> Future[T]:
        """Call a function in this thread, and keep count of that."""
        with self._lock:
            self._under_way.add(call)
        try:
            return _called(function)
        finally:
            with self._lock:
                self._under_way.discard(call)


class _Call:
    """A call in a thread: when it was asked for, and whether a task waits for it."""

    __slots__ = ("awaited", "began")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.awaited = True


def _called(function: Callable[[], T]) -> Future[T]:
    """Call a function; return what it returned or raised, as a future that is done."""
    call: Future[T] = Future()
    try:
        call.set_result(function())
    except Exception as error:  # noqa: BLE001 - it is raised again, in the task
        call.set_exception(error)
    return call
