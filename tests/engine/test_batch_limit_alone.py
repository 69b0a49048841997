"""`BatchLimit` alone: the size of batches that a topic is known to accept, and when it is asked."""

from __future__ import annotations

import pytest

from aioidem._engine.batch_limits import BatchLimit, BatchLimits


def wants(limit: BatchLimit, now: float = 0.0, *, growth: bool = True) -> bool:
    return limit.wants(now, 300.0, 900.0, growth=growth)


def told(nbytes: int | None, now: float = 10.0) -> BatchLimit:
    limit = BatchLimit("t")
    limit.ask()
    limit.tell(nbytes, now)
    return limit


def test_a_new_limit_is_batch_size_and_is_asked_for_if_a_batch_could_grow() -> None:
    limit = BatchLimit("t")
    assert (limit.topic, limit.told, limit.acknowledged, limit.unused) == ("t", None, 0, False)
    assert limit.known(16_384) == 16_384
    assert wants(limit)
    assert not wants(limit, growth=False)
    assert not limit.awaited()


def test_one_question_is_asked_at_a_time_and_batches_await_only_what_was_refused() -> None:
    limit = BatchLimit("t")
    limit.ask()
    assert not wants(limit, 9999.0)
    assert not limit.awaited()
    limit.refuse(500)
    assert limit.awaited() is True
    limit.tell(400, 1.0)
    assert not limit.awaited()


@pytest.mark.parametrize(
    ("room", "at"), [(None, 910.0), (10.0, 310.0), (12.0, 312.0), (910.0, 1210.0), (910.1, 310.0)]
)
def test_an_answer_is_valid_for_a_time_that_begins_when_there_is_room_for_records(
    room: float | None, at: float
) -> None:
    """It was told at 10 s, and does not age before there is room, unless that takes 900 s."""
    limit = told(1000)
    assert limit.unused
    if room is not None:
        limit.find_room(room, 900.0)
        assert not limit.unused
    assert not wants(limit, at - 0.1)
    assert wants(limit, at)
    assert not wants(limit, at, growth=False)


def test_the_longer_of_both_times_counts_where_nothing_was_sent() -> None:
    limit = told(1000)
    assert not limit.wants(1009.0, 1000.0, 10.0, growth=True)
    assert limit.wants(1010.0, 1000.0, 10.0, growth=True)


def test_what_the_topic_tells_counts_whatever_was_acknowledged() -> None:
    limit = told(1000)
    limit.accept(5000)
    assert limit.known(16_384) == 1000
    silent = told(None)
    for nbytes, known in ((10_000, 16_384), (20_000, 20_000), (18_000, 20_000)):
        silent.accept(nbytes)
        assert silent.known(16_384) == known


def test_a_refusal_that_the_limit_explains_asks_nothing() -> None:
    limit = told(1000)
    limit.refuse(1001)
    assert not wants(limit, 10.0, growth=False)
    assert not limit.awaited()


def test_a_refusal_that_the_limit_does_not_explain_asks_at_once() -> None:
    limit = told(1000)
    limit.refuse(1000)
    assert wants(limit, 10.0, growth=False)
    never = BatchLimit("t")
    never.refuse(500)
    assert wants(never, 0.0, growth=False)
    assert never.awaited() is False, "it was not asked yet"


def test_room_for_records_takes_no_question_back() -> None:
    limit = told(1000)
    limit.refuse(1000)
    limit.find_room(11.0, 900.0)
    assert wants(limit, 11.0, growth=False)


def test_a_topic_that_tells_nothing_is_asked_again_no_sooner_for_a_refusal() -> None:
    limit = told(None)
    limit.find_room(10.0, 900.0)
    limit.refuse(500)
    assert not wants(limit, 309.9, growth=False)
    assert wants(limit, 310.0, growth=False)


def test_an_answer_ends_the_refusal() -> None:
    limit = told(None)
    limit.refuse(500)
    limit.ask()
    limit.tell(None, 400.0)
    assert not wants(limit, 9999.0, growth=False)


@pytest.mark.parametrize(("refused", "left"), [(500, 0), (501, 500), (499, 0)])
def test_what_was_acknowledged_is_doubted_if_no_larger_batch_is_refused(
    refused: int, left: int
) -> None:
    limit = BatchLimit("t")
    limit.accept(500)
    limit.refuse(refused)
    assert limit.acknowledged == left


def test_each_topic_of_a_connection_has_its_own_limit() -> None:
    limits = BatchLimits()
    assert limits.may_ask
    first = limits.of("t")
    assert limits.of("t") is first is not limits.of("u")
    assert limits.of("u").topic == "u"
