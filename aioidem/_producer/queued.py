"""QueuedDelivery and QueuedBatch: deliveries with the methods that settle them.

The deliveries that callers hold are instances of these classes, but callers see the type
`Delivery`. Methods that only the producer calls are here, so that they are not
among the public ones.

Invariant: a delivery that is settled refers neither to its payload nor to the other records of its
batch, so callers may keep millions of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import overload

from aioidem._engine.record import Outcome, PendingRecord
from aioidem._hot import LOOKED, DeliveryFields
from aioidem._log import LogLine, write_raised
from aioidem._network.waiting import Waiter, wake
from aioidem._producer.delivery import (
    COUNTED_AS_UNSEEN,
    Delivery,
    stored_at,
)
from aioidem.errors import InternalError, KafkaError, TransactionAborted
from aioidem.structs import RecordMetadata

__all__ = ["QueuedBatch", "QueuedDelivery"]


class QueuedDelivery(DeliveryFields, Delivery, PendingRecord):
    """A record that is being queued, and its delivery in one object.

    Args:
        key: The key, or None.
        value: The payload, or None.
        headers: (name, value) pairs.
        timestamp_ms: Milliseconds since the epoch.
        partition: The partition that the caller chose; None if the caller chose none.
        size: The most bytes that the record takes in a batch.
        context: What all deliveries of the producer have in common.
        siblings: The deliveries of all records of the same call; None if the call has one record.
    """

    __slots__ = ()

    def tell(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(self)` when the outcome is known.

        This is `add_done_callback` without the check of the event loop, for a caller that has just
        queued the record.

        Args:
            callback: The function to call, which must neither block nor raise.
        """
        if self._outcome is not None:
            self.add_done_callback(callback)
        else:
            self._looking = LOOKED
            self._add(callback)

    def report(self, callback: Callable[[Outcome, int], object]) -> None:
        """Call `callback(outcome, place)` when the outcome is known, for somebody who only watches.

        Unlike a callback of the caller, this does not mean that the caller learns of the outcome: a
        failure that nobody looks at is logged all the same.

        Args:
            callback: The function to call, with the record's place among those that share the
                outcome. It must neither block nor raise.
        """
        if self._outcome is not None:
            callback(self._outcome, self._place)
        else:
            self._add(lambda _: callback(self._outcome, self._place))

    def begin_wait(self) -> asyncio.Future[None]:
        """Return the future that the current task must await; after that `metadata` is known.

        This and `stop_waiting` do what `await delivery` does, without its check of the event loop.
        The caller has just queued the record, in a task of the producer's loop of asyncio.
        """
        loop: asyncio.AbstractEventLoop | None = self._context.home.loop
        if loop is None:
            raise InternalError("the producer was not started on a loop of asyncio")
        waiter = self._waiter = loop.create_future()
        self._looking = 1
        return waiter

    def stop_waiting(self, waiter: Waiter) -> None:
        """Note that the current task no longer waits for the outcome: its wait was cancelled."""
        self._stop_waiting(waiter)

    def _wake(self, waiter: Waiter) -> None:
        wake(waiter)

    def _stored_at(self, outcome: Outcome) -> RecordMetadata:
        return stored_at(outcome, self._place, self.timestamp_ms)

    def _count_if_unseen(self, topic: str, error: Exception) -> None:
        siblings = self._siblings
        watched = self._looking or (siblings is not None and siblings.watched)
        # The caller that aborts a transaction knows that its records fail, so they are not counted.
        asked_for = isinstance(error, TransactionAborted)
        if not watched and not asked_for:
            shown = error if isinstance(error, KafkaError) else InternalError(error)
            self._context.unseen.add(topic, shown)
            self._looking = COUNTED_AS_UNSEEN


class QueuedBatch(Sequence[QueuedDelivery]):
    """The deliveries of the records of one batch that a caller has built.

    Attributes:
        watched: Whether the caller is going to look at every outcome, so that failures need not be
            logged.
    """

    __slots__ = ("_callback", "_items", "_pending", "watched")

    def __init__(self) -> None:
        self.watched = False
        self._callback: Callable[[QueuedBatch], object] | None = None
        self._items: list[QueuedDelivery] = []
        self._pending = 0

    def add(self, delivery: QueuedDelivery) -> None:
        """Append the delivery of a record that is being queued."""
        self._items.append(delivery)
        self._pending += 1

    def one_done(self) -> None:
        """Count one outcome; after the last one, call the callback."""
        self._pending -= 1
        if not self._pending and self._callback is not None:
            try:
                self._callback(self)
            except BaseException as error:  # noqa: BLE001 - it is logged
                write_raised(LogLine.CALLBACK_RAISED, "the callback of a batch raised", error)

    def when_settled(self, callback: Callable[[QueuedBatch], object]) -> None:
        """Call `callback(self)` when every outcome is known, or now if all are known already.

        Args:
            callback: The function to call, which must neither block nor raise. It replaces the
                callback of an earlier call.
        """
        self._callback = callback
        self.watched = True
        if not self._pending:
            callback(self)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> QueuedDelivery: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[QueuedDelivery]: ...
    def __getitem__(self, index: int | slice) -> QueuedDelivery | Sequence[QueuedDelivery]:
        return self._items[index]
