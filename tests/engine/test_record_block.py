"""Blocks: many records of one call, kept as columns, which queues hold like a single record."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem import errors
from aioidem._engine.draft import Draft
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import Outcome, PendingRecord, RecordGroup
from aioidem._engine.record_block import Columns, RecordBlock, RecordRuns, count_of, items_of
from aioidem._engine.settlement import Settlement
from aioidem._engine.spreading import spread
from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.topic_view import TopicView
from aioidem._producer.settled_records import SettledRecords
from aioidem._protocol.metadata import PartitionUpdate
from aioidem._records import BATCH_OVERHEAD, build_batch, read_batches, record_size_bound
from aioidem.partitioner import DefaultPartitioner
from aioidem.structs import DeliveryStatus

from .driver import Rig, T

ACKED = DeliveryStatus.ACKED


class Told:
    """Receives outcomes, and notes each settled row's place among the records of its outcome."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.calls = 0

    def take(self, rows: Sequence[int], outcome: Outcome, place: int) -> None:
        """Note the outcome of some rows."""
        del outcome
        self.calls += 1
        for index, row in enumerate(rows):
            assert row not in self.places, f"row {row} is settled twice"
            self.places[row] = place + index


def block(
    *values: bytes | None,
    keys: Any = None,
    headers: Any = (),
    stamps: Any = 0,
    rows: Sequence[int] | None = None,
    told: Told | None = None,
) -> RecordBlock:
    """Return a block of records with these values, or of only those in the given `rows`."""
    made = RecordBlock(
        Columns(values, keys, headers, stamps),
        told or Told(),
        None,
        None if rows is None else array("q", rows),
    )
    made.begin_at(made.row(0) + 1)
    return made


def single(value: bytes, stamp: int = 0) -> PendingRecord:
    """Return a single record."""
    return PendingRecord(None, value, (), stamp, None, record_size_bound(None, value, ()))


def values_of(records: Sequence[PendingRecord]) -> list[bytes | None]:
    """Return the values of `records`."""
    return [record.value for record in records]


_VALUE = st.integers(0, 300).map(lambda size: b"v" * size)
_STAMP = st.integers(0, 10**6)


@st.composite
def items(draw: st.DrawFn) -> PendingRecord:
    """Draw a single record, or a block of any kind."""
    if draw(st.booleans()):
        return single(draw(_VALUE), draw(_STAMP))
    values = draw(st.lists(_VALUE | st.none(), min_size=1, max_size=12))
    count = len(values)
    return block(
        *values,
        keys=draw(st.none() | st.just(b"k") | st.just((b"key",) * count)),
        headers=draw(st.just(()) | st.just([(("h", b"1"),)] * count)),
        stamps=draw(_STAMP | st.lists(_STAMP, min_size=count, max_size=count)
                    .map(lambda all_of_them: array("q", all_of_them))),
        rows=draw(st.none() | st.just(range(0, count, 2))),
    )  # fmt: skip


def described(records: Sequence[PendingRecord]) -> list[tuple[Any, ...]]:
    """Return what is sent of each record, and what the engine keeps of it."""
    return [(r.key, r.value, tuple(r.headers), r.timestamp_ms, r.size, r.ordinal) for r in records]


@given(
    queued=st.lists(items(), min_size=1, max_size=8),
    limit=st.integers(1, 3000),
    most=st.integers(1, 30),
)
def test_a_cut_never_exceeds_its_limit_and_loses_nothing(
    queued: list[PendingRecord], limit: int, most: int
) -> None:
    queue = PartitionQueue()
    for item in queued:
        queue.append(item, 0.0)
    everything = described(list(RecordRuns(queued)))
    assert queue.count == len(everything)
    seen: list[tuple[Any, ...]] = []
    while queue.records:
        first = queue.first_size
        taken = queue.cut(limit, most)
        assert taken[0].size == first
        assert len(taken) <= most
        built = build_batch(taken)
        assert built.count == len(taken)
        assert len(taken) == 1 or len(built.data) <= limit
        seen += described(list(taken))
        assert queue.bytes == sum(item.size for item in queue.records)
        assert queue.count == len(everything) - len(seen)
    assert seen == everything


@given(queued=st.lists(items(), min_size=1, max_size=6), limit=st.integers(1, 500))
def test_records_give_back_what_was_taken_for_them(queued: list[PendingRecord], limit: int) -> None:
    """However blocks are divided, and into which objects, the charges add up to those of before."""
    taken = sum(item.charge() for item in queued)
    outcome = Outcome("t", 0, DeliveryStatus.ACKED)
    whole = Settlement.of_items(outcome, queued)
    assert whole.size() + whole.overhead() == taken
    queue = PartitionQueue()
    for item in queued:
        queue.append(item, 0.0)
    given_back = 0
    while queue.records:
        records = queue.cut(limit, 30)
        parts = [records] if len(records) % 2 else [[record] for record in records]
        settlements = [Settlement(outcome, part) for part in parts]
        given_back += sum(each.size() + each.overhead() for each in settlements)
    assert given_back == taken


@given(
    queued=st.lists(items(), min_size=1, max_size=6), begin=st.integers(0, 9), end=st.integers(0, 9)
)
def test_records_of_blocks_look_like_single_records(
    queued: list[PendingRecord], begin: int, end: int
) -> None:
    """`RecordRuns` of blocks and single records is equal to a list of all these records.

    Its elements, its slices and the batch built from it are the same as those of the list.
    """
    runs = RecordRuns(queued)
    singles = list(runs)
    assert described([runs[place] for place in range(len(runs))]) == described(singles)
    assert described(runs[begin:end]) == described(singles[begin:end])
    assert described(runs[-2:]) == described(singles[-2:])
    assert runs.size == sum(record.size for record in singles)
    together, apart = build_batch(runs), build_batch(singles)
    for name in ("data", "count", "uncompressed_size", "max_timestamp_ms"):
        assert getattr(together, name) == getattr(apart, name)
    with pytest.raises(IndexError):
        runs[len(runs)]


@given(
    queued=st.lists(items(), min_size=1, max_size=6),
    limit=st.integers(100, 3000),
    keep=st.integers(0, 9),
)
def test_what_is_put_back_is_cut_again(queued: list[PendingRecord], limit: int, keep: int) -> None:
    queue = PartitionQueue()
    for item in queued:
        queue.append(item, 0.0)
    everything, nbytes = values_of(list(RecordRuns(queued))), queue.bytes
    taken = queue.cut(limit, 1000)
    kept = values_of(list(taken[:keep]))
    size = sum(record.size for record in taken[:keep])
    queue.put_back(taken[keep:], flushing=True)
    assert queue.bytes == nbytes - size
    assert queue.flushing
    assert kept + values_of(list(RecordRuns(list(queue.records)))) == everything


@given(st.lists(items(), min_size=1, max_size=8), st.integers(0, 2000), st.integers(1, 8))
def test_the_records_of_a_draft_stay_in_the_queue_until_it_is_cut(
    queued: list[PendingRecord], limit: int, keep: int
) -> None:
    """A draft's records stay in the queue until `cut_draft`, even if the draft is shortened."""
    queue = PartitionQueue()
    for item in queued:
        queue.append(item, 0.0)
    before = described(RecordRuns(list(queue.records)))
    queue.blocked = queue.flushing = True
    records = queue.head(limit, 100)
    count, nbytes = len(records), queue.bytes
    assert described(RecordRuns(list(queue.records))) == before
    queue.draft = Draft(records)
    if keep < count:
        records = queue.shorten_draft(queue.draft, keep)
        assert [queue.draft] == [None]
        assert len(records) == keep
        queue.draft = Draft(records)
    assert described(records) == before[: min(count, keep)]
    assert (queue.bytes, queue.blocked, queue.flushing) == (nbytes, True, True)
    assert described(queue.cut_draft(queue.draft)) == described(records)
    assert described(RecordRuns(list(queue.records))) == before[len(records) :]
    assert queue.bytes == sum(item.size for item in queue.records)


@pytest.mark.parametrize("span", [64, 8192, 1 << 20])
def test_a_batch_whose_time_span_needs_a_longer_varint_keeps_its_limit(span: int) -> None:
    """A batch keeps its size limit even if its timestamps differ so much that deltas grow by bytes.

    For example, a delta of 63 ms takes one byte, and one of 64 ms takes two (zigzag).
    """
    queue = PartitionQueue()
    for stamp in (0, *(span,) * 200):
        queue.append(single(b"value", stamp), 0.0)
    taken = queue.cut(1000, 1000)
    assert len(build_batch(taken).data) <= 1000


def test_a_block_fills_a_batch_closely() -> None:
    """A block of small records fills a batch as closely as single records do."""
    queue = PartitionQueue()
    queue.append(block(*[b"v" * 10] * 5000), 0.0)
    assert len(build_batch(queue.cut(16384, 10_000)).data) > 0.99 * 16384


def test_blocks_of_small_calls_and_single_records_share_a_batch() -> None:
    queue = PartitionQueue()
    for item in (single(b"0"), block(b"1", b"2"), block(b"3"), single(b"4"), block(b"5", b"6")):
        queue.append(item, 0.0)
    (batch,) = read_batches(build_batch(queue.cut(10_000, 1000)).data)
    assert [record.value for record in batch.records()] == [b"%d" % n for n in range(7)]
    assert not queue.records


def test_a_group_is_not_mixed_with_blocks() -> None:
    """Records that a caller wants in a batch of their own share no batch with a block."""
    queue = PartitionQueue()
    grouped = single(b"1")
    grouped.group = RecordGroup(1000)
    for item in (block(b"0"), grouped, block(b"2")):
        queue.append(item, 0.0)
    assert [values_of(list(queue.cut(10_000, 1000))) for _ in range(3)] == [[b"0"], [b"1"], [b"2"]]


def test_a_block_expires_whole() -> None:
    queue = PartitionQueue()
    first, second = block(b"0", b"1"), block(b"2")
    first.deadline, second.deadline = 1.0, 2.0
    queue.append(first, 0.0)
    queue.append(second, 0.0)
    assert count_of(queue.expire(1.5)) == 2
    assert queue.bytes == second.size


def test_a_part_of_a_block_is_told_by_its_rows() -> None:
    """When any part of a block is settled, the receiver learns each record's place in the batch.

    The receiver identifies each record by its row in the columns from which the block was made.
    """
    told = Told()
    whole = block(*[b"v"] * 9, rows=[8, 1, 2, 3, 5, 7, 0], told=told)
    head = whole.take(2)
    runs = RecordRuns([single(b"x"), whole.part(1, 3)])
    for item, place in ((head, 10), (items_of(runs)[1], 0), (whole.record(0), 5)):
        item.settle(Outcome("t", 0, ACKED, base_offset=0), place)
    assert told.places == {8: 10, 1: 11, 3: 0, 5: 1, 2: 5}


def settlement(told: Told, *counts: int) -> Settlement:
    """Return a settlement of one block for each of `counts`, with that many records."""
    rows, made = 0, []
    values = (b"v",) * sum(counts)
    for count in counts:
        made.append(block(*values, rows=range(rows, rows + count), told=told))
        rows += count
    return Settlement.of_items(Outcome("t", 0, ACKED, base_offset=0), made)


def test_a_block_is_told_at_once_and_counts_as_one() -> None:
    told = Told()
    left = [settlement(told, 700, 1, 2)]
    outcomes = SettledRecords(lambda: [left.pop()] if left else [])
    outcomes.at_once = 2
    outcomes.begin_turn()
    assert outcomes.untold == 703
    assert not outcomes.tell()
    assert (told.calls, outcomes.untold) == (2, 2)
    outcomes.begin_turn()
    assert outcomes.tell()
    assert told.places == {row: row for row in range(703)}
    assert outcomes.untold == 0


def test_a_settlement_counts_the_records_of_blocks() -> None:
    first, second = block(b"0", b"1"), block(b"2")
    first.generation, second.generation = 3, 4
    shared = Settlement.of_items(Outcome("t", 0, ACKED), [first, second, single(b"3")])
    assert len(shared.records) == 4
    assert shared.size() == first.size + second.size + single(b"3").size
    assert shared.by_generation() == {3: 2, 4: 1, 0: 1}


# -- the partitions of a block


def view(partitions: int) -> TopicView:
    """Return a topic whose partitions have leaders."""
    view = TopicView("t", None)
    for index in range(partitions):
        view.merge(PartitionUpdate(index, 1, 0))
    return view


def sticky(switch_after: int) -> StickyPartitioner:
    """Return a partitioner that draws what a fixed seed gives."""
    return StickyPartitioner(switch_after, random.Random(4).random)


@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=40), before=st.integers(0, 500))
def test_a_small_block_is_laid_out_as_single_records_are(sizes: list[int], before: int) -> None:
    values = [b"v" * size for size in sizes]
    alone, together, topic = sticky(1000), sticky(1000), view(100)
    alone.choose(before, topic)
    together.choose(before, topic)
    expected = [alone.choose(record_size_bound(None, value, ()), topic) for value in values]
    parts = [
        (index, list(RecordRuns([part]))) for index, part in spread(block(*values), together, topic)
    ]
    assert [index for index, records in parts for _ in records] == expected
    assert [record.value for _, records in parts for record in records] == values
    assert (together.left, together.current) == (alone.left, alone.current)


def test_as_many_records_are_taken_as_reach_a_size() -> None:
    """One more is taken where the size ends within a record, and all where they do not reach it."""
    records = block(*[b"x" * 20] * 4)
    each = records.first_size
    sizes = (1, each, each + 1, 2 * each, 4 * each, 4 * each + 1)
    assert [records.reaching(size) for size in sizes] == [1, 1, 2, 2, 4, 4]


def test_a_large_block_gives_each_partition_the_same() -> None:
    parts = list(spread(block(*[b"v"] * 4000), sticky(1000), view(4)))
    assert sorted(index for index, _ in parts) == [0, 1, 2, 3]
    assert [part.count for _, part in parts] == [1000] * 4
    assert [part.row(0) for _, part in parts] == [0, 1000, 2000, 3000]


@given(keys=st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=30))
def test_records_with_keys_go_where_single_ones_go(keys: list[bytes | None]) -> None:
    topic, choose = view(5), DefaultPartitioner()
    whole = block(*(b"%d" % n for n in range(len(keys))), keys=tuple(keys))
    seen: dict[int, list[int]] = {}
    for index, part in spread(whole, sticky(1000), topic):
        for record in RecordRuns([part]):
            number = int(record.value or b"")
            assert record.ordinal == number + 1
            assert record.key == keys[number]
            if record.key is not None:
                assert choose(record.key, topic.everything, topic.available) == index
            seen.setdefault(index, []).append(number)
    assert sorted(n for numbers in seen.values() for n in numbers) == list(range(len(keys)))


def test_records_with_one_key_stay_together() -> None:
    ((index, part),) = spread(block(b"0", b"1", keys=b"k"), sticky(1), view(5))
    assert index == DefaultPartitioner()(b"k", range(5), range(5))
    assert part.count == 2


def test_a_record_of_a_batch_with_header_fits() -> None:
    """A batch gets at least one record of a block, even if the record exceeds the batch's limit."""
    queue = PartitionQueue()
    queue.append(block(b"v" * 500, b"w"), 0.0)
    assert values_of(list(queue.cut(BATCH_OVERHEAD + 1, 1000))) == [b"v" * 500]
    assert values_of(list(queue.cut(BATCH_OVERHEAD + 1, 1000))) == [b"w"]


def test_a_producer_that_is_closed_takes_no_block() -> None:
    rig = Rig().start()
    rig.core.accumulator.close()
    with pytest.raises(errors.ProducerClosed):
        rig.core.accumulator.append_block(T, block(b"v"), rig.now)
    assert rig.core.unsettled == 0
