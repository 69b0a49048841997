"""The abstract classes that a user of the drop-in subclasses, under aiokafka's names.

Rejected: asking for an instance of exactly this class. Who keeps aiokafka beside aioidem has
providers derived from aiokafka's, and they have the same two methods.
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
    """Gives the bearer token for SASL/OAUTHBEARER.

    It is asked once per connection, and again before a session ends (KIP-368): keep a token until
    shortly before it expires.
    """

    @abc.abstractmethod
    async def token(self) -> str:
        """The token to authenticate with now. It must not block the event loop."""

    def extensions(self) -> Mapping[str, str]:
        """SASL extensions to send with the token (KIP-342); none unless overridden."""
        return {}


class ProducerMetricsCollector(abc.ABC):
    """Hears of each batch of an `AIOKafkaProducer`, for metrics: the experimental interface that
    aiokafka has prepared for the release after 0.14.

    Every method is a plain function called on the event loop, and must be quick. What it raises is
    logged and otherwise ignored. Times are seconds.
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
        """A batch is sent. `attempt` counts from 1; a retry has not queued, so its time is 0."""

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
        """A batch is stored, or with `acknowledged` False (acks=0) on its way.

        `batch_age_seconds` counts from when its first record was queued.
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
        """Records failed; `partition` is -1 when they never got one."""

    @abc.abstractmethod
    def on_buffer_wait(self, *, topic: str, partition: int, wait_seconds: float) -> None:
        """A `send` waited for room; `partition` is -1 where none was given: it is chosen later."""


class NullProducerMetricsCollector(ProducerMetricsCollector):
    """Heeds nothing: a base for collectors that need some of the methods."""

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
