"""The log of one replica: stored batches in offset order, in memory.

Invariants
    Each batch begins at the offset at which the one before it ends. The leader epoch of a batch is
    never lower than that of the one before it.
    ``start_offset <= end_offset``.
    Batches are immutable and shared by all replicas, so a follower's copy of a log costs one list
    entry per batch.

Rejected
    Segments and files: this log is for tests and demos. It keeps ``retention.bytes`` in memory, and
    deletes whole batches from its beginning as Kafka deletes whole segments.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from aioidem._broker.batch import StoredBatch

__all__ = ["Log"]

_base_offset = attrgetter("base_offset")


class Log:
    """The batches of one replica, in the order of their offsets."""

    __slots__ = ("_batches", "_end", "_size", "_start")

    def __init__(self, start_offset: int = 0) -> None:
        self._batches: list[StoredBatch] = []
        self._start = start_offset
        self._end = start_offset
        self._size = 0

    def __repr__(self) -> str:
        return f"<Log {self._start}..{self._end} batches={len(self._batches)} bytes={self._size}>"

    @property
    def start_offset(self) -> int:
        """Return the offset of the first record that is still in the log."""
        return self._start

    @property
    def end_offset(self) -> int:
        """Return the offset of the next record to be appended."""
        return self._end

    @property
    def size(self) -> int:
        """Return the size of all batches, in bytes."""
        return self._size

    @property
    def batches(self) -> list[StoredBatch]:
        """Return a copy of the list of batches, oldest first."""
        return list(self._batches)

    def append(self, batch: StoredBatch) -> None:
        """Append a batch.

        ``batch.base_offset`` must be `end_offset`; the caller sets it, so that replicas share one
        object.
        """
        self._batches.append(batch)
        self._end = batch.last_offset + 1
        self._size += len(batch.data)

    def copy_from(self, other: Log) -> None:
        """Replace the contents with those of another replica's log."""
        self._batches = list(other._batches)
        self._start, self._end, self._size = other._start, other._end, other._size

    def since(self, offset: int) -> list[StoredBatch]:
        """Return the batch that contains ``offset``, and all later batches."""
        return self._batches[self._index(offset) :]

    def read(
        self, offset: int, max_bytes: int, below: int, *, at_least_one: bool
    ) -> list[StoredBatch]:
        """Return what a Fetch request reads: the batch that contains ``offset``, and later ones.

        Args:
            offset: Offset of the first record wanted.
            below: Only batches that end before this offset are returned.
            max_bytes: The most bytes to return.
            at_least_one: Return the first batch even if it is larger, so that a reader always
                advances (KIP-74).
        """
        found: list[StoredBatch] = []
        room = max_bytes
        for index in range(self._index(offset), len(self._batches)):
            batch = self._batches[index]
            if batch.last_offset >= below:
                break
            room -= len(batch.data)
            if room < 0 and (found or not at_least_one):
                break
            found.append(batch)
        return found

    def first_batch_reaching(self, timestamp_ms: int, below: int) -> StoredBatch | None:
        """Return the first batch with a record at or after ``timestamp_ms``.

        Only batches that end below the offset ``below`` are considered.
        """
        for batch in self._batches:
            if batch.last_offset >= below:
                return None
            if batch.max_timestamp_ms >= timestamp_ms:
                return batch
        return None

    def newest_by_timestamp(self, below: int) -> StoredBatch | None:
        """Return the batch with the largest timestamp; the first one, if several have it.

        Only batches that end below the offset ``below`` are considered.
        """
        inside = [b for b in self._batches if b.last_offset < below]
        return max(inside, key=attrgetter("max_timestamp_ms"), default=None)

    def epoch_of(self, offset: int, otherwise: int) -> int:
        """Return the leader epoch of the record at ``offset``; ``otherwise`` if there is none."""
        if not self._batches or not self._start <= offset < self._end:
            return otherwise
        return self._batches[self._index(offset)].leader_epoch

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to ``epoch`` in the log, and its end offset (KIP-101).

        The log may have no epoch that low, because it forgets an epoch whose records are deleted,
        as in Kafka. Then return ``epoch`` and the offset at which the first later epoch begins.
        """
        found = epoch
        for batch in self._batches:
            if batch.leader_epoch > epoch:
                return found, max(batch.base_offset, self._start)
            found = batch.leader_epoch
        return found, self._end

    def common_end(self, other: Log) -> int:
        """Return the offset at which this log and another one begin to differ."""
        index, theirs = len(self._batches), {b.base_offset: b for b in other._batches}
        while (
            index
            and theirs.get(self._batches[index - 1].base_offset) is not self._batches[index - 1]
        ):
            index -= 1
        if index:
            return self._batches[index - 1].last_offset + 1
        return max(self._start, min(other._start, self._end))

    def truncate(self, offset: int) -> bool:
        """Remove every batch with a record at or after ``offset``; return whether there was one."""
        dropped = False
        while self._batches and self._batches[-1].last_offset >= offset:
            self._size -= len(self._batches.pop().data)
            dropped = True
        if dropped or self._end > offset:
            self._end = (
                self._batches[-1].last_offset + 1 if self._batches else max(self._start, offset)
            )
        return dropped

    def enforce_retention(self, max_bytes: int, below: int) -> None:
        """Remove whole batches from the beginning until at most ``max_bytes`` are left.

        The newest batch always stays, and so does every batch with a record at or after the offset
        ``below``.
        """
        count = 0
        while self._size > max_bytes and count < len(self._batches) - 1:
            if self._batches[count].last_offset >= below:
                break
            self._size -= len(self._batches[count].data)
            count += 1
        if count:
            del self._batches[:count]
            self._start = self._batches[0].base_offset

    def delete_before(self, offset: int) -> None:
        """Raise the start offset to ``offset``, which is at most the end offset.

        A batch that contains the offset is kept whole, as Kafka keeps a segment.
        """
        if offset <= self._start:
            return
        count = 0
        while count < len(self._batches) and self._batches[count].last_offset < offset:
            self._size -= len(self._batches[count].data)
            count += 1
        del self._batches[:count]
        self._start = offset

    def _index(self, offset: int) -> int:
        return max(0, bisect_right(self._batches, offset, key=_base_offset) - 1)
