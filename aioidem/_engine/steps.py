"""What the engine asks for: one immutable class per kind of step.

The Sender performs them and decides nothing. The one that is made for each request is a tuple,
which is made faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem._protocol.producer_id import TransactionalIdentity
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset

__all__ = [
    "AddOffsets",
    "AddPartitions",
    "AskCluster",
    "AskProducers",
    "CloseLink",
    "CommitOffsets",
    "CoordinatorStep",
    "DescribeBrokerConfig",
    "DescribeTopicConfig",
    "DescribeTopicLimit",
    "EndTransaction",
    "FetchMetadata",
    "FindCoordinator",
    "InitProducerId",
    "InitTransactions",
    "OpenLink",
    "ReadBack",
    "Request",
    "SendProduce",
    "Step",
    "TopicData",
]


@dataclass(frozen=True, slots=True)
class OpenLink:
    """Connect to a broker; report `on_link_open` or `on_link_lost`."""

    link_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the connection; the engine has already accounted for it."""

    link_id: int
    reason: str


class TopicData(NamedTuple):
    """The batches of one topic in a Produce request."""

    name: str
    topic_id: UUID | None
    partitions: list[tuple[int, bytes]]


class SendProduce(NamedTuple):
    """Write one Produce request; its answer goes to `on_produce_answer`, keyed by `token`."""

    link_id: int
    token: int
    version: int
    acks: int
    timeout_ms: int
    transactional_id: str | None
    topics: list[TopicData]
    records: int = 0
    """In all its batches."""


@dataclass(frozen=True, slots=True)
class AskCluster:
    """Ask which cluster the connection leads to; the answer goes to `on_cluster`."""

    link_id: int
    token: int


@dataclass(frozen=True, slots=True)
class FetchMetadata:
    """Ask for topics (an empty tuple asks for brokers alone)."""

    link_id: int
    token: int
    topics: tuple[str, ...]
    allow_auto_create: bool


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Ask for a producer id."""

    link_id: int
    token: int


@dataclass(frozen=True, slots=True)
class DescribeTopicConfig:
    """Ask a broker whether it names `producer.state.batches.to.retain` for a topic it leads."""

    link_id: int
    token: int
    topic: str


@dataclass(frozen=True, slots=True)
class DescribeTopicLimit:
    """Ask a broker how large a batch of a topic it leads may be (`max.message.bytes`)."""

    link_id: int
    token: int
    topic: str


@dataclass(frozen=True, slots=True)
class DescribeBrokerConfig:
    """Ask a broker about itself: when it forgets producers (KIP-854), its range (KIP-758)."""

    link_id: int
    token: int
    node_id: int


@dataclass(frozen=True, slots=True)
class AskProducers:
    """Ask the leader what it knows of our producer id (DescribeProducers, KIP-664)."""

    link_id: int
    token: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Read committed batch headers from an offset on (Fetch)."""

    link_id: int
    token: int
    topic: str
    topic_id: UUID | None
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Ask any broker who keeps a transactional id or a group."""

    link_id: int
    token: int
    kind: CoordinatorKey
    key: str


@dataclass(frozen=True, slots=True)
class InitTransactions:
    """Ask the coordinator for an identity; `existing`: for the one that follows it (KIP-360)."""

    link_id: int
    token: int
    transactional_id: str
    timeout_ms: int
    existing: TransactionalIdentity | None


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Let partitions take part in the transaction (v1)."""

    link_id: int
    token: int
    who: TransactionalIdentity
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class AddOffsets:
    """Let a group's offsets take part in the transaction (v1)."""

    link_id: int
    token: int
    who: TransactionalIdentity
    group_id: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit a group's offsets with the transaction; `v2`: which also adds the group to it."""

    link_id: int
    token: int
    who: TransactionalIdentity
    group: GroupMember
    offsets: dict[tuple[str, int], TxnOffset]
    v2: bool


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Commit or abort; `v2`: which also raises the epoch."""

    link_id: int
    token: int
    who: TransactionalIdentity
    commit: bool
    v2: bool


CoordinatorStep = (
    FindCoordinator | InitTransactions | AddPartitions | AddOffsets | CommitOffsets | EndTransaction
)
"""A call to a coordinator, or about one."""

Request = (
    SendProduce
    | AskCluster
    | FetchMetadata
    | InitProducerId
    | DescribeTopicConfig
    | DescribeTopicLimit
    | DescribeBrokerConfig
    | AskProducers
    | ReadBack
    | CoordinatorStep
)
"""A request to a broker, which has a token and is owed an answer."""

Step = OpenLink | CloseLink | Request
