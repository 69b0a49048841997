"""ClusterView: the merge of metadata answers, and leaders named in Produce answers."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine.cluster import NO_LEADER, ClusterView
from aioidem._engine.metadata_merge import MergeResult, MetadataMerge
from aioidem._protocol.metadata import BrokerAddress, MetadataUpdate, PartitionUpdate, TopicUpdate

ID, OTHER_ID = UUID(int=1), UUID(int=2)
BROKERS = tuple(BrokerAddress(n, f"b{n}", 9092) for n in (1, 2, 3))


def update(
    *partitions: tuple[int, int, int],
    topic_id: UUID | None = ID,
    error: int = 0,
    brokers: tuple[BrokerAddress, ...] = BROKERS,
    name: str = "t",
) -> MetadataUpdate:
    parts = tuple(PartitionUpdate(*partition) for partition in partitions)
    return MetadataUpdate("c", brokers, (TopicUpdate(name, topic_id, error, parts),))


def view(*updates: MetadataUpdate) -> tuple[ClusterView, MergeResult]:
    cluster, result = ClusterView(), MergeResult()
    for each in updates:
        result = MetadataMerge(cluster, each).finish()
    return cluster, result


def leader(cluster: ClusterView, partition: int = 0) -> tuple[int, int] | None:
    """Return the leader and the leader epoch of a partition."""
    view = cluster.leader_of("t", partition)
    return None if view is None else (view.leader_id, view.leader_epoch)


def test_a_newer_leader_epoch_moves_the_partition() -> None:
    cluster, _ = view(update((0, 1, 5)), update((0, 2, 6)))
    assert leader(cluster) == (2, 6)


def test_a_stale_leader_epoch_never_moves_it_back() -> None:
    """A Metadata answer with an older leader epoch does not change the leader (KIP-320)."""
    cluster, _ = view(update((0, 1, 5)), update((0, 2, 6)), update((0, 1, 5)))
    assert leader(cluster) == (2, 6)


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 5)), min_size=1, max_size=12))
def test_a_leader_epoch_only_ever_grows(heard: list[tuple[int, int]]) -> None:
    cluster = ClusterView()
    newest = -1
    for leader_id, epoch in heard:
        MetadataMerge(cluster, update((0, leader_id, epoch))).finish()
        at = leader(cluster)
        assert at is not None
        assert at[1] == max(newest, epoch)
        newest = at[1]


def test_without_epochs_the_last_word_counts() -> None:
    """Without leader epochs (Metadata before v7) the latest answer names the leader."""
    cluster, _ = view(update((0, 1, -1)), update((0, 2, -1)))
    assert leader(cluster) == (2, -1)


def test_a_partition_without_a_leader_is_reported() -> None:
    cluster, result = view(update((0, 1, 5), (1, -1, 5)))
    assert result.leaderless
    assert leader(cluster, 1) == (NO_LEADER, 5)


def test_a_topic_that_vanishes_keeps_its_view() -> None:
    """A topic that a Metadata answer lacks keeps its view (librdkafka #3672)."""
    gone = MetadataUpdate("c", BROKERS, ())
    cluster, _ = view(update((0, 1, 5)), gone)
    assert leader(cluster) == (1, 5)


def test_a_topic_answered_with_an_error_keeps_its_view_and_is_reported() -> None:
    cluster, result = view(update((0, 1, 5)), update(error=3, topic_id=None))
    assert leader(cluster) == (1, 5)
    assert result.failed == {"t": 3}
    assert result.recreated == []


def test_an_unknown_topic_is_not_a_topic_without_partitions() -> None:
    """A topic that is unknown, or answered without partitions, has None for its partitions."""
    cluster, result = view(update(error=3))
    assert cluster.partitions("t") is None
    assert result.failed == {"t": 3}
    cluster, _ = view(update())
    assert cluster.partitions("t") is None


def test_another_topic_id_replaces_the_view() -> None:
    """A topic with another id is another topic, whose view replaces the former one."""
    cluster, result = view(update((0, 1, 50), (1, 1, 50)), update((0, 2, 0), topic_id=OTHER_ID))
    assert result.recreated == ["t"]
    assert leader(cluster) == (2, 0)
    assert leader(cluster, 1) is None


def test_an_id_learned_late_is_not_a_recreation() -> None:
    """A topic id that appears in a later answer, or is missing there, is no recreation."""
    cluster, result = view(update((0, 1, 5), topic_id=None), update((0, 1, 5)))
    assert result.recreated == []
    assert cluster.topics["t"].topic_id == ID
    _, result = view(update((0, 1, 5)), update((0, 1, 5), topic_id=None))
    assert result.recreated == []


def test_partitions_only_grow() -> None:
    """A partition that a later Metadata answer lacks stays in the view."""
    cluster, _ = view(update((0, 1, 5), (1, 1, 5)), update((0, 1, 5)))
    partitions = cluster.partitions("t")
    assert partitions is not None
    assert set(partitions) == {0, 1}


def test_an_answer_without_brokers_changes_no_address() -> None:
    """A Metadata answer that names no brokers leaves the known addresses as they are."""
    cluster, _ = view(update((0, 1, 5)), update((0, 1, 5), brokers=()))
    assert set(cluster.brokers) == {1, 2, 3}


def test_brokers_that_are_gone_are_forgotten() -> None:
    cluster, _ = view(update((0, 1, 5)), update((0, 1, 5), brokers=BROKERS[:1]))
    assert set(cluster.brokers) == {1}


def test_a_leader_hint_counts_when_it_is_newer_and_known() -> None:
    """A leader named in a Produce answer counts if its epoch is newer (KIP-951).

    The topic, the partition and the leader's broker must be known.
    """
    cluster, _ = view(update((0, 1, 5)))
    assert not cluster.hint("t", 0, 2, 5)
    assert not cluster.hint("t", 0, 2, 4)
    assert not cluster.hint("t", 0, -1, 9)
    assert not cluster.hint("t", 0, 77, 9)
    assert not cluster.hint("t", 9, 2, 9)
    assert not cluster.hint("other", 0, 2, 9)
    assert leader(cluster) == (1, 5)
    assert cluster.hint("t", 0, 2, 6)
    assert leader(cluster) == (2, 6)


def test_brokers_named_beside_hints_are_added_and_replace_nothing() -> None:
    cluster, _ = view(update((0, 1, 5)))
    cluster.add_brokers([BrokerAddress(9, "b9", 1), BrokerAddress(1, "elsewhere", 1)])
    assert cluster.brokers[9].host == "b9"
    assert cluster.brokers[1].host == "b1"
    assert cluster.hint("t", 0, 9, 6)


def test_no_hint_counts_for_a_topic_partition_or_broker_that_is_not_known() -> None:
    cluster, _ = view(update((0, 1, 5)))
    assert not cluster.hint("u", 0, 2, 6)
    assert not cluster.hint("t", 7, 2, 6)
    assert not cluster.hint("t", 0, 9, 6)
    cluster.add_brokers([BrokerAddress(-1, "b8", 9092), BrokerAddress(0, "b0", 9092)])
    assert not cluster.hint("t", 0, -1, 6)
    assert leader(cluster) == (1, 5)
    assert cluster.hint("t", 0, 0, 6)
    assert leader(cluster) == (0, 6)


def test_another_cluster_begins_with_nothing_known() -> None:
    cluster, _ = view(update((0, 1, 5)))
    cluster.forget("d")
    assert cluster.cluster_id == "d"
    assert cluster.brokers == {}
    assert cluster.topics == {}
    assert leader(cluster) is None


def test_a_cluster_may_have_no_id_and_get_one() -> None:
    cluster = ClusterView()
    assert cluster.cluster_id is None
    cluster.learn_id("c")
    assert cluster.cluster_id == "c"
