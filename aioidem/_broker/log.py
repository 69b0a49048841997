"""The log of one replica: stored batches in offset order, in memory.

Invariants
    Offsets are dense; ``start_offset <= end_offset``; batches are shared, immutable objects, so a
    follower's copy of a log costs one list entry per batch. Leader epochs never fall from one batch
    to the next.

Rejected
    Segments and files: this log is for tests and demos, holds what fits into ``retention.bytes`` of
    memory, and forgets whole batches from its head beyond that, as Kafka forgets whole segments.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from aioidem._broker.batch import StoredBatch

__all__ = ["Log"]

_base_offset = attrgetter("base_offset")


class Log:
    """Append-only list of batches with a start, an end and a size in bytes."""

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
        """Offset of the first record that is still there."""
        return self._start

    @property
    def end_offset(self) -> int:
        """Offset of the next record to be appended."""
        return self._end

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return self._size

    @property
    def batches(self) -> list[StoredBatch]:
        """A copy of the list of batches, oldest first."""
        return list(self._batches)

    def append(self, batch: StoredBatch) -> None:
        """``batch.base_offset`` must be `end_offset`; the caller assigns it so that replicas share
        one object.
        """
        self._batches.append(batch)
        self._end = batch.last_offset + 1
        self._size += len(batch.data)

    def copy_from(self, other: Log) -> None:
        """Become a copy of ``other`` (a replica that was just assigned)."""
        self._batches = list(other._batches)
        self._start, self._end, self._size = other._start, other._end, other._size

    def since(self, offset: int) -> list[StoredBatch]:
        """Batches from the one that holds ``offset`` on."""
        return self._batches[self._index(offset) :]

    def read(
        self, offset: int, max_bytes: int, below: int, *, at_least_one: bool
    ) -> list[StoredBatch]:
        """Batches from the one holding ``offset``, ending below the offset ``below``, at most
        ``max_bytes`` of them.

        ``at_least_one``: the first batch comes even if it is larger (KIP-74, so that a reader
        always gets on).
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
        """First batch ending below ``below`` that has a record at or after ``timestamp_ms``."""
        for batch in self._batches:
            if batch.last_offset >= below:
                return None
            if batch.max_timestamp_ms >= timestamp_ms:
                return batch
        return None

    def newest_by_timestamp(self, below: int) -> StoredBatch | None:
        """The first of the batches ending below ``below`` that holds the largest timestamp."""
        inside = [b for b in self._batches if b.last_offset < below]
        return max(inside, key=attrgetter("max_timestamp_ms"), default=None)

    def epoch_of(self, offset: int, otherwise: int) -> int:
        """Leader epoch of the record at ``offset``; ``otherwise`` if there is none."""
        if not self._batches or not self._start <= offset < self._end:
            return otherwise
        return self._batches[self._index(offset)].leader_epoch

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch <= ``epoch`` in the log, first offset after it), (-1, -1) if there is none
        (KIP-101).
        """
        found, end = -1, -1
        for batch in self._batches:
            if batch.leader_epoch > epoch:
                return (found, batch.base_offset) if found >= 0 else (-1, -1)
            found = batch.leader_epoch
            end = batch.last_offset + 1
        return found, end

    def common_end(self, other: Log) -> int:
        """First offset at which this log and ``other`` are not the same batch any more."""
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
        """Drop every batch that ends at or after ``offset``; True if there was one."""
        dropped = False
        while self._batches and self._batches[-1].last_offset >= offset:
            self._size -= len(self._batches.pop().data)
            dropped = True
        if dropped or self._end > offset:
            self._end = (
                self._batches[-1].last_offset + 1 if self._batches else max(self._start, offset)
            )
        return dropped

    def enforce_retention(self, max_bytes: int) -> None:
        """Forget whole batches from the head until at most ``max_bytes`` are left; the newest one
        always stays.
        """
        count = 0
        while self._size > max_bytes and count < len(self._batches) - 1:
            self._size -= len(self._batches[count].data)
            count += 1
        if count:
            del self._batches[:count]
            self._start = self._batches[0].base_offset

    def delete_before(self, offset: int) -> None:
        """Let the log start at ``offset`` (not beyond its end), if it does not start above.

        A batch that holds it stays whole, as Kafka's segments do.
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
