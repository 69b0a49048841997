"""Requests that were given to a connection and are not answered yet."""

from __future__ import annotations

from uuid import UUID

from aioidem._engine.batch import Batch
from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.lifecycle import Named
from aioidem._engine.partition import PartitionState

__all__ = ["Entry", "Outstanding", "RequestKind"]


class RequestKind(Named):
    """The kind of an outstanding request."""

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


Entry = tuple[PartitionState, Batch]
"""One batch of a Produce request, with the state of its partition."""


class Outstanding:
    """A request that was given to a connection and is not answered."""

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
        # The batches by topic and partition, and the topic names by topic id, as in the request. An
        # answer is matched with these, never with the present metadata, because topic ids may have
        # changed since the request was sent (KAFKA-19397).
        self.entries = entries or {}
        self.names = names or {}
        self.nbytes = nbytes
        # The bytes that had been acknowledged on the connection when this request was sent. The
        # estimate of acknowledged bytes per second needs it.
        self.delivered_at_send = 0
        self.version = version
        # `subject` is the partition that the request asks about, `topic_limit` the size limit of
        # a topic; each is None for requests that ask about something else.
        self.subject = subject
        self.topic_limit = topic_limit
