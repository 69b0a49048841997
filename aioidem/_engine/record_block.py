"""RecordBlock: many records of one call, kept as columns, and queued as if they were one record.

A call that sends thousands of records must not make an object for each of them. Its records wait
and leave as blocks: a block is one item of a queue, a batch takes a slice of it, and the slice is
encoded, settled and counted in one step. The rare paths that must look at single records (a batch
that is split, records that a broker names in a refusal) get them as objects that are made then.

A queue holds *items*: single records, and blocks. `RecordRuns` presents items as the sequence of
their records.

Invariants:

- The records of a block are consecutive records of one call that go to one partition, or that wait
  for their partitions together. Their order is that of the call.
- Dividing a block neither adds nor drops a record: the parts' sizes and counts add up to its own.
- Each record of a block is settled once, as a part of some slice or by itself. The block's
  `Receiver` is then told the outcome and the record's row (its index in the columns).

Rejected: blocks that share no batch with other records. Calls with few records would then make
small batches, and so would the end of each large call.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, Protocol, Self, final, overload

from aioidem._engine.record import (
    BLOCK_MEMORY,
    HEADER_MEMORY,
    Outcome,
    PendingRecord,
    RecordGroup,
)
from aioidem._records import (
    BinaryColumn,
    RecordSection,
    encode_columns,
    measure_columns,
    partitions_of,
)

__all__ = [
    "BLOCK",
    "BlockRecord",
    "Columns",
    "Receiver",
    "RecordBlock",
    "RecordRuns",
    "SharedHeaders",
    "count_of",
    "items_of",
    "records_of",
]

BLOCK: Final = RecordGroup(0)
"""The `group` of every block, which distinguishes blocks from single records at no cost."""

Headers = Sequence[tuple[str, bytes | None]]
SharedHeaders = tuple[tuple[str, bytes | None], ...]
Column = tuple[bytes | None, ...] | BinaryColumn

_count_of = attrgetter("count")


class Receiver(Protocol):
    """The object that is told the outcomes of a block's records."""

    def take(self, rows: Sequence[int], outcome: Outcome, place: int, /) -> None:
        """Take the outcome of some records.

        Args:
            rows: the records' rows in the columns, in the order of the records.
            outcome: what became of them.
            place: the place of the first of them among all records that share the outcome; the
            others follow it.
        """
        ...


class Columns:
    """The records of one call, as columns: row i of each column belongs to record i.

    Args:
        values: one payload per record.
        keys: one key per record, or a single key that all records have.
        headers: a list with the headers of each record, or a tuple of headers for all records.
        stamps: one timestamp per record, or a single one for all, in milliseconds since the epoch.

    Raises:
        TypeError: a part of a record is neither bytes nor None, or a header is no pair.
        ValueError: a header's name cannot be encoded in UTF-8, or an Arrow column's offsets place a
        row outside of the column's bytes.
    """

    __slots__ = (
        "_hashed",
        "earliest",
        "headers",
        "keys",
        "largest",
        "latest",
        "sizes",
        "stamps",
        "values",
    )

    def __init__(
        self,
        values: Column,
        keys: Column | bytes | None,
        headers: list[Headers] | SharedHeaders,
        stamps: array[int] | int,
    ) -> None:
        self.values = values
        self.keys = keys
        self.headers = headers
        self.stamps = stamps
        self._hashed: tuple[int, array[int]] | None = None
        # `sizes`: for each row the sum of the sizes of the records before it, in bytes. `largest`:
        # the size of the largest record.
        self.sizes, self.largest = measure_columns(values, keys, headers, None)
        if isinstance(stamps, int):
            self.earliest = self.latest = stamps
        else:
            self.earliest, self.latest = min(stamps, default=0), max(stamps, default=0)

    def __len__(self) -> int:
        return len(self.values)

    def before(self, row: int) -> Columns:
        """Return the records before row number `row`, which is 1 or more."""
        keys, headers, stamps = self.keys, self.headers, self.stamps
        return Columns(
            _before(self.values, row),
            _before(keys, row) if isinstance(keys, tuple | BinaryColumn) else keys,
            headers[:row] if isinstance(headers, list) else headers,
            stamps if isinstance(stamps, int) else stamps[:row],
        )

    def hashed(self, count: int) -> array[int]:
        """Return the index of each key's partition among `count` partitions; -1 without a key."""
        if self._hashed is None or self._hashed[0] != count:
            keys = self.keys
            several = keys if isinstance(keys, tuple | BinaryColumn) else (keys,) * len(self)
            self._hashed = count, partitions_of(several, count)
        return self._hashed[1]

    def key(self, row: int) -> bytes | None:
        """Return the key of one record."""
        keys = self.keys
        return keys[row] if isinstance(keys, tuple | BinaryColumn) else keys

    def headers_of(self, row: int) -> Headers:
        """Return the headers of one record."""
        headers = self.headers
        return headers[row] if isinstance(headers, list) else headers

    def stamp(self, row: int) -> int:
        """Return the timestamp of one record, in milliseconds since the epoch."""
        stamps = self.stamps
        return stamps if isinstance(stamps, int) else stamps[row]


def _before(column: Column, row: int) -> Column:
    return column.before(row) if isinstance(column, BinaryColumn) else column[:row]


class RecordBlock(PendingRecord):
    """Records of one call that wait in a queue as one item, instead of one item each.

    As a `PendingRecord` the block stands for all of its records: `size` is the sum of their sizes,
    `ordinal` and `timestamp_ms` are those of the first record. `key` is the key that all records
    share, or None if each has its own.

    Args:
        columns: the records of the call.
        receiver: is told the outcomes.
        partition: the partition that the caller chose; None if the caller chose none.
        rows: the rows of these records, in order; None: all rows.
    """

    __slots__ = ("base", "begin", "columns", "count", "end", "receiver", "rows", "sizes")

    memory = BLOCK_MEMORY

    def __init__(
        self,
        columns: Columns,
        receiver: Receiver,
        partition: int | None,
        rows: array[int] | None = None,
    ) -> None:
        sizes = columns.sizes
        if rows is not None:
            sizes, _ = measure_columns(columns.values, columns.keys, columns.headers, rows)
        shared = columns.keys
        super().__init__(
            None if isinstance(shared, tuple | BinaryColumn) else shared,
            None,
            (),
            0,
            partition,
            0,
            BLOCK,
        )
        self.columns = columns
        self.receiver = receiver
        self.rows = rows
        self.sizes = sizes
        # The ordinal that a record of row 0 would have.
        self.base = 0
        self._bound(0, len(sizes) - 1)

    def _bound(self, begin: int, end: int) -> None:
        """Let the block have the records in `rows[begin:end]`, and compute what depends on that."""
        self.begin = begin
        self.end = end
        self.count = end - begin
        self.size = self.sizes[end] - self.sizes[begin]
        if begin < end:
            row = self.row(0)
            self.timestamp_ms = self.columns.stamp(row)
            self.ordinal = self.base + row

    def begin_at(self, ordinal: int) -> None:
        """Set the first record's ordinal; a record k rows further on gets an ordinal k higher."""
        self.base = ordinal - self.row(0)
        self.ordinal = ordinal

    def row(self, index: int) -> int:
        """Return a record's row in the columns; `index` counts the block's records from 0."""
        index += self.begin
        return index if self.rows is None else self.rows[index]

    @property
    def chosen(self) -> Sequence[int]:
        """The rows of the block's records, in order."""
        rows = self.rows
        return range(self.begin, self.end) if rows is None else rows[self.begin : self.end]

    # -- dividing

    def part(self, begin: int, end: int) -> Self:
        """Return a new block of this block's records `begin` to `end - 1`, counted from 0."""
        block = self._copy()
        block._bound(self.begin + begin, self.begin + end)  # noqa: SLF001 - an object of this class
        return block

    def _copy(self) -> Self:
        block = type(self).__new__(type(self))
        block.key = self.key
        block.value = None
        block.headers = ()
        block.partition = self.partition
        block.group = BLOCK
        block.deadline = self.deadline
        block.queued_at = self.queued_at
        block.generation = self.generation
        block.columns = self.columns
        block.receiver = self.receiver
        block.rows = self.rows
        block.sizes = self.sizes
        block.base = self.base
        return block

    def take(self, count: int) -> Self:
        """Take the first `count` records out of this block, which keeps the others."""
        taken = self.part(0, count)
        self._bound(self.begin + count, self.end)
        return taken

    def among(self, rows: array[int]) -> Self:
        """Return a block of the records that are in these rows of the columns."""
        block = self._copy()
        columns = self.columns
        block.rows = rows
        block.sizes, _ = measure_columns(columns.values, columns.keys, columns.headers, rows)
        block._bound(0, len(rows))  # noqa: SLF001 - an object of this class
        return block

    def fitting(self, room: int, less: int = 0) -> int:
        """Return how many of the first records take at most `room` bytes.

        Args:
            room: bytes.
            less: by how many bytes each record is smaller than its `size` says.
        """
        sizes, begin = self.sizes, self.begin
        if not less:
            found = bisect_right(sizes, room + sizes[begin], begin, self.end + 1) - begin
        else:
            before = sizes[begin] - begin * less
            found = bisect_right(
                range(begin, self.end + 1), room, key=lambda end: sizes[end] - end * less - before
            )
        return max(found - 1, 0)

    def affordable(self, room: int) -> int:
        """Return how many of the first records have a `charge` of at most `room` bytes together."""
        headers = self.columns.headers
        if isinstance(headers, tuple):
            return self.fitting(room, -self.memory - len(headers) * HEADER_MEMORY)
        left = room
        for index, row in enumerate(self.chosen):
            left -= self.size_of(index) + self.memory + len(headers[row]) * HEADER_MEMORY
            if left < 0:
                return index
        return self.count

    def reaching(self, nbytes: int) -> int:
        """Return how many of the first records are needed for `nbytes` bytes.

        If all records together have fewer bytes, the result is the number of all records.
        """
        return min(self.fitting(nbytes - 1) + 1, self.count)

    # -- single records

    @property
    def first_size(self) -> int:
        """The size of the first record, in bytes."""
        return self.sizes[self.begin + 1] - self.sizes[self.begin]

    def charge(self) -> int:
        """Return the bytes that the records take from the memory budget."""
        return self.size + self.overhead()

    def overhead(self) -> int:
        """Return the bytes that the records take in memory besides their `size`."""
        headers = self.columns.headers
        if isinstance(headers, tuple):
            number = len(headers) * self.count
        else:
            number = sum(len(headers[row]) for row in self.chosen)
        return self.count * self.memory + number * HEADER_MEMORY

    def record(self, index: int) -> PendingRecord:
        """Make the `PendingRecord` of one record; `index` counts the block's records from 0."""
        return self.about(index, BlockRecord(self, self.row(index), self.size_of(index)))

    def size_of(self, index: int) -> int:
        """Return the size of one record, in bytes."""
        index += self.begin
        return self.sizes[index + 1] - self.sizes[index]

    def about(self, index: int, record: PendingRecord) -> PendingRecord:
        """Copy to one record what `RecordAccumulator` has set on the block (deadline and so on)."""
        record.deadline = self.deadline
        record.queued_at = self.queued_at
        record.generation = self.generation
        record.ordinal = self.base + self.row(index)
        return record

    # -- what a batch needs

    def encode(self, first_offset: int, first_ms: int) -> bytes:
        """Encode the records as a part of a record section.

        Args:
            first_offset: the offset delta of the first record.
            first_ms: the timestamp of the batch's first record, in milliseconds since the epoch.
        """
        columns = self.columns
        return encode_columns(
            columns.values, columns.keys, columns.headers, columns.stamps,
            self.rows, self.begin, self.end, first_offset, first_ms,
        )  # fmt: skip

    def latest(self) -> int:
        """Return the latest timestamp of the records, in milliseconds since the epoch."""
        stamps = self.columns.stamps
        return stamps if isinstance(stamps, int) else max(stamps[row] for row in self.chosen)

    def settle(self, outcome: Outcome, place: int) -> None:
        """Tell the receiver the outcome of all records of the block.

        Args:
            outcome: the outcome, which records of other blocks may share.
            place: the position of the block's first record among all records that share the
            outcome, from 0.
        """
        self.receiver.take(self.chosen, outcome, place)

    def __repr__(self) -> str:
        return f"<RecordBlock of {self.count} records, {self.size} bytes>"


class BlockRecord(PendingRecord):
    """One record of a block, made where a single record is needed."""

    __slots__ = ("_receiver", "_row")

    memory = BLOCK_MEMORY

    def __init__(self, block: RecordBlock, row: int, size: int) -> None:
        columns = block.columns
        super().__init__(
            columns.key(row),
            columns.values[row],
            columns.headers_of(row),
            columns.stamp(row),
            block.partition,
            size,
        )
        self._receiver = block.receiver
        self._row = row

    def settle(self, outcome: Outcome, place: int) -> None:
        """Tell the block's receiver the outcome of this record, as `PendingRecord.settle` says."""
        self._receiver.take(range(self._row, self._row + 1), outcome, place)


@final
class RecordRuns(Sequence[PendingRecord], RecordSection):
    """Single records and blocks as one sequence of records; those of a block are made on access.

    Other code tests for this class by `type(x) is RecordRuns`, because `isinstance` is slow for a
    subclass of an abstract base class.

    Args:
        items: single records, and blocks of records.
    """

    __slots__ = ("_count", "_ends", "items", "size")

    def __init__(self, items: Sequence[PendingRecord]) -> None:
        self.items = items
        # How many records there are up to the end of each item.
        self._ends: list[int] = []
        count = size = 0
        for item in items:
            count += item.count
            size += item.size
            self._ends.append(count)
        self._count = count
        # The sum of the records' sizes, in bytes.
        self.size = size

    @property
    def largest(self) -> int:
        """The size of the largest record, in bytes; of a block's call, if it is in other blocks."""
        return max(
            item.columns.largest if isinstance(item, RecordBlock) else item.size
            for item in self.items
        )

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> PendingRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PendingRecord]: ...
    def __getitem__(self, index: int | slice) -> PendingRecord | Sequence[PendingRecord]:
        if isinstance(index, slice):
            begin, end, step = index.indices(self._count)
            return list(self)[index] if step != 1 else RecordRuns(list(self._between(begin, end)))
        if not -self._count <= index < self._count:
            raise IndexError(f"record {index} of {self._count}")
        index %= self._count
        number = bisect_right(self._ends, index)
        item = self.items[number]
        if not isinstance(item, RecordBlock):
            return item
        return item.record(index - self._ends[number] + item.count)

    def _between(self, begin: int, end: int) -> Iterator[PendingRecord]:
        """Yield the records from `begin` to `end` as items; blocks that reach beyond are cut."""
        at = 0
        for item in self.items:
            first, last = max(begin - at, 0), min(end - at, item.count)
            if first < last:
                whole = last - first == item.count or not isinstance(item, RecordBlock)
                yield item if whole else item.part(first, last)  # type: ignore[attr-defined]
            at += item.count

    def __iter__(self) -> Iterator[PendingRecord]:
        for item in self.items:
            if isinstance(item, RecordBlock):
                yield from map(item.record, range(item.count))
            else:
                yield item

    def encode(self) -> tuple[bytes, int, int, int]:
        """Return (record section, count, first timestamp, maximum timestamp)."""
        first = maximum = self.items[0].timestamp_ms
        pieces: list[bytes] = []
        offset = 0
        for item in self.items:
            if isinstance(item, RecordBlock):
                pieces.append(item.encode(offset, first))
                latest = item.latest()
            else:
                latest = item.timestamp_ms
                headers = tuple(item.headers)
                pieces.append(
                    encode_columns(
                        (item.value,), item.key, headers, latest, None, 0, 1, offset, first
                    )
                )
            maximum = max(maximum, latest)
            offset += item.count
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), offset, first, maximum

    def overhead(self) -> int:
        """Return the bytes that the records take in memory besides their `size`."""
        return sum(item.overhead() for item in self.items)

    def by_generation(self) -> Counter[int]:
        """Return the number of records by generation (the records queued between two flushes)."""
        counts: Counter[int] = Counter()
        for item in self.items:
            counts[item.generation] += item.count
        return counts


def records_of(items: Sequence[PendingRecord]) -> Sequence[PendingRecord]:
    """Return items as the sequence of their records: the same object if none is a block."""
    return RecordRuns(items) if any(item.group is BLOCK for item in items) else items


def items_of(records: Sequence[PendingRecord]) -> Sequence[PendingRecord]:
    """Return the items that the result of `records_of` was made of."""
    return records.items if type(records) is RecordRuns else records


def count_of(items: Iterable[PendingRecord]) -> int:
    """Return how many records are in `items`; a block counts as all of its records."""
    return sum(map(_count_of, items))
