"""The drill of blocks: the records of large calls, divided, joined and put in order in all ways.

A run divides few blocks, and hardly ever joins parts of one again. Here a call's records are kept
as a list beside the block that has them, and each answer of the block is derived from the list.
A row is a record's place among those of its call, as in the block itself.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from aioidem._engine.call_order import in_call_order
from aioidem._engine.record import BLOCK_MEMORY, HEADER_MEMORY, Outcome, PendingRecord
from aioidem._engine.record_block import (
    Columns,
    RecordBlock,
    RecordRuns,
    count_of,
    items_of,
    records_of,
)
from aioidem._records import encode_columns
from aioidem.partitioner import murmur2
from aioidem.structs import DeliveryStatus

from .comparing import differences

__all__ = ["drill_blocks"]

_OUTCOME: Final = Outcome("t", 0, DeliveryStatus.ACKED)
_MOST: Final = 10
"""A call has fewer records than this."""


def drill_blocks(dice: Random) -> Iterator[str]:
    """Yield what is wrong with some blocks, with a sequence of them, and with their order."""
    calls = [_Call(dice, 1000 * number) for number in range(1, dice.choice((2, 3)) + 1)]
    held: list[tuple[_Call, RecordBlock, list[int]]] = []
    for call in calls:
        parts = [(call.block(), list(range(call.count)))]
        for _ in range(dice.randrange(4)):
            parts += _divided(parts.pop(dice.randrange(len(parts))), dice)
        held += [(call, block, rows) for block, rows in parts]
    for call, block, rows in held:
        for wrong in call.differences(block, rows, dice):
            yield f"block: {wrong}, of rows {rows}"
            return
    for wrong in _runs(held, calls, dice):
        yield f"records: {wrong}"
        return
    for wrong in _order(held, calls, dice):
        yield f"order: {wrong}"
        return


def _divided(
    part: tuple[RecordBlock, list[int]], dice: Random
) -> list[tuple[RecordBlock, list[int]]]:
    """Divide a block in one of its ways; both parts together have its records."""
    block, rows = part
    if len(rows) == 1:
        return [part]
    at = dice.randrange(1, len(rows))
    match dice.randrange(3):
        case 0:
            return [(block.take(at), rows[:at]), (block, rows[at:])]
        case 1:
            both = block.part(0, at), block.part(at, len(rows))
            return [(both[0], rows[:at]), (both[1], rows[at:])]
        case _:
            chosen = sorted(dice.sample(rows, at))
            others = [row for row in rows if row not in chosen]
            return [(block.among(array("q", each)), each) for each in (chosen, others)]


class _Call:
    """The records of one call, and who is told their outcomes."""

    def __init__(self, dice: Random, ordinal: int) -> None:
        self.count = count = dice.randrange(1, _MOST)
        self._first = ordinal
        self.values = tuple(
            dice.choice((None, bytes(dice.choice((0, 5, 200))))) for _ in range(count)
        )
        keys = tuple(dice.choice((None, b"", b"k", bytes(70))) for _ in range(count))
        self._shared = dice.choice((None, b"all"))
        own = dice.random() < 0.5
        self.keys = keys if own else (self._shared,) * count
        headers: Any = [[("h", b"1")] * dice.randrange(3) for _ in range(count)]
        if dice.random() < 0.5:
            headers = dice.choice(((), (("all", None), ("of", b"them"))))
        self.headers = headers if isinstance(headers, list) else [headers] * count
        stamps: Any = array("q", [dice.choice((0, 7, 10**12)) for _ in range(count)])
        if dice.random() < 0.5:
            stamps = 99
        self.stamps = [stamps] * count if isinstance(stamps, int) else list(stamps)
        self.columns = Columns(self.values, keys if own else self._shared, headers, stamps)
        self.sizes = [
            b - a for a, b in zip(self.columns.sizes, self.columns.sizes[1:], strict=False)
        ]
        self.told: list[tuple[list[int], int]] = []
        self._own = own
        self.generation, self.deadline, self.queued_at = dice.choice((0, 1)), 5.0, 2.0

    def take(self, rows: Sequence[int], _outcome: Outcome, place: int, /) -> None:
        """Take the outcome of some records."""
        self.told.append((list(rows), place))

    def block(self) -> RecordBlock:
        """Return a block of all records, as the accumulator queues it."""
        block = RecordBlock(self.columns, self, 3)
        block.begin_at(self._first)
        block.generation, block.deadline = self.generation, self.deadline
        block.queued_at = self.queued_at
        return block

    def ordinal(self, row: int) -> int:
        """Return a record's number in the order of all calls."""
        return self._first + row

    def facts(self, row: int) -> tuple[object, ...]:
        """Return what a single record of the call must tell."""
        return (
            *(self.keys[row], self.values[row], list(self.headers[row]), self.stamps[row]),
            *(self.sizes[row], self.ordinal(row), 3),
            *(self.deadline, self.queued_at, self.generation),
        )

    def differences(self, block: RecordBlock, rows: list[int], dice: Random) -> Iterator[str]:
        """Yield what a block tells otherwise than the records of some rows, which it has.

        It is settled, too: as a whole, and one of its records.
        """
        sizes = [self.sizes[row] for row in rows]
        charges = [self.charge(row) for row in rows]
        pairs: dict[str, tuple[object, object]] = {
            "rows": (list(block.chosen), rows),
            "count": (block.count, len(rows)),
            "size": (block.size, sum(sizes)),
            "first size": (block.first_size, sizes[0]),
            "ordinal": (block.ordinal, self.ordinal(rows[0])),
            "time": (block.timestamp_ms, self.stamps[rows[0]]),
            "latest": (block.latest(), max(self.stamps[row] for row in rows)),
            "key": (block.key, None if self._own else self._shared),
            "charge": (block.charge(), sum(charges)),
            "overhead": (block.overhead(), sum(charges) - sum(sizes)),
            "records": (
                [_said(block.record(index)) for index in range(len(rows))],
                [self.facts(row) for row in rows],
            ),
        }
        for room in (-1, 0, sum(sizes) - 1, sum(sizes), dice.randrange(sum(sizes) + 50)):
            pairs[f"fitting {room}"] = (block.fitting(room), _fitting(sizes, room))
            pairs[f"reaching {room}"] = (block.reaching(room), _reaching(sizes, room))
        for room in (0, sum(charges) - 1, sum(charges), dice.randrange(sum(charges) + 50)):
            pairs[f"affordable {room}"] = (block.affordable(room), _fitting(charges, room))
        place, index = dice.randrange(9), dice.randrange(len(rows))
        block.settle(_OUTCOME, place)
        block.record(index).settle(_OUTCOME, place + 1)
        outcomes = [(rows, place), ([rows[index]], place + 1)]
        pairs["rows and places of the last outcomes"] = (self.told[-2:], outcomes)
        again = RecordBlock(self.columns, self, 3, array("q", rows))
        pairs["made again"] = ((list(again.chosen), again.size, again.base), (rows, sum(sizes), 0))
        yield from differences(pairs)
        yield from differences(self._column_pairs(dice.randrange(1, self.count + 1)))

    def _column_pairs(self, before: int) -> dict[str, tuple[object, object]]:
        """Return what the columns of the call tell, and what they must; some without later rows."""
        pairs: dict[str, tuple[object, object]] = {}
        for number, count in enumerate((5, 7, 5)):  # the columns keep what they computed last
            alone = [_partition_of(key, count) for key in self.keys]
            pairs[f"answer {number}: partitions of {count}"] = (
                list(self.columns.hashed(count)),
                alone,
            )
        kept = self.columns.before(before)
        pairs[f"the first {before} rows"] = (
            [
                (kept.key(n), kept.values[n], list(kept.headers_of(n)), kept.stamp(n))
                for n in range(before)
            ],
            [self.facts(row)[:4] for row in range(before)],
        )
        stamps, sizes = self.stamps[:before], self.sizes[:before]
        pairs["earliest and latest time, largest size, count"] = (
            (kept.earliest, kept.latest, kept.largest, len(kept)),
            (min(stamps), max(stamps), max(sizes), before),
        )
        return pairs

    def charge(self, row: int) -> int:
        """Return what one record takes of the buffer."""
        return self.sizes[row] + BLOCK_MEMORY + HEADER_MEMORY * len(self.headers[row])


def _partition_of(key: bytes | None, count: int) -> int:
    """Return the partition of a key among `count`, as Java's client does; -1 without a key."""
    return -1 if key is None else (murmur2(key) & 0x7FFFFFFF) % count


def _said(record: PendingRecord) -> tuple[object, ...]:
    """Return what a record tells, in the order of `_Call.facts`."""
    return (
        *(record.key, record.value, list(record.headers), record.timestamp_ms),
        *(record.size, record.ordinal, record.partition),
        *(record.deadline, record.queued_at, record.generation),
    )


def _fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many of the first records fit into some bytes."""
    return max(n for n in range(len(sizes) + 1) if n == 0 or sum(sizes[:n]) <= room)


def _reaching(sizes: Sequence[int], nbytes: int) -> int:
    """Return how many of the first records reach some bytes; all if they do not."""
    enough = [n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) >= nbytes]
    return min(enough, default=len(sizes))


# -- blocks and single records, as one sequence ----------------------------------------------------

_Held = list[tuple[_Call, RecordBlock, list[int]]]


def _singles(calls: Sequence[_Call], dice: Random) -> list[PendingRecord]:
    """Return single records that were sent between the calls."""
    singles = []
    for number in range(dice.randrange(4)):
        one = PendingRecord(None, b"one", (), 10 * number, 3, 11 + number)
        one.ordinal = 1000 * dice.randrange(len(calls) + 2) - 10 + number
        singles.append(one)
    return singles


def _runs(held: _Held, calls: Sequence[_Call], dice: Random) -> Iterator[str]:
    """Yield what is wrong with blocks and single records that are read as one sequence."""
    items: list[PendingRecord] = [block for _, block, _ in held] + _singles(calls, dice)
    dice.shuffle(items)
    rows = {id(block): (call, rows) for call, block, rows in held}
    flat: list[tuple[object, ...]] = []
    for item in items:
        if id(item) in rows:
            call, its = rows[id(item)]
            flat += [call.facts(row) for row in its]
        else:
            flat.append(_said(item))
    runs = records_of(items)
    if type(runs) is not RecordRuns:
        yield f"type of the sequence: told {type(runs).__name__}, expected RecordRuns"
        return
    begin, end = sorted(dice.choices(range(len(flat) + 1), k=2))
    at = dice.randrange(-len(flat), len(flat))
    pairs: dict[str, tuple[object, object]] = {
        "length": (len(runs), len(flat)),
        "count": (count_of(items), len(flat)),
        "size": (runs.size, sum(item.size for item in items)),
        "items": (items_of(runs), items),
        "all": ([_said(each) for each in runs], flat),
        f"record {at}": (_said(runs[at]), flat[at]),
        f"records {begin} to {end}": ([_said(each) for each in runs[begin:end]], flat[begin:end]),
        "every second record, backwards": ([_said(each) for each in runs[::-2]], flat[::-2]),
        "overhead": (runs.overhead(), sum(item.overhead() for item in items)),
        "generations": (runs.by_generation(), Counter(each[-1] for each in flat)),
        "largest": (
            runs.largest,
            max(max(rows[id(item)][0].sizes) if id(item) in rows else item.size for item in items),
        ),
        "encoded": (runs.encode(), _encoded(runs)),
        "an index beyond the ends raises IndexError": (
            _beyond(runs, len(flat)) and _beyond(runs, -len(flat) - 1),
            True,
        ),
    }
    yield from differences(pairs)


def _encoded(runs: RecordRuns) -> tuple[bytes, int, int, int]:
    """Encode the records one by one, each as a sequence of its own."""
    records = list(runs)
    first = records[0].timestamp_ms
    pieces = [
        encode_columns(
            (each.value,),
            each.key,
            tuple(each.headers),
            each.timestamp_ms,
            None,
            0,
            1,
            offset,
            first,
        )
        for offset, each in enumerate(records)
    ]
    return b"".join(pieces), len(records), first, max(each.timestamp_ms for each in records)


def _beyond(runs: RecordRuns, index: int) -> bool:
    """Return whether an index is refused."""
    try:
        runs[index]
    except IndexError:
        return True
    return False


def _order(held: _Held, calls: Sequence[_Call], dice: Random) -> Iterator[str]:
    """Yield what is wrong with the order into which the records of two queues are brought.

    Each item has a mark, which must stay with its records.
    """
    marked = [(dice.choice("ab"), block) for _, block, _ in held]
    single = [(dice.choice("ab"), each) for each in _singles(calls, dice)]
    # What each record comes with, by its ordinal; singles may have the same ordinal.
    due = Counter((mark, each.ordinal) for mark, each in single)
    for (mark, _), (call, _, rows) in zip(marked, held, strict=True):
        due.update((mark, call.ordinal(row)) for row in rows)
    mixed: list[tuple[str, Any]] = [*marked, *single]
    dice.shuffle(mixed)
    found: list[tuple[str, int]] = []
    last: tuple[object, ...] | None = None
    for mark, item in in_call_order(mixed):
        own = [(mark, each.ordinal) for each in RecordRuns([item])]
        alike = (mark, id(item.receiver)) if isinstance(item, RecordBlock) else None
        if alike is not None and alike == last and _overlapped(found[-1], own[0], marked):
            yield f"records {found[-1]} and {own[0]} of one call are in two blocks, expected in one"
        found += own
        last = alike
    if Counter(found) != due:
        yield f"marked records: told {sorted(found)}, expected {sorted(due.elements())}"
    numbers = [ordinal for _, ordinal in found]
    if numbers != sorted(numbers):
        yield f"order of calls: told {numbers}, expected {sorted(numbers)}"


def _overlapped(
    before: tuple[str, int], after: tuple[str, int], marked: Sequence[tuple[str, RecordBlock]]
) -> bool:
    """Return whether some block had records on both sides of the place between two records."""
    for _, block in marked:
        first, last = block.ordinal, block.base + block.row(block.count - 1)
        if first <= before[1] and after[1] <= last:
            return True
    return False
