"""The judge of renewals: which epochs it misses, and which it finds to be without a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aioidem._engine import steps
from aioidem._protocol.producer_id import TransactionalIdentity

from .renewals import Renewals

WHO = TransactionalIdentity("tx", 7, 3)


class Run:
    """A judge, and what it complains of."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.failed = 0
        self.judge = Renewals(lambda: self.failed, self.told.append)
        self.token = 0

    def ask(self, kind: Any, *arguments: Any) -> Any:
        """Send a request."""
        self.token += 1
        step = kind(1, self.token, *arguments)
        self.judge.asks(step)
        return step

    def call(self, kind: Any, *arguments: Any, **answer: Any) -> None:
        """Send a request, and answer it."""
        step = self.ask(kind, *arguments)
        said = {"error_code": 0, "error_codes": {}, "producer_id": 7, **answer}
        self.judge.answered(step, SimpleNamespace(**said))

    def init(self, **answer: Any) -> None:
        """Request an epoch."""
        self.call(steps.InitTransactions, "tx", 60_000, WHO, **answer)

    def begin(self) -> None:
        """Begin a transaction in v1."""
        self.call(steps.AddPartitions, WHO, (("t", 0),))

    def end(self, *, commit: bool = True, v2: bool = False, **answer: Any) -> None:
        """End a transaction."""
        self.call(steps.EndTransaction, WHO, commit, v2, **answer)


def test_an_epoch_without_a_reason_is_one_too_many() -> None:
    run = Run()
    run.init()
    run.begin()
    run.end()
    assert not run.told
    run.init()
    assert run.told == ["another epoch is requested, and nothing asks for it"]


@pytest.mark.parametrize(
    "reason", ["code", "connection", "abort", "records", "topic", "nothing in it"]
)
def test_an_epoch_with_a_reason_is_right(reason: str) -> None:
    run = Run()
    run.init()
    run.begin()
    match reason:
        case "code":
            run.end(error_code=51)
        case "connection":
            run.judge.lost(1, ())
        case "abort":
            run.end(commit=False)
        case "records":
            run.failed += 1
        case "topic":
            run.judge.recreated("t")
        case _:
            run.end(v2=True, producer_id=-1)
    run.init()
    assert not run.told


@pytest.mark.parametrize(
    ("unwritten", "renewed", "wrong"), [(False, False, 1), (False, True, 0), (True, False, 0)]
)
def test_a_lost_call_is_fenced_before_the_next_transaction(
    unwritten: bool, renewed: bool, wrong: int
) -> None:
    run = Run()
    run.init()
    run.begin()
    run.ask(steps.EndTransaction, WHO, True, False)
    run.judge.lost(1, {run.token} if unwritten else ())
    run.end()
    if renewed:
        run.init()
    run.begin()
    assert len(run.told) == wrong


@pytest.mark.parametrize(("answer", "wrong"), [({"producer_id": -1}, 1), ({}, 0)])
def test_in_v2_the_end_of_a_transaction_names_the_next_epoch(
    answer: dict[str, Any], wrong: int
) -> None:
    run = Run()
    run.init()
    run.end(v2=True, **answer)
    run.call(steps.CommitOffsets, WHO, None, {}, True)
    assert len(run.told) == wrong


def test_an_abort_without_a_transaction_in_v2_is_followed_by_another_epoch() -> None:
    run = Run()
    run.init()
    run.end(commit=False, v2=True, error_code=48)
    run.call(steps.CommitOffsets, WHO, None, {}, True)
    assert len(run.told) == 1


def test_numbers_of_a_topic_that_is_another_one_now_are_not_used_again() -> None:
    run = Run()
    run.init()
    topic = SimpleNamespace(name="t")
    produce: Any = SimpleNamespace(transactional_id="tx", topics=[topic])
    run.judge.asks(steps.SendProduce(1, 99, 13, -1, 1000, "tx", produce.topics, 1))
    run.end()
    run.judge.recreated("t")
    run.begin()
    assert len(run.told) == 1
