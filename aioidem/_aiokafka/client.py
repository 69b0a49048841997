"""ProducerClient: the part of aiokafka's client that frameworks use, as `AIOKafkaProducer.client`.

The public methods return what the producer knows already; only `force_metadata_update` sends a
request. Some names begin with an underscore, because OpenTelemetry's instrumentation of aiokafka
reads them under these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from aioidem._engine.cluster import NO_LEADER, ClusterView
from aioidem._producer.native import Producer
from aioidem._producer.topic_lookup import TopicLookup
from aioidem.structs import BrokerMetadata, TopicPartition

__all__ = ["ClusterMetadata", "ProducerClient"]


class ClusterMetadata:
    """The brokers, topics and leaders of the cluster, as the producer knows them now."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def brokers(self) -> set[BrokerMetadata]:
        """Return every known broker."""
        return {
            BrokerMetadata(each.node_id, each.host, each.port, None)
            for each in self._view.brokers.values()
        }

    def topics(self) -> set[str]:
        """Return every topic whose metadata has arrived, even if the topic was deleted since."""
        return set(self._view.topics)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the numbers of a topic's partitions; None if the topic is not known."""
        known = self._view.partitions(topic)
        return None if known is None else set(known)

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions that have a leader; None if the topic is not known."""
        known = self._view.partitions(topic)
        if known is None:
            return None
        return {index for index, leader in known.items() if leader != NO_LEADER}

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Return the leader's node id: -1 without a leader, None if the partition is not known."""
        view = self._view.leader_of(partition.topic, partition.partition)
        return None if view is None else view.leader_id


class ProducerClient:
    """A producer's view of the cluster, under the names of aiokafka's client."""

    def __init__(
        self,
        producer: Producer,
        topics: TopicLookup,
        bootstrap_servers: str | Sequence[str],
        translation: AbstractContextManager[None],
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._bootstrap_servers = bootstrap_servers
        self._translation = translation
        self._client_id = producer.config.client_id
        self.cluster = ClusterMetadata(topics.view)

    async def force_metadata_update(self) -> bool:
        """Ask for metadata now, and return True when the answer has arrived.

        Raises:
            KafkaTimeoutError: No answer arrived within `max_block_ms`.
            ProducerClosed: The producer is not started, or was stopped.
        """
        with self._translation:
            await self._topics.refresh()
        return True

    async def _wait_on_metadata(self, topic: str) -> set[int]:
        with self._translation:
            return await self._producer.partitions_for(topic)
