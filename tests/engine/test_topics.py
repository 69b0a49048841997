"""`TopicState` limits the size of a topic's batches after a broker has refused one for its size."""

from __future__ import annotations

from aioidem._engine.topics import CEILING_MEMORY, TopicState
from aioidem.errors import TopicAuthorizationFailedError


def test_a_refused_size_bounds_the_topic_for_an_hour() -> None:
    """For an hour after a refusal, a batch may have at most half of the size that was refused."""
    topic = TopicState("t", 100, lambda: 0.5)
    assert topic.ceiling(1000, 0.0) == 1000
    topic.too_large(800, 0.0)
    assert topic.ceiling(1000, 1.0) == 400
    assert topic.ceiling(100, 1.0) == 100
    topic.too_large(900, 1.0)
    assert topic.ceiling(1000, 1.0) == 400
    assert topic.ceiling(1000, 1.0 + CEILING_MEMORY) == 1000


def test_the_ceiling_never_reaches_zero() -> None:
    """However small the refused size is, the ceiling never falls below one byte."""
    topic = TopicState("t", 100, lambda: 0.5)
    for _ in range(5):
        topic.too_large(1, 0.0)
    assert topic.ceiling(1000, 0.0) == 1


def test_a_smaller_refusal_lowers_the_limit_and_a_later_one_after_the_hour_begins_anew() -> None:
    topic = TopicState("t", 100, lambda: 0.5)
    topic.too_large(800, 0.0)
    topic.too_large(200, 1.0)
    assert topic.ceiling(1000, 1.0) == 100
    topic.too_large(600, 1.0 + CEILING_MEMORY)
    assert topic.ceiling(1000, 1.0 + CEILING_MEMORY) == 300


def test_a_limit_that_explains_every_refusal_counts_instead_of_half_the_size() -> None:
    """It does if it is below the smallest size that was refused, and `default` still holds."""
    topic = TopicState("t", 100, lambda: 0.5)
    topic.too_large(800, 0.0)
    assert topic.ceiling(1000, 0.0, told=799) == 799
    assert topic.ceiling(500, 0.0, told=799) == 500
    assert topic.ceiling(1000, 0.0, told=800) == 400
    topic.too_large(700, 0.0)
    assert topic.ceiling(1000, 0.0, told=750) == 350
    topic.too_large(900, 0.0)
    assert topic.ceiling(1000, 0.0, told=750) == 350
    assert topic.ceiling(1000, 0.0, told=699) == 699
    topic.too_large(900, CEILING_MEMORY)
    assert topic.ceiling(1000, CEILING_MEMORY, told=750) == 750


def test_what_another_cluster_said_of_the_topic_is_forgotten() -> None:
    topic = TopicState("t", 100, lambda: 0.5)
    topic.describe(29, told_by=7)
    topic.refuse()
    topic.too_large(200, 0.0)
    topic.forget_cluster()
    assert (topic.error_code, topic.refused, topic.described_by) == (0, None, 0)
    assert topic.ceiling(1000, 0.0) == 1000
    topic.too_large(800, 0.0)
    assert topic.ceiling(1000, 0.0) == 400


def test_nothing_is_known_of_a_new_topic() -> None:
    topic = TopicState("t", 100, lambda: 0.5)
    assert topic.name == "t"
    assert (topic.error_code, topic.refused, topic.described_by, topic.waiting) == (0, None, 0, 0)
    assert not topic.unassigned


def test_a_refused_topic_has_the_error_of_its_code_with_its_name() -> None:
    topic = TopicState("payments", 100, lambda: 0.5)
    topic.describe(29, told_by=7)
    error = topic.refuse()
    assert type(error) is TopicAuthorizationFailedError
    assert "topic 'payments': " in str(error)
    assert topic.refused is error


def test_callers_are_counted_while_they_wait_for_the_partitions() -> None:
    topic = TopicState("t", 100, lambda: 0.5)
    counts = [topic.waiting]
    with topic.awaited():
        counts.append(topic.waiting)
        with topic.awaited():
            counts.append(topic.waiting)
        counts.append(topic.waiting)
    assert [*counts, topic.waiting] == [0, 1, 2, 1, 0]


def test_a_refused_topic_is_refused_until_the_next_answer_about_it() -> None:
    topic = TopicState("t", 100, lambda: 0.5)
    topic.describe(29, told_by=None)
    topic.refuse()
    topic.describe(5, told_by=None)
    assert (topic.error_code, topic.refused, topic.described_by) == (5, None, 0)
    topic.describe(0, told_by=3)
    topic.describe(5, told_by=None)
    assert topic.described_by == 3
