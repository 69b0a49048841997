"""The value types that the public API returns: named tuples and an enum.

Names and the order of fields are aiokafka's wherever aiokafka has the type, so that code which
unpacks or pickles them moves over unchanged. Invariants: every type is immutable, hashable and
picklable, and this module imports no other module of aioidem, so that every module may import it.

Rejected: dataclasses for aiokafka's types (user code unpacks them as tuples); ``None`` for an
unknown offset (aiokafka and Java both use ``-1``, and an ``int`` can be compared; see
``RecordMetadata.has_offset``).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "BrokerMetadata",
    "ConsumerGroupMetadata",
    "DeliveryCounts",
    "DeliveryStatus",
    "OffsetAndMetadata",
    "PartitionMetadata",
    "Record",
    "RecordMetadata",
    "TopicPartition",
]


class DeliveryStatus(enum.Enum):
    """The outcome of one record: it leaves ``PENDING`` once and never changes after that."""

    PENDING = "pending"
    """The outcome is not known yet: the record is queued, in flight or in doubt."""

    ACKED = "acked"
    """The record is in the log: the broker acknowledged its batch, or a later batch, which proves
    that the earlier one is stored. With ``acks=1`` it is in the leader's log only, and an election
    may remove it."""

    NOT_WRITTEN = "not written"
    """The record is not in the log and never will be: it was not sent, or each attempt was refused
    before the append. Producing it again cannot duplicate it."""

    UNKNOWN = "unknown"
    """The record may or may not be in the log, and no broker could tell. Producing it again may
    duplicate it."""


class DeliveryCounts(NamedTuple):
    """How many records ended with each outcome; `Producer.flush` returns these counts."""

    acked: int = 0
    """Acknowledged records."""

    not_written: int = 0
    """Failed records that are not in the log."""

    unknown: int = 0
    """Failed records that may be in the log; with ``acks=0`` also all that were sent."""

    @property
    def total(self) -> int:
        """The number of all records whose outcome is known: the sum of the three counts."""
        return self.acked + self.not_written + self.unknown


class Record(NamedTuple):
    """A record for `Producer.send_many`, with a key, headers and a timestamp of its own."""

    value: bytes | None = None
    """The payload; None is a tombstone."""
    key: bytes | None = None
    """Decides the partition; None leaves the choice to the partitioner."""
    headers: Sequence[tuple[str, bytes | None]] = ()
    """(name, value) pairs."""
    timestamp: float | None = None
    """Seconds since the epoch, up to the year 5138; None is now."""


class TopicPartition(NamedTuple):
    """A topic's name and one of its partitions."""

    topic: str
    partition: int


class BrokerMetadata(NamedTuple):
    """A broker, as the drop-in producer's `client.cluster.brokers()` returns it."""

    nodeId: int  # noqa: N815 - aiokafka's name
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """A partition as metadata describes it, for code that imports the name from aiokafka.

    No method of aioidem returns one.
    """

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    error: Exception | None


class OffsetAndMetadata(NamedTuple):
    """An offset to commit for a consumer group, with a text that is stored with it."""

    offset: int
    metadata: str


class ConsumerGroupMetadata(NamedTuple):
    """A consumer's membership in its group; brokers refuse an outdated member's offsets (KIP-447).

    The defaults stand for a consumer that is no member, because it assigns its partitions itself.
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
    """The topic and the partition as one hashable value."""

    offset: int
    """The record's offset; -1 if the broker confirmed the append without saying where."""

    timestamp: int | None
    """The record's timestamp as stored, in milliseconds since the Unix epoch."""

    timestamp_type: int
    """0 if ``timestamp`` is the producer's (CreateTime), 1 if the broker's (LogAppendTime)."""

    log_start_offset: int | None
    """The first offset that is still in the partition's log; None if the broker did not say."""

    @property
    def has_offset(self) -> bool:
        """Whether ``offset`` is known; a record may be stored although its offset is not known."""
        return self.offset >= 0
