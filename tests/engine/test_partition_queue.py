"""`PartitionQueue` alone: what one batch takes from its head, and when it is ready."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest

from aioidem._engine.draft import Draft
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import Outcome, PendingRecord, RecordGroup
from aioidem._engine.record_block import Columns, RecordBlock, count_of, items_of
from aioidem._records import BATCH_OVERHEAD, build_batch, record_size_bound

NOW_MS = 1_795_250_000_000
VALUE = b"v" * 20
SIZE = record_size_bound(None, VALUE, ())
PLENTY = 10_000


class Receiver:
    def take(self, rows: Sequence[int], outcome: Outcome, place: int) -> None:
        raise AssertionError(f"nothing is settled here: {rows} {outcome} {place}")


def single(
    stamp: int = NOW_MS, *, group: RecordGroup | None = None, size: int = 20
) -> PendingRecord:
    value = b"v" * size
    record = PendingRecord(None, value, (), stamp, None, record_size_bound(None, value, ()), group)
    record.deadline = 90.0
    return record


def block(count: int, stamps: int | array[int] = NOW_MS) -> RecordBlock:
    made = RecordBlock(Columns((VALUE,) * count, None, (), stamps), Receiver(), None)
    made.deadline = 90.0
    return made


def grouped(count: int) -> list[PendingRecord]:
    group = RecordGroup(count * SIZE + BATCH_OVERHEAD)
    return [single(group=group) for _ in range(count)]


def queue(*items: PendingRecord) -> PartitionQueue:
    made = PartitionQueue()
    for item in items:
        made.append(item, 5.0)
    return made


def copied(items: list[PendingRecord]) -> list[PendingRecord]:
    """Return the items with copies of their blocks, as a queue divides its own."""
    return [item.part(0, item.count) if isinstance(item, RecordBlock) else item for item in items]


def built(records: Sequence[PendingRecord]) -> int:
    """Return the size of these records' batch, in bytes."""
    return len(build_batch(records).data)


# -- how much a batch takes


MIXES: dict[str, Callable[[], list[PendingRecord]]] = {
    "a block": lambda: [block(60)],
    "single records, then a block": lambda: [*(single() for _ in range(20)), block(40)],
    "a block, then single records": lambda: [block(20), *(single() for _ in range(40))],
    "blocks and single records": lambda: [block(9), single(), block(5), single(), block(44)],
}


@pytest.mark.parametrize("mix", MIXES)
def test_a_batch_takes_as_many_records_of_one_size_as_it_can_hold(mix: str) -> None:
    """Its size is known exactly, as each of its records has as many bytes as the largest."""
    every = [single() for _ in range(60)]
    for limit in range(BATCH_OVERHEAD + 1, built(every) + 9):
        waiting = queue(*MIXES[mix]())
        before = waiting.bytes
        taken = waiting.cut(limit, PLENTY)
        fits = max([1, *(n for n in range(1, 61) if built(every[:n]) <= limit)])
        assert count_of(items_of(taken)) == fits, limit
        assert waiting.count == 60 - fits
        assert waiting.bytes == before - sum(item.size for item in items_of(taken))


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("most", [1, 2, 9, 10, 20, 21, 59, 60])
def test_a_batch_has_no_more_records_than_it_may(mix: str, most: int) -> None:
    waiting = queue(*MIXES[mix]())
    assert count_of(items_of(waiting.cut(100_000, most))) == most
    assert waiting.count == 60 - most
    assert bool(waiting.bytes) is (most < 60)


SPANS: dict[str, list[PendingRecord]] = {
    "a block whose stamps rise": [block(40, array("q", range(NOW_MS, NOW_MS + 40 * 200, 200)))],
    "a block whose stamps fall": [block(40, array("q", range(NOW_MS, NOW_MS - 40 * 200, -200)))],
    "a block earlier than the record before it": [single(NOW_MS + 9000), block(39)],
    "a block later than the record before it": [single(NOW_MS - 9000), block(39)],
    "a record earlier than its block": [block(20), single(NOW_MS - 9000), block(19)],
    "a record later than its block": [block(20), single(NOW_MS + 9000), block(19)],
    "records apart, then a block": [single(), single(NOW_MS - 9000), single(), block(37)],
    "records after each other, then a block": [single(), single(NOW_MS + 9000), block(38)],
}


@pytest.mark.parametrize("spans", SPANS)
def test_times_apart_are_counted_with_the_bytes_that_they_may_take(spans: str) -> None:
    """Nine seconds take three bytes, so at most two bytes of each record are left unused."""
    items = SPANS[spans]
    every = [record for item in items for record in queue(item).cut(PLENTY, PLENTY)]
    for limit in range(BATCH_OVERHEAD + 4 * SIZE, built(every), 7):
        waiting = queue(*copied(items))
        taken = len(waiting.cut(limit, PLENTY))
        assert built(every[:taken]) <= limit
        assert built(every[: taken + 1]) > limit - 2 * (taken + 1) - 4, limit


def test_large_records_among_small_ones_never_exceed_the_limit() -> None:
    large = single(size=200)
    for items in ([block(9), large, block(9)], [large, block(18)], [block(18), large]):
        every = [record for item in items for record in queue(item).cut(PLENTY, PLENTY)]
        for limit in range(BATCH_OVERHEAD + 240, built(every) + 40):
            waiting = queue(*copied(items))
            taken = len(waiting.cut(limit, PLENTY))
            assert built(every[:taken]) <= limit
            more = every[: taken + 1]
            assert taken == len(every) or built(more) > limit - 2 * len(more), limit


# -- groups


def test_a_group_that_fits_is_taken_whole_and_alone() -> None:
    group = grouped(5)
    limit = group[0].group.size if group[0].group else 0
    for following in (single(), block(3), grouped(2)[0]):
        waiting = queue(*group, following)
        assert list(waiting.cut(limit, PLENTY)) == group
        assert waiting.count == following.count


def test_a_group_that_fits_is_not_joined_by_another_one() -> None:
    first, second = grouped(3), grouped(3)
    waiting = queue(*first, *second)
    assert list(waiting.cut(PLENTY, PLENTY)) == first
    assert list(waiting.cut(PLENTY, PLENTY)) == second


def test_a_group_that_does_not_fit_is_divided() -> None:
    group = grouped(5)
    limit = group[0].group.size if group[0].group else 0
    waiting = queue(*group, single())
    assert 0 < len(waiting.cut(built(group[:4]), PLENTY)) < 5
    waiting = queue(*grouped(5))
    assert len(waiting.cut(limit, 3)) == 3


@pytest.mark.parametrize("first", [1, 3])
def test_neither_a_block_nor_single_records_join_a_group(first: int) -> None:
    group = grouped(2)
    waiting = queue(*(single() for _ in range(first)), *group)
    assert len(waiting.cut(PLENTY, PLENTY)) == first
    waiting = queue(block(first), *group)
    assert len(waiting.cut(PLENTY, PLENTY)) == first
    waiting = queue(*group, block(first))
    assert len(waiting.cut(PLENTY, PLENTY)) == 2
    divided = RecordGroup(PLENTY + 1)
    for following in (block(first), single()):
        waiting = queue(*(single(group=divided) for _ in range(2)), following)
        assert len(waiting.cut(PLENTY, PLENTY)) == 2


# -- when it is ready


def test_nothing_is_ready_where_nothing_waits() -> None:
    assert not queue().ready(99.0, linger=0.0, batch_size=0)


def test_a_batch_is_ready_when_it_is_full_or_has_waited_or_is_hurried() -> None:
    waiting = queue(single())
    full = waiting.bytes + BATCH_OVERHEAD
    assert not waiting.ready(5.0, linger=1.0, batch_size=full + 1)
    assert waiting.ready(5.0, linger=1.0, batch_size=full)
    assert not waiting.ready(5.99, linger=1.0, batch_size=PLENTY)
    assert waiting.ready(6.0, linger=1.0, batch_size=PLENTY)
    assert waiting.ready(4.0, linger=0.0, batch_size=PLENTY), "whatever the clock says"
    waiting.hurry()
    assert waiting.ready(5.0, linger=1.0, batch_size=PLENTY)


def test_a_flush_is_for_the_records_that_are_there() -> None:
    waiting = queue()
    waiting.flush()
    waiting.append(single(), 5.0)
    assert not waiting.ready(5.0, linger=1.0, batch_size=PLENTY)
    waiting.flush()
    assert waiting.ready(5.0, linger=1.0, batch_size=PLENTY)


def test_the_first_size_is_that_of_one_record() -> None:
    assert queue(block(3), single(size=99)).first_size == block(3).size // 3
    assert queue(single(size=99), block(3)).first_size == single(size=99).size


# -- putting back


def marked(*items: PendingRecord) -> PartitionQueue:
    """Return a queue that is held back and flushed."""
    waiting = queue(*items)
    waiting.hold_back()
    waiting.flush()
    return waiting


def test_the_head_is_only_looked_at() -> None:
    for items in ([single(), single()], [block(2)]):
        waiting = marked(*items)
        before = waiting.bytes
        assert len(waiting.head(PLENTY, PLENTY)) == 2
        assert (waiting.blocked, waiting.flushing) == (True, True)
        assert (waiting.bytes, waiting.count) == (before, 2)


@pytest.mark.parametrize("items", [[single(), single()], [block(2)]], ids=["single", "block"])
def test_the_last_cut_ends_what_was_to_be_done(items: list[PendingRecord]) -> None:
    waiting = marked(*items)
    waiting.cut(PLENTY, 1)
    assert (waiting.blocked, waiting.flushing) == (True, True)
    waiting.cut(PLENTY, 1)
    assert (waiting.blocked, waiting.flushing, waiting.bytes) == (False, False, 0)


def test_what_is_put_back_is_at_the_head_again() -> None:
    items = [single(size=1), single(size=2), block(3)]
    waiting = queue(*items)
    size = waiting.bytes
    taken = waiting.cut(PLENTY, 3)
    waiting.put_back(taken, flushing=True)
    assert waiting.flushing
    assert (waiting.bytes, waiting.count) == (size, 5)
    assert [record.value for record in waiting.cut(PLENTY, PLENTY)] == [b"v", b"vv", *[VALUE] * 3]


def drafted(waiting: PartitionQueue, most: int) -> Draft:
    waiting.draft = Draft(waiting.head(PLENTY, most))
    return waiting.draft


def test_a_draft_leaves_the_queue_as_a_batch_does() -> None:
    for more in (0, 2):
        items = [single(), block(2), *(single() for _ in range(more))]
        waiting = marked(*items)
        size = waiting.bytes
        draft = drafted(waiting, 3)
        assert waiting.cut_draft(draft) is draft.records
        left = size - sum(item.size for item in items[:2])
        assert (waiting.bytes, waiting.draft) == (left, None)
        assert waiting.count == more
        assert (waiting.blocked, waiting.flushing) == (bool(more), bool(more))


def test_a_draft_is_shortened_in_its_place() -> None:
    waiting = marked(single(size=1), single(size=2), single(size=3), single(size=4))
    size = waiting.bytes
    draft = drafted(waiting, 4)
    kept = waiting.shorten_draft(draft, 2)
    assert [record.value for record in kept] == [b"v", b"vv"]
    assert (waiting.bytes, waiting.count, waiting.draft) == (size, 4, None)
    assert (waiting.blocked, waiting.flushing) == (True, True)
    assert [len(record.value or b"") for record in waiting.cut(PLENTY, PLENTY)] == [1, 2, 3, 4]


def test_expired_records_are_taken_out_from_the_head() -> None:
    early, late = single(), single()
    early.deadline, late.deadline = 10.0, 10.5
    waiting = marked(early, late)
    assert waiting.expire(9.9) == []
    assert waiting.expire(10.0) == [early]
    assert (waiting.bytes, waiting.blocked, waiting.flushing) == (late.size, True, True)
    assert waiting.expire(11.0) == [late]
    assert (waiting.bytes, waiting.blocked, waiting.flushing) == (0, False, False)


def test_an_emptied_queue_has_nothing_left() -> None:
    waiting = marked(single(), block(2))
    assert [item.count for item in waiting.empty()] == [1, 2]
    assert (waiting.bytes, waiting.count) == (0, 0)
    assert (waiting.blocked, waiting.flushing, waiting.draft) == (False, False, None)
