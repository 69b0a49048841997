"""When metadata is requested: at once, when it is old, and after failures."""

from __future__ import annotations

import pytest

from aioidem._engine.backoff import Backoff
from aioidem._engine.metadata import MetadataRefresher


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
    """The delay before the next request doubles with each failure and each useless answer.

    An answer that is enough resets the delay.
    """
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


def test_metadata_is_requested_before_any_clock_has_begun() -> None:
    assert refresher().due_at() == 0.0
    assert refresher().wanted
    assert refresher().requests == 0
    assert refresher().refreshed_at is None


def test_metadata_that_never_came_is_requested_even_if_nobody_wants_it() -> None:
    wanted = refresher()
    wanted.sent()
    wanted.in_flight = False
    assert not wanted.wanted
    assert wanted.due(0.0)
    assert wanted.due_at() == 0.0


def test_each_request_has_the_next_number() -> None:
    wanted = refresher()
    for number in (1, 2, 3):
        wanted.sent()
        assert wanted.requests == number
        wanted.failed(0.0)


def test_old_metadata_waits_for_the_back_off_too() -> None:
    wanted = refresher(max_age=0.05)
    wanted.sent()
    wanted.answered(10.0, enough=True)
    assert wanted.refreshed_at == 10.0
    assert wanted.due_at() == pytest.approx(10.1)
    assert not wanted.due(10.09)


def test_metadata_that_is_wanted_is_requested_before_it_is_old() -> None:
    wanted = refresher()
    wanted.sent()
    wanted.answered(10.0, enough=True)
    wanted.want()
    assert not wanted.due(10.09)
    assert wanted.due(10.11)


def test_a_topic_that_no_request_has_named_is_requested_at_once() -> None:
    """Also if it is new while a request is on its way; but its request is followed by a pause."""
    wanted = refresher()
    wanted.sent()
    wanted.answered(10.0, enough=True)
    wanted.want_unnamed()
    assert wanted.due(10.0)
    assert wanted.due_at() == 0.0
    wanted.sent()
    assert wanted.due_at() is None
    wanted.want_unnamed()
    assert not wanted.due(10.0)
    wanted.answered(10.5, enough=False)
    assert wanted.due(10.5)
    wanted.sent()
    wanted.want()
    wanted.answered(11.0, enough=True)
    assert not wanted.due(11.05)
    assert wanted.due(11.2)


def test_a_new_topic_waits_for_the_back_off_after_a_failure() -> None:
    wanted = refresher()
    wanted.sent()
    wanted.failed(10.0)
    wanted.want_unnamed()
    assert not wanted.due(10.05)
    assert wanted.due_at() == pytest.approx(10.1)
    wanted.sent()
    wanted.answered(11.0, enough=True)
    wanted.want_unnamed()
    assert wanted.due(11.0)


def test_new_topics_do_not_make_the_back_off_longer() -> None:
    """What their answers lack, such as the leader of another topic, may be there in a moment."""
    wanted = refresher()
    wanted.sent()
    wanted.answered(10.0, enough=False)
    for now in (10.01, 10.02, 10.03, 10.04):
        wanted.want_unnamed()
        wanted.sent()
        wanted.answered(now, enough=False)
    assert not wanted.due(10.13)
    assert wanted.due_at() == pytest.approx(10.14)
    wanted.sent()
    wanted.answered(10.2, enough=False)
    assert wanted.due_at() == pytest.approx(10.4)
