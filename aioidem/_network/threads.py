"""OwnThreads: the worker threads of one kind of work, counted apart from those of the program.

anyio and asyncio let a program have a limited number of worker threads at once. Such a thread may
send a record and wait for its outcome (`anyio.from_thread.run(producer.send, ...)`). If all of them
wait so while a connection to a broker must be opened anew, and that needed one more thread of the
same number, the thread would never come, and the records would wait until their deadlines. So what
opens a connection has threads of its own.

Invariant: each kind of work has its own count, so that one that hangs (a look-up of a name, a
user's token provider) holds up no other.

Rejected: a thread pool of our own (its threads would not end with the event loop, as anyio's do).
"""

from __future__ import annotations

from typing import Final

import anyio
from anyio.lowlevel import RunVar

__all__ = ["OwnThreads"]

_MOST: Final = 40
"""How many threads at once; anyio gives a program as many."""


class OwnThreads:
    """The worker threads of one kind of work.

    The count is that of an event loop: all producers on it share the threads.

    Args:
        name: What the threads do.
    """

    __slots__ = ("_of_this_loop",)

    def __init__(self, name: str) -> None:
        self._of_this_loop = RunVar[anyio.CapacityLimiter](f"aioidem: {name}")

    @property
    def limiter(self) -> anyio.CapacityLimiter:
        """The limiter to pass to `anyio.to_thread.run_sync`, on the running event loop."""
        limiter = self._of_this_loop.get(None)
        if limiter is None:
            limiter = anyio.CapacityLimiter(_MOST)
            self._of_this_loop.set(limiter)
        return limiter
