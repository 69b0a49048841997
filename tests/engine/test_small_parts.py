"""Windows, back-off, goodput, sticky choice, topic state, the metadata refresher, sequences.

The parts of the engine that are one small class each.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine.backoff import Backoff
from aioidem._engine.goodput import Goodput
from aioidem._engine.idempotence import (
    MAX_EPOCH,
    IdentityLedger,
    IdentityState,
    ProducerIdentity,
    SequenceLedger,
    wire_sequence,
)
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.record import PendingRecord, Settlement
from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.topic_view import TopicView
from aioidem._engine.topics import CEILING_MEMORY, TopicState
from aioidem._engine.unassigned import UnassignedRecords
from aioidem._engine.windows import (
    DEFAULT_BATCHES_RETAINED,
    MAX_BATCHES_RETAINED,
    ConnectionWindow,
    PartitionWindow,
)
from aioidem._protocol.metadata import PartitionUpdate

# -- windows


def test_the_window_is_five_until_a_broker_says_otherwise() -> None:
    window = PartitionWindow()
    assert window.limit == DEFAULT_BATCHES_RETAINED == 5
    assert window.admits(5)
    assert not window.admits(6)


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        (None, 5),
        (20, 20),
        (1, 1),
        (0, 1),
        (-1, 1),
        (-(2**31), 1),
        (1000, 1000),
        (2**31 - 1, MAX_BATCHES_RETAINED),
    ],
)
def test_what_a_broker_says_is_clamped(told: int | None, limit: int) -> None:
    """F23, E11, attack.md finding 30."""
    window = PartitionWindow()
    window.learn(told)
    assert window.limit == limit


def test_an_absent_field_means_five_also_after_twenty() -> None:
    """D2.4: a tagged field equal to its default is not serialised."""
    window = PartitionWindow()
    window.learn(20)
    window.learn(None)
    assert window.limit == 5


def test_reset_forgets_what_was_learned() -> None:
    window = PartitionWindow()
    window.learn(20)
    window.reset()
    assert window.limit == 5


def test_the_widest_span_is_kept() -> None:
    window = PartitionWindow()
    for span in (1, 4, 2):
        window.observe(span)
    assert window.max_span == 4


def test_a_connection_window_counts_requests() -> None:
    window = ConnectionWindow(2)
    assert window.admits()
    window.outstanding = 2
    assert not window.admits()


# -- back-off


def test_backoff_doubles_up_to_its_cap() -> None:
    """A3.23, KIP-580."""
    backoff = Backoff(0.1, 1.0, lambda: 0.5)
    delays = [backoff.next_delay() for _ in range(6)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_backoff_starts_again_after_a_success() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 0.5)
    backoff.next_delay()
    backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() == pytest.approx(0.1)


@given(failures=st.integers(0, 5000), draw=st.floats(0, 1, exclude_max=True))
def test_backoff_stays_within_its_jitter_whatever_the_failures(failures: int, draw: float) -> None:
    backoff = Backoff(0.05, 2.0, lambda: draw)
    backoff.failures = failures
    plain = min(0.05 * 2 ** min(failures, 30), 2.0)
    assert plain * 0.8 - 1e-9 <= backoff.next_delay() <= plain * 1.2 + 1e-9


# -- goodput


def test_goodput_is_unknown_until_something_was_acknowledged() -> None:
    assert Goodput().rate is None


def test_goodput_of_pipelined_requests_counts_what_was_delivered_meanwhile() -> None:
    """Five of 100 bytes in flight at RTT 1 s make 500 B/s, not 100."""
    goodput = Goodput()
    for number in range(20):
        goodput.acknowledge(
            100,
            sent_at=number * 0.2,
            delivered_at_send=max(0, number - 5) * 100,
            now=1.0 + number * 0.2,
        )
    assert goodput.rate == pytest.approx(600, rel=0.2)


def test_goodput_forgets_old_samples() -> None:
    goodput = Goodput()
    goodput.acknowledge(1000, sent_at=0.0, delivered_at_send=0, now=1.0)
    for number in range(8):
        goodput.acknowledge(
            10, sent_at=number * 1.0, delivered_at_send=goodput.delivered, now=number + 1.0
        )
    assert goodput.rate == pytest.approx(10)


def test_an_answer_in_the_same_instant_gives_no_sample() -> None:
    goodput = Goodput()
    goodput.acknowledge(1000, sent_at=1.0, delivered_at_send=0, now=1.0)
    assert goodput.rate is None
    assert goodput.delivered == 1000


# -- sticky


def views(*leaders: int) -> TopicView:
    topic = TopicView("t", None)
    for index, leader in enumerate(leaders):
        topic.merge(PartitionUpdate(index, leader, 0))
    return topic


def test_one_partition_takes_a_batch_worth_of_bytes_then_another_is_drawn() -> None:
    """KIP-480, KIP-794."""
    sticky = StickyPartitioner(100, random.Random(3).random)
    chosen = [sticky.choose(25, views(1, 1, 1)) for _ in range(40)]
    runs = [list(group) for _, group in itertools.groupby(chosen)]
    assert all(len(run) == 4 for run in runs)
    assert {0, 1, 2} == set(chosen)


def test_only_partitions_with_a_leader_are_drawn() -> None:
    sticky = StickyPartitioner(1, random.Random(3).random)
    assert {sticky.choose(1, views(-1, 1, -1, 2)) for _ in range(50)} == {1, 3}


def test_without_any_leader_every_partition_is_a_choice() -> None:
    sticky = StickyPartitioner(1, random.Random(3).random)
    assert {sticky.choose(1, views(-1, -1)) for _ in range(50)} == {0, 1}


def test_a_partition_that_is_gone_is_left() -> None:
    sticky = StickyPartitioner(1000, lambda: 0.99)
    assert sticky.choose(1, views(1, 1, 1)) == 2
    assert sticky.choose(1, views(1)) == 0


@given(draw=st.floats(0, 1), count=st.integers(1, 9))
def test_any_draw_is_a_partition(draw: float, count: int) -> None:
    """Also a random source that returns 1.0."""
    sticky = StickyPartitioner(1, lambda: draw)
    assert sticky.choose(5, views(*[1] * count)) in range(count)
    assert sticky.choose(5, views(*[1] * count)) in range(count)


# -- topics


class Nobody:
    def settle(self, settlement: Settlement, index: int) -> None:
        raise AssertionError((settlement, index))


def record(size: int = 10) -> PendingRecord:
    return PendingRecord(None, b"", (), 0, None, size, Nobody())


def test_records_wait_for_their_topic_in_order_and_not_for_ever() -> None:
    """A7.63."""
    unassigned = UnassignedRecords()
    first, second = record(), record()
    third = record()
    assert unassigned.next_end() is None
    unassigned.wait(10.0, 0, first)
    unassigned.wait(11.0, 0, second)
    unassigned.wait(9.5, 0, third)  # its caller had waited for room before
    assert unassigned.next_end() == 9.5
    assert unassigned.expire(9.4) == []
    assert unassigned.expire(9.5) == [third]
    assert unassigned.expire(10.0) == [first]
    assert unassigned.expire(99.0) == [second]
    assert unassigned.next_end() is None


def test_a_refused_size_bounds_the_topic_for_an_hour() -> None:
    """attack.md finding 18."""
    topic = TopicState("t", 100, lambda: 0.5)
    assert topic.ceiling(1000, 0.0) == 1000
    topic.too_large(800, 0.0)
    assert topic.ceiling(1000, 1.0) == 400
    assert topic.ceiling(100, 1.0) == 100
    topic.too_large(900, 1.0)
    assert topic.ceiling(1000, 1.0) == 400
    assert topic.ceiling(1000, 1.0 + CEILING_MEMORY) == 1000


def test_the_ceiling_never_reaches_zero() -> None:
    """C-J14: no loop at a batch size of nothing."""
    topic = TopicState("t", 100, lambda: 0.5)
    for _ in range(5):
        topic.too_large(1, 0.0)
    assert topic.ceiling(1000, 0.0) == 1


# -- metadata refresher


def refresher(max_age: float = 300.0) -> MetadataRefresher:
    return MetadataRefresher(max_age, Backoff(0.1, 1.0, lambda: 0.5))


def test_metadata_is_wanted_from_the_start_once() -> None:
    wanted = refresher()
    assert wanted.due(0.0)
    wanted.sent()
    assert not wanted.due(0.0)
    assert wanted.due_at() is None


def test_metadata_is_fetched_again_when_it_is_old() -> None:
    wanted = refresher(300.0)
    wanted.sent()
    wanted.answered(10.0, enough=True)
    assert wanted.due_at() == pytest.approx(310.0)
    assert not wanted.due(309.0)
    assert wanted.due(310.0)


def test_a_want_while_a_request_is_on_its_way_is_not_forgotten() -> None:
    wanted = refresher()
    wanted.sent()
    wanted.want()
    wanted.answered(10.0, enough=True)
    assert wanted.due_at() == pytest.approx(10.1)


def test_failures_and_useless_answers_back_off() -> None:
    """A8: no metadata storm. `enough` ends it."""
    wanted = refresher()
    waits = []
    now = 0.0
    for number in range(5):
        wanted.sent()
        if number % 2:
            wanted.failed(now)
        else:
            wanted.answered(now, enough=False)
        at = wanted.due_at()
        assert at is not None
        waits.append(at - now)
        now = at
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    wanted.sent()
    wanted.answered(now, enough=True)
    wanted.want()
    wanted.sent()
    wanted.answered(now, enough=False)
    at = wanted.due_at()
    assert at is not None
    assert at - now == pytest.approx(0.1)


# -- sequences and identity


def test_sequences_count_records_from_zero() -> None:
    """A1.1."""
    ledger = SequenceLedger()
    assert [ledger.take(3), ledger.take(1), ledger.take(5)] == [0, 3, 4]
    assert ledger.next == 9


@pytest.mark.parametrize(
    ("counter", "wire"),
    [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**31 + 1, 1), (5 * 2**31 + 7, 7)],
)
def test_wire_sequences_wrap_to_zero(counter: int, wire: int) -> None:
    """A1.4, C-J10, KAFKA-7693, franz-go v1.5.3, KafkaJS #1790, aiokafka's
    increment_sequence_number: never negative, and 2^31 - 1 is a sequence.
    """
    assert wire_sequence(counter) == wire


@given(st.integers(0, 2**70))
def test_a_wire_sequence_is_an_int32_that_is_not_negative(counter: int) -> None:
    assert 0 <= wire_sequence(counter) < 2**31
    assert (wire_sequence(counter + 1) - wire_sequence(counter)) % 2**31 == 1


def test_another_identity_starts_again_at_zero() -> None:
    ledger = SequenceLedger()
    ledger.take(10)
    ledger.adopt(ProducerIdentity(1, 1))
    assert (ledger.next, ledger.identity) == (0, ProducerIdentity(1, 1))


def test_a_bump_raises_the_epoch_by_one() -> None:
    """S4-4."""
    ledger = IdentityLedger()
    ledger.ask()
    ledger.grant(7, 0)
    ledger.bump()
    assert ledger.current == ProducerIdentity(7, 1)
    assert ledger.bumps == 1


def test_the_last_epoch_gives_way_to_a_new_producer_id() -> None:
    """A4.35, rd#3720."""
    ledger = IdentityLedger()
    ledger.ask()
    ledger.grant(7, MAX_EPOCH - 1)
    ledger.bump()
    assert (ledger.current, ledger.state) == (ProducerIdentity(7, MAX_EPOCH), IdentityState.READY)
    ledger.bump()
    assert (ledger.current, ledger.state) == (None, IdentityState.ABSENT)
    ledger.bump()
    assert ledger.bumps == 2
    ledger.ask()
    ledger.bump()
    assert ledger.grant(8, 0) == ProducerIdentity(8, 0)
