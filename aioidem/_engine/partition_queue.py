"""PartitionQueue: records of one partition that wait to be put into a batch.

Records wait as records, not as half-built batches. A batch is cut from the head of the queue when
it can be sent ("late sealing"). So records that piled up while too many batches were in flight
leave as one batch. The queue is FIFO, and a deadline is the append time plus a constant, so the
record at the head expires first.

If one call sends many records, they wait as a `RecordBlock`, which is one item of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from aioidem._engine.draft import Draft
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import BLOCK, RecordBlock, RecordRuns, count_of, items_of
from aioidem._hot import QueueFields, squeeze, take_fitting, total_size
from aioidem._records import BATCH_OVERHEAD, payload_size, record_size, record_size_bound

__all__ = ["PartitionQueue"]

_LOOSE_OVERHEAD = record_size_bound(None, None, ()) - payload_size(None, None, ())
_size_of = attrgetter("size")
_stamp_of = attrgetter("timestamp_ms")


class PartitionQueue(QueueFields):
    """Records of one partition that are not in a batch yet.

    `QueueFields` has the records and the sum of their sizes.
    """

    __slots__ = ("blocked", "draft", "flushing")

    records: deque[PendingRecord]

    def __init__(self) -> None:
        super().__init__()
        # Whether a batch was ready but could not be sent (too many are in flight, for instance).
        # Then the records that pile up may be sent as one batch larger than `batch_size`.
        self.blocked = False
        # Whether a flush or close waits for these records. If so, they do not linger.
        self.flushing = False
        # The first records, if they are compressed before they are put into a batch; else None.
        self.draft: Draft | None = None

    def append(self, record: PendingRecord, now: float) -> None:
        """Add a record, or a block, at the tail."""
        record.queued_at = now
        self.records.append(record)
        self.bytes += record.size

    def flush(self) -> None:
        """Make the records that are queued now ready to be sent: a flush ends their linger time."""
        self.flushing = bool(self.records)

    def hurry(self) -> None:
        """End the linger time: a record came into this queue after a flush for it had begun."""
        self.flushing = True

    def hold_back(self) -> None:
        """Note that a batch is ready but cannot be sent now, so it may grow while it waits."""
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

    @property
    def count(self) -> int:
        """The number of records."""
        return count_of(list(self.records))

    @property
    def first_size(self) -> int:
        """The size of the record at the head, in bytes."""
        head = self.records[0]
        return head.first_size if isinstance(head, RecordBlock) else head.size

    def cut(self, limit: int, max_records: int, whole_up_to: int = 0) -> Sequence[PendingRecord]:
        """Take at least one record from the head of the queue, for one batch.

        The batch has at most `limit` bytes (header included), unless its only record is larger, and
        at most `max_records` records. It has records of one `RecordGroup`, or only records without
        a group. A group that has at most `limit` or `whole_up_to` bytes is divided only if it has
        more than `max_records` records.

        Args:
            limit: the most bytes of a batch before compression, as far as its size can be guessed.
            max_records: the most records of a batch.
            whole_up_to: the most bytes of a group that no guess may divide.
        """
        room = limit - BATCH_OVERHEAD
        records = self.records
        group = records[0].group
        if group is BLOCK:
            return self._cut_blocks([], 0, room, max_records)
        whole = group is not None and group.size <= max(limit, whole_up_to)
        taken, size = take_fitting(records, group, room, max_records, whole)
        if records and not whole:
            if records[0].group is group:
                size += squeeze(records, taken, size, room, max_records, _LOOSE_OVERHEAD)
            if group is None and records and records[0].group is BLOCK:
                return self._cut_blocks(taken, size, room, max_records)
        self._took(size)
        return taken

    def _took(self, size: int) -> None:
        self.bytes -= size
        if not self.records:
            self.blocked = self.flushing = False

    def _cut_blocks(
        self, taken: list[PendingRecord], size: int, room: int, max_records: int
    ) -> RecordRuns:
        """Take the rest of a batch from the head of the queue, where a block stands.

        Args:
            taken: the records before the block.
            size: the sum of their sizes, in bytes.
            room: the most bytes of the batch, without its header.
            max_records: the most records of the batch.
        """
        records = self.records
        measure = _TightSize(taken, size)
        left = max_records - len(taken)
        while records and left > 0:
            head = records[0]
            if isinstance(head, RecordBlock):
                count = min(measure.fitting(head, room, left), left)
                if not count:
                    if taken:
                        break
                    count = 1
                whole = count == head.count
                head = records.popleft() if whole else head.take(count)
            else:
                whole = head.group is None and measure.with_another(head) <= room
                if not whole:
                    break
                records.popleft()
            measure.add(head)
            taken.append(head)
            left -= head.count
            size += head.size
            if not whole:
                break
        self._took(size)
        return RecordRuns(taken)

    def head(self, limit: int, max_records: int, whole_up_to: int = 0) -> Sequence[PendingRecord]:
        """Return the records that `cut` would take, and leave them in the queue."""
        blocked, flushing = self.blocked, self.flushing
        records = self.cut(limit, max_records, whole_up_to)
        self.put_back(records, flushing=flushing)
        self.blocked = blocked
        return records

    def cut_draft(self, draft: Draft) -> Sequence[PendingRecord]:
        """Take the records of this queue's draft, and end the draft."""
        records = self.records
        for _ in draft.items:
            records.popleft()
        self.bytes -= draft.size
        self.draft = None
        if not records:
            self.blocked = self.flushing = False
        return draft.records

    def shorten_draft(self, draft: Draft, keep: int) -> Sequence[PendingRecord]:
        """End this queue's draft, and return its first `keep` records, which stay in the queue."""
        blocked, flushing = self.blocked, self.flushing
        records = self.cut_draft(draft)
        kept = records[:keep]
        self.put_back(records[keep:], flushing=flushing)
        self.put_back(kept, flushing=flushing)
        self.blocked = blocked
        return kept

    def put_back(self, records: Sequence[PendingRecord], *, flushing: bool) -> None:
        """Return records to the head of the queue: they were just cut, but did not fit a batch.

        Args:
            records: the records, in order.
            flushing: the value of the attribute `flushing` before the cut.
        """
        items = items_of(records)
        self.records.extendleft(reversed(items))
        self.bytes += total_size(items)
        self.flushing = flushing

    def expire(self, now: float) -> list[PendingRecord]:
        """Take out the records and blocks whose deadline has passed."""
        records = self.records
        expired = []
        while records and records[0].deadline <= now:
            record = records.popleft()
            self.bytes -= record.size
            expired.append(record)
        if expired:
            self.draft = None
        if not records:
            self.blocked = self.flushing = False
        return expired

    def empty(self) -> list[PendingRecord]:
        """Take out all records and blocks."""
        taken = list(self.records)
        self.records.clear()
        self.bytes = 0
        self.blocked = self.flushing = False
        self.draft = None
        return taken


class _TightSize:
    """An upper bound on the size that some records take in one batch, in bytes.

    The bound is tighter than the sum of the records' `size`, because their number and time span
    limit how long the varints can be.
    """

    __slots__ = ("_count", "_first", "_largest", "_payload", "_span")

    def __init__(self, records: Sequence[PendingRecord], size: int) -> None:
        """Measure single records, not blocks; `size` is the sum of their sizes, in bytes."""
        stamps = list(map(_stamp_of, records))
        self._first: int | None = stamps[0] if stamps else None
        # The most by which the timestamp of a record differs from that of the first one, in ms.
        self._span: int = max(max(stamps) - stamps[0], stamps[0] - min(stamps)) if stamps else 0
        self._count = len(records)
        self._payload = size - self._count * _LOOSE_OVERHEAD
        self._largest: int = max(map(_size_of, records), default=0)

    def add(self, record: PendingRecord) -> None:
        """Include a record, or a block, in the bound."""
        self._span = self._span_with(record)
        if self._first is None:
            self._first = record.timestamp_ms
        self._count += record.count
        self._payload += record.size - record.count * _LOOSE_OVERHEAD
        self._largest = max(self._largest, _largest_of(record))

    def _span_with(self, record: PendingRecord) -> int:
        """Return what `_span` would be if this record or block were added, in ms."""
        first = record.timestamp_ms if self._first is None else self._first
        if isinstance(record, RecordBlock):
            columns = record.columns
            return max(self._span, columns.latest - first, first - columns.earliest)
        return max(self._span, abs(record.timestamp_ms - first))

    def fitting(self, block: RecordBlock, room: int, most: int) -> int:
        """Return how many of a block's first records, at most `most`, fit into `room` bytes."""
        count = self._count + min(block.count, most)
        overhead = self._overhead(count, self._span_with(block), _largest_of(block))
        left = room - self._payload - self._count * overhead
        return block.fitting(left, _LOOSE_OVERHEAD - overhead)

    def _overhead(self, count: int, span: int, largest: int) -> int:
        """Return the most bytes of a record besides its payload."""
        # Every record is counted with the length prefix of the largest record, an offset delta of
        # `count`, and a timestamp delta of `span` ms, whose varint is never shorter than that of a
        # negative delta of the same size.
        largest = max(self._largest, largest)
        return record_size(largest, count, span) - largest

    def with_another(self, record: PendingRecord) -> int:
        """Return what the bound would be with one more record, in bytes."""
        count = self._count + 1
        overhead = self._overhead(count, self._span_with(record), record.size)
        return self._payload + record.size - _LOOSE_OVERHEAD + count * overhead


def _largest_of(record: PendingRecord) -> int:
    return record.columns.largest if isinstance(record, RecordBlock) else record.size
