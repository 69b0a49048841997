"""Delivery: the outcome of one record, as the caller sees it.

A delivery is PENDING until the record has its outcome, which then never changes. Awaiting the
delivery waits for the outcome; cancelling the wait does not cancel the record. A failure is counted
and logged if the caller never looks at it (`unseen`). A pending delivery may be awaited, and given
callbacks, on its producer's event loop only; an outcome may be read from anywhere. The methods that
set the outcome are in `queued`.

What a batch's records have in common is in one `Outcome`. A record's `RecordMetadata`, or its own
copy of the error, is made when somebody looks.

Rejected: a future of the event loop. asyncio and trio have no common kind of future, cancelling a
future would look like cancelling the send, and asyncio logs "exception was never retrieved" only
when the garbage collector finds the future.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from aioidem._engine.record import Outcome
from aioidem._hot import LOOKED
from aioidem._log import LogLine, write_raised
from aioidem._network.waiting import Waiter, add_waiter
from aioidem._producer.arguments import check_timeout
from aioidem._producer.home import HomeLoop
from aioidem._producer.resolver import Resolver
from aioidem._producer.unseen import UnseenFailures
from aioidem.errors import InternalError, KafkaError
from aioidem.structs import DeliveryStatus, RecordMetadata

if TYPE_CHECKING:
    from aioidem.resolution import Resolution

__all__ = ["COUNTED_AS_UNSEEN", "Delivery", "DeliveryContext", "stored_at"]

COUNTED_AS_UNSEEN = -1
"""The value of `Delivery._looking` for a failure that `UnseenFailures` counts."""


_NO_SLOTS = ()
"""The empty `__slots__` of `Delivery`; its attributes are slots of its subclasses.

A class may have only one base class with slots, and the other base class of `QueuedDelivery`, the
engine's record, has some. The empty tuple has a name, because after a literal `__slots__ = ()` type
checkers would refuse to assign to the attributes of `Delivery`.
"""


class DeliveryContext(NamedTuple):
    """What all deliveries of one producer have in common."""

    home: HomeLoop
    """The event loop on which a delivery may be awaited."""
    unseen: UnseenFailures
    """Counts a delivery that failed, if the caller has shown no interest in it."""
    resolver: Resolver
    """Looks for records that ended UNKNOWN in the log."""


class Delivery:
    """The outcome of one record: awaitable, with `status` at any time.

    `await delivery` returns `RecordMetadata`, or raises a `KafkaError` whose `status` is
    NOT_WRITTEN or UNKNOWN.
    """

    __slots__ = _NO_SLOTS

    _outcome: Outcome | None
    _place: int  # the record's index among those that share the outcome
    _result: RecordMetadata | KafkaError | None  # made when somebody looks
    _waiter: Waiter | None
    _callbacks: Any  # one function, a tuple of several, or None
    _context: DeliveryContext
    _looking: int
    # `_looking` is above 0 if the caller learns of the outcome. It is the number of tasks that wait
    # for the outcome; `LOOKED` is more than any such number, and means that there is a callback, or
    # that the outcome was read. It is `COUNTED_AS_UNSEEN` if the record failed before anybody
    # looked, and `unseen` has counted it.

    def _failed(self, error: BaseException) -> None:
        """Log the exception that a callback has raised, or raise it if it ends the program."""
        write_raised(LogLine.CALLBACK_RAISED, "a delivery callback raised", error)

    @property
    def status(self) -> DeliveryStatus:
        """What is known of the record: PENDING until it is ACKED, NOT_WRITTEN or UNKNOWN."""
        outcome = self._outcome
        return DeliveryStatus.PENDING if outcome is None else outcome.status

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._outcome is not None

    @property
    def metadata(self) -> RecordMetadata:
        """Where the record is in the log.

        Raises:
            KafkaError: The record failed; the error's `status` says whether it may be in the log.
            InternalError: The outcome is not known yet.
        """
        if self._looking < 1:
            self._look()
        outcome = self._outcome
        if outcome is None:
            raise InternalError("the outcome is not known yet: await the delivery, or ask done()")
        result = self._made(outcome)
        if isinstance(result, KafkaError):
            raise result
        return result

    def exception(self) -> KafkaError | None:
        """Return the error that the record failed with; None if it has not failed."""
        return self._failure()

    def _failure(self) -> KafkaError | None:
        self._look()
        outcome = self._outcome
        if outcome is None or outcome.error is None:
            return None
        result = self._made(outcome)
        return result if isinstance(result, KafkaError) else None

    def _made(self, outcome: Outcome) -> RecordMetadata | KafkaError:
        """Return the metadata or the error: the same object each time."""
        result = self._result
        if result is None:
            error = outcome.error
            result = self._stored_at(outcome) if error is None else _own_copy(error, self._place)
            self._result = result
        return result

    def _stored_at(self, outcome: Outcome) -> RecordMetadata:
        """Make the metadata; subclasses override this, because they have the record's timestamp."""
        raise InternalError(f"a delivery of {outcome.topic!r} has no record")

    def _look(self) -> None:
        outcome = self._outcome
        if self._looking == COUNTED_AS_UNSEEN and outcome is not None:
            error = self._made(outcome)
            if isinstance(error, KafkaError):
                self._context.unseen.looked_at(outcome.topic, error)
        self._looking = LOOKED

    async def resolve(self, timeout: float | None = None) -> Resolution:
        """Look in the log for the record if its outcome is UNKNOWN; needs the ACL READ.

        Waits for the outcome first. See `Producer.resolve`.

        Args:
            timeout: Seconds for reading the log, after the outcome; None is `request_timeout`.

        Returns:
            WRITTEN with the record's offset, ABSENT, or UNDECIDED with the reason.

        Raises:
            WrongLoopError: The record is pending, and the call comes from another thread or event
                loop than the producer's.
            AuthenticationFailedError: A broker refuses the credentials.
            IllegalStateError: The delivery was copied to another process.
            TypeError: The timeout is not a number.
            ValueError: The timeout is NaN.
        """
        check_timeout(timeout)
        if self._outcome is None:
            try:
                await self
            except KafkaError:
                if self._outcome is None:
                    raise
        [found] = await self._context.resolver.resolve([self], timeout)
        return found

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` when the outcome is known, or now if it is known already.

        Args:
            callback: Must not block. It may call `send_nowait`; its exceptions are logged. On
                asyncio it may be called outside of any task, as a future's callbacks are.

        Raises:
            WrongLoopError: The record is pending, and the call comes from another thread or event
                loop than the producer's.
            ProducerClosed: The record is pending, and the producer's event loop was closed.
        """
        # The outcome is known here: a pending delivery is a `QueuedDelivery`, which has a method of
        # its own.
        self._look()
        try:
            callback(self)
        except BaseException as error:  # noqa: BLE001 - the caller's code
            self._failed(error)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if self._outcome is None:
            waiter = self._waiter = self._wait_here()
            self._looking += 1
            try:
                if isinstance(waiter, asyncio.Future):
                    yield from waiter
                else:
                    yield from waiter.wait().__await__()
            except BaseException:
                self._stop_waiting(waiter)
                raise
        return self.metadata

    def _stop_waiting(self, waiter: Waiter) -> None:
        """Note that the current task no longer waits for the outcome: its wait was cancelled."""
        if self._waiter is waiter and isinstance(waiter, asyncio.Future):
            self._waiter = None
        if self._looking > 0:
            self._looking -= 1
        outcome = self._outcome
        if outcome is not None and outcome.error is not None:
            # The record failed in the very turn of the loop in which the wait was cancelled.
            self._count_if_unseen(outcome.topic, outcome.error)

    def _count_if_unseen(self, topic: str, error: Exception) -> None:
        """Count the failure unless the caller learns of it; `QueuedDelivery` overrides this."""
        raise InternalError(f"a delivery of {topic!r} cannot be pending: {error}")

    def _wait_here(self) -> Waiter:
        """Return what the current task has to wait for; raise if it may not wait here."""
        home = self._context.home
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop of asyncio is running
            task = None
        loop = home.loop
        if task is None or loop is None or task.get_loop() is not loop:
            home.check(True)
        elif self._waiter is None:
            return loop.create_future()
        return add_waiter(self._waiter)

    def __repr__(self) -> str:
        where, outcome = "", self._outcome
        if outcome is not None:
            result = self._made(outcome)
            if isinstance(result, KafkaError):
                where = f" {result}"
            elif outcome.status is DeliveryStatus.ACKED:
                where = f" {result.topic}-{result.partition}@{result.offset}"
        return f"<Delivery {self.status.value}{where}>"


_CREATE_TIME, _LOG_APPEND_TIME = 0, 1


def stored_at(outcome: Outcome, place: int, timestamp_ms: int) -> RecordMetadata:
    """Return where a record is in the log.

    Args:
        outcome: The outcome of the record and of those that were acknowledged together with it.
        place: The record's index among these records, from 0 on.
        timestamp_ms: The record's own timestamp, in milliseconds since the epoch.
    """
    offset, appended_at = outcome.base_offset, outcome.log_append_time_ms
    log_start = outcome.log_start_offset
    return RecordMetadata(
        outcome.topic,
        outcome.partition,
        outcome.topic_partition,
        offset + place if offset >= 0 else -1,
        appended_at if appended_at >= 0 else timestamp_ms,
        _LOG_APPEND_TIME if appended_at >= 0 else _CREATE_TIME,
        log_start if log_start >= 0 else None,
    )


def _own_copy(error: Exception, place: int) -> KafkaError:
    """Return a copy of a batch's error for one record, which is at this place in the batch."""
    # Raising an exception adds to its traceback, so records must not share one exception.
    if not isinstance(error, KafkaError):
        return InternalError(error)
    own = copy.copy(error)
    if own.incident is not None:
        own.incident = own.incident.of_record(place)
    return own
