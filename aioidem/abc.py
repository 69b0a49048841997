"""The abstract classes of the drop-in replacement for aiokafka, under aiokafka's names.

Rejected: accepting instances of these classes only. Services that use aiokafka beside aioidem have
token providers derived from aiokafka's class, which has the same two methods.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping

__all__ = [
    "AbstractTokenProvider",
    "NullProducerMetricsCollector",
    "ProducerMetricsCollector",
]


class AbstractTokenProvider(abc.ABC):
    """An object that gives bearer tokens for SASL/OAUTHBEARER.

    `token` is called once for each connection, and again before a session ends (KIP-368). An
    implementation should keep a token and return it until shortly before the token expires.
    """

    @abc.abstractmethod
    async def token(self) -> str:
        """Return the token to authenticate with now, without blocking the event loop."""

    def extensions(self) -> Mapping[str, str]:
        """Return the SASL extensions to send with the token (KIP-342); none unless overridden."""
        return {}


class ProducerMetricsCollector(abc.ABC):
    """An object that receives the facts of each batch of an `AIOKafkaProducer`, for metrics.

    This is the experimental interface that aiokafka has prepared for the release after 0.14. The
    methods are plain functions that are called on the event loop and must be quick. Their
    exceptions are logged and have no other effect. Times are in seconds.
    """

    @abc.abstractmethod
    def on_batch_dispatched(
        self,
        *,
        topic: str,
        partition: int,
        queue_time_seconds: float,
        batch_size_bytes: int,
        record_count: int,
        attempt: int,
    ) -> None:
        """Take note of an attempt to send a batch.

        Args:
            topic: The batch's topic.
            partition: Its partition.
            queue_time_seconds: The time from queueing the first record to sending the batch; 0 for
                a retry.
            batch_size_bytes: The batch's size after compression.
            record_count: How many records the batch has.
            attempt: 1 for the first attempt, and one more for each retry.
        """

    @abc.abstractmethod
    def on_batch_completed(
        self,
        *,
        topic: str,
        partition: int,
        send_to_completion_seconds: float,
        record_count: int,
        acknowledged: bool,
        batch_age_seconds: float,
    ) -> None:
        """Take note of a batch that was acknowledged or, with acks=0, only sent.

        Args:
            topic: The batch's topic.
            partition: Its partition.
            send_to_completion_seconds: The time from the last attempt to the answer.
            record_count: How many records the batch has.
            acknowledged: Whether a broker has acknowledged the batch; False with acks=0.
            batch_age_seconds: The time since the batch's first record was queued.
        """

    @abc.abstractmethod
    def on_batch_failed(
        self,
        *,
        topic: str,
        partition: int,
        exception: BaseException,
        record_count: int,
        batch_age_seconds: float,
    ) -> None:
        """Take note of records that failed.

        Args:
            topic: The records' topic.
            partition: The records' partition; -1 if none was chosen.
            exception: Why the records failed.
            record_count: How many records failed.
            batch_age_seconds: The time since the first of them was queued.
        """

    @abc.abstractmethod
    def on_buffer_wait(self, *, topic: str, partition: int, wait_seconds: float) -> None:
        """Take note of a `send` that waited for room in the buffer.

        Args:
            topic: The record's topic.
            partition: The partition that the caller chose; -1 if it chose none.
            wait_seconds: How long the call waited.
        """


class NullProducerMetricsCollector(ProducerMetricsCollector):
    """A metrics collector that ignores everything; a subclass overrides only what it needs."""

    def on_batch_dispatched(
        self,
        *,
        topic: str,
        partition: int,
        queue_time_seconds: float,
        batch_size_bytes: int,
        record_count: int,
        attempt: int,
    ) -> None:
        """See `ProducerMetricsCollector`."""

    def on_batch_completed(
        self,
        *,
        topic: str,
        partition: int,
        send_to_completion_seconds: float,
        record_count: int,
        acknowledged: bool,
        batch_age_seconds: float,
    ) -> None:
        """See `ProducerMetricsCollector`."""

    def on_batch_failed(
        self,
        *,
        topic: str,
        partition: int,
        exception: BaseException,
        record_count: int,
        batch_age_seconds: float,
    ) -> None:
        """See `ProducerMetricsCollector`."""

    def on_buffer_wait(self, *, topic: str, partition: int, wait_seconds: float) -> None:
        """See `ProducerMetricsCollector`."""
