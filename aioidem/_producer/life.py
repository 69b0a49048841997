"""ProducerLife: whether a producer may be used, and from where.

A producer is started once, works until it is closed or its event loop ends, and is used in the
process, thread and event loop that it was started in. Every call asks `check_open` first.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore
from aioidem._log import LogLine, write
from aioidem._producer.home import LOOP_ENDED, HomeLoop
from aioidem._producer.runtime import BackgroundTask
from aioidem._producer.sender import Sender

__all__ = ["ProducerLife"]

_T = TypeVar("_T")

_NO_LOOP: Final = object()
"""Stands for "no event loop" in `open_loop`; it makes `usable_here` return False."""

_TASK_CANCELLED: Final = (
    "the producer has ended, because its background task was cancelled: asyncio.run() cancels all "
    "tasks at its end, and so does code that cancels asyncio.all_tasks(). Make a new Producer"
)

_open: weakref.WeakSet[ProducerLife] = weakref.WeakSet()
"""The producers of this process that are open."""


class ProducerLife:
    """The state of one producer between its start and its end.

    Attributes:
        home: The event loop and thread on which the producer was started.
        background: The task that sends; None before the start and after `abandon`.
        closed: Whether the producer was closed, or is being closed.
        clock: The event loop's clock, in seconds; before the start `time.monotonic`.
        open_loop: The asyncio event loop on which the producer may be used now. A call that runs on
            this loop is in the right process, thread and loop, without further checks. Before the
            start, after the end, in a forked process and on trio, `open_loop` is no event loop;
            then `check_open` makes all its checks.
    """

    __slots__ = (
        "__weakref__",
        "_config",
        "_core",
        "_meters",
        "_pid",
        "_sender",
        "background",
        "clock",
        "closed",
        "home",
        "open_loop",
    )

    def __init__(self, core: ProducerCore, sender: Sender, config: ProducerConfig) -> None:
        self._core = core
        self._meters = core.meters
        self._sender = sender
        self._config = config
        self._pid = os.getpid()
        self.home = HomeLoop()
        self.background: BackgroundTask | None = None
        self.closed = False
        self.clock: Callable[[], float] = time.monotonic
        self.open_loop: object = _NO_LOOP

    def begin(self, background: BackgroundTask) -> None:
        """Bind the producer to the current thread and event loop; `background` does the sending."""
        self.background = background
        self.home.bind(background.loop)
        if background.loop is not None and not background.finished:
            self.open_loop = background.loop
            _open.add(self)

    def close_calls(self) -> None:
        """Permit no further call: the producer was closed, or is being closed."""
        self.closed = True
        self.forbid()

    def forbid(self) -> None:
        """Reset `open_loop`, so that the next call is checked in full by `check_open`."""
        self.open_loop = _NO_LOOP
        _open.discard(self)

    @property
    def in_own_process(self) -> bool:
        """Whether this is the process in which the producer was made."""
        return self._pid == os.getpid()

    @property
    def ended(self) -> bool:
        """Whether the background task has not been started or has ended."""
        return self.background is None or self._sender.ended

    def block_until(self) -> float:
        """Return the time at which `max_block` ends for a call that begins now.

        All waits of one call share this deadline, which is on the event loop's clock.
        """
        return self.clock() + self._config.max_block

    def on_loop(self, call: Callable[[], _T]) -> Future[_T]:
        """Have a short function called on the producer's event loop; this works in any thread.

        On the loop itself, once the producer has ended, and before its start, the function is
        called at once, here.

        Args:
            call: The function.

        Returns:
            What the function returns or raises. The future stays pending while the loop is blocked.
        """
        result: Future[_T] = Future()

        def answer() -> None:
            try:
                result.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                result.set_exception(error)

        background = self.background
        if (
            self.home.here
            or background is None
            or background.finished
            or not background.soon(answer)
        ):
            answer()
        return result

    @contextmanager
    def timed(self, call: str) -> Iterator[None]:
        """Add the time of the block to what calls of this kind took, for the metrics.

        Args:
            call: The kind: what Java's metric has before ``-time-ns-total``.
        """
        began = self.clock()
        try:
            yield
        finally:
            self._meters.spend(call, self.clock() - began)

    def check_open(self, awaits: bool = True) -> None:
        """Raise an error unless the producer may be used in this process, thread and event loop.

        Args:
            awaits: Whether the caller is going to wait. A call that does not wait is also legal in
                the loop's thread while the loop is not running.

        Raises:
            ProducerClosed: The producer is not started, is closed, or its event loop has ended.
            ForkedProducerError: The call comes from a child process.
            WrongLoopError: The call comes from another thread or event loop.
            KafkaError: A fatal error has ended the producer.
        """
        if self.usable_here() and self._core.fatal_error is None:
            return
        if (
            self.closed
            or self._pid != os.getpid()
            or self.background is None
            or self.background.finished
            or self._core.fatal_error is not None
        ):
            raise self._why_closed()
        self.home.check(awaits)

    def timed_out(self, text: str) -> errors.KafkaTimeoutError:
        """Return the error of a call that waited too long.

        It also says what the unsettled records wait for, and since when. Its ``__cause__`` leads to
        the last answer of a broker or the last error of a connection.

        Args:
            text: What the call waited for, and for how long.
        """
        obstacle = self._core.obstacle(self.clock())
        error = errors.KafkaTimeoutError(
            text if obstacle is None else f"{text}: {obstacle.args[0]}"
        )
        error.__cause__ = obstacle
        return error

    def no_metadata(self) -> errors.KafkaTimeoutError:
        """Return the error of a call that got no metadata: the addresses' states, and what to do.

        Its ``__cause__`` leads to the last error of a connection.
        """
        limit = self._config.max_block
        now = self.clock()
        text = f"no metadata within max_block ({limit:g} s)"
        if tried := self._core.bootstrap_state(now):
            text = f"{text}: {tried}"
        unreachable = self._core.obstacle(now)
        if not tried and unreachable is not None:
            text = f"{text}: {unreachable.args[0]}"
        advice = (
            "Check whether Kafka listens at these addresses and can be reached from here, and "
            "whether security_protocol is the listener's"
        )
        if not limit:
            advice = "Raise max_block: with 0 there is no time in which a broker could answer"
        error = errors.KafkaTimeoutError(f"{text}. {advice}")
        error.__cause__ = unreachable
        return error

    def usable_here(self) -> bool:
        """Return whether the running loop is the open producer's.

        False does not forbid a call: `check_open` decides, for example on trio.
        """
        try:
            return asyncio.get_running_loop() is self.open_loop
        except RuntimeError:
            return False

    def _why_closed(self) -> errors.KafkaError:
        self.check_process()
        if self._core.fatal_error is not None:
            # Each call raises a copy: a shared exception's traceback would grow with every call,
            # and keep the arguments of all of them.
            return copy.copy(self._core.fatal_error)
        if self.background is None:
            return errors.ProducerClosed("the producer is not started")
        if self.closed:
            return errors.ProducerClosed("the producer is closed")
        loop_ended = not self.background.soon(_nothing)
        return errors.ProducerClosed(LOOP_ENDED if loop_ended else _TASK_CANCELLED)

    def check_process(self) -> None:
        """Raise an error unless this is the process in which the producer was made.

        Raises:
            ForkedProducerError: The call comes from a child process.
        """
        if self._pid != os.getpid():
            raise errors.ForkedProducerError(
                f"this producer belongs to process {self._pid}; make a new one after fork()"
            )

    def abandon(self) -> bool:
        """End a producer that is garbage collected without `close`, in any thread, without waiting.

        An error is logged if records have no outcome.

        Returns:
            Whether the producer was still open.
        """
        background, self.background = self.background, None
        self.forbid()
        if background is None or background.finished or self._pid != os.getpid():
            return False
        if self.closed and self.home.closed:
            return False  # `close` has settled the records; the task ended with its loop
        accumulator = self._core.accumulator
        lost = accumulator.unsettled_by_topic()
        if lost:
            topics = ", ".join(f"{count} of {topic!r}" for topic, count in sorted(lost.items()))
            write(
                LogLine.UNCLOSED,
                f"the producer was not closed: {sum(lost.values())} records without an outcome are "
                f"given up ({topics}); those that were sent may be in the log",
                client_id=self._config.client_id,
                fields={"count": sum(lost.values())},
            )
            self._sender.unseen.wanted = False
        else:
            text = "the producer was not closed; every record had its outcome"
            client_id = self._config.client_id
            write(LogLine.UNCLOSED, text, client_id=client_id, level=logging.WARNING)
        background.cancel_from_anywhere()
        return True


def _nothing() -> None:
    """Do nothing, on an event loop that is asked whether it still takes calls."""


def _forget_the_parent() -> None:
    """Make the producers of the parent process refuse calls in the child, right after `fork()`."""
    for life in list(_open):
        life.forbid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent)
