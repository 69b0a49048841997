"""What was asked on a connection and is not answered yet."""

from __future__ import annotations

import enum
from typing import NamedTuple
from uuid import UUID

from aioidem._engine.batch import Batch
from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.partition import PartitionState

__all__ = ["Entry", "Outstanding", "RequestKind"]


class RequestKind(enum.Enum):
    """What an outstanding request asked."""

    PRODUCE = "Produce"
    METADATA = "Metadata"
    CLUSTER = "Metadata of the cluster"
    INIT_PRODUCER_ID = "InitProducerId"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    BROKER_CONFIG = "DescribeConfigs of a broker"
    TOPIC_LIMIT = "DescribeConfigs of a topic's limit"
    DESCRIBE_PRODUCERS = "DescribeProducers"
    READ_BACK = "Fetch"
    COORDINATION = "a question to a coordinator"


class Entry(NamedTuple):
    """One batch of a Produce request."""

    state: PartitionState
    batch: Batch


class Outstanding:
    """A request given to a connection and not answered."""

    __slots__ = (
        "delivered_at_send",
        "entries",
        "kind",
        "names",
        "nbytes",
        "sent_at",
        "subject",
        "token",
        "topic_limit",
        "version",
    )

    def __init__(
        self,
        token: int,
        kind: RequestKind,
        sent_at: float,
        *,
        entries: dict[tuple[str, int], Entry] | None = None,
        names: dict[UUID, str] | None = None,
        nbytes: int = 0,
        version: int = 0,
        subject: PartitionState | None = None,
        topic_limit: BatchLimit | None = None,
    ) -> None:
        self.token = token
        self.kind = kind
        self.sent_at = sent_at
        # An answer is matched against what *this* request carried, never against today's metadata:
        # topic ids can have moved meanwhile (KAFKA-19397).
        self.entries = entries or {}
        self.names = names or {}
        self.nbytes = nbytes
        # Bytes that the connection had delivered when this was sent.
        self.delivered_at_send = 0
        self.version = version
        # The partition that a question is about, or what is known of its topic.
        self.subject = subject
        self.topic_limit = topic_limit
