"""Records without a key or a partition: which partition takes them (KIP-480, KIP-794)."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.topic_view import TopicView
from aioidem._protocol.metadata import PartitionUpdate


def views(*leaders: int) -> TopicView:
    topic = TopicView("t", None)
    for index, leader in enumerate(leaders):
        topic.merge(PartitionUpdate(index, leader, 0))
    return topic


def test_one_partition_takes_a_batch_worth_of_bytes_then_another_is_drawn() -> None:
    """One partition takes a batch's worth of bytes, then another is drawn (KIP-480, KIP-794)."""
    sticky = StickyPartitioner(100, random.Random(3).random)
    chosen = [sticky.choose(25, views(1, 1, 1)) for _ in range(40)]
    runs = [list(group) for _, group in itertools.groupby(chosen)]
    assert all(len(run) == 4 for run in runs)
    assert {0, 1, 2} == set(chosen)


def test_only_partitions_with_a_leader_are_drawn() -> None:
    sticky = StickyPartitioner(1, random.Random(3).random)
    assert {sticky.choose(1, views(-1, 1, -1, 2)) for _ in range(50)} == {1, 3}


def test_without_any_leader_every_partition_is_a_choice() -> None:
    sticky = StickyPartitioner(1, random.Random(3).random)
    assert {sticky.choose(1, views(-1, -1)) for _ in range(50)} == {0, 1}


def test_a_partition_that_is_gone_is_left() -> None:
    sticky = StickyPartitioner(1000, lambda: 0.99)
    assert sticky.choose(1, views(1, 1, 1)) == 2
    assert sticky.choose(1, views(1)) == 0


@given(draw=st.floats(0, 1), count=st.integers(1, 9))
def test_any_draw_is_a_partition(draw: float, count: int) -> None:
    """Every draw chooses a partition, even if the random source returns 1.0."""
    sticky = StickyPartitioner(1, lambda: draw)
    assert sticky.choose(5, views(*[1] * count)) in range(count)
    assert sticky.choose(5, views(*[1] * count)) in range(count)


def test_a_round_gives_each_partition_with_a_leader_once_and_the_next_record_another() -> None:
    """The last partition of a round has got its share, so it is not filled further."""
    for draw in (0.0, 0.4, 0.9):
        sticky = StickyPartitioner(100, lambda draw=draw: draw)  # type: ignore[misc]
        sticky.choose(1, views(1, -1, 1, 1))
        given_to = list(sticky.round(views(1, -1, 1, 1)))
        assert sorted(given_to) == [0, 2, 3]
        assert sticky.current == given_to[-1]
        assert sticky.choose(1, views(1, -1, 1, 1)) != given_to[-1]
    assert sorted(StickyPartitioner(100, lambda: 0.5).round(views(-1, -1))) == [0, 1]
