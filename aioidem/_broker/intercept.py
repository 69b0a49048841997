"""The hook by which a test decides what the broker does with each request.

After ``cluster.intercept(hook)`` the cluster calls ``hook(seen)`` with a `RequestSeen` for each
request that it is about to serve. The hook returns None to let the request be served, or one of the
actions below.

Invariants
    The hook is called once per request, in the order in which requests are served, whether clients
    connect over TCP or in memory. It must not block, and cannot await.
    After an answer that is lost, nothing more arrives on the same connection, because TCP cannot
    lose an answer and deliver the next one. Only ``Drop(silent=False)`` breaks this rule.

Rejected
    A hook per API or per stage of processing: tests would depend on the broker's internals. One
    hook with eight actions suffices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity

__all__ = [
    "Action",
    "AfterAppend",
    "BatchSeen",
    "CloseConnection",
    "Delay",
    "Drop",
    "Interceptor",
    "Refuse",
    "RequestSeen",
    "Respond",
    "RespondRaw",
    "Rewrite",
]


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """One batch of a Produce request.

    Attributes:
        topic: Name of the topic; None if the cluster does not know the topic id.
        topic_id: Id of the topic; None before v13, when requests have the topic's name.
        partition: Index of the partition.
        producer_id: Producer id; -1: the batch is not idempotent, or cannot be read.
        producer_epoch: Producer epoch.
        base_sequence: Sequence of the first record.
        count: How many records.
        size: Size of the batch, in bytes.
    """

    topic: str | None
    topic_id: UUID | None
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """A request that the broker is about to serve.

    Attributes:
        broker_id: Id of the broker that serves it.
        connection_id: Id of the connection.
        api_key: API of the request.
        api_version: Version of the request.
        correlation_id: Correlation id in the header.
        client_id: Client id in the header.
        request: Body of the request, as kio's entity.
        now: The time at which it is served, in seconds of a monotonic clock.
        batches: Batches of a Produce request.
    """

    broker_id: int
    connection_id: int
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    request: Entity
    now: float
    batches: tuple[BatchSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Do not answer the request.

    Attributes:
        processed: Carry the request out first, so that only the answer is lost.
        silent: Send no further answer on this connection. Without ``processed``, carry out no
            further request of it either.
    """

    processed: bool = False
    silent: bool = True


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a Produce request with an error code and base offset -1, and append nothing.

    Attributes:
        code: The error code.
        only: Refuse only these (topic, partition), and serve the others; None: refuse all.
    """

    code: ErrorCode
    only: frozenset[tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class AfterAppend:
    """Append the batches of a Produce request, but answer it with an error code.

    The answer has the batches' base offsets too.

    Attributes:
        code: The error code.
        only: The (topic, partition) pairs that get the error; None: all of them.
    """

    code: ErrorCode
    only: frozenset[tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer with ``response``, without carrying the request out."""

    response: Entity


@dataclass(frozen=True, slots=True)
class RespondRaw:
    """Answer with these bytes, header included, without carrying the request out."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Carry the request out, then answer with what ``change(response)`` returns."""

    change: Callable[[Entity], Entity]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection without an answer; with ``processed``, carry the request out first."""

    processed: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait ``seconds``, then apply the action ``then``, or serve the request if that is None.

    Later requests on the same connection wait as well.
    """

    seconds: float
    then: Drop | Refuse | AfterAppend | Respond | RespondRaw | Rewrite | CloseConnection | None = (
        None
    )


Action: TypeAlias = (
    Drop | Refuse | AfterAppend | Respond | RespondRaw | Rewrite | CloseConnection | Delay
)
Interceptor: TypeAlias = Callable[[RequestSeen], Action | None]
