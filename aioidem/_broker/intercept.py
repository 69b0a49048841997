"""The one hook into the broker: see every request when its turn comes, and decide what becomes of
it.

``cluster.intercept(fn)`` calls ``fn(seen)`` with a `RequestSeen` for each request that is about to
be served. It returns None to let it be, or one of the actions below.

Invariants
    The hook is called once per request, in serving order, on any transport; it must be quick and
    must not await. An answer is never left out of the middle of a connection, because TCP cannot do
    that: after an answer that is not to arrive, nothing more arrives on that connection
    (``silent=False`` breaks this on purpose).

Rejected
    A hook per API or per stage: tests then depend on the broker's insides. Seven words are enough.
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
    """One batch of a Produce request; topic None: the topic id is not known here."""

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
    """A request whose turn has come. ``request`` is kio's entity, ``now`` in seconds."""

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
    """No answer. ``processed``: it is carried out first (a lost answer), else it never arrived.

    ``silent``: nothing more is answered on this connection, and without ``processed`` nothing more
    is carried out either (the peer is gone).
    """

    processed: bool = False
    silent: bool = True


@dataclass(frozen=True, slots=True)
class Refuse:
    """Produce: answer ``code`` with base offset -1 and append nothing.

    ``only``: just for these (topic, partition); the others are served.
    """

    code: ErrorCode
    only: frozenset[tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class AfterAppend:
    """Produce: append, then answer ``code`` with the base offset kept (a two-faced answer)."""

    code: ErrorCode
    only: frozenset[tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer this entity without carrying the request out."""

    response: Entity


@dataclass(frozen=True, slots=True)
class RespondRaw:
    """Answer these bytes, header and all, without carrying the request out."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Carry it out, then answer what ``change(response)`` returns."""

    change: Callable[[Entity], Entity]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close without an answer. ``processed``: carry it out first."""

    processed: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait ``seconds`` before it is carried out, then go on with ``then``.

    What is queued behind it on the connection waits as well.
    """

    seconds: float
    then: Drop | Refuse | AfterAppend | Respond | RespondRaw | Rewrite | CloseConnection | None = (
        None
    )


Action: TypeAlias = (
    Drop | Refuse | AfterAppend | Respond | RespondRaw | Rewrite | CloseConnection | Delay
)
Interceptor: TypeAlias = Callable[[RequestSeen], Action | None]
