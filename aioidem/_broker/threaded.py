"""An embedded cluster in a thread, with an event loop of its own: `EmbeddedCluster.in_thread`.

It is for clients that block their thread: kafka-python, confluent-kafka and its admin client, or a
Java process that the test waits for. Such a client would block the event loop of a cluster in the
same thread, and so wait for ever.

Invariants
    Only the cluster's own thread uses the cluster. Every call waits for its result, and raises the
    exception that the method raised in that thread.
    The start, each call and the end wait for a bounded time.
    An error that ends the cluster early is raised by the next call, or at the end of the ``with``.

Rejected
    anyio's BlockingPortal: its calls wait without a bound if a function that a test gave to
    `intercept` blocks the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from aioidem._broker.controls import ClusterControls
from aioidem.errors import KafkaTimeoutError

__all__ = ["ThreadedCluster"]

_SECONDS: Final = 30.0
_STUCK: Final = (
    f"the embedded cluster's thread did not answer within {_SECONDS:g} seconds: look for a hook "
    "of `intercept` that blocks, or for a machine that is overloaded"
)
_OVER: Final = "the embedded cluster does not run: use it inside its `with` block"
P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[ClusterControls, P], T],
) -> Callable[Concatenate[ThreadedCluster, P], T]:
    """Return a function that calls the method in the cluster's thread."""

    @functools.wraps(method)
    def call(self: ThreadedCluster, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self.call(method, *arguments, **options)

    return call


def _awaited_in_thread(
    method: Callable[Concatenate[ClusterControls, P], Awaitable[T]],
) -> Callable[Concatenate[ThreadedCluster, P], T]:
    """Return a function that awaits the method in the cluster's thread."""

    @functools.wraps(method)
    def call(self: ThreadedCluster, /, *arguments: P.args, **options: P.kwargs) -> T:
        async def run(cluster: ClusterControls) -> T:
            return await method(cluster, *arguments, **options)

        return self._wait(run)

    return call


class ThreadedCluster:
    """An `EmbeddedCluster` in a thread that lives as long as the ``with`` block.

    It has every method of `EmbeddedCluster` as a plain method, which any thread may call, and which
    returns when the call has taken effect. The function that a test gives to ``intercept``, to be
    called before each request is served, runs in the cluster's thread. It may call all of these
    methods except ``stop_broker`` and ``start_broker``.

    Args:
        make: Makes the cluster, in the thread.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[ClusterControls]]) -> None:
        self._make = make
        self._thread = threading.Thread(target=self._run, name="embedded-cluster", daemon=True)
        self._running: Future[tuple[ClusterControls, asyncio.AbstractEventLoop]] = Future()
        self._ended: Future[None] = Future()
        self._stop = asyncio.Event()

    def __repr__(self) -> str:
        is_running = self._running.done() and not self._ended.done()
        return f"<ThreadedCluster {'running' if is_running else 'not running'}>"

    def __enter__(self) -> Self:
        """Start the thread and the cluster.

        Raises:
            ConfigError: An option is wrong.
            KafkaTimeoutError: The cluster did not start within 30 seconds.
        """
        self._thread.start()
        try:
            self._running.result(_SECONDS)
        except FutureTimeoutError:
            raise KafkaTimeoutError(_STUCK) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the cluster, and wait for its thread.

        Raises:
            KafkaTimeoutError: The thread did not end within 30 seconds.
            Exception: The error that ended the cluster early. Neither is raised if the ``with``
                block itself raised an exception.
        """
        _, loop = self._running.result(0)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_SECONDS)
        if error is not None:
            return
        if not self._ended.done():
            raise KafkaTimeoutError(_STUCK)
        self._ended.result(0)

    @property
    def bootstrap_servers(self) -> str:
        """Return ``host:port,...`` of the brokers that run."""
        return self.call(lambda cluster: cluster.bootstrap_servers)

    def call(
        self,
        act: Callable[Concatenate[ClusterControls, P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call ``act(cluster, ...)`` in the cluster's thread, and return its result.

        Use it to reach the cluster itself, for example its ``state``:
        ``cluster.call(lambda inner: len(inner.state.topics))``.

        Raises:
            RuntimeError: The cluster does not run; the cause is the error that ended it, if any.
            KafkaTimeoutError: There was no result within 30 seconds.
        """
        if threading.current_thread() is self._thread:
            cluster, _ = self._running.result(0)
            return act(cluster, *arguments, **options)

        async def run(cluster: ClusterControls) -> T:
            return act(cluster, *arguments, **options)

        return self._wait(run)

    # -- what an EmbeddedCluster does --------------------------------------------------------------

    create_topic = _in_thread(ClusterControls.create_topic)
    add_partitions = _in_thread(ClusterControls.add_partitions)
    delete_topic = _in_thread(ClusterControls.delete_topic)
    set_config = _in_thread(ClusterControls.set_config)
    set_broker_config = _in_thread(ClusterControls.set_broker_config)
    batches = _in_thread(ClusterControls.batches)
    records = _in_thread(ClusterControls.records)
    log_end_offset = _in_thread(ClusterControls.log_end_offset)
    high_watermark = _in_thread(ClusterControls.high_watermark)
    last_stable_offset = _in_thread(ClusterControls.last_stable_offset)
    span = _in_thread(ClusterControls.span)
    max_span = _in_thread(ClusterControls.max_span)
    max_unproven_span = _in_thread(ClusterControls.max_unproven_span)
    intercept = _in_thread(ClusterControls.intercept)
    set_rtt = _in_thread(ClusterControls.set_rtt)
    set_bandwidth = _in_thread(ClusterControls.set_bandwidth)
    set_throttle = _in_thread(ClusterControls.set_throttle)
    set_produce_version = _in_thread(ClusterControls.set_produce_version)
    set_clock_offset = _in_thread(ClusterControls.set_clock_offset)
    leader = _in_thread(ClusterControls.leader)
    leader_epoch = _in_thread(ClusterControls.leader_epoch)
    move_leader = _in_thread(ClusterControls.move_leader)
    hold_high_watermark = _in_thread(ClusterControls.hold_high_watermark)
    release_high_watermark = _in_thread(ClusterControls.release_high_watermark)
    pause_follower = _in_thread(ClusterControls.pause_follower)
    resume_follower = _in_thread(ClusterControls.resume_follower)
    shrink_isr = _in_thread(ClusterControls.shrink_isr)
    coordinator = _in_thread(ClusterControls.coordinator)
    move_coordinator = _in_thread(ClusterControls.move_coordinator)
    fail_coordinator = _in_thread(ClusterControls.fail_coordinator)
    hold_markers = _in_thread(ClusterControls.hold_markers)
    release_markers = _in_thread(ClusterControls.release_markers)
    set_marker_delay = _in_thread(ClusterControls.set_marker_delay)
    set_group = _in_thread(ClusterControls.set_group)
    stop_broker = _awaited_in_thread(ClusterControls.stop_broker)
    start_broker = _awaited_in_thread(ClusterControls.start_broker)

    # -- inside ------------------------------------------------------------------------------------

    def _wait(self, run: Callable[[ClusterControls], Coroutine[Any, Any, T]]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a hook cannot wait for the cluster in whose thread it runs: call stop_broker and "
                "start_broker from another thread"
            )
        if self._ended.done():
            raise RuntimeError(_OVER) from self._ended.exception(0)
        if not self._running.done():
            raise RuntimeError(_OVER)
        cluster, loop = self._running.result(0)
        waiting = run(cluster)
        try:
            future = asyncio.run_coroutine_threadsafe(waiting, loop)
        except RuntimeError:
            waiting.close()
            raise RuntimeError(_OVER) from None
        try:
            return future.result(_SECONDS)
        except FutureTimeoutError:
            if future.done():
                raise  # ``act`` itself raised it
            future.cancel()
            raise KafkaTimeoutError(_STUCK) from None

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            if not self._running.done():
                self._running.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _live(self) -> None:
        async with self._make() as cluster:
            self._running.set_result((cluster, asyncio.get_running_loop()))
            await self._stop.wait()
