"""How a long Metadata answer is merged in slices, and which partition lists partitioners get."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine.cluster import ClusterView, TopicView
from aioidem._engine.metadata_merge import SLICE, MetadataMerge
from aioidem._protocol.metadata import (
    BrokerAddress,
    MetadataUpdate,
    PartitionColumns,
    PartitionUpdate,
    TopicUpdate,
)

from .driver import Rig, T

ID, OTHER_ID = UUID(int=1), UUID(int=2)
BROKERS = (BrokerAddress(1, "b1", 9092),)


def update(
    count: int, *, topic_id: UUID | None = ID, leader: int = 1, epoch: int = 0
) -> MetadataUpdate:
    partitions = PartitionColumns()
    for index in range(count):
        partitions.append(index, leader, epoch, 0)
    return MetadataUpdate("c", BROKERS, (TopicUpdate("t", topic_id, 0, partitions),))


def known(view: ClusterView) -> TopicView:
    return view.topics["t"]


def test_no_piece_has_more_partitions_than_a_slice() -> None:
    view = ClusterView()
    merge = MetadataMerge(view, update(5 * SLICE + 1))
    assert list(merge.slices()) == [SLICE] * 5 + [1]
    merge.finish()
    assert known(view).everything == tuple(range(5 * SLICE + 1))


def test_until_the_end_a_topic_never_has_another_number_of_partitions() -> None:
    view = ClusterView()
    before = None
    for count, topic_id in ((3 * SLICE, ID), (7 * SLICE, ID), (10, OTHER_ID)):
        merge = MetadataMerge(view, update(count, topic_id=topic_id))
        for _ in merge.slices():
            there = view.partitions("t")
            assert (None if there is None else len(there)) == before
            assert there is None or len(known(view).everything) == before
        assert merge.finish().recreated == (["t"] if topic_id is OTHER_ID else [])
        assert known(view).everything == tuple(range(count))
        before = count


def test_a_leader_that_is_heard_of_between_two_pieces_is_kept() -> None:
    """A leader that a Produce answer names between two slices of a merge is kept (KIP-951).

    The metadata that is being merged is older than the Produce answer.
    """
    view = ClusterView()
    MetadataMerge(view, update(3 * SLICE)).finish()
    merge = MetadataMerge(view, update(3 * SLICE, leader=-1, epoch=1))
    slices = merge.slices()
    next(slices)
    assert view.hint("t", 5, 1, 2)
    assert view.hint("t", 2 * SLICE, 1, 2)
    merge.finish()
    assert known(view).leaders[5] == known(view).leaders[2 * SLICE] == 1
    assert known(view).available == (5, 2 * SLICE)


PARTITION = st.tuples(st.integers(0, 5), st.integers(-1, 2), st.integers(-1, 3))


@given(st.lists(st.lists(PARTITION, max_size=6), max_size=5))
def test_the_lists_are_those_of_the_partitions(answers: list[list[tuple[int, int, int]]]) -> None:
    view = ClusterView()
    for answer in answers:
        topic = TopicUpdate("t", ID, 0, tuple(PartitionUpdate(*each) for each in answer))
        result = MetadataMerge(view, MetadataUpdate("c", BROKERS, (topic,))).finish()
        there = known(view)
        assert there.everything == tuple(sorted(there.leaders))
        led = [index for index, leader in there.leaders.items() if leader >= 0]
        assert there.available == tuple(sorted(led))
        assert result.leaderless == (len(led) < len(there.leaders))
        for index in there.leaders:
            one = view.leader_of("t", index)
            assert one is not None
            assert one.leader_id == there.leaders[index]


def test_a_partitioner_gets_the_same_lists_until_metadata_changes_them() -> None:
    """A partitioner gets the same two list objects until metadata changes the partitions.

    So the lists are not built and sorted anew for each record.
    """
    given_lists: list[tuple[Sequence[int], Sequence[int]]] = []

    def partitioner(_key: bytes | None, everything: Sequence[int], available: Sequence[int]) -> int:
        given_lists.append((everything, available))
        return 0

    rig = Rig(partitions=3, partitioner=partitioner).start()
    rig.send(3, partition=None)
    assert len(given_lists) == 3
    assert len({(id(one), id(other)) for one, other in given_lists}) == 1
    assert tuple(given_lists[0][0]) == (0, 1, 2)
    rig.leaders[T, 3] = rig.leaders[T, 0]
    rig.refresh()
    rig.send(1, partition=None)
    assert list(map(tuple, given_lists[-1])) == [(0, 1, 2, 3), (0, 1, 2, 3)]
    rig.leaders[T, 1] = (-1, 9)
    rig.refresh()
    rig.send(1, partition=None)
    assert tuple(given_lists[-1][1]) == (0, 2, 3)
    rig.ids[T] = OTHER_ID
    for index in (1, 2, 3):
        del rig.leaders[T, index]
    rig.refresh()
    rig.send(1, partition=None)
    assert list(map(tuple, given_lists[-1])) == [(0,), (0,)]


def test_a_produce_request_has_a_thousand_partitions_at_most() -> None:
    """A Produce request carries a thousand partitions at most.

    The limit bounds the work of its answer, which settles all batches of the request at once.
    """
    rig = Rig(partitions=2_500, max_request_size=1 << 24).start()
    for partition in range(2_500):
        rig.send(1, partition=partition, poll=False)
    rig.poll()
    assert sorted(len(request.parts) for request in rig.outstanding()) == [500, 1000, 1000]
    rig.ack_all()
    rig.assert_drained()


def test_the_answer_of_another_cluster_changes_no_piece_of_the_view() -> None:
    """A long answer is merged before anybody has looked at its cluster id."""
    view = ClusterView()
    MetadataMerge(view, update(3)).finish()
    view.learn_id("c")
    for cluster_id, leader in (("another", 1), ("c", 9), (None, 9)):
        long = update(3, leader=9, epoch=5)._replace(cluster_id=cluster_id)
        for _ in MetadataMerge(view, long).slices():
            pass
        assert known(view).leaders[2] == leader


def test_a_broker_that_has_not_heard_of_a_new_topic_id_is_not_believed() -> None:
    """No topic ever gets the id of an earlier one again."""
    view = ClusterView()
    for count, topic_id in ((3, ID), (2, OTHER_ID)):
        MetadataMerge(view, update(count, topic_id=topic_id)).finish()
    result = MetadataMerge(view, update(3, leader=9, epoch=5)).finish()
    assert (result.recreated, result.outdated) == ([], {"t"})
    assert known(view).everything == (0, 1)
    assert known(view).topic_id == OTHER_ID
    result = MetadataMerge(view, update(2, topic_id=OTHER_ID, leader=9)).finish()
    assert (result.recreated, result.outdated) == ([], set())
    assert known(view).leaders[1] == 9


def test_the_last_sixteen_ids_of_a_topic_are_remembered() -> None:
    view = ClusterView()
    ids = [UUID(int=number) for number in range(1, 19)]
    for each in ids:
        MetadataMerge(view, update(1, topic_id=each)).finish()
    assert known(view).former_ids == tuple(ids[1:-1])


def test_an_earlier_id_that_ten_answers_name_is_right_after_all() -> None:
    """An address led to another cluster that has a topic of this name, and names no cluster."""
    view = ClusterView()
    for topic_id in (ID, OTHER_ID):
        MetadataMerge(view, update(3, topic_id=topic_id)).finish()
    for present in (True, False):
        for _ in range(9):
            assert MetadataMerge(view, update(3)).finish().outdated == {"t"}
        if present:
            MetadataMerge(view, update(3, topic_id=OTHER_ID)).finish()
    assert MetadataMerge(view, update(3)).finish().recreated == ["t"]
    assert known(view).topic_id == ID
    assert known(view).former_ids == (OTHER_ID,)
    assert MetadataMerge(view, update(3, topic_id=OTHER_ID)).finish().outdated == {"t"}
