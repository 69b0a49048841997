"""The transactions in one replica's log: open and aborted ones, and the last stable offset.

Invariants
    The index follows from the log: replaying the log gives the same index.
    ``_open`` is in the order of first offsets, because a log grows only at its end.
    The last stable offset never passes the first record of a transaction whose marker is not
    committed: a change of leader may still lose the marker.
"""

from __future__ import annotations

from typing import NamedTuple

from aioidem._broker.batch import StoredBatch
from aioidem._broker.markers import is_commit

__all__ = ["AbortedTransaction", "TransactionIndex"]


class AbortedTransaction(NamedTuple):
    """An aborted transaction; ``last_offset`` is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class TransactionIndex:
    """The transactions in one replica's log."""

    __slots__ = ("_aborted", "_ended", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        # The first offset and the marker's offset of each transaction that has ended, while the
        # marker may not be on every in-sync replica yet.
        self._ended: list[tuple[int, int]] = []
        self._aborted: list[AbortedTransaction] = []

    def __repr__(self) -> str:
        return f"<TransactionIndex open={self._open} aborted={len(self._aborted)}>"

    def clear(self) -> None:
        """Forget everything."""
        self._open.clear()
        self._ended.clear()
        self._aborted.clear()

    def first_offset(self, producer_id: int) -> int | None:
        """Return the first offset of a producer's open transaction; None if it has none here."""
        return self._open.get(producer_id)

    def appended(self, batch: StoredBatch) -> None:
        """Record a transactional batch or a marker that was appended to the log."""
        header = batch.header
        if header.control:
            self._end(batch)
        elif header.transactional:
            self._open.setdefault(header.producer_id, batch.base_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset that a reader of committed transactions may not read yet."""
        self._ended = [each for each in self._ended if each[1] >= high_watermark]
        undecided = [first for first, _ in self._ended]
        return min([*undecided, *list(self._open.values())[:1], high_watermark])

    def aborted(self, offset: int, below: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records from ``offset`` on and below ``below``."""
        return [a for a in self._aborted if a.last_offset >= offset and a.first_offset < below]

    def _end(self, marker: StoredBatch) -> None:
        producer_id = marker.header.producer_id
        first = self._open.pop(producer_id, None)
        # Without a first offset the marker's transaction has written nothing to this partition.
        if first is None:
            return
        self._ended.append((first, marker.base_offset))
        if not is_commit(marker):
            self._aborted.append(AbortedTransaction(producer_id, first, marker.base_offset))
