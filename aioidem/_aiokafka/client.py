"""`AIOKafkaProducer.client`: the few things that other people's code asks aiokafka's client for.

Read-only, but for `force_metadata_update`. The names with an underscore are read by OpenTelemetry's
instrumentation of aiokafka.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem._engine.cluster import NO_LEADER, ClusterView
from aioidem._producer.native import Producer
from aioidem._producer.topic_lookup import TopicLookup
from aioidem.structs import BrokerMetadata, TopicPartition

__all__ = ["ClusterMetadata", "ProducerClient"]


class ClusterMetadata:
    """Brokers, topics and leaders as last heard."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def brokers(self) -> set[BrokerMetadata]:
        """Every broker that is known."""
        return {
            BrokerMetadata(each.node_id, each.host, each.port, None)
            for each in self._view.brokers.values()
        }

    def topics(self) -> set[str]:
        """Every topic that was written to or asked about, and found."""
        return set(self._view.topics)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """A topic's partitions; None when it is not known."""
        known = self._view.partitions(topic)
        return None if known is None else set(known)

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Those that have a leader; None when the topic is not known."""
        known = self._view.partitions(topic)
        if known is None:
            return None
        return {index for index, leader in known.items() if leader != NO_LEADER}

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """The leader's node id, -1 when there is none; None when the partition is not known."""
        view = self._view.leader_of(partition.topic, partition.partition)
        return None if view is None else view.leader_id


class ProducerClient:
    """A view of a producer's connection to the cluster."""

    def __init__(
        self, producer: Producer, topics: TopicLookup, bootstrap_servers: str | Sequence[str]
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._bootstrap_servers = bootstrap_servers
        self._client_id = producer.config.client_id
        self.cluster = ClusterMetadata(topics.view)

    async def force_metadata_update(self) -> bool:
        """Ask for metadata now. True when it came.

        Raises:
            KafkaTimeoutError: it did not come within `max_block_ms`. ProducerClosed.
        """
        await self._topics.refresh()
        return True

    async def _wait_on_metadata(self, topic: str) -> set[int]:
        return await self._producer.partitions_for(topic)
