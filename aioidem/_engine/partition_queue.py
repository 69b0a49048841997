"""PartitionQueue: records of one partition that wait to be sealed.

Records wait as records, not as half-built batches: a batch is cut from the head of the queue when
it is drained ("late sealing"), so that what piled up while the window was full goes out as one
batch. The queue is FIFO, and deadlines are append time plus a constant, so only its head can be the
first to expire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from aioidem._engine.record import PendingRecord
from aioidem._records import BATCH_OVERHEAD, payload_size, record_size, record_size_bound

__all__ = ["PartitionQueue"]

_LOOSE_OVERHEAD = record_size_bound(None, None, ()) - payload_size(None, None, ())


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

    def flush(self) -> None:
        """Linger no longer for what is queued now."""
        self.flushing = bool(self.records)

    def hurry(self) -> None:
        """Linger no longer: a flush waits for a record that came late to its partition."""
        self.flushing = True

    def hold_back(self) -> None:
        """Take note that the window keeps a ready batch back."""
        self.blocked = True

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
        """Take records from the head, at least one.

        It stops before `limit` bytes (header included) would be passed, or another `RecordGroup`
        begins.
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

    def empty(self) -> list[PendingRecord]:
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
        """Return the bound with one more record."""
        count = self._count + 1
        span = max(self._span, abs(record.timestamp_ms - self._first))
        # The length prefix is as long as the largest record's; all else as at the batch's end.
        largest = max(self._largest, record.size)
        overhead = record_size(largest, count, -span) - largest
        return self._payload + record.size - _LOOSE_OVERHEAD + count * overhead
