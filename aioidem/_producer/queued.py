"""QueuedDelivery and QueuedDeliveries: deliveries with the methods that settle them.

The deliveries that callers hold are instances of these classes, but callers see the types
`Delivery` and `Deliveries`. Methods that only the producer calls are here, so that they are not
among the public ones.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

from aioidem._engine.record import Settlement
from aioidem._producer.delivery import COUNTED_AS_UNSEEN, Deliveries, Delivery
from aioidem._producer.home import HomeLoop
from aioidem._producer.unseen import UnseenFailures
from aioidem.errors import InternalError, KafkaError, TransactionAborted
from aioidem.structs import DeliveryStatus, RecordMetadata, TopicPartition

__all__ = ["QueuedDeliveries", "QueuedDelivery"]

logger = logging.getLogger("aioidem")

_CREATE_TIME, _LOG_APPEND_TIME = 0, 1


class QueuedDelivery(Delivery):
    """The delivery of a record that is being queued; it receives the outcome from the engine.

    Args:
        group: The deliveries of all records of the same call; None if the call has one record.
        unseen: Counts the delivery if it fails and the caller has shown no interest in it.
        home: The event loop on which the delivery may be awaited.
    """

    __slots__ = ("_group",)

    def __init__(
        self, group: QueuedDeliveries | None, unseen: UnseenFailures, home: HomeLoop
    ) -> None:
        self.status = DeliveryStatus.PENDING
        self._metadata = None
        self._error = None
        self._event = None
        self._callbacks = None
        self._group = group
        self._unseen = unseen
        self._home = home
        self._looking = 0

    def settle(self, settlement: Settlement, index: int) -> None:
        """Set the outcome, and wake the tasks that wait for it. It is called once.

        Args:
            settlement: The outcome of several records of one partition.
            index: The place of this delivery's record among them, from 0 on.
        """
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
        group = self._group
        error = settlement.error
        if error is not None:
            # Each record gets a copy, because raising an exception adds to its traceback.
            self._error = (
                copy.copy(error) if isinstance(error, KafkaError) else InternalError(error)
            )
            # The caller that aborts a transaction knows what becomes of its records.
            asked_for = isinstance(error, TransactionAborted)
            watched = self._looking or (group is not None and group.watched)
            if not watched and not asked_for:
                self._unseen.add(settlement.topic, self._error)
                self._looking = COUNTED_AS_UNSEEN
        self.status = settlement.status
        if self._event is not None:
            self._event.set()
        if group is not None:
            group.one_done()
        if self._callbacks:
            for callback in self._callbacks:
                self._call(callback)


class QueuedDeliveries(Deliveries):
    """The deliveries of records that are being queued together.

    Attributes:
        watched: Whether the caller is going to look at every outcome, so that failures need not be
            logged.
    """

    __slots__ = ("_callback",)

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        self.watched = False
        self._callback: Callable[[Deliveries], object] | None = None
        self._items = []
        self._pending = 0
        self._event = None

    def add(self, delivery: Delivery) -> None:
        """Append the delivery of a record that is being queued."""
        self._items.append(delivery)
        self._pending += 1

    def one_done(self) -> None:
        """Count one outcome; after the last one, wake the tasks that wait for all of them."""
        self._pending -= 1
        if self._pending:
            return
        if self._event is not None:
            self._event.set()
        if self._callback is not None:
            self._callback(self)

    def when_settled(self, callback: Callable[[Deliveries], object]) -> None:
        """Call `callback(self)` when every outcome is known, or now if all are.

        Args:
            callback: The function to call, which must neither block nor raise. It replaces the one
                of an earlier call.
        """
        self._callback = callback
        self.watched = True
        if not self._pending:
            callback(self)
