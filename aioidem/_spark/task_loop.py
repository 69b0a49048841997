"""The event loop of a Python worker, and the connections that it keeps between tasks.

Spark's Python workers run one task after another. The loop runs in a thread of its own, so that
answers are read and deadlines are kept while Spark computes the next rows. The producer of a task
that succeeded is kept, with its connections and metadata, for the next task with the same
properties: all of its records are acknowledged, and its transaction is over, so that it has nothing
of the earlier task any more. A write with `topic.options` has a producer for each set of
properties, and all of them are kept.

With exactly-once each task has a transactional id of its own. A kept producer takes that id by the
same request as a new one, InitProducerId without an identity, which fences every other attempt; the
identity of the earlier task is forgotten before (`Transactions.change_id`). If that does not
succeed, the producer is closed, and a new one is started. The connections are kept, too, on which a
task asks for its marker; they have no state of a transaction or a group.

Invariants:

- A task that fails leaves no producer and no connection behind.
- The producers of one write are kept at most: one for each set of properties. They are closed when
  a task comes with others, and so are the connections. Credentials are properties.
- A producer is kept only if nothing is left to be sent under its transactional id
  (`may_change_id`): a request that comes later would fence the next attempt.
- The thread ends with the process: Spark ends workers that are idle for a minute.

Rejected: a pool of connections and a view of the cluster below new producers (connections would
have to change hands in the middle of their reading, and each task would still start and end a
producer).
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from anyio.from_thread import BlockingPortal

from aioidem._admin.kept_connections import KeptConnections
from aioidem._producer.native import Producer, internals
from aioidem.errors import InternalError

__all__ = ["ProducerKind", "TaskLoop"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


@dataclass(frozen=True, slots=True)
class ProducerKind:
    """What producers have in common of which one can take the place of another."""

    properties: Mapping[str, str] = field(repr=False)  # may contain passwords
    transactional: bool = False


class TaskLoop:
    """An event loop in a thread, which starts with the first call."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None
        self._tasks: TaskGroup | None = None
        self._kept: list[tuple[ProducerKind, Producer]] = []
        self._connections: tuple[Mapping[str, str], KeptConnections] | None = None

    def call(self, work: Callable[[Unpack[_Ts]], Awaitable[_T]], *arguments: *_Ts) -> _T:
        """Call an async function in the loop, and return its result; this blocks."""
        if self._portal is None:
            started: Future[tuple[BlockingPortal, TaskGroup]] = Future()
            self._thread = threading.Thread(
                target=anyio.run, args=(_run, started), name="aioidem sink", daemon=True
            )
            self._thread.start()
            self._portal, self._tasks = started.result()
        return self._portal.call(work, *arguments)

    def stop(self) -> None:
        """Close what is kept, and end the loop and its thread."""
        if self._portal is not None and self._thread is not None:
            self._portal.call(self.keep_only, ())
            self._portal.call(self.disconnect)
            self._portal.call(self._portal.stop)
            self._thread.join()
            self._portal = self._thread = self._tasks = None

    async def keep_only(self, wanted: Collection[ProducerKind]) -> None:
        """Close the producers that are kept and are of other kinds than these."""
        for kind, producer in list(self._kept):
            if kind not in wanted:
                self._kept.remove((kind, producer))
                await producer.close(0)

    async def take(self, kind: ProducerKind) -> Producer | None:
        """Return the producer of this kind that is kept, and keep it no longer."""
        for each in list(self._kept):
            known, producer = each
            if known == kind:
                self._kept.remove(each)
                if not internals(producer).life.ended:
                    return producer
                await producer.close(0)
        return None

    def keep(self, kind: ProducerKind, producer: Producer) -> None:
        """Keep a producer, which has no records any more, for the next task."""
        self._kept.append((kind, producer))

    def connections(self, properties: Mapping[str, str]) -> KeptConnections:
        """Return the connections that are kept for these properties; call this in the loop."""
        if self._connections is not None and self._connections[0] == properties:
            return self._connections[1]
        if self._tasks is None:
            raise InternalError("the loop of the sink does not run")
        if self._connections is not None:
            self._connections[1].close()
        kept = KeptConnections(self._tasks.start_soon)
        self._connections = (properties, kept)
        return kept

    async def disconnect(self) -> None:
        """Close the connections that are kept."""
        kept, self._connections = self._connections, None
        if kept is not None:
            kept[1].close()
        await anyio.lowlevel.checkpoint()


async def _run(started: Future[tuple[BlockingPortal, TaskGroup]]) -> None:
    async with anyio.create_task_group() as tasks, BlockingPortal() as portal:
        started.set_result((portal, tasks))
        await portal.sleep_until_stopped()
        tasks.cancel_scope.cancel()
