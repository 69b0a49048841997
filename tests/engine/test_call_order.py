"""Records that are taken back from several partitions are put into call order again."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine.call_order import in_call_order
from aioidem._engine.record import Outcome, PendingRecord
from aioidem._engine.record_block import Columns, RecordBlock, RecordRuns
from aioidem._engine.unassigned import UnassignedRecords


class Told:
    """A receiver of outcomes that fails if it gets one, because these tests settle no record."""

    def take(self, rows: object, outcome: Outcome, place: int) -> None:
        raise AssertionError(f"nothing is settled here: {rows} {outcome} {place}")


def call_of(count: int, first: int) -> RecordBlock:
    """Return the block of a call with `count` records, whose ordinals begin with `first`."""
    values = tuple(b"%d" % (first + row) for row in range(count))
    block = RecordBlock(Columns(values, None, (), 0), Told(), None)
    block.deadline = 60.0
    block.begin_at(first)
    return block


def single(ordinal: int) -> PendingRecord:
    """Return a single record with this ordinal, which is its value as well."""
    record = PendingRecord(None, b"%d" % ordinal, (), 0, None, 10)
    record.deadline, record.ordinal = 60.0, ordinal
    return record


def numbers(items: list[PendingRecord]) -> list[int]:
    """Return the ordinals of all records of these items, and check that their values agree."""
    records = list(RecordRuns(items))
    assert [record.value for record in records] == [b"%d" % each.ordinal for each in records]
    return [record.ordinal for record in records]


@st.composite
def taken_back(draw: st.DrawFn) -> list[PendingRecord]:
    """Draw calls of one or many records, and divide those of many among three partitions."""
    items: list[PendingRecord] = []
    ordinal = 1
    for count in draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)):
        if count == 1:
            items.append(single(ordinal))
        else:
            block = call_of(count, ordinal)
            rows: dict[int, list[int]] = {}
            for row in range(count):
                rows.setdefault(draw(st.integers(0, 2)), []).append(row)
            for index, chosen in rows.items():
                part = block.among(array("q", chosen))
                if index == 2:  # a batch of this partition was split: its records are single ones
                    items += [part.record(number) for number in range(part.count)]
                else:
                    items.append(part)
        ordinal += count
    return draw(st.permutations(items))


@given(taken_back())
def test_records_of_all_partitions_are_in_call_order(items: list[PendingRecord]) -> None:
    """No record is before an earlier one, none is lost, and none comes twice."""
    count = sum(item.count for item in items)
    ordered = [item for _, item in in_call_order((None, item) for item in items)]
    assert numbers(ordered) == list(range(1, count + 1))
    assert len(ordered) <= count


def test_the_blocks_of_a_call_become_one_block_again() -> None:
    """Two blocks that each have every other record of one call are united into one block.

    One block costs less than many blocks of one record each.
    """
    block = call_of(6, 1)
    parts = [block.among(array("q", rows)) for rows in ((1, 3, 5), (0, 2, 4))]
    [(_, whole)] = in_call_order((None, part) for part in parts)
    assert numbers([whole]) == [1, 2, 3, 4, 5, 6]


def test_blocks_that_wait_for_different_times_are_ordered_and_stay_apart() -> None:
    """Records of two blocks are put in call order, and each record keeps its block's deadline."""
    block = call_of(4, 1)
    waiting = UnassignedRecords()
    waiting.wait(9.0, 0, block.among(array("q", [1, 3])))
    waiting.wait(5.0, 2, block.among(array("q", [0, 2])))
    waiting.put_in_order()
    found = waiting.take()
    assert [(each.until, each.asked) for each in found] == [(5.0, 2), (9.0, 0)] * 2
    assert numbers([each.record for each in found]) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "value"), [("deadline", 61.0), ("generation", 9), ("partition", 3)]
)
def test_blocks_that_differ_in_what_a_block_has_once_stay_apart(name: str, value: float) -> None:
    """A block has one deadline, one partition and one generation, so each part keeps its own."""
    block = call_of(4, 1)
    other, one = (block.among(array("q", rows)) for rows in ((1, 3), (0, 2)))
    setattr(other, name, value)
    ordered = [item for _, item in in_call_order((None, part) for part in (other, one))]
    assert numbers(ordered) == [1, 2, 3, 4]
    assert [getattr(item, name) == value for item in ordered] == [False, True, False, True]


def test_single_records_between_the_parts_of_a_call_keep_their_places() -> None:
    block = call_of(4, 1)
    items = [single(3), block.among(array("q", [0, 1, 3])), single(7), call_of(2, 5)]
    ordered = [item for _, item in in_call_order((None, each) for each in items)]
    assert numbers(ordered) == [1, 2, 3, 4, 5, 6, 7]
    assert ordered[1] is items[0]
    assert ordered[-1] is items[2]
    assert ordered[-2] is items[3], "what overlaps with nothing is passed on as it is"
