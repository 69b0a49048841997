"""Delivery: one record's outcome, as the caller holds it.

It leaves PENDING once. Awaiting it waits for the outcome; cancelling the wait detaches the waiter
and nothing else: the record goes on. A delivery that fails while nobody looks is counted, and the
log tells (`unseen`). While it is pending it can be awaited, and given callbacks, on its producer's
event loop only; what became of it may be read from anywhere.

Rejected: a future of the event loop. There is none that asyncio and trio share, cancelling one
reads as "cancel the send", and its "exception was never retrieved" comes at the garbage collector's
leisure.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, overload

import anyio

from aioidem._engine.accumulator import Settlement
from aioidem._network.waiting import Signal, new_signal
from aioidem._producer.home import HomeLoop
from aioidem._producer.unseen import UnseenFailures
from aioidem.errors import InternalError, KafkaError, PartialDeliveryError, TransactionAborted
from aioidem.structs import DeliveryStatus, RecordMetadata, TopicPartition

__all__ = ["Deliveries", "Delivery"]

logger = logging.getLogger("aioidem")

_CREATE_TIME, _LOG_APPEND_TIME = 0, 1
_COUNTED_AS_UNSEEN = -1


class Delivery:
    """The outcome of one record: awaitable, with `status` at any time.

    `await delivery` returns `RecordMetadata`, or raises a `KafkaError` whose `status` is
    NOT_WRITTEN or UNKNOWN.
    """

    __slots__ = (
        "_callbacks",
        "_error",
        "_event",
        "_group",
        "_home",
        "_looking",
        "_metadata",
        "_unseen",
        "status",
    )

    def __init__(self, group: Deliveries | None, unseen: UnseenFailures, home: HomeLoop) -> None:
        self.status = DeliveryStatus.PENDING
        self._metadata: RecordMetadata | None = None
        self._error: KafkaError | None = None
        self._event: Signal | None = None
        self._callbacks: list[Callable[[Delivery], object]] | None = None
        self._group = group
        self._unseen = unseen
        self._home = home
        # Tasks that wait, callbacks, and looks at the outcome; or `_COUNTED_AS_UNSEEN`.
        self._looking = 0

    def settle(self, settlement: Settlement, index: int) -> None:
        """Take the outcome; called once, by the Sender."""
        appended_at = settlement.log_append_time_ms
        offset = settlement.base_offset
        self._metadata = RecordMetadata(
            settlement.topic,
            settlement.partition,
            TopicPartition(settlement.topic, settlement.partition),
            offset + index if offset >= 0 else -1,
            appended_at if appended_at >= 0 else settlement.records[index].timestamp_ms,
            _LOG_APPEND_TIME if appended_at >= 0 else _CREATE_TIME,
            settlement.log_start_offset if settlement.log_start_offset >= 0 else None,
        )
        error = settlement.error
        if error is not None:
            # A copy for each record: a traceback grows on the instance that is raised.
            self._error = (
                copy.copy(error) if isinstance(error, KafkaError) else InternalError(error)
            )
            # Who aborts a transaction knows what becomes of its records.
            asked_for = isinstance(error, TransactionAborted)
            watched = self._looking or (self._group is not None and self._group.watched)
            if not watched and not asked_for:
                self._unseen.add(settlement.topic, self._error)
                self._looking = _COUNTED_AS_UNSEEN
        self.status = settlement.status
        if self._event is not None:
            self._event.set()
        if self._group is not None:
            self._group.one_done()
        if self._callbacks:
            for callback in self._callbacks:
                self._call(callback)

    def _call(self, callback: Callable[[Delivery], object]) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("a delivery callback raised")

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.status is not DeliveryStatus.PENDING

    @property
    def metadata(self) -> RecordMetadata:
        """Where the record is.

        Raises:
            KafkaError: it failed; `status` on the error says whether it may be in the log.
            InternalError: the outcome is not known yet.
        """
        self._look()
        if self._error is not None:
            raise self._error
        if self._metadata is None:
            raise InternalError("the outcome is not known yet: await the delivery, or ask done()")
        return self._metadata

    def exception(self) -> KafkaError | None:
        """The error it failed with, or None."""
        self._look()
        return self._error

    def _look(self) -> None:
        if self._looking == _COUNTED_AS_UNSEEN and self._metadata is not None:
            self._unseen.looked_at(self._metadata.topic, self._error)
        self._looking = 1

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` when the outcome is known: at once if it is. It must not block.

        What it raises is logged. It may call `send_nowait`.

        Raises:
            WrongLoopError: called from another thread or event loop while it is pending.
            ProducerClosed: likewise, and the producer's loop was closed.
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

    __slots__ = ("_callback", "_event", "_home", "_items", "_pending", "watched")

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        # Whether somebody is going to look at every outcome.
        self.watched = False
        self._callback: Callable[[Deliveries], object] | None = None
        self._items: list[Delivery] = []
        self._pending = 0
        self._event: anyio.Event | None = None

    def add(self, delivery: Delivery) -> None:
        """One more record is being queued."""
        self._items.append(delivery)
        self._pending += 1

    def one_done(self) -> None:
        """One of them has its outcome."""
        self._pending -= 1
        if self._pending:
            return
        if self._event is not None:
            self._event.set()
        if self._callback is not None:
            self._callback(self)

    def when_settled(self, callback: Callable[[Deliveries], object]) -> None:
        """Call `callback(self)` when every outcome is known: at once if they are. It must neither
        block nor raise, and takes the place of one given before.
        """
        self._callback = callback
        self.watched = True
        if not self._pending:
            callback(self)

    async def settled(self) -> None:
        """Wait until every outcome is known.

        Raises:
            WrongLoopError: called from another thread or event loop while one is pending.
            ProducerClosed: likewise, and the producer's loop was closed.
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
        """How many have this `DeliveryStatus`."""
        return sum(delivery.status is value for delivery in self._items)

    def raise_for_status(self) -> None:
        """Raise unless every record was acknowledged (or, under acks=0, at least sent).

        Raises:
            PartialDeliveryError: with these deliveries as `deliveries`.
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
