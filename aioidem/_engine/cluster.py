"""ClusterView: the brokers, topics and partition leaders that the engine knows.

`metadata_merge` merges Metadata answers into the view.

Invariants
- A partition never goes back to an older leader epoch of the same topic id: metadata from a broker
  that lags behind must not move it (KIP-320; librdkafka's "stale metadata" bug).
- A topic that is missing from an answer keeps its view: its partitions' sequence numbers must
  survive if the topic is missing for a while.
- Only a changed topic id replaces a topic: the topic was deleted and recreated (KIP-516).

Rejected: replacing the whole view with every answer, which violates all three invariants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioidem._engine.topic_view import NO_LEADER, PartitionView, TopicView
from aioidem._protocol.metadata import BrokerAddress

__all__ = ["NO_LEADER", "ClusterView", "PartitionView", "TopicView"]


class ClusterView:
    """Brokers, topics and partition leaders of one cluster, by the latest answers.

    Answers of another cluster are not merged (see `cluster_change`).
    """

    __slots__ = ("brokers", "cluster_id", "topics", "transaction_version")

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        # The level of the feature `transaction.version` that the cluster has finalised (KIP-890).
        self.transaction_version = 0
        self.brokers: dict[int, BrokerAddress] = {}
        self.topics: dict[str, TopicView] = {}

    def learn_id(self, cluster_id: str | None) -> None:
        """Record the cluster id; None if the cluster's brokers name none."""
        self.cluster_id = cluster_id

    def is_home_of(self, cluster_id: str | None) -> bool:
        """Return whether a broker that names this cluster id is taken for one of this cluster.

        It is if no other id is known: if the broker names none (None), or none is known here.
        """
        return None in (cluster_id, self.cluster_id) or cluster_id == self.cluster_id

    def learn_transaction_version(self, level: int) -> None:
        """Record the level of `transaction.version` that the cluster has finalised."""
        self.transaction_version = level

    def forget(self, cluster_id: str | None) -> None:
        """Forget all that is known, because the producer moves to the cluster with the given id."""
        self.cluster_id = cluster_id
        self.brokers = {}
        self.topics = {}

    def hint(self, topic: str, partition: int, leader_id: int, leader_epoch: int) -> bool:
        """Record a leader that a Produce answer names (KIP-951).

        Returns:
            Whether the leader epoch is newer than the known one, so that the leader was recorded.
        """
        known = self.topics.get(topic)
        view = None if known is None else known.view(partition)
        if known is None or view is None or leader_id < 0 or leader_epoch <= view.leader_epoch:
            return False
        if leader_id not in self.brokers:
            return False
        known.lead(partition, leader_id, leader_epoch)
        return True

    def add_brokers(self, brokers: Iterable[BrokerAddress]) -> None:
        """Record the brokers whose addresses a Produce answer names with new leaders (KIP-951)."""
        for broker in brokers:
            self.brokers.setdefault(broker.node_id, broker)

    def leader_of(self, topic: str, partition: int) -> PartitionView | None:
        """Return the leader of a partition as known now; None if the partition is not known."""
        known = self.topics.get(topic)
        return None if known is None else known.view(partition)

    def partitions(self, topic: str) -> Mapping[int, int] | None:
        """Return the leaders of a topic's partitions, by partition; None if the topic is not known.

        The value for a partition without a leader is `NO_LEADER`.
        """
        known = self.topics.get(topic)
        return None if known is None or not known.leaders else known.leaders
