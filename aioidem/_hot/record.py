"""Base classes of a record that waits for its outcome, and of the delivery that has the outcome.

They hold the attributes, and the methods that run once for each record. The engine's
`PendingRecord` and the producer's `QueuedDelivery` inherit from them. These are the pure-Python
versions of the classes with the same names in ``_compiled.pyx``, which store numbers as 64-bit C
integers instead of Python objects.

Invariant: a delivery that is settled refers neither to its payload nor to the other records of its
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

__all__ = ["LOOKED", "DeliveryFields", "RecordFields"]

LOOKED = 2**30
"""The value of `DeliveryFields._looking` for an outcome that the caller has read or is told."""


class RecordFields:
    """One record that waits for its outcome.

    Args:
        key: the key, or None.
        value: the payload, or None.
        headers: (name, value) pairs.
        timestamp_ms: milliseconds since the epoch.
        partition: the partition that the caller chose; None if the caller chose none.
        size: the most bytes that the record takes in a batch.
        group: the mark of records that share batches with no others; None for most records.

    Attributes:
        deadline: when the record expires, on the event loop's clock, in seconds.
        generation: how many flushes had begun before the record was queued.
        ordinal: the record's number among all that the producer was given.
        queued_at: when the record got its partition, on the event loop's clock, in seconds.
    """

    __slots__ = (
        "deadline",
        "generation",
        "group",
        "headers",
        "key",
        "ordinal",
        "partition",
        "queued_at",
        "size",
        "timestamp_ms",
        "value",
    )

    def __init__(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        partition: int | None,
        size: int,
        group: Any = None,
    ) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.size = size
        self.group = group
        self.deadline = self.queued_at = 0.0
        self.generation = self.ordinal = 0


class DeliveryFields(RecordFields):
    """One record that waits for its outcome, with the attributes that serve its caller.

    The class that inherits from this one has the methods that are called rarely: `_look`,
    `_failure` (which returns the error), `_failed` (for what a callback has raised; it raises again
    what has to end the program), `_count_if_unseen` and `_wake`.

    Args:
        key: the key, or None.
        value: the payload, or None.
        headers: (name, value) pairs.
        timestamp_ms: milliseconds since the epoch.
        partition: the partition that the caller chose; None if the caller chose none.
        size: the most bytes that the record takes in a batch.
        context: what all deliveries of the producer have in common, with the event loop `home`.
        siblings: the deliveries of all records of the same call; None if the call has one record.
    """

    __slots__ = (
        "_callbacks",
        "_context",
        "_looking",
        "_outcome",
        "_place",
        "_result",
        "_siblings",
        "_waiter",
    )

    def __init__(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        partition: int | None,
        size: int,
        context: Any,
        siblings: Any = None,
    ) -> None:
        # The attributes of `RecordFields` are set here, because a call of its constructor would
        # cost as much as all the checks of a send's arguments.
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.size = size
        self.group: Any = None
        self.deadline = self.queued_at = 0.0
        self.generation = self.ordinal = 0
        self._context = context
        self._siblings = siblings
        self._outcome: Any = None
        self._result: Any = None
        self._waiter: Any = None
        # One function, which is the common case, or a tuple of several.
        self._callbacks: Any = None
        self._looking = self._place = 0

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._outcome is not None

    def exception(self) -> Any:
        """Return the error that the record failed with; None if it has not failed."""
        outcome = self._outcome
        if outcome is not None and outcome.error is None:
            return None
        return self._failure()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(delivery)` when the outcome is known, or now if it is known already.

        Args:
            callback: Must not block. It may call `send_nowait`; its exceptions are logged.

        Raises:
            WrongLoopError: The record is pending, and the call comes from another thread or event
                loop than the producer's.
            ProducerClosed: The record is pending, and the producer's event loop was closed.
        """
        if self._outcome is not None:
            self._look()
            self._run(callback)
            return
        home = self._context.home
        try:
            here = home.running_loop() is home.loop
        except RuntimeError:  # no loop of asyncio is running
            here = False
        if not here:
            home.check(False)
        self._looking = LOOKED
        self._add(callback)

    def _add(self, callback: Callable[[Any], object]) -> None:
        before = self._callbacks
        if before is None:
            given: Any = callback
            odd = given is None or type(given) is tuple  # neither is a function
            self._callbacks = (given,) if odd else given
        else:
            several = before if type(before) is tuple else (before,)
            self._callbacks = (*several, callback)

    def settle(self, outcome: Any, place: int) -> None:
        """Set the outcome, and wake the tasks that wait for it. This is called once per record.

        Args:
            outcome: What is common to the records that were settled together.
            place: This record's place among those records, from 0 on.
        """
        self._place = place
        self._outcome = outcome
        self.key = self.value = None
        self.headers = ()
        siblings = self._siblings
        if outcome.error is not None:
            self._count_if_unseen(outcome.topic, outcome.error)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None  # avoids a reference cycle: the waiting task refers to this object
            self._wake(waiter)
        if siblings is not None:
            self._siblings = None  # they refer to all deliveries of the call
            siblings.one_done()
        callbacks = self._callbacks
        if callbacks is not None:
            # A callback may refer to this object: keeping the callback would be a reference cycle.
            self._callbacks = None
            if type(callbacks) is not tuple:
                self._run(callbacks)
                return
            ending = None
            for callback in callbacks:
                try:
                    self._run(callback)
                except BaseException as error:  # noqa: BLE001 - raised below, after the others ran
                    ending = ending or error
            if ending is not None:
                raise ending

    def _run(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except BaseException as error:  # noqa: BLE001 - the caller's code
            self._failed(error)

    if TYPE_CHECKING:
        # Methods that the subclass defines.

        def _look(self) -> None: ...
        def _failure(self) -> Any: ...
        def _failed(self, error: BaseException) -> None: ...
        def _count_if_unseen(self, topic: str, error: Exception) -> None: ...
        def _wake(self, waiter: Any) -> None: ...
