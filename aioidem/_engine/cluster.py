"""Who leads what: the engine's view of the cluster.

Metadata answers are merged into it by `metadata_merge`.

Invariants
- A partition never goes back to an older leader epoch of the same topic id: metadata from a broker
  that lags must not move it (KIP-320; librdkafka's "stale metadata" bug).
- A topic that is missing from an answer keeps its view. Sequence state must survive a topic that
  vanishes for a while, and the view is what finds that state again.
- Only a changed topic id replaces a topic: that is a deleted and recreated one (KIP-516).

Rejected: replacing the whole view with every answer, which forgets all three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioidem._engine.topic_view import NO_LEADER, PartitionView, TopicView
from aioidem._protocol.metadata import BrokerAddress

__all__ = ["NO_LEADER", "ClusterView", "PartitionView", "TopicView"]


class ClusterView:
    """Brokers, topics and leaders of one cluster as last heard of.

    Answers of another cluster are not merged (see `cluster_change`).
    """

    __slots__ = ("brokers", "cluster_id", "topics")

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.brokers: dict[int, BrokerAddress] = {}
        self.topics: dict[str, TopicView] = {}

    def learn_id(self, cluster_id: str | None) -> None:
        """Note which cluster this is; None: its brokers name none."""
        self.cluster_id = cluster_id

    def forget(self, cluster_id: str | None) -> None:
        """Drop what is known, for another cluster."""
        self.cluster_id = cluster_id
        self.brokers = {}
        self.topics = {}

    def hint(self, topic: str, partition: int, leader_id: int, leader_epoch: int) -> bool:
        """Take a leader named in a Produce answer (KIP-951). Whether it was news."""
        known = self.topics.get(topic)
        view = None if known is None else known.view(partition)
        if known is None or view is None or leader_id < 0 or leader_epoch <= view.leader_epoch:
            return False
        if leader_id not in self.brokers:
            return False
        known.lead(partition, leader_id, leader_epoch)
        return True

    def add_brokers(self, brokers: Iterable[BrokerAddress]) -> None:
        """Record the endpoints that come beside leader hints."""
        for broker in brokers:
            self.brokers.setdefault(broker.node_id, broker)

    def leader_of(self, topic: str, partition: int) -> PartitionView | None:
        """Return the partition's view, or None when the partition is not known."""
        known = self.topics.get(topic)
        return None if known is None else known.view(partition)

    def partitions(self, topic: str) -> Mapping[int, int] | None:
        """Return the leaders of a topic's partitions; None when the topic is not known.

        `NO_LEADER` stands for a partition that has none.
        """
        known = self.topics.get(topic)
        return None if known is None or not known.leaders else known.leaders
