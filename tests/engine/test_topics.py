"""`TopicState` limits the size of a topic's batches after a broker has refused one for its size."""

from __future__ import annotations

from aioidem._engine.topics import CEILING_MEMORY, TopicState


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
