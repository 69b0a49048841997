"""The event loop of a Python worker, and the producer that it keeps between tasks.

Spark's Python workers run one task after another. The loop runs in a thread of its own, so that
answers are read and deadlines are kept while Spark computes the next rows. With at-least-once the
producer of a task that succeeded is kept, with its connections and metadata, for the next task with
the same properties: all of its records are acknowledged, so that it has nothing of the earlier task
any more.

Invariants:

- A task that fails leaves no producer behind.
- One producer is kept at most. It is closed when a task comes with other properties.
- The thread ends with the process: Spark ends workers that are idle for a minute.

Rejected: keeping the producer of a transaction (each task has a transactional id of its own).
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
from anyio.from_thread import BlockingPortal

from aioidem._producer.native import Producer, internals

__all__ = ["TaskLoop"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class TaskLoop:
    """An event loop in a thread, which starts with the first call."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None
        self._kept: tuple[Mapping[str, str], Producer] | None = None

    def call(self, work: Callable[[Unpack[_Ts]], Awaitable[_T]], *arguments: *_Ts) -> _T:
        """Call an async function in the loop, and return its result; this blocks."""
        if self._portal is None:
            started: Future[BlockingPortal] = Future()
            self._thread = threading.Thread(
                target=anyio.run, args=(_run, started), name="aioidem sink", daemon=True
            )
            self._thread.start()
            self._portal = started.result()
        return self._portal.call(work, *arguments)

    def stop(self) -> None:
        """Close the producer that is kept, and end the loop and its thread."""
        if self._portal is not None and self._thread is not None:
            self._portal.call(self.take, None)
            self._portal.call(self._portal.stop)
            self._thread.join()
            self._portal = self._thread = None

    async def take(self, properties: Mapping[str, str] | None) -> Producer | None:
        """Return the producer that is kept, if it has these properties; close it if not."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        known, producer = kept
        if known == properties and not internals(producer).life.ended:
            return producer
        await producer.close(0)
        return None

    async def keep(self, properties: Mapping[str, str], producer: Producer) -> None:
        """Keep a producer, which has no records any more, for the next task."""
        await self.take(None)
        self._kept = (properties, producer)


async def _run(started: Future[BlockingPortal]) -> None:
    async with BlockingPortal() as portal:
        started.set_result(portal)
        await portal.sleep_until_stopped()
