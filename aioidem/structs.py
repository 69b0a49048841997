"""Value types the public API hands out: plain tuples and an enum, no behaviour beyond a property.

Names and field order are aiokafka's wherever aiokafka has the type, so that code which unpacks or
pickles them moves over unchanged. Invariants: every type here is immutable, hashable and picklable,
and nothing here imports another aioidem module, so any module may import this one.

Rejected: dataclasses for the aiokafka types (user code unpacks them as tuples); ``None`` for an
unknown offset (aiokafka and Java both say ``-1``, and a typed ``int`` keeps comparisons legal: ask
``RecordMetadata.has_offset``).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = [
    "BrokerMetadata",
    "ConsumerGroupMetadata",
    "DeliveryCounts",
    "DeliveryStatus",
    "OffsetAndMetadata",
    "PartitionMetadata",
    "RecordMetadata",
    "TopicPartition",
]


class DeliveryStatus(enum.Enum):
    """What is known about one record. It leaves ``PENDING`` once, and never changes after that."""

    PENDING = "pending"
    """Not settled yet: queued, in flight, or being asked about."""

    ACKED = "acked"
    """In the log: the broker answered error NONE under ``acks=all``, for this batch or for one
    that proves it. Under ``acks=1``: in the leader's log, which an election may still cut."""

    NOT_WRITTEN = "not written"
    """Not in the log and never will be: it was never put on a socket, or each attempt was refused
    before the append. Producing it again cannot duplicate it."""

    UNKNOWN = "unknown"
    """It may or may not be in the log, and nothing the broker offers could tell. Producing it again
    may duplicate it."""


class DeliveryCounts(NamedTuple):
    """How many records ended in which way."""

    acked: int = 0
    """Acknowledged."""

    not_written: int = 0
    """Failed, and not in the log."""

    unknown: int = 0
    """Failed, and maybe in the log; under ``acks=0`` also what was sent without an error."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.acked + self.not_written + self.unknown


class TopicPartition(NamedTuple):
    """A topic's name and one of its partitions."""

    topic: str
    partition: int


class BrokerMetadata(NamedTuple):
    """A broker as the drop-in's `client.cluster.brokers()` shows it."""

    nodeId: int  # noqa: N815 - aiokafka's name
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """A partition as metadata describes it. aiokafka has the type; no method of ours returns it."""

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    error: Exception | None


class OffsetAndMetadata(NamedTuple):
    """An offset to commit for a consumer group, with the free text stored beside it."""

    offset: int
    metadata: str


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's place in its group: brokers fence a consumer that has lost it (KIP-447).

    The defaults are those of a consumer that is no member: one with assigned partitions.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is in the log."""

    topic: str
    """The topic's name."""

    partition: int
    """The partition's number."""

    topic_partition: TopicPartition
    """Both of the above, as one hashable value."""

    offset: int
    """The record's offset, or -1 when the broker confirmed the append without saying where."""

    timestamp: int | None
    """The record's timestamp as stored, in milliseconds since the Unix epoch."""

    timestamp_type: int
    """0 when ``timestamp`` is the producer's (CreateTime), 1 when the broker's (LogAppendTime)."""

    log_start_offset: int | None
    """First offset still in the partition's log, None when the broker did not say."""

    @property
    def has_offset(self) -> bool:
        """Whether ``offset`` is known. A record can be certainly stored and its offset not be."""
        return self.offset >= 0
