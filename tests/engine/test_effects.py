"""`Effects` alone: what a partition's decision changes outside of the partition."""

from __future__ import annotations

import logging

import pytest

from aioidem import errors
from aioidem._engine.accusations import Accusations
from aioidem._engine.backoff import Backoff
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import IdentityLedger, ProducerIdentity
from aioidem._engine.memory import ByteBudget
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.no_transactions import NoTransactions
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._engine.transactions import Transactions, TransactionState
from aioidem._log import LogLine

from .transactions_bench import V1
from .transactions_bench import Bench as Transactional

ROUTE = Route(1, 5, 7)
LOST = errors.KafkaConnectionError("lost")


def a_backoff() -> Backoff:
    return Backoff(0.1, 1.0, lambda: 0.5)


class Bench:
    """`Effects`, and the ledgers that it changes."""

    def __init__(self, transactional: Transactional | None = None) -> None:
        self.identity = IdentityLedger()
        self.identity.ask()
        self.identity.grant(7, 0)
        self.metadata = MetadataRefresher(300.0, a_backoff())
        self.metadata.sent()
        self.accusations = Accusations()
        if transactional is None:
            transactions: Transactions = NoTransactions(self.identity, a_backoff())
        else:
            transactions = transactional.of
        self.outcomes = Outcomes(ByteBudget(10_000), transactions)
        self.of = Effects(
            self.outcomes, self.metadata, self.identity, transactions, self.accusations
        )

    def lines(self) -> list[LogLine]:
        return [event.line for event in self.outcomes.take_events()]


def test_an_epoch_is_raised_once_for_numbers_that_were_given_up() -> None:
    bench = Bench()
    given_up = bench.identity.current
    bench.of.bump("t-0", given_up, "a batch expired")
    bench.of.bump("t-1", given_up, "a batch expired")
    assert bench.identity.current == ProducerIdentity(7, 1)
    assert bench.identity.bumps == 1
    (event,) = bench.outcomes.take_events()
    assert event.line is LogLine.EPOCH_BUMPED
    assert event.text == "t-0: producer epoch bumped, because a batch expired"


def test_in_a_transaction_the_coordinator_grants_the_next_epoch() -> None:
    transactional = Transactional(V1).writing()
    bench = Bench(transactional)
    bench.of.bump("t-0", bench.identity.current, "a batch expired")
    assert bench.identity.current == ProducerIdentity(7, 0)
    assert bench.lines() == []
    assert transactional.state() is TransactionState.ABORTABLE
    assert "t-0" in str(transactional.of.cause)
    assert "a batch expired" in str(transactional.of.cause)


def test_lost_data_is_counted_told_and_dooms_the_transaction() -> None:
    transactional = Transactional(V1).writing()
    bench = Bench(transactional)
    bench.of.data_loss("t-0", "the log was truncated")
    bench.of.data_loss("t-1", "the log was truncated")
    assert bench.outcomes.counters.data_loss_events == 2
    assert [event.text for event in bench.outcomes.take_events()] == [
        "t-0: data loss: the log was truncated",
        "t-1: data loss: the log was truncated",
    ]
    assert isinstance(transactional.of.cause, errors.OutOfOrderSequenceNumber)
    assert "t-0: data loss: the log was truncated" in str(transactional.of.cause)


def test_a_doomed_transaction_is_told() -> None:
    transactional = Transactional(V1).writing()
    bench = Bench(transactional)
    bench.of.fail_transaction("t-0", LOST)
    assert transactional.of.cause is LOST
    (event,) = bench.outcomes.take_events()
    assert event.line is LogLine.TRANSACTION_FAILED
    assert event.text.startswith("t-0: the transaction must be aborted: ")
    assert "lost" in event.text


def test_the_first_fatal_error_stays() -> None:
    bench = Bench()
    assert bench.of.fatal_error is None
    bench.of.fatal(LOST)
    bench.of.fatal(errors.KafkaTimeoutError("later"))
    assert bench.of.fatal_error is LOST


def test_a_transactional_producer_ends_with_the_error_of_its_transaction() -> None:
    transactional = Transactional(V1).committing()
    bench = Bench(transactional)
    bench.of.fatal(LOST)
    assert bench.of.fatal_error is transactional.of.cause is not LOST


@pytest.mark.parametrize(
    ("before", "after", "level", "batches"),
    [
        (5, 20, None, "20 batches"),
        (20, 5, logging.WARNING, "5 batches"),
        (5, 5, None, "5 batches"),
        (5, 1, logging.WARNING, "1 batch"),
    ],
)
def test_a_window_that_shrinks_is_a_warning(
    before: int, after: int, level: int | None, batches: str
) -> None:
    bench = Bench()
    bench.of.window_changed("t-0", ROUTE, before, after)
    bench.of.window_changed("t-0", None, before, after)
    by_broker, by_leader = bench.outcomes.take_events()
    assert by_broker.line is LogLine.WINDOW_CHANGED
    assert by_broker.level == level
    said = f"t-0: the window is {batches}, as {{}} says; it was {before}"
    assert by_broker.text == said.format("broker 5")
    assert by_leader.text == said.format("the leader")


def test_a_disproof_waits_for_metadata_and_has_it_requested() -> None:
    bench = Bench()
    for route in (None, ROUTE):
        bench.of.disprove("t", 0, route, Disproof(20, 8, 11), 3.0)
        assert bench.metadata.wanted is (route is not None)
    (accusation,) = bench.accusations.take_due(3.0)
    assert accusation == ("t", 0, ROUTE, Disproof(20, 8, 11), 3.0)


def test_stale_metadata_is_requested() -> None:
    bench = Bench()
    bench.of.refresh_metadata()
    assert bench.metadata.wanted


def test_doubts_are_counted_by_how_they_ended_and_the_gate_by_its_time() -> None:
    bench = Bench()
    bench.of.doubt_ended("probe")
    bench.of.doubt_ended("probe")
    bench.of.doubt_ended("unknown")
    assert (bench.of.meters.doubts["probe"], bench.of.meters.doubts["unknown"]) == (2, 1)
    bench.of.waited_at_gate(2.0, 5.0)
    assert (bench.of.meters.gate.count, bench.of.meters.gate.total) == (1, 3.0)
