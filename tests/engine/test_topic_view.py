"""`TopicView` alone: a topic's leaders, and the lists of partitions for a partitioner."""

from __future__ import annotations

from uuid import UUID

import pytest

from aioidem._engine.topic_view import NO_LEADER, TopicView
from aioidem._protocol.metadata import PartitionUpdate

ID = UUID(int=7)


def topic(leaders: dict[int, int], epoch: int = 5) -> TopicView:
    """Return a topic with these leaders by partition, all in one leader epoch."""
    view = TopicView("t", ID)
    for index, leader in leaders.items():
        view.merge(PartitionUpdate(index, leader, epoch))
    return view


def led(view: TopicView, index: int) -> tuple[int, int]:
    """Return the leader and the leader epoch of a partition."""
    partition = view.view(index)
    assert partition is not None
    return partition.leader_id, partition.leader_epoch


def with_leader(view: TopicView) -> tuple[int, ...]:
    return view.available


def test_a_new_topic_has_no_partitions() -> None:
    view = TopicView("t", ID)
    assert (view.name, view.topic_id) == ("t", ID)
    assert (view.everything, view.available, view.leaders) == ((), (), {})
    assert view.view(0) is None


def test_partitions_are_listed_in_order_and_those_with_a_leader_are_available() -> None:
    view = topic({2: 0, 0: 3, 3: -1, 1: 3})
    assert view.everything == (0, 1, 2, 3)
    assert view.available == (0, 1, 2)
    assert view.leaders == {0: 3, 1: 3, 2: 0, 3: NO_LEADER}
    assert view.leaderless == {3}
    assert topic({1: 3, 0: 0}).available == (0, 1)


def test_every_negative_number_means_that_there_is_no_leader() -> None:
    view = topic({0: -7, 1: 1})
    view.lead(1, -2, 6)
    assert view.leaders == {0: NO_LEADER, 1: NO_LEADER}
    assert led(view, 1) == (NO_LEADER, 6)
    assert view.available == ()


@pytest.mark.parametrize(
    ("known", "epoch", "leader", "result"),
    [
        (5, 6, 2, (2, 6)),
        (5, 5, 2, (2, 5)),
        (5, 4, 2, (1, 5)),
        (5, 0, 2, (1, 5)),
        (5, -1, 2, (2, 5)),
        (0, 0, 2, (2, 0)),
        (-1, 0, 2, (2, 0)),
        (-1, -1, 2, (2, -1)),
        (5, 6, -1, (NO_LEADER, 6)),
    ],
)
def test_an_older_leader_epoch_is_not_believed_and_an_unknown_one_changes_only_the_leader(
    known: int, epoch: int, leader: int, result: tuple[int, int]
) -> None:
    view = topic({0: 1}, epoch=known)
    assert led(view, 0) == (1, known)
    view.merge(PartitionUpdate(0, leader, epoch))
    assert led(view, 0) == result
    assert view.leaders[0] == result[0]


def test_what_was_asked_for_follows_the_leader() -> None:
    """There is one object for each partition, and it is updated."""
    view = topic({0: 1, 1: 1})
    partition = view.view(0)
    assert partition is not None
    view.lead(0, 2, 9)
    view.lead(1, 3, 9)
    assert (partition.leader_id, partition.leader_epoch) == (2, 9)
    assert view.view(0) is partition
    assert view.view(2) is None


def test_the_lists_are_kept_while_no_partition_is_added_and_none_gains_or_loses_its_leader() -> (
    None
):
    view = topic({0: 1, 1: 2, 2: -1})
    everything, available = view.everything, view.available
    view.lead(0, 2, 6)
    view.lead(2, -1, 6)
    view.merge(PartitionUpdate(1, 1, 7))
    assert view.everything is everything
    assert view.available is available
    view.lead(1, -1, 8)
    assert with_leader(view) == (0,)
    view.lead(2, 0, 8)
    assert with_leader(view) == (0, 2)
    assert view.everything is everything
    view.merge(PartitionUpdate(4, 1, 0))
    view.merge(PartitionUpdate(3, -1, 0))
    assert view.everything == (0, 1, 2, 3, 4)
    assert view.available == (0, 2, 4)


def test_without_a_partition_that_lacks_a_leader_there_is_one_list() -> None:
    view = topic({0: 1, 1: -1})
    assert with_leader(view) == (0,)
    view.lead(1, 1, 6)
    assert view.available is view.everything


def test_a_view_adopts_the_partitions_of_another_one() -> None:
    view = topic({0: 1, 1: -1})
    assert (view.everything, view.available) == ((0, 1), (0,))
    view.adopt(topic({4: 2, 3: -1, 2: 2}, epoch=8))
    assert (view.everything, view.available) == ((0, 1, 2, 3, 4), (0, 2, 4))
    assert view.leaderless == {1, 3}
    assert [led(view, each) for each in (0, 4, 3)] == [(1, 5), (2, 8), (NO_LEADER, 8)]
    view.adopt(TopicView("t", ID))
    assert view.everything == (0, 1, 2, 3, 4)
