"""What waits in a partition's queue, as plain rows, and how many of them one batch takes.

The drills of the queue and of the accumulator keep one row for each record, whether it is queued by
itself, with a batch of the caller's, or in a block. What a batch takes is derived from the rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, takewhile
from random import Random
from typing import Final, NamedTuple, cast

from aioidem._engine.record import Outcome, PendingRecord, RecordGroup
from aioidem._engine.record_block import Columns, RecordBlock
from aioidem._records import (
    BATCH_OVERHEAD,
    NewRecord,
    build_body,
    record_size,
    record_size_bound,
)

__all__ = ["Caller", "Row", "bound_of", "fills", "nbytes", "ordinals", "waiting"]

_TIMEOUT: Final = 20.0
"""Seconds after which a record expires."""
_EMPTY: Final = 3
"""The bytes of a key, a value and headers that are all missing."""
_LOOSE: Final = record_size_bound(None, None, ()) - _EMPTY
"""The most bytes of a record besides key, value and headers, whatever batch it is in."""
_STAMP: Final = 1_700_000_000_000
"""The timestamp of most records, in milliseconds."""


class Row(NamedTuple):
    """One record that waits.

    Attributes:
        record: The record, made by itself even if it waits in a block.
        ordinal: Its number among all records, in the order of the calls.
        size: The most bytes that it takes in a batch.
        group: The caller's batch that it belongs to; None if it belongs to none.
        block: What is known of its block: the earliest and the latest timestamp in milliseconds,
            the size of the largest record, and the ordinal of the first one. A record that is in
            no block counts as a block by itself.
        queued_at: When it was queued, in seconds.
        deadline: When it expires, in seconds.
    """

    record: PendingRecord
    ordinal: int
    size: int
    group: RecordGroup | None
    block: tuple[int, int, int, int]
    queued_at: float
    deadline: float


def nbytes(rows: Iterable[Row]) -> int:
    """Return the most bytes that some records take in a batch, without its header."""
    return sum(row.size for row in rows)


def ordinals(records: Iterable[NewRecord]) -> list[int]:
    """Return the ordinals of some records that were queued."""
    return [cast("PendingRecord", record).ordinal for record in records]


def waiting(items: Iterable[PendingRecord]) -> list[int]:
    """Return the numbers of the records of some items, which may be blocks."""
    numbers: list[int] = []
    for item in items:
        if isinstance(item, RecordBlock):
            numbers += [item.base + row for row in item.chosen]
        else:
            numbers.append(item.ordinal)
    return numbers


# -- how many records a batch takes ----------------------------------------------------------------


def fills(rows: Sequence[Row], limit: int, most: int, whole_up_to: int = 0) -> range:
    """Return how many of the first rows one batch may take; nearly always there is one answer.

    A batch takes the records that surely fit, and at least one. Records of a caller's batch share
    a batch with no others, and all of them are taken if their batch is known to fit.

    Args:
        rows: The rows that wait, at least one.
        limit: The most bytes of the batch, with its header.
        most: The most records of the batch.
        whole_up_to: The most bytes of a caller's batch that is not divided.
    """
    group = rows[0].group
    alike = list(takewhile(lambda row: row.group is group, rows[:most]))
    if group is not None and group.size <= max(limit, whole_up_to):
        return range(len(alike), len(alike) + 1)
    room = limit - BATCH_OVERHEAD
    least = greatest = 1
    bounds = _bounds(alike)
    for end, (count, bound) in zip(_ends_of_blocks(alike), bounds, strict=True):
        # A block is measured as a whole: its last record decides how long the numbers may be.
        if bound(end) <= room:
            least = count
        if bound(count) <= room:
            greatest = count
    return range(least, greatest + 1)


def bound_of(rows: Sequence[Row]) -> int:
    """Return how many bytes some records take at most in one batch, without its header."""
    *_, (count, bound) = _bounds(rows)
    return bound(count)


def _bounds(rows: Sequence[Row]) -> Iterator[tuple[int, Callable[[int], int]]]:
    """Yield how many bytes the first, the first two ... records take at most in one batch.

    In a batch each record has a length, a timestamp delta and an offset delta. None of them takes
    more bytes than it does for the largest record, the widest span of timestamps and the last
    offset delta. Each time the number of records is yielded, with a function that returns the
    bytes for a number of records in the whole batch.
    """
    first = rows[0].record.timestamp_ms
    payload = span = largest = 0
    for count, row in enumerate(rows, 1):
        earliest, latest, size, _ = row.block
        payload += row.size - _LOOSE
        span = max(span, latest - first, first - earliest)
        largest = max(largest, size)
        yield count, partial(_bound, payload, count, largest, span)


def _bound(payload: int, count: int, largest: int, span: int, last: int) -> int:
    return payload + count * (record_size(largest, last, span) - largest)


def _ends_of_blocks(rows: Sequence[Row]) -> list[int]:
    """Return for each row the number of rows up to the end of its block."""
    ends: list[int] = []
    for _, run in groupby(rows, key=lambda row: row.block):
        count = len(list(run))
        ends += [len(ends) + count] * count
    return ends


# -- what callers queue ----------------------------------------------------------------------------


class _Nobody:
    """Stands in for the callers of a block; in these drills no record gets an outcome."""

    def take(self, rows: Sequence[int], outcome: Outcome, place: int, /) -> None:
        """Take the outcome of some records."""
        raise ValueError(f"nothing is settled: {rows} {outcome} {place}")


class Caller:
    """Makes records: single ones, those of a batch of the caller's, and blocks.

    Args:
        dice: Decides how many there are, and of what sizes and times.
    """

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._ordinal = 0
        # What the present call draws from: timestamps in milliseconds, and sizes of values.
        self._stamps: tuple[int, ...] = (_STAMP,)
        self._sizes: tuple[int, ...] = (20,)

    def call(self, now: float) -> list[tuple[PendingRecord, list[Row]]]:
        """Return the records and blocks that one call queues, each with the rows of its records."""
        spread = self._dice.choice((0, 0, 0, 31, 63, 64, 8191, 8192, 1 << 21))
        apart = _STAMP + self._dice.choice((spread, -spread))
        self._stamps = self._dice.choice(((_STAMP,), (apart,), (_STAMP, apart)))
        self._sizes = self._dice.choice(((0, 5), (20,), (20,), (5, 20, 70, 300), (10, 3000)))
        count = self._dice.choice((1, 1, 2, 5, 9, 70))
        match self._dice.randrange(5):
            case 0 if count > 1:
                singles = [self._single() for _ in range(min(count, 9))]
                size = build_body(singles).batch_size + self._dice.choice((0, 40))
                group = RecordGroup(size)
                return [self._row(single, now, group) for single in singles]
            case 1:
                return [self._block(count, now)]
            case 2:
                singles = [self._single() for _ in range(min(count, 3))]
                self._stamps = self._dice.choice((self._stamps, (_STAMP,)))
                return [*(self._row(each, now) for each in singles), self._block(20, now)]
            case _:
                return [self._row(self._single(), now) for _ in range(min(count, 20))]

    def _value(self) -> bytes:
        return bytes(self._dice.choice(self._sizes))

    def _stamp(self) -> int:
        return self._dice.choice(self._stamps)

    def _single(self) -> PendingRecord:
        value = self._value()
        size = record_size_bound(None, value, ())
        return PendingRecord(None, value, (), self._stamp(), None, size)

    def _row(
        self, record: PendingRecord, now: float, group: RecordGroup | None = None
    ) -> tuple[PendingRecord, list[Row]]:
        self._ordinal += 1
        record.ordinal, record.group, record.deadline = self._ordinal, group, now + _TIMEOUT
        stamp, size = record.timestamp_ms, record.size
        alone = stamp, stamp, size, self._ordinal
        row = Row(record, self._ordinal, size, group, alone, now, record.deadline)
        return record, [row]

    def _block(self, count: int, now: float) -> tuple[PendingRecord, list[Row]]:
        values = tuple(self._value() for _ in range(count))
        stamps = array("q", [self._stamp() for _ in range(count)])
        block = RecordBlock(Columns(values, None, (), stamps), _Nobody(), None)
        block.begin_at(self._ordinal + 1)
        block.deadline = now + _TIMEOUT
        self._ordinal += count
        records = [block.record(index) for index in range(count)]
        sizes = [record_size_bound(None, value, ()) for value in values]
        whole = min(stamps), max(stamps), max(sizes), block.ordinal
        return block, [
            Row(record, record.ordinal, size, None, whole, now, block.deadline)
            for record, size in zip(records, sizes, strict=True)
        ]
