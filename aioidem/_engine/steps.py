"""Steps: what the Sender is to do (send a request, open a connection), one class per kind.

`ProducerCore.poll` decides and returns steps; the Sender (`_producer/sender.py`) performs them and
decides nothing. They are named tuples, which are created faster than dataclasses; and to import so
many classes takes a quarter of the time. Two steps of different kinds may be equal as tuples, so
tell them apart by their types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem._protocol.producer_id import TransactionalIdentity
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset
from aioidem._records import Codec, NewRecord

__all__ = [
    "AddOffsets",
    "AddPartitions",
    "AskCluster",
    "AskProducers",
    "CloseLink",
    "CommitOffsets",
    "Compress",
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


class OpenLink(NamedTuple):
    """The step to connect to a broker; the Sender reports `on_link_open` or `on_link_lost`."""

    link_id: int
    host: str
    port: int


class CloseLink(NamedTuple):
    """The step to close a connection, whose outstanding requests have been dealt with."""

    link_id: int
    reason: str


class Compress(NamedTuple):
    """The step to encode and compress records in a thread, or in another way that blocks nothing.

    The Sender calls `build_body` with these arguments, and passes the result to `on_compressed`. It
    may do so at any time after it has performed the other steps that the same `poll` returned.
    """

    token: int
    records: Sequence[NewRecord]
    codec: Codec
    level: int | None

    def __repr__(self) -> str:
        return f"Compress({self.token}, {len(self.records)} records, {self.codec!r}, {self.level})"


class TopicData(NamedTuple):
    """The batches of one topic in a Produce request."""

    name: str
    topic_id: UUID | None
    partitions: list[tuple[int, bytes]]


class SendProduce(NamedTuple):
    """The step to write a Produce request; `on_answer` receives this step and the answer to it."""

    link_id: int
    token: int
    version: int
    acks: int
    timeout_ms: int
    transactional_id: str | None
    topics: list[TopicData]
    records: int = 0
    """The number of records in all batches of the request."""


class AskCluster(NamedTuple):
    """The request for the id of the cluster that a connection leads to."""

    link_id: int
    token: int


class FetchMetadata(NamedTuple):
    """The request for the metadata of the brokers and of ``topics``, which may be empty."""

    link_id: int
    token: int
    topics: tuple[str, ...]
    allow_auto_create: bool


class InitProducerId(NamedTuple):
    """The request for a producer id, without a transactional id."""

    link_id: int
    token: int


class DescribeTopicConfig(NamedTuple):
    """The request for a topic's config `producer.state.batches.to.retain`.

    Its answer shows whether the broker has this config, which comes with KIP-1269.
    """

    link_id: int
    token: int
    topic: str


class DescribeTopicLimit(NamedTuple):
    """The request for the size limit of a topic's batches (`max.message.bytes`)."""

    link_id: int
    token: int
    topic: str


class DescribeBrokerConfig(NamedTuple):
    """The request for a broker's own config.

    The config says after what time the broker forgets producers (KIP-854), and over which range of
    sequences it deduplicates (KIP-758).
    """

    link_id: int
    token: int
    node_id: int


class AskProducers(NamedTuple):
    """The request for what a leader knows of the producer id (DescribeProducers, KIP-664)."""

    link_id: int
    token: int
    topic: str
    partition: int


class ReadBack(NamedTuple):
    """The request for committed batches of a partition from an offset on (Fetch)."""

    link_id: int
    token: int
    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    leader_epoch: int = -1
    """A broker that knows another epoch refuses the request: it may be a follower by now, and those
    are read, too (KIP-392). -1 if the epoch is not known.
    """


class FindCoordinator(NamedTuple):
    """The request for the broker that coordinates a transactional id or a group."""

    link_id: int
    token: int
    kind: CoordinatorKey
    key: str


class InitTransactions(NamedTuple):
    """The InitProducerId request of a transactional id, for a producer id and epoch.

    If `existing` (the present producer id and epoch) is given, the request asks the coordinator to
    raise this epoch (KIP-360).
    """

    link_id: int
    token: int
    transactional_id: str
    timeout_ms: int
    existing: TransactionalIdentity | None


class AddPartitions(NamedTuple):
    """The request to add partitions to the transaction; sent in transactions v1 only."""

    link_id: int
    token: int
    who: TransactionalIdentity
    partitions: tuple[tuple[str, int], ...]


class AddOffsets(NamedTuple):
    """The request to add a group's offsets to the transaction; sent in transactions v1 only."""

    link_id: int
    token: int
    who: TransactionalIdentity
    group_id: str


class CommitOffsets(NamedTuple):
    """The request to commit a group's offsets in the transaction.

    In transactions v2 it also adds the group to the transaction.
    """

    link_id: int
    token: int
    who: TransactionalIdentity
    group: GroupMember
    offsets: dict[tuple[str, int], TxnOffset]
    v2: bool


class EndTransaction(NamedTuple):
    """The request to commit or abort the transaction; in transactions v2 it raises the epoch."""

    link_id: int
    token: int
    who: TransactionalIdentity
    commit: bool
    v2: bool


CoordinatorStep = (
    FindCoordinator | InitTransactions | AddPartitions | AddOffsets | CommitOffsets | EndTransaction
)
"""The requests that find a coordinator or are sent to one."""

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
"""The steps that are requests to a broker: they have a token and get an answer."""

Step = OpenLink | CloseLink | Compress | Request
