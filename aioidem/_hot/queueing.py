"""The fast path that queues single records, and handles only the most frequent case.

The classes and functions are the pure-Python versions of those in ``_compiled.pyx``. In any other
case (the buffer is full, the topic is new, a partition must be chosen) they queue nothing and tell
the caller so. The caller then uses the slower path, which handles all cases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Protocol

from aioidem._hot.encoding import record_size
from aioidem._hot.fields import BudgetFields, TargetFields

__all__ = ["Appender", "PlainSends", "squeeze", "take_fitting"]

_ONE_BYTE_LENGTH = 64
"""The payload size below which the varint of the length has one byte (two below 8192)."""


class _Record(Protocol):
    """What an `Appender` reads and sets of a record."""

    key: bytes | None
    partition: int | None
    size: int
    deadline: float
    generation: int
    ordinal: int
    queued_at: float


class Appender:
    """Numbers records, and queues those without a key on the partition that the last one went to.

    These are the records for which the sticky partitioner has already chosen a partition.

    Args:
        timeout: how many seconds after its append a record expires.
        effects: its `fatal_error` is not None once the producer has ended.
        targets: for topics with such a partition, where the next record goes.
        wake: called with the state of a partition whose first record is being queued.

    Attributes:
        ordinal: the number of the last numbered record; the first record has number 1.
        generation: how many flushes have begun.
    """

    __slots__ = ("_effects", "_targets", "_timeout", "_wake", "generation", "ordinal")

    def __init__(
        self,
        timeout: float,
        effects: Any,
        targets: Mapping[str, TargetFields],
        wake: Callable[[Any], object],
    ) -> None:
        self._timeout = timeout
        self._effects = effects
        self._targets = targets
        self._wake = wake
        self.ordinal = 0
        self.generation = 0

    def append(self, topic: str, record: _Record, now: float) -> bool:
        """Queue a record and number it, if it goes to the partition of the record before it.

        Args:
            topic: the topic's name.
            record: the record.
            now: seconds, on the event loop's clock.

        Returns:
            Whether the record is queued; if not, nothing was done.
        """
        target = self._targets.get(topic)
        if target is None or record.key is not None or record.partition is not None:
            return False
        sticky = target.sticky
        if sticky.left <= 0:
            return False
        self.number(record, now)
        size = record.size
        sticky.left -= size
        queue = target.queue
        if not queue.records:
            self._wake(target.state)
        record.queued_at = now
        queue.records.append(record)
        queue.bytes += size
        return True

    @property
    def ended(self) -> bool:
        """Whether an error has ended the producer."""
        return self._effects.fatal_error is not None

    def number(self, record: _Record, now: float) -> None:
        """Set a record's number, its generation and its deadline.

        Args:
            record: the record.
            now: seconds, on the event loop's clock.
        """
        record.deadline = now + self._timeout
        record.generation = self.generation
        self.ordinal = record.ordinal = self.ordinal + 1


class PlainSends:
    """Queues records that are nothing but a short value, while there is room for them.

    Such a record has no key, no headers, no timestamp and no partition of the caller's. `queue`
    says what must hold for it.

    Args:
        make: the class of the deliveries, which inherits from `DeliveryFields`.
        context: what all deliveries of the producer have in common.
        running_loop: returns the running event loop; raises RuntimeError if there is none.
        wall_clock: returns the time in seconds since the epoch.
        life: has the event loop on which the producer may be used now, and its clock.
        budget: the memory for records.
        release: gives bytes of it back.
        append: the general way to queue a record; called with topic, record and time.
        appender: queues records whose partition need not be chosen.
        topics: the topics that were used before.
        wakeup: raised when there is something to send.
        most: the most bytes of a value; less than 8192.
        empty: the most bytes that a record takes in a batch besides its value, if that is shorter
        than 64 bytes; otherwise it takes one more.
        memory: the bytes that a record takes in memory besides its size.
    """

    __slots__ = (
        "_append",
        "_appender",
        "_budget",
        "_context",
        "_empty",
        "_life",
        "_make",
        "_memory",
        "_most",
        "_release",
        "_running_loop",
        "_topics",
        "_wakeup",
        "_wall_clock",
    )

    def __init__(
        self,
        make: Callable[..., Any],
        context: object,
        running_loop: Callable[[], object],
        wall_clock: Callable[[], float],
        life: Any,
        budget: BudgetFields,
        release: Callable[[int], object],
        append: Callable[[str, Any, float], None],
        appender: Appender,
        topics: dict[str, Any],
        wakeup: Any,
        most: int,
        empty: int,
        memory: int,
    ) -> None:
        self._make = make
        self._context = context
        self._running_loop = running_loop
        self._wall_clock = wall_clock
        self._life = life
        self._budget = budget
        self._release = release
        self._append = append
        self._appender = appender
        self._topics = topics
        self._wakeup = wakeup
        self._most = most
        self._empty = empty
        self._memory = memory

    def queue(self, topic: str, value: bytes | None) -> Any:
        """Queue a record, and return its delivery; None if nothing was queued.

        This method only queues a record if the producer is open and is called on its asyncio event
        loop, the value is short, the topic was used before, and the buffer has room. If the result
        is None, the caller uses the slower path, which queues the record or raises the error that
        says why not.

        Raises:
            Exception: what `append` has raised; nothing was queued.
        """
        life, budget = self._life, self._budget
        try:
            if self._running_loop() is not life.open_loop or topic not in self._topics:
                return None
        except (RuntimeError, TypeError):  # no loop is running; the topic is not hashable
            return None
        if type(value) is not bytes:
            return None
        size = len(value)
        if size > self._most:
            return None
        size += self._empty if size < _ONE_BYTE_LENGTH else self._empty + 1
        charge = size + self._memory
        if budget.used + charge > budget.limit or budget.waiting or self._appender.ended:
            return None
        stamp = round(self._wall_clock() * 1000)
        record = self._make(None, value, (), stamp, None, size, self._context)
        now = life.clock()
        # A finaliser that ran meanwhile may have queued records, too.
        budget.used += charge
        try:
            if not self._appender.append(topic, record, now):
                self._append(topic, record, now)
        except BaseException:
            self._release(charge)
            raise
        if not self._wakeup.raised:
            self._wakeup.set()
        return record


def take_fitting(
    records: deque[Any], group: object, room: int, most: int, whole: bool
) -> tuple[list[Any], int]:
    """Take records from the head of a queue for one batch, at least one, and return their size.

    Args:
        records: the queue.
        group: the records that are taken have this mark.
        room: the most bytes that they take in the batch, unless the first alone takes more.
        most: the most records.
        whole: whether `room` does not matter, because the group is known to fit.
    """
    size = count = 0
    for record in islice(records, most):
        if record.group is not group or (size + record.size > room and count and not whole):
            break
        size += record.size
        count += 1
    return [records.popleft() for _ in range(count)], size


def squeeze(
    records: deque[Any], taken: list[Any], size: int, room: int, most: int, overhead: int
) -> int:
    """Take further records from the head of a queue into a batch that only seems full.

    It only seems full because a record's `size` allows for the longest varints. The number and the
    timestamps of the batch's records show that their varints are shorter.

    Args:
        records: the queue.
        taken: the batch's records, at least one; further ones of the same `group` are appended.
        size: the sum of their `size`.
        room: the most bytes that the records may take in the batch.
        most: the most records.
        overhead: how many bytes of a record's `size` are not its payload.

    Returns:
        The sum of the further records' `size`.
    """
    group, first, count, added = taken[0].group, taken[0].timestamp_ms, len(taken), 0
    largest = span = 0
    for record in taken:
        largest = max(largest, record.size)
        span = max(span, abs(record.timestamp_ms - first))
    while records and count < most:
        record = records[0]
        if record.group is not group:
            break
        longest = max(largest, record.size)
        widest = max(span, abs(record.timestamp_ms - first))
        each = record_size(longest, count + 1, widest) - longest
        if size + record.size + (count + 1) * (each - overhead) > room:
            break
        largest, span = longest, widest
        count += 1
        size += record.size
        added += record.size
        taken.append(records.popleft())
    return added
