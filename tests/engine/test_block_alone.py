"""`RecordBlock` and its columns alone: what a part of a call has of the whole call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from aioidem._engine.record import BLOCK_MEMORY, HEADER_MEMORY, Outcome, PendingRecord
from aioidem._engine.record_block import (
    BLOCK,
    Columns,
    RecordBlock,
    RecordRuns,
    count_of,
    items_of,
    records_of,
)
from aioidem._records import build_batch as built
from aioidem._records import read_batches
from aioidem.structs import DeliveryStatus

VALUES = (b"", b"1", b"22", b"333", b"4444", b"55555")
KEYS = (b"a", None, b"c", b"d", None, b"f")
STAMPS = array("q", [50, 10, 40, 30, 60, 20])


class Receiver:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[list[int], Outcome, int]] = []

    def take(self, rows: Sequence[int], outcome: Outcome, place: int) -> None:
        self.told.append((list(rows), outcome, place))


def columns(*, shared: bool = False) -> Columns:
    """Return six records; with `shared` they share the key, the header and the timestamp."""
    if shared:
        return Columns(VALUES, b"k", (("h", b"w"),), 7)
    return Columns(VALUES, KEYS, [(("h", b"w"),) * row for row in range(6)], STAMPS)


def block(*, shared: bool = False, receiver: Receiver | None = None) -> RecordBlock:
    made = RecordBlock(columns(shared=shared), receiver or Receiver(), 3)
    made.deadline, made.queued_at, made.generation = 90.0, 5.0, 2
    made.begin_at(100)
    return made


def marks(record: PendingRecord) -> tuple[object, ...]:
    """Return what the accumulator has set on a block or a record, and what they share."""
    return (record.deadline, record.queued_at, record.generation, record.partition)


# -- columns


def test_columns_know_their_number_and_their_earliest_and_latest_timestamp() -> None:
    several, alike = columns(), columns(shared=True)
    assert (len(several), several.earliest, several.latest) == (6, 10, 60)
    assert (len(alike), alike.earliest, alike.latest) == (6, 7, 7)
    empty = Columns((), None, (), array("q"))
    assert (len(empty), empty.earliest, empty.latest) == (0, 0, 0)


@pytest.mark.parametrize("shared", [False, True])
def test_each_record_has_its_row(shared: bool) -> None:
    of = columns(shared=shared)
    for row in range(6):
        assert of.key(row) == (b"k" if shared else KEYS[row])
        assert of.stamp(row) == (7 if shared else STAMPS[row])
        assert tuple(of.headers_of(row)) == (("h", b"w"),) * (1 if shared else row)


@pytest.mark.parametrize("shared", [False, True])
def test_the_records_before_a_row_are_columns_of_their_own(shared: bool) -> None:
    of, part = columns(shared=shared), columns(shared=shared).before(4)
    assert (len(part), part.values) == (4, VALUES[:4])
    for row in range(4):
        assert (part.key(row), part.stamp(row)) == (of.key(row), of.stamp(row))
        assert part.headers_of(row) == of.headers_of(row)
    assert list(part.sizes) == list(of.sizes)[:5]
    assert part.latest == (7 if shared else 50)


def test_keys_are_hashed_for_a_number_of_partitions() -> None:
    of = columns()
    ten = of.hashed(10)
    assert [index == -1 for index in ten] == [key is None for key in KEYS]
    assert of.hashed(10) is ten
    three = of.hashed(3)
    assert {index for index in three if index >= 0} <= {0, 1, 2}
    assert list(of.hashed(10)) == list(ten) != list(three)
    alike = columns(shared=True).hashed(10)
    assert len(alike) == 6
    assert len(set(alike)) == 1


# -- blocks


def test_a_block_stands_for_all_of_its_records() -> None:
    whole = block()
    assert (whole.count, whole.size) == (6, whole.columns.sizes[6])
    assert (whole.key, whole.value, whole.headers) == (None, None, ())
    assert (whole.timestamp_ms, whole.ordinal, whole.base) == (50, 100, 100)
    assert whole.group is BLOCK
    assert list(whole.chosen) == [0, 1, 2, 3, 4, 5]
    assert block(shared=True).key == b"k"
    fresh = RecordBlock(columns(), Receiver(), None)
    assert (fresh.base, fresh.ordinal, fresh.partition) == (0, 0, None)


def test_a_block_without_records_is_empty() -> None:
    none = RecordBlock(Columns((), None, (), 0), Receiver(), None)
    assert (none.count, none.size) == (0, 0)
    assert block().part(2, 2).count == 0


@pytest.mark.parametrize("shared", [False, True])
def test_a_part_has_what_the_whole_has(shared: bool) -> None:
    whole = block(shared=shared)
    part = whole.part(1, 4)
    assert (part.count, list(part.chosen)) == (3, [1, 2, 3])
    assert (part.key, part.value, part.headers, part.group) == (whole.key, None, (), BLOCK)
    assert marks(part) == marks(whole) == (90.0, 5.0, 2, 3)
    assert (part.ordinal, part.timestamp_ms) == (101, 7 if shared else 10)
    assert part.size == sum(whole.size_of(index) for index in (1, 2, 3))
    assert part.size_of(2) == whole.size_of(3)
    assert part.first_size == whole.size_of(1)
    inner = part.part(1, 3)
    assert (list(inner.chosen), inner.ordinal) == ([2, 3], 102)


def test_what_is_taken_is_not_left() -> None:
    whole = block()
    taken = whole.take(2)
    assert (list(taken.chosen), list(whole.chosen)) == ([0, 1], [2, 3, 4, 5])
    assert (whole.ordinal, whole.timestamp_ms, whole.count) == (102, 40, 4)
    assert taken.size + whole.size == block().size


def test_a_block_of_chosen_rows_has_their_sizes_and_ordinals() -> None:
    whole = block()
    chosen = whole.among(array("q", [1, 4, 5]))
    assert (chosen.count, list(chosen.chosen)) == (3, [1, 4, 5])
    assert [chosen.size_of(index) for index in range(3)] == [whole.size_of(i) for i in (1, 4, 5)]
    assert (chosen.ordinal, chosen.timestamp_ms) == (101, 10)
    assert marks(chosen) == marks(whole)
    later = chosen.part(1, 3)
    assert (list(later.chosen), later.ordinal) == ([4, 5], 104)
    chosen.begin_at(200)
    assert (chosen.base, chosen.ordinal, chosen.record(1).ordinal) == (199, 200, 203)
    rows = RecordBlock(columns(), Receiver(), None, array("q", [1, 4]))
    assert (rows.count, rows.size) == (2, whole.size_of(1) + whole.size_of(4))


def test_the_latest_timestamp_is_that_of_the_records() -> None:
    assert [block().part(*ends).latest() for ends in ((0, 6), (0, 4), (1, 2))] == [60, 50, 10]
    assert block(shared=True).latest() == 7


@pytest.mark.parametrize("less", [0, 2])
@pytest.mark.parametrize("begin", [0, 2])
def test_as_many_records_fit_as_their_sizes_say(less: int, begin: int) -> None:
    part = block().part(begin, 6)
    sizes = [part.size_of(index) - less for index in range(part.count)]
    for room in range(-1, sum(sizes) + 3):
        fits = part.fitting(room, less)
        assert sum(sizes[:fits]) <= max(room, 0)
        assert fits == part.count or sum(sizes[: fits + 1]) > room
    total = sum(part.size_of(index) for index in range(part.count))
    assert part.reaching(1) == 1
    assert part.reaching(part.size_of(0)) == 1
    assert part.reaching(part.size_of(0) + 1) == 2
    assert part.reaching(total) == part.reaching(total + 1) == part.count


def test_the_memory_of_a_block_counts_records_and_headers() -> None:
    several, alike = block(), block(shared=True)
    assert several.overhead() == 6 * BLOCK_MEMORY + 15 * HEADER_MEMORY
    assert several.part(1, 3).overhead() == 2 * BLOCK_MEMORY + 3 * HEADER_MEMORY
    assert alike.overhead() == 6 * BLOCK_MEMORY + 6 * HEADER_MEMORY
    for each in (several, alike):
        assert each.charge() == each.size + each.overhead()


@pytest.mark.parametrize("shared", [False, True])
def test_a_block_knows_how_many_of_its_records_the_memory_admits(shared: bool) -> None:
    """Headers take memory, too: those of each record, and those that all records have."""
    part = block(shared=shared).part(1, 6)
    for count in range(1, part.count + 1):
        charge = part.part(0, count).charge()
        assert part.affordable(charge) == count
        assert part.affordable(charge - 1) == count - 1
    assert part.affordable(part.charge() + 1_000) == part.count
    assert part.affordable(0) == part.affordable(-1) == 0


# -- single records


@pytest.mark.parametrize("shared", [False, True])
def test_a_record_of_a_block_has_its_row_and_its_block_s_marks(shared: bool) -> None:
    receiver = Receiver()
    whole = block(shared=shared, receiver=receiver)
    record = whole.part(1, 5).record(2)
    assert (record.key, record.value) == (b"k" if shared else b"d", b"333")
    assert tuple(record.headers) == (("h", b"w"),) * (1 if shared else 3)
    assert (record.timestamp_ms, record.ordinal) == (7 if shared else 30, 103)
    assert record.size == whole.size_of(3)
    assert marks(record) == marks(whole)
    outcome = Outcome("t", 3, DeliveryStatus.ACKED)
    record.settle(outcome, 8)
    whole.part(4, 6).settle(outcome, 9)
    assert receiver.told == [([3], outcome, 8), ([4, 5], outcome, 9)]


# -- sequences of items


def single(value: bytes, size: int) -> PendingRecord:
    record = PendingRecord(b"s", value, (), 99, None, size)
    record.generation = 4
    return record


def runs() -> RecordRuns:
    """Return eight records: a single one, a block of six, and another single one."""
    return RecordRuns([single(b"first", 20), block(), single(b"last", 90)])


ALL = [b"first", *VALUES, b"last"]


def test_a_sequence_has_the_records_of_its_items() -> None:
    of = runs()
    assert len(of) == 8
    assert of.size == 20 + block().size + 90
    assert [record.value for record in of] == ALL
    for index in range(-8, 8):
        assert of[index].value == ALL[index]
    for index in (-9, 8):
        with pytest.raises(IndexError, match=f"record {index} of 8"):
            of[index]


def test_a_slice_of_a_sequence_keeps_blocks_where_it_can() -> None:
    of = runs()
    for begin in range(9):
        for end in range(9):
            found = of[begin:end]
            assert [record.value for record in found] == ALL[begin:end]
            assert type(found) is RecordRuns
            assert all(item.count for item in found.items)
    assert [item.count for item in items_of(of[0:8])] == [1, 6, 1]
    assert items_of(of[1:7])[0] is items_of(of)[1], "a whole block is not copied"
    assert [item.count for item in items_of(of[3:8])] == [4, 1]
    assert [record.value for record in of[::2]] == ALL[::2]
    assert [record.value for record in of[::-1]] == ALL[::-1]


def test_the_largest_record_is_known_of_the_whole_call() -> None:
    assert runs().largest == 90
    assert RecordRuns([single(b"first", 2), block()]).largest == block().columns.largest


def test_memory_and_generations_add_up() -> None:
    of = runs()
    parts = [item.overhead() for item in items_of(of)]
    assert of.overhead() == sum(parts)
    assert of.by_generation() == {4: 2, 2: 6}
    assert count_of(items_of(of)) == 8


def test_a_sequence_is_encoded_as_its_records_are() -> None:
    for items in ([block()], [single(b"first", 20), block().part(2, 5), single(b"last", 20)]):
        of = RecordRuns(items)
        section, count, first, latest = of.encode()
        assert (count, first) == (len(of), items[0].timestamp_ms)
        assert latest == max(record.timestamp_ms for record in of)
        (batch,) = read_batches(built(of).data)
        assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in batch.records()] == [
            (r.key, r.value, r.timestamp_ms, tuple(r.headers)) for r in of
        ]
        assert [r.offset for r in batch.records()] == list(range(len(of)))
        assert section in built(of).data


def test_only_items_with_a_block_become_a_sequence() -> None:
    singles = [single(b"1", 9), single(b"2", 9)]
    assert records_of(singles) is singles
    assert items_of(singles) is singles
    mixed = [*singles, block()]
    assert items_of(records_of(mixed)) is mixed
    assert len(records_of(mixed)) == 8
