"""TopicLookup: finds a topic's partitions in the metadata; waits while metadata lacks the topic."""

from __future__ import annotations

import copy
from collections.abc import Callable

import anyio

from aioidem._config import ProducerConfig, validate_topic
from aioidem._engine import ProducerCore
from aioidem._engine.cluster import ClusterView
from aioidem._producer.life import ProducerLife
from aioidem._producer.sender import Sender

__all__ = ["TopicLookup"]


class TopicLookup:
    """Answers which partitions a topic has, for one producer.

    Args:
        core: The engine, which keeps the cluster's metadata.
        sender: The loop that asks brokers for metadata.
        life: The producer's state, which says whether it may be used.
        config: The producer's options.
    """

    __slots__ = ("_accumulator", "_config", "_life", "_metadata", "_sender", "_view")

    def __init__(
        self, core: ProducerCore, sender: Sender, life: ProducerLife, config: ProducerConfig
    ) -> None:
        self._accumulator = core.accumulator
        self._metadata = core.metadata
        self._view = core.cluster
        self._sender = sender
        self._life = life
        self._config = config

    @property
    def view(self) -> ClusterView:
        """The cluster's brokers, topics and leaders by the last metadata; read only."""
        return self._view

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions, asking for metadata if they are not known.

        Raises:
            RecordError: The topic's name is illegal.
            KafkaError: The cluster refuses to describe the topic, or does not know it within
                `max_block`.
        """
        self._life.check_open()
        validate_topic(topic)
        view = self._view
        if view.partitions(topic) is None:
            self._metadata.want()
        await self._described(topic, lambda: view.partitions(topic) is not None, None)
        return set(view.partitions(topic) or ())

    async def await_partition(
        self, topic: str, partition: int | None, block_until: float | None = None
    ) -> None:
        """Wait until a topic's partitions are known and the given one is among them.

        Args:
            topic: The topic's name.
            partition: The partition's number; None if any will do.
            block_until: When the wait ends, on the event loop's clock; None ends it `max_block`
                seconds from now.

        Raises:
            UnknownTopicOrPartitionError: Metadata that was asked for after the call began does not
                have the partition.
            KafkaError: As for `partitions_for`.
        """
        self._life.check_open()
        validate_topic(topic)
        if self.knows(topic, partition):
            return
        self._metadata.want()
        state, asked = self._accumulator.topic(topic), self._metadata.requests
        await self._described(
            topic,
            lambda: self.knows(topic, partition) or state.described_by > asked,
            block_until,
        )
        if partition is not None and not self.knows(topic, partition):
            raise self._accumulator.missing_partition(topic, partition)

    async def _described(
        self, topic: str, condition: Callable[[], bool], block_until: float | None
    ) -> None:
        """Wait until `condition` on a topic's metadata holds.

        Raises:
            KafkaError: The cluster refuses the topic, or the condition does not hold in time.
        """
        state = self._accumulator.topic(topic)
        self._sender.wakeup.set()
        until = self._life.block_until() if block_until is None else block_until
        waits = self._life.timed("metadata-wait")
        with waits, state.awaited(), anyio.CancelScope(deadline=until):
            await self._sender.until(
                lambda: condition() or state.refused is not None or self._life.ended
            )
        if not condition():
            self._life.check_open()
            if state.refused is not None:
                raise copy.copy(state.refused)  # many calls raise it, each its own copy
            raise self._accumulator.unassigned_error(state, self._life.clock())

    async def refresh(self) -> None:
        """Ask for metadata now, and wait for the answer.

        Raises:
            KafkaTimeoutError: No broker answered within `max_block`.
            ProducerClosed: The producer is closed, or not started yet.
        """
        self._life.check_open()
        refreshed = self._metadata.refreshed_at
        self._metadata.want()
        self._sender.wakeup.set()
        with anyio.move_on_after(self._config.max_block) as scope:
            await self._sender.until(
                lambda: self._metadata.refreshed_at != refreshed or self._life.ended
            )
        if scope.cancelled_caught:
            raise self._life.no_metadata()

    def expect(self, topic: str) -> None:
        """Ask for the topic with the next Metadata request; before `start` that is the first one.

        The first records then need not wait for a second request.
        """
        self._accumulator.topic(topic)

    def knows(self, topic: str, partition: int | None = None) -> bool:
        """Return whether a topic's partitions are known, and the given one is among them."""
        known = self._view.partitions(topic)
        return known is not None and (partition is None or partition in known)
