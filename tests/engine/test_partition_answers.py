"""`PartitionState`: what the answers to its batches change, and answers that never come.

The partition stands alone (`partition_bench`): b1, b2 and so on are the batches with sequences 1, 2
and so on, and the record with sequence 0 was acknowledged at offset 0.
"""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine.batch import Batch, BatchState, Persistence
from aioidem._engine.record import RecordGroup
from aioidem._engine.recovery import Rung
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem.errors import DuplicateSequenceNumber, KafkaError, OutOfOrderSequenceNumber
from aioidem.structs import TopicPartition

from .driver import (
    ACKED,
    CLUSTER_AUTHORIZATION_FAILED,
    DUPLICATE,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    UNKNOWN,
    UNKNOWN_PRODUCER_ID,
    T,
)
from .partition_bench import FIRST, HOME, RECONNECTED, SECOND, STAMP_MS, Bench, error

UNLISTED = 12345

# -- error NONE


def test_a_success_settles_its_batch_with_what_the_answer_says() -> None:
    bench = Bench()
    meters = bench.told.meters
    meters.now = 990.0
    batch = bench.send(records=2, deadline=1000.0)
    bench.ack(batch, 41, log_append_time_ms=5, log_start_offset=3)
    (settlement,) = bench.told.settlements
    outcome = settlement.outcome
    assert settlement.records is batch.records
    assert (outcome.status, outcome.base_offset, outcome.attempts) == (ACKED, 41, 1)
    assert (outcome.log_append_time_ms, outcome.log_start_offset) == (5, 3)
    assert (outcome.topic, outcome.partition, outcome.error) == (T, 0, None)
    assert outcome.topic_partition == TopicPartition(T, 0)
    assert (batch.state, batch.persistence) == (BatchState.ACKED, Persistence.STORED)
    assert meters.acked == [-10.0]
    assert not meters.doubts
    assert (bench.state.batches.unresolved, bench.state.batches.outstanding) == ([], 0)
    assert (bench.state.log.offset, bench.state.log.ordinal) == (42, 0)


@pytest.mark.parametrize(("told", "appended_at"), [(STAMP_MS, -1), (STAMP_MS + 1, STAMP_MS + 1)])
def test_the_timestamp_of_a_stored_copy_is_no_log_append_time(told: int, appended_at: int) -> None:
    """A broker answers a duplicate with the stored batch's timestamp, also with CreateTime.

    Each record has its own timestamp then. The answer to a first attempt names the broker's time.
    """
    bench = Bench()
    (batch,) = bench.doubt(1)
    bench.ack(bench.send(batch), 1, log_append_time_ms=told)
    first = bench.send()
    bench.ack(first, 2, log_append_time_ms=STAMP_MS)
    times = [each.outcome.log_append_time_ms for each in bench.told.settlements]
    assert times == [appended_at, STAMP_MS]


def test_a_success_acknowledges_what_it_proves_without_offset_and_times() -> None:
    bench = Bench()
    first, second, third = bench.pipelined(3)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.refuse(second, REQUEST_TIMED_OUT)
    bench.ack(third, 3, log_append_time_ms=5, log_start_offset=3)
    assert bench.outcomes == [(ACKED, 3, 1, 1), (ACKED, -1, 1, 1), (ACKED, -1, 1, 1)]
    for settlement in bench.told.settlements[1:]:
        assert settlement.outcome.log_append_time_ms == -1
        assert settlement.outcome.log_start_offset == -1
    for batch in (first, second):
        assert (batch.state, batch.persistence) == (BatchState.ACKED, Persistence.STORED)
    assert bench.told.meters.doubts == {"resend": 2}


def test_without_sequences_a_success_says_nothing_about_other_batches() -> None:
    bench = Bench(idempotent=False)
    first, second, third = bench.pipelined(3)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.refuse(second, NOT_ENOUGH_REPLICAS)
    bench.told.take()
    bench.ack(third, 1)
    assert bench.statuses == [ACKED]
    assert bench.state.batches.unresolved == [first, second]
    assert bench.told.take() == []
    assert bench.rung() is Rung.CLEAR


def test_a_change_of_the_window_is_reported_and_counts_from_a_current_leader() -> None:
    bench = Bench()
    first, second, third = bench.pipelined(3, retained=20)
    bench.ack(first, 1, retained=20)
    assert bench.told.take() == []
    bench.ack(second, 2, retained=7)
    assert bench.told.take() == [("window", f"{T}-0", HOME, 20, 7)]
    bench.ack(third, 3, retained=9, current=False)
    assert bench.told.take() == []
    assert bench.state.window.limit == 7


def test_what_waited_at_the_gate_is_measured_from_its_sending() -> None:
    """Only the batch that opens the gate is, and none where there is no gate."""
    bench = Bench()
    batch = bench.send()
    bench.now = 103.0
    bench.ack(batch, 0)
    bench.ack(bench.send(), 1)
    assert bench.told.gates == [(100.0, 103.0)]
    plain = Bench(idempotent=False)
    plain.ack(plain.send(), 0)
    assert plain.told.gates == []


def test_a_success_opens_the_gate_and_ends_the_trouble() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    bench.now = 100.5
    bench.refuse(second, NOT_LEADER)
    trouble = bench.state.setbacks.trouble
    assert trouble is not None
    assert (trouble.since, trouble.attempts, str(trouble.last)) == (
        100.0,
        2,
        str(error(NOT_LEADER)),
    )
    assert not bench.state.leadership.gate_open
    bench.ack(bench.send(first), 1)
    assert bench.state.setbacks.trouble is None
    assert bench.state.leadership.gate_open


def test_an_answer_to_a_batch_that_has_ended_still_tells_the_end_of_the_log() -> None:
    """It settles nothing, and a lower offset after it shows a loss, which is reported once."""
    bench = Bench()
    first, second, third = bench.pipelined(3)
    bench.state.endings.abandon(KafkaError("closed"), bench.told)
    bench.told.take()
    settled = len(bench.told.settlements)
    bench.ack(first, 7)
    assert bench.state.log.offset == 7
    bench.ack(second, 5)
    bench.ack(third, 6)
    assert bench.told.names() == ["data loss"]
    assert bench.state.log.offset == 6
    assert len(bench.told.settlements) == settled
    assert bench.state.batches.outstanding == 0


def test_the_refusal_of_a_batch_that_has_ended_changes_nothing_more() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.state.endings.abandon(KafkaError("closed"), bench.told)
    bench.told.take()
    settled = len(bench.told.settlements)
    assert bench.refuse(first, INVALID_RECORD) is False
    assert bench.state.leadership.gate_open
    bench.lose(second)
    assert bench.state.batches.outstanding == 0
    assert len(bench.told.settlements) == settled
    assert bench.told.take() == []
    assert first.state is second.state is BatchState.UNKNOWN


# -- a success above a batch that is not stored


@pytest.mark.parametrize("order", ["upward", "downward"])
def test_a_success_above_the_lowest_numbers_that_failed_is_a_loss(order: str) -> None:
    """A leader that holds the producer's state accepts nothing above a gap.

    The loss is reported once. With nothing before the acknowledged batch it is one as well.
    """
    bench = Bench()
    first, second, third, fourth = bench.pipelined(4)
    for batch in (first, third) if order == "upward" else (third, first):
        bench.refuse(batch, INVALID_RECORD)
    bench.told.take()
    bench.ack(second, 1)
    assert bench.told.names() == ["data loss"]
    bench.ack(fourth, 2)
    assert bench.told.names() == []
    assert bench.statuses == [NOT_WRITTEN, NOT_WRITTEN, ACKED, ACKED]


def test_a_success_below_the_numbers_that_failed_is_no_loss() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.refuse(second, INVALID_RECORD)
    bench.told.take()
    bench.ack(first, 1)
    assert bench.told.take() == []


def test_a_batch_that_was_refused_below_a_success_ends_not_written() -> None:
    """It could be appended only behind the later one. Its numbers are given up."""
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    bench.told.take()
    bench.ack(second, 1)
    assert bench.told.names() == ["data loss", "bump"]
    assert bench.statuses == [ACKED, NOT_WRITTEN]
    assert isinstance(bench.told.settlements[1].outcome.error, OutOfOrderSequenceNumber)
    assert first.state is BatchState.NOT_WRITTEN


def test_a_batch_in_flight_below_a_success_is_no_gap() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.ack(second, 2)
    assert bench.told.take() == []
    bench.ack(first, 1)
    assert bench.statuses == [ACKED, ACKED]


def test_an_offset_without_room_is_a_loss_only_if_the_success_would_prove_something() -> None:
    """A leader that was not heard before may lack the batches below anyway; each is resent."""
    for heard, told in [(True, ["data loss"]), (False, [])]:
        bench = Bench()
        bench.state.begin_transaction(1, gated=False)
        bench.ack(bench.send(), 10)
        if not heard:
            bench.state.follow(RECONNECTED)
        first, second = bench.send(), bench.send()
        bench.refuse(first, REQUEST_TIMED_OUT)
        bench.told.take()
        bench.ack(second, 11)
        assert bench.told.names() == told
        assert bench.rung() is Rung.SALVAGE
        assert bench.state.recovery.salvaged == [first]


def test_what_is_missing_below_a_success_without_room_is_the_same_loss() -> None:
    bench = Bench()
    first, second, third = bench.pipelined(3)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.refuse(second, NOT_ENOUGH_REPLICAS)
    bench.told.take()
    bench.ack(third, 1)
    assert bench.told.names() == ["data loss", "bump"]
    assert bench.statuses == [ACKED, NOT_WRITTEN]


def test_a_refused_batch_above_an_explained_loss_shows_another_one() -> None:
    """The newest refused batch decides, and not the oldest, which belongs to the first loss."""
    bench = Bench()
    first, second, third, fourth = bench.pipelined(4)
    bench.ack(second, 0)
    assert bench.told.names() == ["data loss"]
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    bench.refuse(third, NOT_ENOUGH_REPLICAS)
    bench.ack(fourth, 1)
    assert bench.told.names() == ["data loss", "bump"]
    assert bench.statuses == [ACKED, ACKED, NOT_WRITTEN, NOT_WRITTEN]


def test_each_salvaged_batch_is_resent_alone_and_the_last_one_ends_the_salvage() -> None:
    """Newest first; a success proves only its own batch."""
    bench = Bench()
    state = bench.state
    first, second, third = bench.pipelined(3)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.refuse(second, REQUEST_TIMED_OUT)
    bench.ack(third, 2)
    assert bench.rung() is Rung.SALVAGE
    assert state.next_resend(200.0) is second
    bench.send(second)
    assert state.next_resend(200.0) is None
    bench.ack(second, 1)
    assert bench.rung() is Rung.SALVAGE
    assert first.in_doubt
    bench.suspect()
    assert state.next_resend(200.0) is None, "the leader may have forgotten it again"
    state.suspicion.renewed()
    assert state.next_resend(200.0) is first
    bench.ack(bench.send(first), -1)
    assert bench.rung() is Rung.CLEAR
    assert bench.statuses == [ACKED] * 3


@pytest.mark.parametrize(
    ("code", "kind"), [(OUT_OF_ORDER, OutOfOrderSequenceNumber), (INVALID_RECORD, KafkaError)]
)
def test_a_salvaged_batch_that_is_refused_is_unknown(code: int, kind: type[KafkaError]) -> None:
    """OUT_OF_ORDER says that the leader does not know it; another refusal is its error itself."""
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.ack(second, 1)
    bench.refuse(bench.send(first), code)
    assert bench.statuses == [ACKED, UNKNOWN]
    assert type(bench.told.settlements[1].outcome.error) is kind
    if code == OUT_OF_ORDER:
        assert bench.rung() is Rung.CLEAR


# -- what retries show about the leader's memory


def lied_to(*, other: int | None = None, **options: Any) -> Bench:
    """Return a partition whose leader says 20, and recognises retries at distances 2 and 3 only.

    Eight batches are in doubt. After a reconnect the eighth, the seventh and the sixth are
    recognised, and the fifth, at distance 4, is about to be refused. If there is an `other` code,
    the fourth is answered with it, or lost if that is 0.
    """
    bench = Bench(**options)
    batches = bench.doubt(8, retained=20)
    bench.state.follow(RECONNECTED)
    for batch in batches[:4:-1]:
        bench.ack(bench.send(batch), batch.base, retained=20)
    if other is not None:
        fourth = bench.send(batches[3])
        if other:
            bench.refuse(fourth, other)
        else:
            bench.lose(fourth)
    bench.send(batches[4])
    bench.told.take()
    return bench


def test_a_leader_that_refuses_a_retry_within_what_it_retains_is_accused() -> None:
    bench = lied_to()
    bench.refuse(bench.state.batches.unresolved[4], OUT_OF_ORDER)
    told = [event for event in bench.told.take() if event[0] == "disproof"]
    assert told == [("disproof", T, 0, RECONNECTED, Disproof(20, 3, 4), 100.0)]


@pytest.mark.parametrize("other", [NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, 0])
def test_a_retry_that_ended_in_another_way_does_not_put_the_verdict_off(other: int) -> None:
    bench = lied_to(other=other)
    bench.refuse(bench.state.batches.unresolved[4], OUT_OF_ORDER)
    assert "disproof" in bench.told.names()


@pytest.mark.parametrize("ended", [False, True])
def test_a_success_may_be_the_last_answer_before_the_verdict(ended: bool) -> None:
    """The verdict waits for the answers to all retries, also of batches that have ended."""
    bench = lied_to()
    fourth, fifth = bench.state.batches.unresolved[3:5]
    bench.refuse(bench.send(fourth), OUT_OF_ORDER)
    if ended:
        fifth.deadline = bench.now
        bench.expire(bench.now)
        assert fifth.state is BatchState.UNKNOWN
    assert "disproof" not in bench.told.names()
    bench.ack(fifth, 5, retained=20)
    assert bench.told.take() == [("disproof", T, 0, RECONNECTED, Disproof(20, 4, 5), 100.0)]


@pytest.mark.parametrize("innocent", ["suspect", "range", "not heard", "another code"])
def test_no_leader_is_accused_of_what_has_another_reason(innocent: str) -> None:
    """A suspect leader may forget batches, and one that knows a range names no number of them."""
    bench = lied_to()
    if innocent == "suspect":
        bench.suspect()
    elif innocent == "range":
        bench.state.window.limit_records(100)
    elif innocent == "not heard":
        bench.state.window.heard = False
    code = NOT_ENOUGH_REPLICAS if innocent == "another code" else OUT_OF_ORDER
    bench.refuse(bench.state.batches.unresolved[4], code)
    assert "disproof" not in bench.told.names()


def refused_early(bench: Bench) -> list[Batch]:
    """Have the fifth of eight retries refused, and then the newest three recognised.

    A refusal counts only behind two retries that were recognised. The next retry may count instead.
    """
    batches = bench.doubt(8, retained=20)
    bench.state.follow(RECONNECTED)
    bench.refuse(bench.send(batches[4]), OUT_OF_ORDER)
    for batch in batches[:4:-1]:
        bench.ack(bench.send(batch), batch.base, retained=20)
    bench.told.take()
    return batches


def test_the_next_retry_counts_instead_of_one_that_was_refused_early() -> None:
    bench = Bench()
    fifth = refused_early(bench)[4]
    bench.refuse(bench.send(fifth), OUT_OF_ORDER)
    assert "disproof" in bench.told.names()


def test_what_was_seen_on_another_connection_does_not_count() -> None:
    bench = Bench()
    fifth = refused_early(bench)[4]
    bench.state.follow(Route(3, 1, 0))
    bench.ack(bench.send(), 9, retained=20)
    bench.told.take()
    bench.refuse(bench.send(fifth), OUT_OF_ORDER)
    assert "disproof" not in bench.told.names()


def test_what_was_seen_under_another_identity_does_not_count() -> None:
    """There the fifth batch is another one."""
    bench = Bench()
    refused_early(bench)
    bench.state.endings.abandon(KafkaError("closed"), bench.told)
    bench.state.adopt(SECOND)
    batches = [bench.seal() for _ in range(10)]
    bench.told.take()
    bench.refuse(bench.send(batches[5]), OUT_OF_ORDER)
    assert "disproof" not in bench.told.names()


def test_what_was_seen_before_a_batch_was_divided_does_not_count() -> None:
    """Its distances were other ones."""
    bench = lied_to()
    whole = bench.send(records=2)
    bench.refuse(whole, MESSAGE_TOO_LARGE)
    bench.state.batches.replace(whole, [Bench().seal(), Bench().seal()])
    bench.refuse(bench.state.batches.unresolved[4], OUT_OF_ORDER)
    assert "disproof" not in bench.told.names()


# -- error codes


@pytest.mark.parametrize(
    ("code", "offset", "in_doubt", "astray", "told"),
    [
        (NOT_ENOUGH_REPLICAS, -1, False, False, []),
        (NOT_LEADER, -1, False, False, ["metadata"]),
        (NOT_LEADER, 7, True, True, ["metadata"]),
        (REQUEST_TIMED_OUT, -1, True, True, []),
    ],
)
def test_a_retriable_code_leaves_its_batch_to_be_resent(
    code: int, offset: int, in_doubt: bool, astray: bool, told: list[str]
) -> None:
    """A copy may be appended later if the code also comes after an append."""
    bench = Bench()
    (batch,) = bench.pipelined(1)
    assert bench.refuse(batch, code, offset) is False
    assert (batch.state, batch.in_doubt, batch.astray) == (BatchState.WAITING, in_doubt, astray)
    assert batch.persistence is (Persistence.IN_DOUBT if in_doubt else Persistence.REJECTED)
    assert batch.doubted_at == (100.0 if in_doubt else None)
    assert bench.told.names() == told
    assert bench.state.setbacks.retry_at == 101.0
    assert bench.state.batches.outstanding == 0
    assert not bench.state.leadership.gate_open


@pytest.mark.parametrize(
    ("code", "questioned"), [(DUPLICATE, False), (OUT_OF_ORDER, False), (NOT_LEADER, True)]
)
def test_after_an_unlisted_code_no_success_in_flight_proves_anything(
    code: int, questioned: bool
) -> None:
    """Until the leader sends a code that only one with the producer's state sends."""
    bench = Bench()
    first, second, third = bench.pipelined(3)
    bench.refuse(first, UNLISTED)
    assert bench.state.gate.questioned
    for batch in (second, third):
        assert batch.attempt is not None
        assert not batch.attempt.knows_us
    assert (first.in_doubt, first.astray) == (True, False)
    bench.refuse(second, code)
    assert bench.state.gate.questioned is questioned


def test_an_unlisted_code_for_a_batch_that_has_ended_counts_as_well() -> None:
    """It may say that the leader has lost the producer's state, whatever batch it answers."""
    bench = Bench()
    bench.ack(bench.send(), 0)
    ended = bench.send(deadline=200.0)
    doubtful, success = bench.send(), bench.send()
    bench.expire(200.0)
    bench.refuse(ended, UNLISTED)
    assert not bench.state.leadership.gate_open
    bench.refuse(doubtful, ErrorCode.unknown_server_error)
    bench.ack(success, 3)
    assert bench.statuses == [ACKED, UNKNOWN, ACKED]
    assert doubtful.in_doubt
    assert bench.rung() is Rung.SALVAGE


def test_a_permanent_refusal_fails_the_batch_and_gives_up_its_numbers() -> None:
    bench = Bench()
    batch, other = bench.pipelined(2)
    assert bench.refuse(batch, INVALID_RECORD) is False
    assert bench.outcomes == [(NOT_WRITTEN, -1, 1, 1)]
    assert other.attempt is not None
    assert other.attempt.knows_us, "a listed code says that the leader holds the state"
    assert not bench.state.gate.questioned
    assert batch.state is BatchState.NOT_WRITTEN
    assert bench.told.take() == [
        ("bump", f"{T}-0", FIRST, "a batch ended NOT_WRITTEN (KafkaError)")
    ]
    assert bench.state.ledger.bump_wanted


def test_a_permanent_refusal_of_a_batch_in_doubt_asks_further_if_the_leader_was_heard() -> None:
    """Such a leader recognises a copy of the batch. Any other one ends the batch UNKNOWN."""
    bench = Bench()
    (batch,) = bench.doubt(1)
    bench.refuse(bench.send(batch), INVALID_RECORD)
    assert bench.statuses == []
    assert bench.rung() is Rung.REFUSED
    assert str(bench.state.recovery.refusal) == str(error(INVALID_RECORD))
    bench = Bench()
    (batch,) = bench.doubt(1)
    bench.state.follow(RECONNECTED)
    bench.refuse(bench.send(batch), INVALID_RECORD)
    assert bench.outcomes == [(UNKNOWN, -1, 2, 1)]
    assert bench.told.names() == ["bump"]
    assert bench.told.meters.doubts == {"unknown": 1}


def test_without_sequences_no_leader_recognises_a_copy() -> None:
    """So a permanent refusal of a batch in doubt ends it UNKNOWN."""
    bench = Bench(idempotent=False)
    (batch,) = bench.doubt(1)
    bench.refuse(bench.send(batch), INVALID_RECORD)
    assert bench.statuses == [UNKNOWN]
    assert bench.told.settlements[0].outcome.error is not None
    assert bench.told.take() == []


def test_a_batch_in_doubt_that_ended_unknown_is_no_gap() -> None:
    """It may be stored, so a success above it shows no loss."""
    bench = Bench()
    first, second = bench.doubt(2)
    bench.state.follow(RECONNECTED)
    bench.refuse(bench.send(first), INVALID_RECORD)
    bench.told.take()
    bench.ack(bench.send(second), 2)
    assert "data loss" not in bench.told.names()


def test_a_fatal_code_ends_the_batch_and_the_producer() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.refuse(first, CLUSTER_AUTHORIZATION_FAILED)
    assert bench.statuses == [NOT_WRITTEN]
    assert bench.told.names() == ["bump", "fatal"]
    bench.lose(second)
    bench.refuse(bench.send(second), CLUSTER_AUTHORIZATION_FAILED)
    assert bench.statuses == [NOT_WRITTEN, UNKNOWN]


@pytest.mark.parametrize("in_doubt", [False, True])
def test_an_old_epoch_shows_another_client_and_leaves_what_is_in_doubt_to_it(
    in_doubt: bool,
) -> None:
    """The caller then gives up the id, which ends the batches in doubt."""
    bench = Bench()
    (batch,) = bench.pipelined(1)
    if in_doubt:
        bench.lose(batch)
        bench.send(batch)
    assert bench.refuse(batch, INVALID_PRODUCER_EPOCH) is True
    assert batch.state is (BatchState.IN_FLIGHT if in_doubt else BatchState.WAITING)
    assert bench.statuses == []
    bench.state.endings.disown(KafkaError("shared"), bench.told)
    assert bench.statuses == ([UNKNOWN] if in_doubt else [])
    assert bench.state.ledger.bump_wanted
    assert "bump" not in bench.told.names(), "the producer gets another id, not another epoch"


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_leader_without_the_producer_s_state_needs_another_epoch(in_doubt: bool) -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1)
    if in_doubt:
        bench.lose(batch)
        bench.send(batch)
    assert bench.refuse(batch, UNKNOWN_PRODUCER_ID) is False
    assert bench.statuses == ([UNKNOWN] if in_doubt else [])
    assert bench.told.names() == ["bump"]
    assert batch.due is not in_doubt


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH])
def test_in_a_transaction_a_lost_state_or_epoch_fails_the_transaction(code: int) -> None:
    """Batches in doubt stay so until the end of the transaction decides about them."""
    bench = Bench(transactional=True)
    (batch,) = bench.doubt(1)
    bench.refuse(bench.send(batch), code)
    assert bench.told.names() == ["transaction", "bump"]
    assert (batch.state, batch.in_doubt) == (BatchState.WAITING, True)
    assert bench.state.setbacks.retry_at == 101.0
    assert bench.statuses == []


# -- OUT_OF_ORDER


@pytest.mark.parametrize(
    ("said", "count", "searches"), [(7, 5, False), (7, 6, True), (7, 7, True), (7, 8, False)]
)
def test_out_of_order_for_the_oldest_batch_begins_the_ladder(
    said: int, count: int, searches: bool
) -> None:
    """Older batches are probed too if the leader should have known it, but not as a stock broker.

    That is, if the batch is among the newest that the leader says it retains.
    """
    bench = Bench()
    batches = bench.pipelined(count, retained=said)
    bench.refuse(batches[0], OUT_OF_ORDER)
    assert batches[0].state is BatchState.WAITING
    assert bench.rung() is Rung.REFUSED
    assert bench.state.recovery.searches is searches


def test_out_of_order_behind_the_oldest_batch_is_no_news() -> None:
    bench = Bench()
    _, second = bench.pipelined(2)
    bench.refuse(second, OUT_OF_ORDER)
    assert second.state is BatchState.WAITING
    assert bench.rung() is Rung.CLEAR


def test_out_of_order_for_the_oldest_batch_that_keeps_its_numbers_begins_the_ladder() -> None:
    """What waits to be renumbered does not count."""
    bench = Bench()
    first, second, third = bench.pipelined(3)
    bench.refuse(first, INVALID_RECORD)
    bench.refuse(second, OUT_OF_ORDER)
    assert bench.rung() is Rung.CLEAR
    bench.lose(third)
    bench.refuse(bench.send(third), OUT_OF_ORDER)
    assert bench.rung() is Rung.REFUSED


def test_out_of_order_in_a_transaction_fails_it_if_nothing_before_explains_it() -> None:
    """Then the oldest batch is refused, or one that is resent alone after a loss."""
    bench = Bench(transactional=True)
    first, second = bench.pipelined(2)
    bench.refuse(second, OUT_OF_ORDER)
    assert bench.told.take() == []
    bench.refuse(first, OUT_OF_ORDER)
    assert bench.told.names() == ["transaction"]
    assert first.state is second.state is BatchState.WAITING
    assert bench.rung() is Rung.CLEAR
    bench = Bench(transactional=True)
    first, second, third = bench.pipelined(3)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.refuse(second, REQUEST_TIMED_OUT)
    bench.ack(third, 1)
    assert bench.state.recovery.salvaged == [first, second]
    bench.told.take()
    bench.refuse(bench.send(second), OUT_OF_ORDER)
    assert bench.told.names() == ["transaction"]
    assert second.state is BatchState.WAITING
    assert bench.statuses == [ACKED]


# -- DUPLICATE


def test_duplicate_for_a_batch_that_was_always_refused_is_a_loss() -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.refuse(batch, NOT_ENOUGH_REPLICAS)
    bench.told.take()
    bench.refuse(bench.send(batch), DUPLICATE)
    assert bench.told.names() == ["data loss", "bump"]
    assert bench.statuses == [UNKNOWN]
    assert isinstance(bench.told.settlements[0].outcome.error, DuplicateSequenceNumber)
    assert (batch.persistence, batch.appended) == (Persistence.IN_DOUBT, False)


@pytest.mark.parametrize("transactional", [False, True])
def test_duplicate_for_the_oldest_of_several_batches_in_doubt_begins_the_ladder(
    transactional: bool,
) -> None:
    """The leader knows the offsets of its newest batches only, so these are resent first."""
    bench = Bench(transactional=transactional)
    first, second = bench.doubt(2)
    assert bench.refuse(bench.send(first), DUPLICATE) is False
    assert (first.state, first.appended) == (BatchState.WAITING, True)
    assert bench.rung() is Rung.REFUSED
    assert not second.appended


@pytest.mark.parametrize("why", ["alone", "not the oldest"])
def test_duplicate_otherwise_leaves_the_batch_to_be_resent(why: str) -> None:
    bench = Bench()
    batches = bench.doubt(1 if why == "alone" else 2)
    batch = batches[1 if why == "not the oldest" else 0]
    bench.refuse(bench.send(batch), DUPLICATE)
    assert (batch.state, batch.appended) == (BatchState.WAITING, True)
    assert bench.rung() is Rung.CLEAR
    assert bench.state.setbacks.retry_at == 101.0


def test_duplicate_for_a_batch_that_was_sent_once_leaves_it_in_doubt() -> None:
    """The leader has it, but has not said that it is committed."""
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.refuse(batch, DUPLICATE)
    assert (batch.in_doubt, batch.appended, batch.doubted_at) == (True, True, 100.0)
    assert bench.told.take() == []


def test_duplicate_for_a_salvaged_batch_goes_on_with_the_salvage() -> None:
    bench = Bench()
    first, second, third = bench.pipelined(3)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.refuse(second, REQUEST_TIMED_OUT)
    bench.ack(third, 1)
    bench.refuse(bench.send(first), DUPLICATE)
    assert bench.rung() is Rung.SALVAGE


# -- batches that are too large, and records that are to blame


def test_a_single_record_that_is_too_large_fails_and_gives_up_its_number() -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.refuse(batch, MESSAGE_TOO_LARGE)
    assert bench.statuses == [NOT_WRITTEN]
    assert bench.told.names() == ["bump"]


def test_a_batch_that_is_too_large_waits_to_be_divided() -> None:
    bench = Bench()
    bench.ack(bench.send(), 0)
    batch = bench.send(records=2)
    bench.told.take()
    bench.refuse(batch, MESSAGE_TOO_LARGE)
    assert (batch.state, batch.oversized) == (BatchState.WAITING, True)
    assert bench.told.take() == []


def test_a_batch_in_doubt_that_is_too_large_is_not_divided() -> None:
    """Its first copy may be stored under the same sequences."""
    bench = Bench()
    bench.ack(bench.send(), 0)
    batch = bench.send(records=2)
    bench.lose(batch)
    bench.state.follow(RECONNECTED)
    bench.told.settlements.clear()
    bench.refuse(bench.send(batch), MESSAGE_TOO_LARGE)
    assert not batch.oversized
    assert bench.outcomes == [(UNKNOWN, -1, 2, 2)]


def test_the_parts_of_a_batch_take_its_place_and_its_numbers() -> None:
    """The batches behind it keep their sequences; their ordinals change."""
    bench = Bench()
    first = bench.send()
    whole = bench.send(records=4)
    last = bench.send()
    bench.refuse(whole, MESSAGE_TOO_LARGE)
    bases = [batch.base for batch in bench.state.batches.unresolved]
    parts = []
    for base, ordinal, count in [(1, 1, 1), (2, 2, 1), (3, 3, 2)]:
        part = Bench().seal(count)
        part.base, part.ordinal = base, ordinal
        parts.append(part)
    bench.state.batches.replace(whole, parts)
    assert whole.state is BatchState.SPLIT
    assert bench.state.batches.unresolved == [first, *parts, last]
    assert [batch.ordinal for batch in bench.state.batches.unresolved] == [0, 1, 2, 3, 4]
    assert bases == [0, 1, 5]
    assert last.base == 5
    assert bench.state.batches.next_ordinal == 5
    assert bench.state.batches.span == 5


def test_records_that_are_to_blame_fail_and_the_others_are_sent_in_their_place() -> None:
    bench = Bench()
    batch = bench.send(records=3)
    innocent = Bench().seal(2)
    guilt = KafkaError("no key")
    bench.refuse(batch, INVALID_RECORD, culprits={1: guilt}, innocent=innocent)
    (settlement,) = bench.told.settlements
    assert list(settlement.records) == [batch.records[1]]
    assert (settlement.outcome.status, settlement.outcome.attempts) == (NOT_WRITTEN, 1)
    assert "no key" in str(settlement.outcome.error)
    assert bench.state.batches.unresolved == [innocent]
    assert batch.state is BatchState.SPLIT
    assert bench.told.take() == [
        ("bump", f"{T}-0", FIRST, "single records were refused (KafkaError)")
    ]


def test_a_batch_of_nothing_but_records_that_are_to_blame_fails() -> None:
    bench = Bench()
    batch = bench.send(records=2)
    bench.refuse(batch, INVALID_RECORD, culprits={0: KafkaError("a"), 1: KafkaError("b")})
    assert bench.outcomes == [(NOT_WRITTEN, -1, 1, 2)]
    assert bench.told.names() == ["bump"]


@pytest.mark.parametrize("why", ["in doubt", "built by the caller"])
def test_a_batch_that_may_be_stored_or_was_built_by_the_caller_ends_as_a_whole(why: str) -> None:
    bench = Bench()
    group = RecordGroup(100) if why == "built by the caller" else None
    batch = bench.send(records=[bench.record(group=group), bench.record(group=None)])
    if why == "in doubt":
        bench.lose(batch)
        bench.send(batch)
    bench.refuse(batch, INVALID_RECORD, culprits={0: KafkaError("a")}, innocent=Bench().seal())
    assert bench.outcomes == [(UNKNOWN, -1, 2, 2) if why == "in doubt" else (NOT_WRITTEN, -1, 1, 2)]
    assert bench.state.batches.unresolved == []


# -- no answer


def test_a_written_attempt_without_an_answer_leaves_its_batch_in_doubt() -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.now = 105.0
    bench.lose(batch)
    assert (batch.state, batch.persistence) == (BatchState.WAITING, Persistence.IN_DOUBT)
    assert (batch.doubted_at, batch.astray) == (105.0, True)
    assert bench.state.setbacks.trouble is not None
    assert bench.state.setbacks.trouble.last == "an attempt got no answer"
    assert bench.state.setbacks.trouble.since == 105.0
    assert bench.state.setbacks.retry_at == 106.0
    assert bench.state.batches.outstanding == 0
    assert not bench.state.leadership.gate_open


def test_an_attempt_that_was_not_written_is_made_again_at_once() -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1)
    bench.lose(batch, written=False)
    assert (batch.state, batch.persistence) == (BatchState.WAITING, Persistence.NEVER_SENT)
    assert not batch.astray
    assert bench.state.setbacks.trouble is not None
    assert (
        bench.state.setbacks.trouble.last
        == "a connection ended before all of an attempt was written"
    )
    assert bench.state.setbacks.retry_at == 0.0
    assert bench.state.batches.outstanding == 0
    assert not bench.state.leadership.gate_open


def test_without_acknowledgements_a_written_batch_ends_unknown_without_an_error() -> None:
    bench = Bench(idempotent=False)
    batch = bench.send(records=2)
    bench.state.failures.on_unanswered(batch, bench.now, bench.told)
    assert bench.outcomes == [(UNKNOWN, -1, 1, 2)]
    assert bench.told.settlements[0].outcome.error is None
    assert (batch.state, batch.persistence) == (BatchState.UNKNOWN, Persistence.IN_DOUBT)
    assert (bench.state.batches.unresolved, bench.state.batches.outstanding) == ([], 0)
    ended = bench.send()
    bench.state.endings.abandon(KafkaError("closed"), bench.told)
    bench.state.failures.on_unanswered(ended, bench.now, bench.told)
    assert len(bench.outcomes) == 2
    assert bench.state.batches.outstanding == 0


# -- numbers that are given up


def test_numbers_are_given_up_once_until_there_is_a_new_identity() -> None:
    bench = Bench()
    for batch in bench.pipelined(2):
        bench.refuse(batch, INVALID_RECORD)
    assert bench.told.names() == ["bump"]
    bench.state.adopt(SECOND)
    bench.refuse(bench.send(), INVALID_RECORD)
    assert bench.told.take() == [
        ("bump", f"{T}-0", SECOND, "a batch ended NOT_WRITTEN (KafkaError)")
    ]


def test_without_sequences_no_numbers_are_given_up() -> None:
    bench = Bench(idempotent=False)
    bench.refuse(bench.send(), INVALID_RECORD)
    assert bench.told.take() == []
    assert not bench.state.ledger.bump_wanted


def test_a_batch_that_cannot_be_built_fails_and_gives_up_its_numbers() -> None:
    bench = Bench()
    batch = bench.seal(2)
    bench.state.endings.drop(batch, KafkaError("compression failed"), bench.told)
    assert bench.outcomes == [(NOT_WRITTEN, -1, 0, 2)]
    assert batch.state is BatchState.NOT_WRITTEN
    assert bench.told.names() == ["bump"]
