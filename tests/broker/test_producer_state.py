"""The broker's sequence check and its memory of the last N batches, as in Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from aioidem._broker.batch import (
    MAX_SEQUENCE,
    BatchHeader,
    RefusedError,
    StoredBatch,
    parse_single_batch,
    sequence_after,
)
from aioidem._broker.producer_state import ProducerStates, RememberedBatch
from aioidem._broker.virtual import START_MS, idempotent_batch

WRAP = MAX_SEQUENCE + 1
DAY_MS = 86_400_000


class Partition:
    """A log to which a batch is appended if it passes the sequence check."""

    def __init__(self, retain: int = 5) -> None:
        self.states = ProducerStates()
        self.retain = retain
        self.end = 0
        self.log: list[StoredBatch] = []

    def header(self, sequence: int, count: int = 1, **options: Any) -> BatchHeader:
        stamp = options.pop("timestamp_ms", START_MS)
        data = idempotent_batch(sequence, timestamps_ms=[stamp] * count, **options)
        return parse_single_batch(data)

    def offer(self, sequence: int, count: int = 1, **options: Any) -> RememberedBatch | None:
        header = self.header(sequence, count, **options)
        original = self.states.check(header)
        if original is None:
            batch = StoredBatch(b"", header, self.end, 0, START_MS, log_append_time=False)
            self.states.appended(batch, self.retain)
            self.log.append(batch)
            self.end = batch.last_offset + 1
        return original

    def refusal(self, sequence: int, count: int = 1, **options: Any) -> ErrorCode:
        with pytest.raises(RefusedError) as caught:
            self.offer(sequence, count, **options)
        return caught.value.code


def test_an_unknown_producer_may_begin_at_any_sequence() -> None:
    """A broker that does not know a producer id takes any sequence from it (KIP-360)."""
    partition = Partition()
    assert partition.offer(123456) is None
    assert partition.offer(123457) is None


def test_an_unknown_producer_of_transactions_v2_must_begin_at_zero() -> None:
    """In transactions v2 an unknown producer must begin at sequence 0 (KIP-890)."""
    partition = Partition()
    partition.states.verifying(partition.header(5), zero_first=True)
    with pytest.raises(RefusedError) as caught:
        partition.states.check(partition.header(5))
    assert caught.value.code == ErrorCode.out_of_order_sequence_number
    assert partition.states.check(partition.header(0)) is None


def test_it_must_not_if_it_first_spoke_v1() -> None:
    """A producer that the coordinator first verified in transactions v1 may begin at any sequence.

    A later verification with transactions v2 does not change that, as in Kafka 4.3.1.
    """
    partition = Partition()
    partition.states.verifying(partition.header(7), zero_first=False)
    partition.states.verifying(partition.header(5), zero_first=True)
    assert partition.states.check(partition.header(5)) is None


def test_a_gap_is_out_of_order() -> None:
    """A gap in the sequences is OUT_OF_ORDER_SEQUENCE_NUMBER."""
    partition = Partition()
    partition.offer(0, 10)
    assert partition.refusal(11) == ErrorCode.out_of_order_sequence_number
    assert partition.offer(10) is None


def test_a_duplicate_within_the_memory_gets_its_original_offset() -> None:
    """A duplicate of a remembered batch is answered with the original's offsets."""
    partition = Partition()
    for first in range(0, 50, 10):
        partition.offer(first, 10)
    assert [partition.offer(first, 10) for first in range(0, 50, 10)] == [
        RememberedBatch(first, first + 9, first, first + 9, START_MS) for first in range(0, 50, 10)
    ]
    assert partition.end == 50


@pytest.mark.parametrize("retain", [5, 20])
def test_a_duplicate_older_than_the_memory_is_out_of_order(retain: int) -> None:
    """A duplicate of a batch that is not remembered any more is OUT_OF_ORDER_SEQUENCE_NUMBER."""
    partition = Partition(retain)
    for sequence in range(retain + 1):
        partition.offer(sequence)
    assert partition.refusal(0) == ErrorCode.out_of_order_sequence_number
    original = partition.offer(1)
    assert original is not None
    assert original.base_offset == 1


def test_the_same_sequences_cut_differently_are_no_duplicate() -> None:
    """Remembered sequences that are cut into other batches are refused, not taken as duplicates."""
    partition = Partition()
    partition.offer(0, 10)
    assert partition.refusal(0, 5) == ErrorCode.out_of_order_sequence_number
    assert partition.refusal(5, 5) == ErrorCode.out_of_order_sequence_number


def test_a_lower_epoch_is_fenced() -> None:
    """A batch of a lower epoch is refused as INVALID_PRODUCER_EPOCH."""
    partition = Partition()
    partition.offer(0, epoch=3)
    assert partition.refusal(1, epoch=2) == ErrorCode.invalid_producer_epoch
    assert partition.refusal(0, epoch=2) == ErrorCode.invalid_producer_epoch


def test_a_higher_epoch_begins_at_zero_and_forgets_the_old_one() -> None:
    """A higher epoch begins at sequence 0; its first batch makes the broker forget older epochs."""
    partition = Partition()
    partition.offer(0, 10, epoch=0)
    assert partition.refusal(10, epoch=1) == ErrorCode.out_of_order_sequence_number
    assert partition.offer(0, 10, epoch=1) is None
    assert partition.refusal(0, 10, epoch=0) == ErrorCode.invalid_producer_epoch
    original = partition.offer(0, 10, epoch=1)
    assert original is not None
    assert original.base_offset == 10


def test_sequences_of_an_older_epoch_are_no_duplicates() -> None:
    """A batch is no duplicate of one with the same sequences in an older epoch."""
    partition = Partition()
    partition.offer(0, 10, epoch=0)
    partition.offer(10, 10, epoch=0)
    assert partition.offer(0, 10, epoch=1) is None
    assert partition.offer(10, 10, epoch=1) is None
    assert partition.end == 40


def test_sequences_wrap_from_2147483647_to_0() -> None:
    """Sequence 0 follows 2147483647 in the middle of a batch."""
    partition = Partition()
    partition.offer(MAX_SEQUENCE - 7, 10)
    entry = partition.states.entry(7)
    assert entry is not None
    assert entry.last_sequence == 1
    assert partition.refusal(0) == ErrorCode.out_of_order_sequence_number
    assert partition.offer(2) is None
    original = partition.offer(MAX_SEQUENCE - 7, 10)
    assert original is not None
    assert original.base_offset == 0


def test_the_batch_after_one_that_ends_at_2147483647_begins_at_zero() -> None:
    """Sequence 0 begins the batch after one that ends with 2147483647."""
    partition = Partition()
    partition.offer(MAX_SEQUENCE)
    assert partition.refusal(MAX_SEQUENCE, 2) == ErrorCode.out_of_order_sequence_number
    assert partition.offer(0) is None


def test_expiry_goes_by_the_newest_record_of_the_last_batch() -> None:
    """A producer expires by the newest timestamp in its last batch (KIP-854)."""
    old = START_MS - DAY_MS - 3_600_000
    partition = Partition()
    partition.offer(0, timestamp_ms=START_MS)
    partition.offer(1, timestamp_ms=old)
    assert partition.states.expire(START_MS, DAY_MS) == [7]
    assert partition.offer(1, timestamp_ms=old) is None, "the same batch is appended twice"


def test_expiry_spares_a_producer_whose_last_batch_is_new_whatever_came_before() -> None:
    """A producer with a new last batch does not expire, whatever its earlier timestamps were."""
    partition = Partition()
    partition.offer(0, timestamp_ms=START_MS - 10 * DAY_MS)
    partition.offer(1, timestamp_ms=START_MS)
    assert partition.states.expire(START_MS, DAY_MS) == []
    assert partition.states.expire(START_MS + DAY_MS - 1, DAY_MS) == []
    assert partition.states.expire(START_MS + DAY_MS, DAY_MS) == [7]


def test_a_snapshot_keeps_the_last_batch_of_each_producer() -> None:
    """A snapshot of the producer state keeps the last batch of each producer, as in Kafka."""
    partition = Partition(retain=20)
    for sequence in range(12):
        partition.offer(sequence)
    partition.offer(0, producer_id=8)
    partition.states.through_snapshot(of_empty_log=False)
    assert [len(e.batches) for e in partition.states.entries()] == [1, 1]
    assert partition.refusal(10) == ErrorCode.out_of_order_sequence_number
    original = partition.offer(11)
    assert original is not None
    assert original.base_offset == 11
    assert partition.offer(12) is None


def test_a_snapshot_goes_with_the_whole_log() -> None:
    """A producer-state snapshot is lost if the log is empty."""
    partition = Partition(retain=5)
    partition.offer(0)
    partition.states.through_snapshot(of_empty_log=True)
    assert partition.states.entries() == []


def test_a_recovery_keeps_producers_whose_batches_are_gone() -> None:
    """Recovery after a crash keeps producers whose batches are no longer in the log."""
    partition = Partition(retain=5)
    partition.offer(0, producer_id=7)
    partition.offer(0, producer_id=8)
    partition.states.recover(partition.log[1:], 5)
    assert [e.producer_id for e in partition.states.entries()] == [7, 8]


def test_a_replay_of_the_log_restores_the_whole_memory() -> None:
    """Replaying the log restores all remembered batches."""
    partition = Partition(retain=5)
    for sequence in range(12):
        partition.offer(sequence)
    before = [list(e.batches) for e in partition.states.entries()]
    partition.states.rebuild(partition.log, 5)
    assert [list(e.batches) for e in partition.states.entries()] == before


def test_lowering_the_memory_takes_effect_with_the_next_append() -> None:
    """Lowering the number of remembered batches takes effect with the next append."""
    partition = Partition(retain=20)
    for sequence in range(20):
        partition.offer(sequence)
    partition.retain = 5
    assert partition.offer(0) is not None
    partition.offer(20)
    assert partition.refusal(15) == ErrorCode.out_of_order_sequence_number
    assert partition.offer(16) is not None


def test_batches_without_a_producer_id_are_not_remembered() -> None:
    """Batches without a producer id leave no producer state."""
    partition = Partition()
    header = partition.header(0)._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1)
    batch = StoredBatch(b"", header, 0, 0, START_MS, log_append_time=False)
    partition.states.appended(batch, 5)
    assert len(partition.states) == 0


@given(st.integers(0, MAX_SEQUENCE), st.integers(0, MAX_SEQUENCE))
def test_sequence_arithmetic_is_addition_modulo_2_to_the_31(sequence: int, records: int) -> None:
    """`sequence_after` adds modulo 2^31."""
    assert sequence_after(sequence, records) == (sequence + records) % WRAP


@given(
    start=st.one_of(st.integers(0, 5), st.integers(MAX_SEQUENCE - 40, MAX_SEQUENCE)),
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=30),
    retain=st.integers(5, 12),
)
def test_exactly_the_last_n_batches_are_recognised(
    start: int, counts: list[int], retain: int
) -> None:
    """Exactly the last `retain` batches are recognised as duplicates, also where sequences wrap."""
    partition = Partition(retain)
    firsts = []
    at = start
    for count in counts:
        assert partition.offer(at % WRAP, count) is None
        firsts.append((at % WRAP, count))
        at += count
    end = partition.end
    for age, (first, count) in enumerate(reversed(firsts)):
        if age < retain:
            original = partition.offer(first, count)
            assert original is not None
            assert original.first_sequence == first
        else:
            assert partition.refusal(first, count) == ErrorCode.out_of_order_sequence_number
    assert partition.end == end
