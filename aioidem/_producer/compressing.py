"""CompressionThreads: compress large batches in threads, without holding up the event loop.

The libraries of all codecs release the interpreter's lock while they compress, so a thread leaves
the event loop its time. If pure Python encodes the records (instead of the compiled module), the
thread holds the lock while it encodes them; Python then lets the event loop run every 5 ms
(`sys.setswitchinterval`).

Rejected: a pool of processes (the records would be copied twice, and a process started by a library
is a surprise).
"""

from __future__ import annotations

import os
from functools import partial

from aioidem import errors
from aioidem._engine.steps import Compress
from aioidem._network.threads import Threads
from aioidem._records import BatchBody, build_body

__all__ = ["CompressionThreads", "compressed"]


class CompressionThreads:
    """The threads in which one producer compresses records.

    Attributes:
        count: The most threads at once: one less than the cores, because the event loop needs a
            core; but at least 1.
    """

    __slots__ = ("_threads", "count")

    def __init__(self) -> None:
        self.count = max(1, _cores() - 1)
        self._threads = Threads(self.count)

    async def compress(self, step: Compress) -> BatchBody | errors.KafkaError:
        """Compress the records of a step in a thread; an error is returned instead of raised.

        If this call is cancelled, the thread is abandoned. It ends by itself when the records are
        compressed.
        """
        try:
            return await self._threads.run(partial(compressed, step))
        except RuntimeError as error:  # the system permits no more threads
            return _told(error)

    def end(self) -> None:
        """End the threads, each when it has compressed its records."""
        self._threads.end()


def compressed(step: Compress) -> BatchBody | errors.KafkaError:
    """Compress the records of a step in this thread; an error is returned instead of raised."""
    try:
        return build_body(step.records, step.codec, step.level)
    except Exception as error:  # noqa: BLE001 - whatever it is, it concerns these records alone
        return _told(error)


def _told(error: Exception) -> errors.KafkaError:
    if isinstance(error, errors.KafkaError):
        return error
    return errors.InternalError(f"the records of a batch could not be compressed: {error!r}")


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
