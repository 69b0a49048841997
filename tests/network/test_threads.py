"""Threads for what would block the event loop are limited, also those that nobody waits for."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aioidem._network.threads import OwnThreads
from aioidem.errors import KafkaConnectionError
from tests.waiting import until

LIMIT = 40


class Work:
    """A function that hangs in its thread until it is released, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.release = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.calls += 1
        assert self.release.wait(20)
        return "done"


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.release.set()


def test_no_thread_is_added_while_forty_calls_hang(
    work: Work, anyio_backend: tuple[str, dict[str, Any]]
) -> None:
    """While 40 cancelled calls hang, another one is refused, also on a later loop."""
    threads = OwnThreads("waiting")

    async def hang() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(LIMIT):
                tasks.start_soon(threads.run, work)
            await until(lambda: work.calls == LIMIT, pause=0.001)
            tasks.cancel_scope.cancel()
        await refused()

    async def refused() -> None:
        with pytest.raises(KafkaConnectionError, match=r"no thread for waiting: 40 .* hang, the"):
            await threads.run(work)
        assert work.calls == LIMIT

    async def freed() -> None:
        work.release.set()
        while work.calls == LIMIT:
            with suppress(KafkaConnectionError):
                assert await threads.run(work) == "done"
            await anyio.lowlevel.checkpoint()

    for step in (hang, refused, freed):
        on_loop(anyio_backend, step)


def on_loop(backend: tuple[str, dict[str, Any]], step: Callable[[], Awaitable[None]]) -> None:
    """Run a step on a new event loop, for ten seconds at most."""

    async def bounded() -> None:
        with anyio.fail_after(10):
            await step()

    name, options = backend
    anyio.run(bounded, backend=name, backend_options=options)


@pytest.mark.anyio
async def test_calls_that_are_waited_for_do_not_hang_however_long_they_take(work: Work) -> None:
    """With 40 calls under way that are waited for, a further one waits, and is not refused."""
    threads, results = OwnThreads("waiting patiently"), list[str]()

    async def run() -> None:
        results.append(await threads.run(work))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(LIMIT + 1):
                tasks.start_soon(run)
            await until(lambda: work.calls == LIMIT, pause=0.001)
            work.release.set()
    assert results == ["done"] * (LIMIT + 1)


_FORK = """
import os, sys, threading, warnings
from functools import partial
import anyio
from aioidem._network.threads import OwnThreads

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork() with threads
threads, begun, release = OwnThreads("waiting"), threading.Semaphore(0), threading.Event()

def hang():
    begun.release()
    release.wait(20)

async def leave():
    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(threads.run, hang)
        for _ in range(40):
            await anyio.to_thread.run_sync(begun.acquire)
        tasks.cancel_scope.cancel()

anyio.run(leave)
child = os.fork()
if child == 0:
    status = 1
    try:
        status = anyio.run(partial(threads.run, lambda: 7))
    finally:
        os._exit(status)
_, status = os.waitpid(child, 0)
release.set()
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork()")
def test_a_forked_child_does_not_count_the_threads_of_its_parent() -> None:
    """The threads that hang in the parent do not exist in the child, so they never end there."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, check=False, text=True, timeout=30
    )
    assert done.stdout.strip() == "7", done.stderr
