"""RecordAccumulator: records that wait to be sealed, and the memory they may take.

Records wait as records, not as half-built batches: a batch is cut from the head of the queue when
it is drained ("late sealing"), so that what piled up while the window was full goes out as one
batch. The queue of a partition is FIFO, and deadlines are append time + a constant, so only its
head can be the first to expire.

The byte budget covers a record from append until it is settled. Callers that find no room queue as
waiters, FIFO; a release wakes the one at the head if it fits and touches no other, so N waiting
senders cost O(1) each, not O(N) per release (aiokafka's quadratic wake-ups). While someone waits
nobody overtakes, and one who was granted room waits until it has claimed it: between its wake-up
and its turn another task may call (and trio runs those it woke in any order).

Rejected: a pool of batch.size buffers as in Java. Python frees bytes by itself, and whole-buffer
allocation is what makes Java's budget smaller than it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from aioidem._records import BATCH_OVERHEAD, payload_size, record_size, record_size_bound
from aioidem.structs import DeliveryStatus

__all__ = [
    "ByteBudget",
    "MemoryWaiter",
    "PartitionQueue",
    "PendingRecord",
    "RecordGroup",
    "RecordSink",
    "Settlement",
]


_LOOSE_OVERHEAD = record_size_bound(None, None, ()) - payload_size(None, None, ())


class RecordSink(Protocol):
    """Where a record's outcome goes. The engine never calls it: whoever drives the engine does,
    outside of it.
    """

    def settle(self, settlement: Settlement, index: int) -> None:
        """Take the outcome; `index` is the record's place in its batch."""
        ...


class RecordGroup:
    """Records that a caller wants in a batch of their own: neither mixed with others nor, where a
    batch of their `size` is allowed, torn apart.

    `size`: bytes of that batch before compression, its header included.
    """

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class PendingRecord:
    """One record that waits for its outcome."""

    __slots__ = (
        "deadline",
        "generation",
        "group",
        "headers",
        "key",
        "ordinal",
        "partition",
        "queued_at",
        "sink",
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
        sink: RecordSink,
        group: RecordGroup | None = None,
    ) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.size = size
        self.sink = sink
        self.group = group
        self.deadline = self.queued_at = 0.0
        self.generation = self.ordinal = 0


class Settlement:
    """The outcome of some records of one partition, all alike."""

    __slots__ = (
        "base_offset",
        "error",
        "log_append_time_ms",
        "log_start_offset",
        "partition",
        "records",
        "status",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        records: Sequence[PendingRecord],
        status: DeliveryStatus,
        *,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        error: Exception | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records
        self.status = status
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.error = error


class PartitionQueue:
    """Records of one partition that are not sealed yet."""

    __slots__ = ("blocked", "bytes", "flushing", "records")

    def __init__(self) -> None:
        self.records: deque[PendingRecord] = deque()
        self.bytes = 0
        # Set while the window keeps a ready batch back: what piles up meanwhile may leave as one
        # batch.
        self.blocked = False
        # A flush or close is waiting: linger no longer.
        self.flushing = False

    def append(self, record: PendingRecord, now: float) -> None:
        """Add a record at the tail."""
        record.queued_at = now
        self.records.append(record)
        self.bytes += record.size

    def ready(self, now: float, *, linger: float, batch_size: int) -> bool:
        """Whether the head would make a batch now: full, lingered long enough, or being flushed."""
        if not self.records:
            return False
        return (
            self.flushing
            or linger <= 0
            or self.bytes + BATCH_OVERHEAD >= batch_size
            or now >= self.records[0].queued_at + linger
        )

    def cut(self, limit: int, max_records: int) -> list[PendingRecord]:
        """Take records from the head, at least one, until `limit` bytes (header included) would be
        passed, or another `RecordGroup` begins.
        """
        room = limit - BATCH_OVERHEAD
        records = self.records
        taken = [records.popleft()]
        size = taken[0].size
        group = taken[0].group
        whole = group is not None and group.size <= limit
        # A record's `size` allows for the longest varints. That is near enough until the batch
        # seems full; then the bound is drawn tighter, or every 17th record would be left for the
        # next one.
        measure: _TightSize | None = None
        while records and len(taken) < max_records:
            following = records[0]
            if following.group is not group:
                break
            if size + following.size > room and not whole:
                if measure is None:
                    measure = _TightSize(taken)
                if measure.with_another(following) > room:
                    break
            size += following.size
            if measure is not None:
                measure.add(following)
            taken.append(records.popleft())
        self.bytes -= size
        if not records:
            self.blocked = self.flushing = False
        return taken

    def put_back(self, records: Sequence[PendingRecord], *, flushing: bool) -> None:
        """Return what was cut last and did not fit after all; `flushing`: as it was before."""
        self.records.extendleft(reversed(records))
        self.bytes += sum(record.size for record in records)
        self.flushing = flushing

    def expire(self, now: float) -> list[PendingRecord]:
        """Take out the records whose deadline has passed."""
        records = self.records
        expired = []
        while records and records[0].deadline <= now:
            record = records.popleft()
            self.bytes -= record.size
            expired.append(record)
        if not records:
            self.blocked = self.flushing = False
        return expired

    def drain(self) -> list[PendingRecord]:
        """Take out everything."""
        taken = list(self.records)
        self.records.clear()
        self.bytes = 0
        self.blocked = self.flushing = False
        return taken


class _TightSize:
    """An upper bound on the bytes of records in one batch, from their number and time span."""

    __slots__ = ("_count", "_first", "_largest", "_payload", "_span")

    def __init__(self, records: Sequence[PendingRecord]) -> None:
        self._first = records[0].timestamp_ms
        self._count = self._largest = self._payload = self._span = 0
        for record in records:
            self.add(record)

    def add(self, record: PendingRecord) -> None:
        """Count one more record in."""
        self._count += 1
        self._payload += record.size - _LOOSE_OVERHEAD
        self._largest = max(self._largest, record.size)
        self._span = max(self._span, abs(record.timestamp_ms - self._first))

    def with_another(self, record: PendingRecord) -> int:
        """The bound with one more record."""
        count = self._count + 1
        span = max(self._span, abs(record.timestamp_ms - self._first))
        # The length prefix is as long as the largest record's; all else as at the batch's end.
        largest = max(self._largest, record.size)
        overhead = record_size(largest, count, -span) - largest
        return self._payload + record.size - _LOOSE_OVERHEAD + count * overhead


class MemoryWaiter:
    """Someone who waits for room. `wake` is called once, when `granted` became True or the budget
    was closed. Whoever is granted room claims it when its record is queued, or abandons it.
    """

    __slots__ = ("abandoned", "granted", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], None]) -> None:
        self.size = size
        self.wake = wake
        self.granted = False
        self.abandoned = False


class ByteBudget:
    """`buffer.memory`: bytes of unsettled records, with FIFO waiters."""

    __slots__ = ("_granted", "_waiters", "capacity", "used", "waiting")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.waiting = 0
        self._waiters: deque[MemoryWaiter] = deque()
        # The one waiter who has room and has not claimed it.
        self._granted: MemoryWaiter | None = None

    def try_take(self, size: int) -> bool:
        """Take `size` bytes now if there is room and nobody waits."""
        if self.waiting or not self.fits(size):
            return False
        self.used += size
        return True

    def fits(self, size: int) -> bool:
        """Whether there is room for `size` bytes, if nobody waits."""
        # A record larger than the whole budget may pass when it is alone; max.request.size has
        # refused it before.
        return self.used + size <= self.capacity or self.used == 0

    def wait(self, size: int, wake: Callable[[], None]) -> MemoryWaiter:
        """Queue for `size` bytes."""
        waiter = MemoryWaiter(size, wake)
        self._waiters.append(waiter)
        self.waiting += 1
        self._grant()
        return waiter

    def claim(self, waiter: MemoryWaiter) -> None:
        """The granted bytes are being used now: the next in line may have its turn."""
        if self._granted is waiter:
            self._granted = None
            self.waiting -= 1
            self._grant()

    def abandon(self, waiter: MemoryWaiter) -> None:
        """Leave the queue (timeout, cancellation); gives back what was granted meanwhile."""
        if waiter.abandoned:
            return
        waiter.abandoned = True
        if waiter.granted:
            self.claim(waiter)
            self.release(waiter.size)
            return
        self.waiting -= 1
        self._grant()

    def release(self, size: int) -> None:
        """Give bytes back and grant room to the waiter at the head if it fits now."""
        self.used -= size
        if self._waiters:
            self._grant()

    def _grant(self) -> None:
        waiters = self._waiters
        while waiters and self._granted is None:
            head = waiters[0]
            if not head.abandoned and not self.fits(head.size):
                return
            waiters.popleft()
            if not head.abandoned:
                self.used += head.size
                head.granted = True
                self._granted = head
                head.wake()

    def wake_all(self) -> Iterator[MemoryWaiter]:
        """Empty the queue without granting anything: the producer is closing."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.abandoned:
                waiter.abandoned = True
                self.waiting -= 1
                waiter.wake()
                yield waiter
