"""`Accusations` alone: verdicts wait for the answer to a later Metadata request."""

from __future__ import annotations

from aioidem._engine.accusations import Accusation, Accusations
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route


def accusation(at: float) -> Accusation:
    return Accusation("t", 3, Route(1, 5, 7), Disproof(20, 8, 11), at)


def test_a_verdict_is_taken_once_by_a_request_that_is_not_older() -> None:
    waiting = Accusations()
    first, second, third = (accusation(at) for at in (1.0, 2.0, 3.0))
    for each in (third, first, second):
        waiting.add(each)
    assert waiting.take_due(0.9) == []
    assert waiting.take_due(2.0) == [first, second]
    assert waiting.take_due(2.0) == []
    assert waiting.take_due(9.0) == [third]


def test_no_verdict_outlasts_the_cluster() -> None:
    waiting = Accusations()
    waiting.add(accusation(1.0))
    waiting.clear()
    assert waiting.take_due(9.0) == []


def test_the_message_names_the_broker_the_partition_and_the_numbers() -> None:
    told = accusation(1.0).text(9)
    for part in (
        "broker 5",
        "retains 20 batches",
        "t-3",
        "8 batches back",
        "refuse one 11",
        "most 9",
    ):
        assert part in told
