"""A request inside the broker, from the socket to its answer.

Invariants
    A connection is served one request at a time, in order: the next one begins when the answer to
    the last one was handed to the link, as Kafka mutes a channel while it works for it.
    A request read before its connection closed is still served.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import BatchHeader, RefusedError, parse_single_batch
from aioidem._broker.entities import Entity
from aioidem._broker.link import Link
from aioidem._broker.security import SaslSession

if TYPE_CHECKING:
    from aioidem._broker.partition import Partition
    from aioidem._broker.state import ClusterState

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
    """A request in purgatory: tried again whenever one of its partitions moved.

    ``pending`` is the request while it is parked, None once it was let go. ``deadline``: when
    `expire` is called, seconds.
    """

    __slots__ = ("deadline", "partitions", "pending")

    def __init__(self, partitions: tuple[Partition, ...], deadline: float) -> None:
        self.partitions = partitions
        self.deadline = deadline
        self.pending: Pending | None = None

    @abstractmethod
    def attempt(self, cluster: ClusterState) -> Entity | None:
        """The answer, if it can be given now."""

    @abstractmethod
    def expire(self, cluster: ClusterState) -> Entity:
        """The answer at the deadline."""


@dataclass(frozen=True, slots=True)
class Now:
    """Answer at once, and ``close`` the connection behind it."""

    response: Entity
    close: bool = False


@dataclass(frozen=True, slots=True)
class Later:
    """Answer when the purgatory lets it go."""

    delayed: Delayed


@dataclass(frozen=True, slots=True)
class Never:
    """No answer (acks=0); ``close`` the connection, which is all a broker can say then."""

    close: bool = False


class Promised:
    """Answer when something else in the cluster decides it: a member of the same group, or time.

    ``build`` makes the answer of what `keep` is told, which may be before the request is parked.
    """

    __slots__ = ("_build", "_give", "_response")

    def __init__(self, build: Callable[[Mapping[str, Any]], Entity]) -> None:
        self._build = build
        self._give: Callable[[Entity], None] | None = None
        self._response: Entity | None = None

    def keep(self, values: Mapping[str, Any]) -> None:
        """Answer; to be called once."""
        self._response = self._build(values)
        if self._give is not None:
            self._give(self._response)

    def when_kept(self, give: Callable[[Entity], None]) -> None:
        """Where the answer is to go, at once if there is one already."""
        self._give = give
        if self._response is not None:
            give(self._response)


Reply: TypeAlias = Now | Later | Never | Promised


class ProduceItem:
    """What a Produce request wants of one partition. ``header`` is None when it was ``refused``."""

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
        """(producer id, epoch, first sequence) of an idempotent batch."""
        header = self.header
        if header is None or header.producer_id < 0 or header.base_sequence < 0:
            return None
        return header.producer_id, header.producer_epoch, header.base_sequence


class Connection:
    """One client connection as its broker sees it."""

    __slots__ = (
        "broker_id",
        "closed",
        "doomed",
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
        self.doomed = False

    def __repr__(self) -> str:
        return f"<Connection {self.id} broker={self.broker_id} queued={len(self.inbox)}>"


class Pending:
    """A request that was read: on its way to the broker, queued, being served or parked.

    ``forced`` and ``afterwards`` are what an interceptor wants said of single partitions, keyed by
    (topic, partition), None for all: instead of processing, and after it.
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
    """An error code for some partitions of a request, or for all (``only`` None)."""

    code: ErrorCode
    only: frozenset[tuple[str, int]] | None = None

    def applies(self, topic: str | None, index: int) -> bool:
        """Whether it is meant for this partition."""
        return self.only is None or (topic, index) in self.only


class Context:
    """What a handler may know of the request besides its body. Times: seconds and epoch ms."""

    __slots__ = ("now", "pending", "wall_ms")

    def __init__(self, pending: Pending, now: float, wall_ms: int) -> None:
        self.pending = pending
        self.now = now
        self.wall_ms = wall_ms

    @property
    def api_version(self) -> int:
        """The version the request came in and the answer goes out in."""
        return self.pending.api_version


class Delivery:
    """Something for the client: an answer, raw bytes, or the end of the connection, due now.

    ``frame`` is what to write, length included, where the cluster encodes; else ``response``.
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
        """Of the request this answers, -1 for the end of a connection."""
        return -1 if self.pending is None else self.pending.correlation_id
