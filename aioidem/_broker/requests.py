"""A request inside the broker, from the socket to its answer.

Invariants
    One request of a connection is served at a time, in order: the next one is served after the
    answer to the one before it has left the broker. Kafka mutes a channel for the same purpose.
    A request that was read before the client closed the connection is still served.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import BatchHeader, RefusedError, parse_single_batch
from aioidem._broker.entities import Entity
from aioidem._broker.link import Link
from aioidem._broker.partition import Partition
from aioidem._broker.security import SaslSession

__all__ = [
    "Connection",
    "Context",
    "Delayed",
    "Delivery",
    "Later",
    "Never",
    "Now",
    "Override",
    "Pending",
    "ProduceItem",
    "Promised",
    "Reply",
]


class Delayed(ABC):
    """A request in purgatory: it is tried again whenever one of its partitions changes.

    Attributes:
        partitions: The partitions whose changes may make the answer possible.
        deadline: The time at which purgatory calls `expire`, in seconds of a monotonic clock.
        pending: The request. None before purgatory takes it, and after it was answered or dropped.
        answer: The function that sends the answer: purgatory calls ``answer(now, pending,
            response)``. None whenever ``pending`` is None.
    """

    __slots__ = ("answer", "deadline", "partitions", "pending")

    def __init__(self, partitions: tuple[Partition, ...], deadline: float) -> None:
        self.partitions = partitions
        self.deadline = deadline
        self.pending: Pending | None = None
        self.answer: Callable[[float, Pending, Entity], None] | None = None

    @abstractmethod
    def attempt(self) -> Entity | None:
        """Return the answer if it can be given now, else None."""

    @abstractmethod
    def expire(self) -> Entity:
        """Return the answer to be sent because the deadline has passed."""


@dataclass(frozen=True, slots=True)
class Now:
    """Answer at once, and then, with ``close``, close the connection."""

    response: Entity
    close: bool = False


@dataclass(frozen=True, slots=True)
class Later:
    """Answer later: `Purgatory` keeps the request until ``delayed`` gives the answer."""

    delayed: Delayed


@dataclass(frozen=True, slots=True)
class Never:
    """Give no answer (acks=0); with ``close``, close the connection to report an error."""

    close: bool = False


class Promised:
    """Answer when another member of the consumer group, or a timer, makes the answer possible.

    Args:
        build: Makes the answer from the values that `keep` is called with.
    """

    __slots__ = ("_build", "_give", "_response")

    def __init__(self, build: Callable[[Mapping[str, Any]], Entity]) -> None:
        self._build = build
        self._give: Callable[[Entity], None] | None = None
        self._response: Entity | None = None

    def keep(self, values: Mapping[str, Any]) -> None:
        """Build the answer, and pass it to the function that `when_kept` has got or will get.

        This method may be called only once.
        """
        self._response = self._build(values)
        if self._give is not None:
            self._give(self._response)

    def when_kept(self, give: Callable[[Entity], None]) -> None:
        """Call ``give`` with the answer now if `keep` has been called, else when it is called."""
        self._give = give
        if self._response is not None:
            give(self._response)


Reply: TypeAlias = Now | Later | Never | Promised


class ProduceItem:
    """One partition's part of a Produce request; ``header`` is None if the batch is ``refused``."""

    __slots__ = ("data", "header", "index", "partition", "refused", "topic", "topic_id")

    def __init__(
        self,
        topic: str | None,
        topic_id: UUID | None,
        index: int,
        data: bytes | memoryview | None,
        partition: Partition | None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.data = data
        self.partition = partition
        self.header: BatchHeader | None = None
        self.refused: RefusedError | None = None
        try:
            self.header = parse_single_batch(data)
            if data is not None and self.header.size < len(data):
                self.data = data[: self.header.size]
        except RefusedError as refusal:
            self.refused = refusal

    @property
    def identity(self) -> tuple[int, int, int] | None:
        """Return (producer id, epoch, first sequence) of an idempotent batch, None for others."""
        header = self.header
        if header is None or header.producer_id < 0 or header.base_sequence < 0:
            return None
        return header.producer_id, header.producer_epoch, header.base_sequence


class Connection:
    """One client's connection, as its broker sees it.

    Attributes:
        inbox: Requests that wait to be served.
        serving: Whether a request is being served.
        closed: Whether the client has closed the connection.
        silent: Whether the broker sends no further answer on the connection.
        ended_by_broker: Whether the broker serves no further request of the connection, because it
            has closed the connection or because the interceptor has silenced it.
    """

    __slots__ = (
        "broker_id",
        "closed",
        "ended_by_broker",
        "id",
        "inbox",
        "link",
        "sasl",
        "serving",
        "silent",
    )

    def __init__(
        self, connection_id: int, broker_id: int, link: Link, sasl: SaslSession | None = None
    ) -> None:
        self.sasl = sasl
        self.id = connection_id
        self.broker_id = broker_id
        self.link = link
        self.inbox: deque[Pending] = deque()
        self.serving = False
        self.closed = False
        self.silent = False
        self.ended_by_broker = False

    def __repr__(self) -> str:
        return f"<Connection {self.id} broker={self.broker_id} queued={len(self.inbox)}>"


class Pending:
    """A request that was read: on its way to the broker, queued, being served or in `Purgatory`.

    The interceptor is a test's hook that may change how the request is served.

    Attributes:
        items: The batches of a Produce request.
        intercepted: Whether the interceptor has seen the request.
        forced: The interceptor's error code for partitions whose batches are not appended.
        afterwards: The interceptor's error code for partitions whose batches were appended.
        rewrite: The interceptor's function that changes the answer.
    """

    __slots__ = (
        "afterwards",
        "api_key",
        "api_version",
        "client_id",
        "connection",
        "correlation_id",
        "forced",
        "intercepted",
        "items",
        "request",
        "rewrite",
    )

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        request: Entity,
        items: tuple[ProduceItem, ...],
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.request = request
        self.items = items
        self.intercepted = False
        self.forced: Override | None = None
        self.afterwards: Override | None = None
        self.rewrite: Callable[[Entity], Entity] | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """An error code that a test's interceptor wants for the partitions in ``only`` (None: all)."""

    code: ErrorCode
    only: frozenset[tuple[str, int]] | None = None

    def applies(self, topic: str | None, index: int) -> bool:
        """Return whether the error code applies to this partition."""
        return self.only is None or (topic, index) in self.only


class Context:
    """The request and the time, which a handler gets together with the request's body.

    Attributes:
        pending: The request.
        now: The time, in seconds of a monotonic clock.
        wall_ms: The broker's wall clock, in ms since the epoch.
    """

    __slots__ = ("now", "pending", "wall_ms")

    def __init__(self, pending: Pending, now: float, wall_ms: int) -> None:
        self.pending = pending
        self.now = now
        self.wall_ms = wall_ms

    @property
    def api_version(self) -> int:
        """Return the version of the request and of its answer."""
        return self.pending.api_version


class Delivery:
    """What a client is sent: an answer, raw bytes, or the end of the connection.

    Attributes:
        connection: The client's connection.
        due: When the client gets it, in seconds of a monotonic clock.
        pending: The request that is answered; None for the end of the connection.
        response: The answer; None if ``frame`` was given instead.
        frame: Bytes to write, length included, if the cluster has encoded them.
        close: Whether to close the connection.
    """

    __slots__ = ("close", "connection", "due", "frame", "pending", "response")

    def __init__(
        self,
        connection: Connection,
        due: float,
        *,
        pending: Pending | None = None,
        response: Entity | None = None,
        frame: bytes | None = None,
        close: bool = False,
    ) -> None:
        self.connection = connection
        self.due = due
        self.pending = pending
        self.response = response
        self.frame = frame
        self.close = close

    @property
    def correlation_id(self) -> int:
        """Return the correlation id of the answered request; -1 for the end of a connection."""
        return -1 if self.pending is None else self.pending.correlation_id
