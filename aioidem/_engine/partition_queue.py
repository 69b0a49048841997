"""PartitionQueue: records of one partition that wait to be sealed.

Records wait as records, not as half-built batches. A batch is cut from the head of the queue when
it is drained ("late sealing"), so that records that piled up while the window was full leave as one
batch. The queue is FIFO, and a deadline is the append time plus a constant, so the record at the
head expires first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter

from aioidem._engine.record import PendingRecord
from aioidem._records import BATCH_OVERHEAD, payload_size, record_size, record_size_bound

__all__ = ["PartitionQueue"]

_LOOSE_OVERHEAD = record_size_bound(None, None, ()) - payload_size(None, None, ())
_size_of = attrgetter("size")
_stamp_of = attrgetter("timestamp_ms")


class PartitionQueue:
    """Records of one partition that are not sealed yet."""

    __slots__ = ("blocked", "bytes", "flushing", "records")

    def __init__(self) -> None:
        self.records: deque[PendingRecord] = deque()
        self.bytes = 0
        # Whether a batch was ready but could not be sent (the window is full, for instance). Then
        # the records that pile up may be sent as one batch larger than `batch_size`.
        self.blocked = False
        # Whether a flush or close waits for these records. If so, they do not linger.
        self.flushing = False

    def append(self, record: PendingRecord, now: float) -> None:
        """Add a record at the tail."""
        record.queued_at = now
        self.records.append(record)
        self.bytes += record.size

    def flush(self) -> None:
        """Make the records that are queued now ready to be sent: a flush ends their linger time."""
        self.flushing = bool(self.records)

    def hurry(self) -> None:
        """End the linger time: a record got its partition only after a flush for it had begun."""
        self.flushing = True

    def hold_back(self) -> None:
        """Note that a batch is ready but could not be sent, so that the batch may grow."""
        self.blocked = True

    def ready(self, now: float, *, linger: float, batch_size: int) -> bool:
        """Return whether a batch is ready: full, lingered for long enough, or being flushed.

        Args:
            now: seconds.
            linger: seconds for which the record at the head waits for others.
            batch_size: the size of a full batch, in bytes.
        """
        if not self.records:
            return False
        return (
            self.flushing
            or linger <= 0
            or self.bytes + BATCH_OVERHEAD >= batch_size
            or now >= self.records[0].queued_at + linger
        )

    def cut(self, limit: int, max_records: int) -> list[PendingRecord]:
        """Take records from the head for one batch, at least one.

        The cut ends before the batch would exceed `limit` bytes (header included) or `max_records`,
        or where another `RecordGroup` begins. A group whose size is at most `limit` is not divided
        for its size.
        """
        room = limit - BATCH_OVERHEAD
        records = self.records
        group = records[0].group
        whole = group is not None and group.size <= limit
        size = count = 0
        for record in islice(records, max_records):
            if record.group is not group or (size + record.size > room and count and not whole):
                break
            size += record.size
            count += 1
        taken = [records.popleft() for _ in range(count)]
        if not whole and records and records[0].group is group:
            size += self._squeeze(taken, size, room, max_records)
        self.bytes -= size
        if not records:
            self.blocked = self.flushing = False
        return taken

    def _squeeze(self, taken: list[PendingRecord], size: int, room: int, max_records: int) -> int:
        """Take further records from the head into a batch that seems full, and return their size.

        The batch only seems full, because a record's `size` allows for the longest varints. By a
        tighter bound more records fit, which would otherwise be left for the next batch.
        """
        records, group, added = self.records, taken[0].group, 0
        measure = _TightSize(taken, size)
        while records and len(taken) < max_records:
            following = records[0]
            if following.group is not group or measure.with_another(following) > room:
                break
            measure.add(following)
            added += following.size
            taken.append(records.popleft())
        return added

    def put_back(self, records: Sequence[PendingRecord], *, flushing: bool) -> None:
        """Put back to the head records that were just cut and did not fit into the batch.

        Args:
            records: the records, in order.
            flushing: the value of the attribute `flushing` before the cut.
        """
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
        """Take out all records."""
        taken = list(self.records)
        self.records.clear()
        self.bytes = 0
        self.blocked = self.flushing = False
        return taken


class _TightSize:
    """An upper bound on the size that some records take in one batch, in bytes.

    The bound is tighter than the sum of the records' `size`, because their number and time span
    limit how long the varints can be.
    """

    __slots__ = ("_count", "_first", "_largest", "_payload", "_span")

    def __init__(self, records: Sequence[PendingRecord], size: int) -> None:
        """Measure some records, whose sizes add up to `size` bytes."""
        stamps = list(map(_stamp_of, records))
        self._first: int = stamps[0]
        self._span: int = max(max(stamps) - self._first, self._first - min(stamps))
        self._count = len(records)
        self._payload = size - self._count * _LOOSE_OVERHEAD
        self._largest: int = max(map(_size_of, records))

    def add(self, record: PendingRecord) -> None:
        """Include a record in the bound."""
        self._count += 1
        self._payload += record.size - _LOOSE_OVERHEAD
        self._largest = max(self._largest, record.size)
        self._span = max(self._span, abs(record.timestamp_ms - self._first))

    def with_another(self, record: PendingRecord) -> int:
        """Return what the bound would be with one more record, in bytes."""
        count = self._count + 1
        span = max(self._span, abs(record.timestamp_ms - self._first))
        # Every record is counted with the length prefix of the largest record, and with the deltas
        # of a record at the end of the batch.
        largest = max(self._largest, record.size)
        overhead = record_size(largest, count, -span) - largest
        return self._payload + record.size - _LOOSE_OVERHEAD + count * overhead
