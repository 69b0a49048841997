"""Delivery: the outcome of one record, as the caller sees it.

A delivery is PENDING until the record has its outcome, which then never changes. Awaiting the
delivery waits for the outcome; cancelling the wait does not cancel the record. A failure is counted
and logged if the caller never looks at it (`unseen`). A pending delivery may be awaited, and given
callbacks, on its producer's event loop only; an outcome may be read from anywhere. The methods that
set the outcome are in `queued`.

Rejected: a future of the event loop. asyncio and trio share none, cancelling one would look like
cancelling the send, and its "exception was never retrieved" is logged only when the garbage
collector finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, overload

import anyio

from aioidem._network.waiting import Signal, new_signal
from aioidem._producer.home import HomeLoop
from aioidem._producer.unseen import UnseenFailures
from aioidem.errors import InternalError, KafkaError, PartialDeliveryError
from aioidem.structs import DeliveryStatus, RecordMetadata

__all__ = ["COUNTED_AS_UNSEEN", "Deliveries", "Delivery"]

logger = logging.getLogger("aioidem")

COUNTED_AS_UNSEEN = -1
"""The value of `Delivery._looking` for a failure that `UnseenFailures` counts."""


class Delivery:
    """The outcome of one record: awaitable, with `status` at any time.

    `await delivery` returns `RecordMetadata`, or raises a `KafkaError` whose `status` is
    NOT_WRITTEN or UNKNOWN.
    """

    __slots__ = (
        "_callbacks",
        "_error",
        "_event",
        "_home",
        "_looking",
        "_metadata",
        "_unseen",
        "status",
    )

    status: DeliveryStatus
    """What is known of the record: PENDING until it is ACKED, NOT_WRITTEN or UNKNOWN."""

    _metadata: RecordMetadata | None
    _error: KafkaError | None
    _event: Signal | None
    _callbacks: list[Callable[[Delivery], object]] | None
    _unseen: UnseenFailures
    _home: HomeLoop
    _looking: int
    # How many tasks wait for the outcome, or 1 after a callback was added or the outcome was read;
    # 0 if the caller has shown no interest in it; or `COUNTED_AS_UNSEEN`.

    def _call(self, callback: Callable[[Delivery], object]) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("a delivery callback raised")

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self.status is not DeliveryStatus.PENDING

    @property
    def metadata(self) -> RecordMetadata:
        """Where the record is in the log.

        Raises:
            KafkaError: The record failed; the error's `status` says whether it may be in the log.
            InternalError: The outcome is not known yet.
        """
        self._look()
        if self._error is not None:
            raise self._error
        if self._metadata is None:
            raise InternalError("the outcome is not known yet: await the delivery, or ask done()")
        return self._metadata

    def exception(self) -> KafkaError | None:
        """Return the error that the record failed with; None if it has not failed."""
        self._look()
        return self._error

    def _look(self) -> None:
        if self._looking == COUNTED_AS_UNSEEN and self._metadata is not None:
            self._unseen.looked_at(self._metadata.topic, self._error)
        self._looking = 1

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` when the outcome is known, or now if it is.

        Args:
            callback: Must not block. It may call `send_nowait`; its exceptions are logged.

        Raises:
            WrongLoopError: The record is pending, and the call comes from another thread or event
                loop than the producer's.
            ProducerClosed: The record is pending, and the producer's event loop was closed.
        """
        if not self.done():
            self._home.check(False)
        self._look()
        if self.done():
            self._call(callback)
            return
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._wait().__await__()

    async def _wait(self) -> RecordMetadata:
        if self.status is DeliveryStatus.PENDING:
            self._home.check(True)
            if self._event is None:
                self._event = new_signal()
            self._looking += 1
            try:
                await self._event.wait()
            except BaseException:
                if self._looking > 0:
                    self._looking -= 1
                raise
        return self.metadata

    def __repr__(self) -> str:
        where = ""
        if self._metadata is not None and self.status is DeliveryStatus.ACKED:
            where = f" {self._metadata.topic}-{self._metadata.partition}@{self._metadata.offset}"
        elif self._error is not None:
            where = f" {self._error}"
        return f"<Delivery {self.status.value}{where}>"


class Deliveries(Sequence[Delivery]):
    """The outcomes of `send_many`: a sequence of `Delivery` in call order, with counts."""

    __slots__ = ("_event", "_home", "_items", "_pending", "watched")

    watched: bool
    _event: anyio.Event | None
    _home: HomeLoop
    _items: list[Delivery]
    _pending: int

    async def settled(self) -> None:
        """Wait until every outcome is known.

        Raises:
            WrongLoopError: A record is pending, and the call comes from another thread or event
                loop than the producer's.
            ProducerClosed: A record is pending, and the producer's event loop was closed.
        """
        if self._pending:
            self._home.check(True)
        self.watched = True
        try:
            while self._pending:
                if self._event is None or self._event.is_set():
                    self._event = anyio.Event()
                await self._event.wait()
        except BaseException:
            self.watched = False
            raise

    def count(self, value: object) -> int:
        """Return how many of the records have this `DeliveryStatus`."""
        return sum(delivery.status is value for delivery in self._items)

    def raise_for_status(self) -> None:
        """Raise an error if a record has failed.

        Raises:
            PartialDeliveryError: At least one record failed; the error's `deliveries` attribute is
                this object.
        """
        failed = [delivery for delivery in self._items if delivery.exception() is not None]
        if failed:
            raise PartialDeliveryError(
                f"{len(failed)} of {len(self._items)} records failed: "
                f"{self.count(DeliveryStatus.NOT_WRITTEN)} not written, "
                f"{self.count(DeliveryStatus.UNKNOWN)} unknown; the first: {failed[0].exception()}",
                deliveries=self,
            ) from failed[0].exception()

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        return self._items[index]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"<Deliveries {len(self._items)} records, {self._pending} pending>"
