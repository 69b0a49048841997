"""The drills of codes and of life cycles find nothing wrong, and notice a row that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine import batch, classify, coordinator, discovery, recovery, transactions
from aioidem._engine.batch import BatchEvent, BatchState, Evidence, Persistence
from aioidem._engine.classify import Action
from aioidem._engine.coordinator import CallKind, Verdict
from aioidem._engine.discovery import DiscoveryEvent, DiscoveryState
from aioidem._engine.recovery import RecoveryEvent, Rung
from aioidem._engine.transactions import TransactionEvent, TransactionState

from .codes import drill_codes
from .life_cycles import drill_life_cycles

SEEDS = range(60)


def of_codes() -> list[str]:
    return [what for seed in SEEDS for what in drill_codes(Random(seed))]


def of_life_cycles() -> list[str]:
    return [what for seed in SEEDS for what in drill_life_cycles(Random(seed))]


@pytest.mark.parametrize("wrong", [of_codes, of_life_cycles])
def test_the_tables_say_what_follows(wrong: Callable[[], list[str]]) -> None:
    assert not wrong()


_ROW = classify._Row
_COORDINATOR_KEY = CallKind.INIT, ErrorCode.invalid_producer_epoch


@pytest.mark.parametrize(
    ("table", "row", "broken", "wrong"),
    [
        (classify._TABLE, ErrorCode.corrupt_message, _ROW(Action.FAIL), of_codes),
        (classify._TABLE, ErrorCode.not_leader_or_follower, _ROW(Action.RETRY), of_codes),
        (classify._TABLE, ErrorCode.request_timed_out, _ROW(Action.RETRY), of_codes),
        (coordinator._COMMON, ErrorCode.not_coordinator, Verdict.RETRY, of_codes),
        (coordinator._BY_KIND, _COORDINATOR_KEY, Verdict.REFUSED, of_codes),
        (
            *(batch.BATCH_TRANSITIONS, (BatchState.WAITING, BatchEvent.ACK)),
            *(BatchState.UNKNOWN, of_life_cycles),
        ),
        (
            *(batch.PERSISTENCE_TRANSITIONS, (Persistence.IN_DOUBT, Evidence.REFUSED)),
            *(Persistence.REJECTED, of_life_cycles),
        ),
        (
            *(recovery.RECOVERY_TRANSITIONS, (Rung.SALVAGE, RecoveryEvent.RESTART)),
            *(Rung.CLEAR, of_life_cycles),
        ),
        (
            *(discovery.DISCOVERY_TRANSITIONS, (DiscoveryState.HELD_BACK, DiscoveryEvent.LOST)),
            *(DiscoveryState.APART, of_life_cycles),
        ),
        (
            transactions.TRANSACTION_TRANSITIONS,
            (TransactionState.FATAL, TransactionEvent.ABORT),
            *(TransactionState.ABORTING, of_life_cycles),
        ),
    ],
)
def test_a_row_that_is_wrong_is_noticed(
    table: dict[Any, Any],
    row: object,
    broken: object,
    wrong: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(table, row, broken)
    assert wrong()


def test_codes_that_may_pass_are_those_that_kafka_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classify, "may_pass", lambda *_: False)
    assert of_codes()
