"""The drill of transactions finds nothing wrong, and notices a part that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine import transactions as transactions_module
from aioidem._engine.backoff import Backoff
from aioidem._engine.coordination import Coordination
from aioidem._engine.coordinator import CallKind, Coordinator, Verdict, classify_call
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.transactions import Call, OffsetCommit, Transactions
from aioidem.errors import KafkaError

from .coordinated import drill_coordinated

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_coordinated(Random(f"coordinated {seed}"))]


def test_transactions_do_what_they_should() -> None:
    assert not wrong()


next_call = Transactions.next_call
on_lost = Transactions.on_lost
die = Transactions.die
on_ended = Transactions.on_ended


def before_all_is_delivered(
    self: Transactions, now: float, *, delivered: bool, quiet: bool
) -> Call | None:
    return next_call(self, now, delivered=delivered or quiet, quiet=quiet)


def never_carried_out(self: Transactions, now: float, *, written: bool) -> None:
    on_lost(self, now, written=written and False)


def of_the_group(self: OffsetCommit, other: OffsetCommit) -> bool:
    return self.group == other.group


def without_a_status(self: Transactions, error: KafkaError) -> None:
    die(self, error)
    if self.cause is not None:
        self.cause.status = error.status


def as_before(
    self: Transactions, error_code: int, _producer_id: int, _epoch: int, now: float
) -> None:
    on_ended(self, error_code, -1, -1, now)


def fenced_by_a_hiccup(kind: CallKind, error_code: int) -> Verdict:
    fenced = error_code == ErrorCode.producer_fenced
    return Verdict.RETRY if fenced else classify_call(kind, error_code)


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (Transactions, "next_call", before_all_is_delivered),
        (Transactions, "on_lost", never_carried_out),
        (Transactions, "fail", lambda _self, _error: None),
        (Transactions, "renew", lambda _self: None),
        (Transactions, "finishing", lambda _self, _error_code, _now: False),
        (Transactions, "die", without_a_status),
        (Transactions, "on_ended", as_before),
        (OffsetCommit, "same_as", of_the_group),
        (transactions_module, "classify_call", fenced_by_a_hiccup),
        (transactions_module, "is_listed", lambda _kind, _error_code: True),
        (Coordination, "follow", lambda _self: None),
        (Coordinator, "forget", lambda _self: None),
        (Backoff, "reset", lambda _self: None),
        (IdentityRequest, "failed", lambda _self, _now: None),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
