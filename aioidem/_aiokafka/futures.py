"""The futures that `send` returns: `DeliveryFuture` on asyncio, `LooseFuture` on trio.

Invariants: the futures of a partition's records are resolved in the order in which the records were
queued. Cancelling a future ends the wait and does not cancel the record. A future refers to the
`Delivery`, in which `aioidem.Producer` keeps the record's outcome, but keeps no producer alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import anyio

from aioidem._aiokafka.translation import Translation
from aioidem._log import LogLine, write_raised
from aioidem._producer.delivery import Delivery
from aioidem._producer.queued import QueuedBatch, QueuedDelivery
from aioidem.errors import AbortableTransactionError, KafkaError, TransactionAborted
from aioidem.structs import DeliveryStatus, RecordMetadata

__all__ = ["DeliveryFuture", "LooseFuture", "batch_future", "done_future", "record_future"]

# The caller learns of these errors when it aborts the transaction or fails to commit it. So asyncio
# need not log them for futures that nobody awaits.
_REPORTED_ELSEWHERE = (AbortableTransactionError, TransactionAborted)

if TYPE_CHECKING:
    _Future = asyncio.Future[RecordMetadata]
else:
    _Future = asyncio.Future


class DeliveryFuture(_Future):
    """An `asyncio.Future` for the outcome of one record, or of a batch of `send_batch`."""

    __slots__ = ("delivery",)

    delivery: Delivery | None
    """The delivery of the record, or of the batch's first; its `status` can be read at any time."""


class LooseFuture:
    """A future for trio, with the methods of `asyncio.Future`.

    `asyncio.Future` itself needs asyncio's event loop.
    """

    def __init__(self) -> None:
        self.delivery: Delivery | None = None
        self._result: RecordMetadata | None = None
        self._error: BaseException | None = None
        self._done = self._cancelled = False
        self._event = anyio.Event()
        self._callbacks: list[tuple[Callable[[LooseFuture], object], contextvars.Context]] = []

    def done(self) -> bool:
        """Return whether the future has a result or an exception, or was cancelled."""
        return self._done

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self._cancelled

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - asyncio's signature
        """Cancel the wait, not the record; return False if the future was done already."""
        if self._done:
            return False
        self._cancelled = True
        self._finish()
        return True

    def result(self) -> RecordMetadata:
        """Return the result.

        Raises:
            asyncio.InvalidStateError: The future is not done.
            asyncio.CancelledError: The future was cancelled.
            KafkaError: The record failed.
        """
        error = self.exception()
        if error is not None:
            raise error
        return cast("RecordMetadata", self._result)

    def exception(self) -> BaseException | None:
        """Return the record's exception, or None.

        Raises:
            asyncio.InvalidStateError: The future is not done.
            asyncio.CancelledError: The future was cancelled.
        """
        if not self._done:
            raise asyncio.InvalidStateError("the outcome is not known yet")
        if self._cancelled:
            raise asyncio.CancelledError
        return self._error

    def set_result(self, result: RecordMetadata) -> None:
        """Resolve the future with a result.

        Raises:
            asyncio.InvalidStateError: The future is done already.
        """
        self._check_open()
        self._result = result
        self._finish()

    def set_exception(self, exception: BaseException) -> None:
        """Resolve the future with an exception.

        Raises:
            asyncio.InvalidStateError: The future is done already.
        """
        self._check_open()
        self._error = exception
        self._finish()

    def get_loop(self) -> NoReturn:
        """Refuse: there is no asyncio loop.

        Raises:
            RuntimeError: Always, as `asyncio.get_running_loop` does on trio.
        """
        raise RuntimeError("no asyncio event loop runs here")

    def add_done_callback(
        self,
        callback: Callable[[LooseFuture], object],
        *,
        context: contextvars.Context | None = None,
    ) -> None:
        """Call `callback(self)` when the future is done; at once if it is done already.

        Args:
            callback: The function to call; its exceptions are logged.
            context: The context to call it in; None is a copy of the current one.
        """
        self._callbacks.append((callback, context or contextvars.copy_context()))
        if self._done:
            self._call_back()

    def remove_done_callback(self, callback: Callable[[LooseFuture], object]) -> int:
        """Remove a callback, and return how many times it had been added."""
        kept = [each for each in self._callbacks if each[0] != callback]
        removed = len(self._callbacks) - len(kept)
        self._callbacks = kept
        return removed

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self._event.wait().__await__()
        return self.result()

    def _check_open(self) -> None:
        if self._done:
            raise asyncio.InvalidStateError("it is done already")

    def _finish(self) -> None:
        self._done = True
        self._event.set()
        self._call_back()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        ending: BaseException | None = None
        for callback, context in callbacks:
            try:
                _run(context, callback, self)
            except BaseException as error:  # noqa: BLE001 - raised below, after the others ran
                ending = ending or error
        if ending is not None:
            raise ending


def _run(
    context: contextvars.Context, callback: Callable[[LooseFuture], object], future: LooseFuture
) -> None:
    try:
        context.run(callback, future)
    except BaseException as error:  # noqa: BLE001 - it is logged
        write_raised(LogLine.CALLBACK_RAISED, "a callback of a record's future raised", error)


class _Resolvable(Protocol):
    delivery: Delivery | None

    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def set_result(self, result: RecordMetadata, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


def _new(loop: asyncio.AbstractEventLoop | None) -> DeliveryFuture:
    # The annotated type is right on asyncio, which most callers use. `LooseFuture`, for trio, has
    # the same methods.
    return cast("DeliveryFuture", LooseFuture()) if loop is None else DeliveryFuture(loop=loop)


def record_future(
    loop: asyncio.AbstractEventLoop | None, delivery: QueuedDelivery, translation: Translation
) -> DeliveryFuture:
    """Return the future of a record that was queued just now; `loop` is None on trio."""
    future = _new(loop)
    future.delivery = delivery
    delivery.tell(functools.partial(_resolve, future, translation))
    return future


def batch_future(
    loop: asyncio.AbstractEventLoop | None,
    deliveries: QueuedBatch,
    translation: Translation,
) -> DeliveryFuture:
    """Return the future of a batch, which is done when all records have their outcome.

    The future gets the result of the batch's first record. If records failed, it gets the exception
    of the first record that failed.
    """
    future = _new(loop)
    future.delivery = deliveries[0]
    deliveries.when_settled(functools.partial(_resolve_batch, future, translation))
    return future


def _resolve_batch(future: _Resolvable, translation: Translation, deliveries: QueuedBatch) -> None:
    """Give a batch's future its outcome, which must be true of every record.

    A batch may be in the log in part. Then the error's status is UNKNOWN: sending the batch again
    could duplicate records.
    """
    failed = [each for each in deliveries if each.exception() is not None]
    if not failed:
        _resolve(future, translation, deliveries[0])
        return
    doubtful = [each for each in failed if each.status is DeliveryStatus.UNKNOWN]
    told = (doubtful or failed)[0]
    future.delivery = told
    error = told.exception()
    stored = len(deliveries) - len(failed)
    if stored and error is not None:
        text = str(error.args[0]) if error.args else type(error).__name__
        error = copy.copy(error)  # the record's own says what is true of the record
        error.status = DeliveryStatus.UNKNOWN
        error.args = (f"{text}; {stored} of the batch's {len(deliveries)} records are stored",)
    _resolve(future, translation, told, error)


def _resolve(
    future: _Resolvable,
    translation: Translation,
    delivery: Delivery,
    error: KafkaError | None = None,
) -> None:
    if future.done():
        return
    try:
        if delivery.status is DeliveryStatus.ACKED:
            future.set_result(translation.metadata(delivery.metadata))
            return
        error = error or delivery.exception()
        if error is None:
            # With acks=0 there is no metadata, and None contradicts the annotated type, as in
            # aiokafka.
            future.set_result(cast("RecordMetadata", None))
            return
        future.set_exception(translation.error(error))
    except RuntimeError:
        # The future is done, but a closed loop takes none of its callbacks, and tells so. Nobody
        # can call them any more, so that is no failure.
        if not _is_left_behind(future):
            raise
    if isinstance(error, _REPORTED_ELSEWHERE):
        future.exception()  # keeps asyncio from logging "exception was never retrieved"


def _is_left_behind(future: _Resolvable) -> bool:
    """Return whether a future is done, and its event loop is closed."""
    return isinstance(future, DeliveryFuture) and future.done() and future.get_loop().is_closed()


def done_future(
    loop: asyncio.AbstractEventLoop | None, result: RecordMetadata, translation: Translation
) -> DeliveryFuture:
    """Return a future that has its result already."""
    future = _new(loop)
    future.delivery = None
    future.set_result(translation.metadata(result))
    return future
