"""`Outcomes` alone: what is counted of an outcome, and when a flush is over."""

from __future__ import annotations

import logging

import pytest

from aioidem import errors
from aioidem._engine.backoff import Backoff
from aioidem._engine.flushing import FlushCount
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.incidents import Event
from aioidem._engine.memory import ByteBudget
from aioidem._engine.no_transactions import NoTransactions
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.record import Outcome, PendingRecord
from aioidem._engine.settlement import Settlement
from aioidem._engine.transactions import TransactionState
from aioidem._log import LogLine
from aioidem.structs import DeliveryStatus

from .transactions_bench import V1, Bench

ACKED, NOT_WRITTEN, UNKNOWN = (
    DeliveryStatus.ACKED,
    DeliveryStatus.NOT_WRITTEN,
    DeliveryStatus.UNKNOWN,
)
LOST = errors.KafkaConnectionError("lost")


def outcomes(transactional: Bench | None = None) -> Outcomes:
    none = NoTransactions(IdentityLedger(), Backoff(0.1, 1.0, lambda: 0.5))
    return Outcomes(ByteBudget(10_000), none if transactional is None else transactional.of)


def settlement(
    status: DeliveryStatus, *generations: int, error: errors.KafkaError | None = None
) -> Settlement:
    """Return the outcome of one record of ten bytes for each of these generations."""
    records = []
    for generation in generations:
        record = PendingRecord(None, b"v", (), 0, 0, 10)
        record.generation = generation
        records.append(record)
    return Settlement.of_items(Outcome("t", 0, status, error=error), records)


def test_at_first_nothing_was_counted() -> None:
    of = outcomes()
    counters = of.counters
    records = counters.records_acked, counters.records_not_written, counters.records_unknown
    batches = counters.batches_sent, counters.batches_retried, counters.batches_split
    assert (*records, *batches, counters.bytes_acked, counters.data_loss_events) == (0,) * 8
    assert (of.settled, of.flushes, of.has_events) == (0, 0, False)
    assert (list(of.take_settled()), of.peek_settled(), of.take_events()) == ([], (), [])


def test_records_are_counted_by_their_outcome() -> None:
    of = outcomes()
    of.settle(settlement(ACKED, 0, 0, 0))
    of.settle(settlement(NOT_WRITTEN, 0, 0))
    of.settle(settlement(UNKNOWN, 0))
    counters = of.counters
    assert (counters.records_acked, counters.bytes_acked) == (3, 30)
    assert (counters.records_not_written, counters.records_unknown, of.settled) == (2, 1, 6)


def test_outcomes_are_kept_in_order_until_they_are_taken() -> None:
    of = outcomes()
    made = [settlement(ACKED, 0), settlement(UNKNOWN, 0)]
    for each in made:
        of.settle(each)
    assert of.peek_settled() == tuple(made)
    assert list(of.take_settled()) == made
    assert of.peek_settled() == ()


def test_memory_is_given_back() -> None:
    of = outcomes()
    budget = ByteBudget(10_000)
    of._budget = budget  # noqa: SLF001
    made = settlement(ACKED, 0, 0)
    assert budget.try_take(made.size() + made.overhead())
    of.settle(made)
    assert budget.used == 0


def test_failures_are_told_and_counted_and_doom_the_transaction() -> None:
    transactional = Bench(V1).writing()
    of, heard = outcomes(transactional), list[Settlement]()
    of.on_failure = heard.append
    of.settle(settlement(ACKED, 0))
    assert heard == []
    assert transactional.state() is TransactionState.OPEN
    made = settlement(NOT_WRITTEN, 0, 0, error=LOST)
    of.settle(made)
    assert heard == [made]
    assert transactional.of.cause is LOST
    assert of.meters.errors.total == 2
    assert dict(of.meters.kinds) == {"KafkaConnectionError": 2}


def test_a_failure_without_an_error_dooms_the_transaction_too() -> None:
    transactional = Bench(V1).writing()
    outcomes(transactional).settle(settlement(UNKNOWN, 0))
    assert transactional.state() is TransactionState.ABORTABLE
    assert transactional.of.cause is None


def test_a_flush_is_over_when_every_record_queued_before_it_is_settled() -> None:
    of = outcomes()
    of.close_generation(0, 2)
    of.close_generation(1, 5)
    assert not of.flushed(0)
    of.settle(settlement(ACKED, 0, 1, 1))
    assert not of.flushed(0)
    of.settle(settlement(NOT_WRITTEN, 0))
    assert of.flushed(0)
    assert not of.flushed(1)
    of.settle(settlement(ACKED, 2, 1))
    assert of.flushed(1)


def test_a_flush_of_nothing_is_over_at_once() -> None:
    of = outcomes()
    of.close_generation(0, 0)
    assert of.flushed(0)
    of.close_generation(1, 3)
    of.close_generation(2, 3)
    of.settle(settlement(ACKED, 1, 1, 1))
    assert of.flushed(2)


def test_a_flush_counts_outcomes_while_it_waits() -> None:
    of = outcomes()
    counted, other = FlushCount(0), FlushCount(0)
    of.count_for(counted)
    of.count_for(other)
    assert of.flushes == 2
    of.settle(settlement(ACKED, 0, 0))
    of.stop_counting(other)
    assert of.flushes == 1
    of.settle(settlement(NOT_WRITTEN, 0))
    assert (counted.counts.acked, counted.counts.not_written) == (2, 1)
    assert (other.counts.acked, other.counts.not_written) == (2, 0)


def test_a_flush_counts_what_nobody_had_been_told_when_it_began() -> None:
    of = outcomes()
    counted = FlushCount(0, {ACKED: 3, NOT_WRITTEN: 2})
    of.count_for(counted)
    of.settle(settlement(ACKED, 0))
    assert counted.counts == (4, 2, 0)
    assert FlushCount(0).counts == (0, 0, 0)


@pytest.mark.parametrize("level", [None, logging.WARNING])
def test_lines_for_the_log_are_kept_until_they_are_taken(level: int | None) -> None:
    of = outcomes()
    of.event(LogLine.DATA_LOSS, "first", level)
    second = Event(LogLine.TOPIC_RECREATED, "second")
    of.add_event(second)
    assert of.has_events
    first, last = of.take_events()
    assert (first.line, first.text, first.level) == (LogLine.DATA_LOSS, "first", level)
    assert last is second
    assert (of.has_events, of.take_events()) == (False, [])
