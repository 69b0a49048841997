"""HomeLoop: the event loop and thread on which a producer was started, and must be used.

The engine (`aioidem._engine`) is plain functions that one event loop calls. A second thread would
call the engine in the middle of a decision, and a task of another loop would wait for a signal that
never reaches it.

Every call of the producer checks that it comes from this loop, so the check must be cheap. The
check only looks up the running loop (40 ns): if this is the producer's loop, the thread is the
producer's too.
"""

from __future__ import annotations

import asyncio
import threading

from aioidem.errors import KafkaError, ProducerClosed, WrongLoopError

__all__ = ["LOOP_ENDED", "HomeLoop"]

LOOP_ENDED = (
    "the event loop that the producer was started on has ended, and the producer with it: make a "
    "new Producer inside the function that you give to asyncio.run(), anyio.run() or trio.run(), "
    "and close it there"
)


class HomeLoop:
    """The event loop and the thread in which one producer was started.

    Attributes:
        loop: The producer's asyncio loop; None on trio, and before the start.
        running_loop: Returns asyncio's running loop; raises RuntimeError if there is none.
    """

    __slots__ = ("_thread", "_thread_name", "loop")

    running_loop = staticmethod(asyncio.get_running_loop)

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._thread_name = ""

    def bind(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Record the current thread and an event loop as the producer's.

        Args:
            loop: The running asyncio loop; None on trio.
        """
        self.loop = loop
        self._thread = threading.get_ident()
        self._thread_name = threading.current_thread().name

    def __reduce__(self) -> tuple[type[HomeLoop], tuple[()]]:
        return HomeLoop, ()  # an unpickled copy has not been started on any loop

    @property
    def closed(self) -> bool:
        """Whether asyncio's loop is closed; False on trio, where the producer's task ends first."""
        return self.loop is not None and self.loop.is_closed()

    @property
    def here(self) -> bool:
        """Whether this is the thread in which the producer was started."""
        return threading.get_ident() == self._thread

    def check(self, awaits: bool) -> None:
        """Raise an error unless the call comes from the producer's thread and event loop.

        Args:
            awaits: Whether the caller is going to wait. A call that does not wait is also legal in
                the producer's thread while the loop is not running, as between two calls of
                `run_until_complete`.

        Raises:
            WrongLoopError: The call comes from another thread or event loop.
            ProducerClosed: The event loop was closed.
        """
        home = self.loop
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            here = threading.get_ident() == self._thread
            if here and (home is None or not (awaits or home.is_closed())):
                return
        else:
            # On trio `home` is None, but an asyncio loop runs too if trio is a guest on that loop.
            if running is home or (home is None and threading.get_ident() == self._thread):
                return
        raise self._refusal()

    def _refusal(self) -> KafkaError:
        if self.closed:
            return ProducerClosed(LOOP_ENDED)
        if threading.get_ident() != self._thread:
            here = threading.current_thread().name
            how = (
                "asyncio.run_coroutine_threadsafe(producer.send(...), loop).result()"
                if self.loop is not None
                else "trio.from_thread.run(producer.send, ..., trio_token=token)"
            )
            return WrongLoopError(
                f"called from thread {here!r}, but the producer was started in thread "
                f"{self._thread_name!r}, and works on that thread's event loop only: call it there "
                f"with {how}, or anyio.from_thread.run(producer.send, ...)"
            )
        return WrongLoopError(
            "called from another event loop than the one that the producer was started on, which "
            "is still open: await it there, or make a Producer for this loop"
        )
