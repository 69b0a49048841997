"""Who leads what: the engine's view of the cluster, and its pure merge with each Metadata answer.

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
from dataclasses import dataclass, field
from uuid import UUID

from aioidem.protocol.metadata import BrokerAddress, MetadataUpdate, PartitionUpdate, TopicUpdate

__all__ = ["NO_LEADER", "ClusterView", "MergeResult", "PartitionView", "TopicView"]

NO_LEADER = -1


@dataclass(slots=True)
class PartitionView:
    """Who leads a partition, as far as we know."""

    leader_id: int = NO_LEADER
    leader_epoch: int = -1


@dataclass(slots=True)
class TopicView:
    """A topic and its partitions. `partitions` only ever grows for one topic id."""

    name: str
    topic_id: UUID | None
    partitions: dict[int, PartitionView] = field(default_factory=dict)


@dataclass(slots=True)
class MergeResult:
    """What a merge found out that someone must act on."""

    recreated: list[str] = field(default_factory=list)
    """Topics whose id changed."""
    failed: dict[str, int] = field(default_factory=dict)
    """Topics answered with an error code."""
    leaderless: bool = False
    """Some partition we asked about has no leader now."""


class ClusterView:
    """Brokers, topics and leaders of one cluster as last heard of; answers of another one are not
    merged (see `cluster_change`).
    """

    __slots__ = ("brokers", "cluster_id", "topics")

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.brokers: dict[int, BrokerAddress] = {}
        self.topics: dict[str, TopicView] = {}

    def merge(self, update: MetadataUpdate) -> MergeResult:
        """Take in a Metadata answer. An answer without a single broker changes no address
        (aiokafka's zero brokers).
        """
        result = MergeResult()
        if update.brokers:
            self.brokers = {broker.node_id: broker for broker in update.brokers}
        for topic in update.topics:
            self._merge_topic(topic, result)
        return result

    def _merge_topic(self, update: TopicUpdate, result: MergeResult) -> None:
        if update.error_code:
            result.failed[update.name] = update.error_code
            return
        known = self.topics.get(update.name)
        if known is None or _recreated(known.topic_id, update.topic_id):
            if known is not None:
                result.recreated.append(update.name)
            known = self.topics[update.name] = TopicView(update.name, update.topic_id)
        elif known.topic_id is None:
            known.topic_id = update.topic_id
        for partition in update.partitions:
            _merge_partition(known.partitions, partition)
        result.leaderless |= any(p.leader_id == NO_LEADER for p in known.partitions.values())

    def hint(self, topic: str, partition: int, leader_id: int, leader_epoch: int) -> bool:
        """Take a leader named in a Produce answer (KIP-951). Whether it was news."""
        known = self.topics.get(topic)
        view = None if known is None else known.partitions.get(partition)
        if view is None or leader_id < 0 or leader_epoch <= view.leader_epoch:
            return False
        if leader_id not in self.brokers:
            return False
        view.leader_id, view.leader_epoch = leader_id, leader_epoch
        return True

    def add_brokers(self, brokers: Iterable[BrokerAddress]) -> None:
        """Take in the endpoints that come beside leader hints."""
        for broker in brokers:
            self.brokers.setdefault(broker.node_id, broker)

    def leader_of(self, topic: str, partition: int) -> PartitionView | None:
        """The partition's view, or None when the partition is not known."""
        known = self.topics.get(topic)
        return None if known is None else known.partitions.get(partition)

    def partitions(self, topic: str) -> Mapping[int, PartitionView] | None:
        """The partitions of a topic, or None when the topic is not known."""
        known = self.topics.get(topic)
        return None if known is None or not known.partitions else known.partitions


def _recreated(old: UUID | None, new: UUID | None) -> bool:
    return old is not None and new is not None and old != new


def _merge_partition(views: dict[int, PartitionView], update: PartitionUpdate) -> None:
    view = views.setdefault(update.index, PartitionView())
    if 0 <= update.leader_epoch < view.leader_epoch:
        return
    view.leader_id = update.leader_id if update.leader_id >= 0 else NO_LEADER
    if update.leader_epoch >= 0:
        view.leader_epoch = update.leader_epoch
