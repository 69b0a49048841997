"""Connections as the engine sees them.

There is one `Link` per connection ever opened, and one `Node` per broker address.

A link is a life cycle (a table) and a list of requests outstanding, oldest first, because Kafka
answers one connection in order. Everything that is true only of one connection hangs on it: the
Produce version in use, throttling, goodput, RTT. What is learned of Produce v14 outlives it
(`discovery`).

Invariants: link ids are never reused, so an answer or an event of a closed connection can not be
taken for one of its successor. A link that is gone has nothing outstanding: whatever was is in
doubt.

Request timeout: a connection is given up when its oldest request has been outstanding for
`request.timeout` with not a byte moved either way meanwhile, throttle time apart (KIP-219: the
broker mutes us, closing would only dodge the quota and leave zombie requests behind).
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch_limits import BatchLimits
from aioidem._engine.discovery import PRODUCE_WITH_WINDOW, Discovery
from aioidem._engine.goodput import Goodput
from aioidem._engine.lifecycle import transition
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.retention import BrokerMemory
from aioidem._engine.windows import ConnectionWindow

__all__ = [
    "LINK_TRANSITIONS",
    "Leaving",
    "Link",
    "LinkEvent",
    "LinkState",
    "Node",
]

MAX_THROTTLE = 300.0
"""Seconds; a throttle_time beyond it is taken as this much."""


class LinkState(enum.Enum):
    """Where a connection is in its life."""

    CONNECTING = "connecting"
    READY = "ready"
    CLOSED = "closed"


class LinkEvent(enum.Enum):
    """What happens to it."""

    OPENED = "opened"
    LOST = "lost"


LINK_TRANSITIONS: dict[tuple[LinkState, LinkEvent], LinkState] = {
    (LinkState.CONNECTING, LinkEvent.OPENED): LinkState.READY,
    (LinkState.CONNECTING, LinkEvent.LOST): LinkState.CLOSED,
    (LinkState.READY, LinkEvent.LOST): LinkState.CLOSED,
}


class Link:
    """One connection."""

    __slots__ = (
        "answered_at",
        "asked_broker",
        "asked_cluster",
        "bytes_in_flight",
        "cluster_id",
        "discovery",
        "goodput",
        "identified",
        "knows_producers",
        "last_progress",
        "last_throttle",
        "limits",
        "link_id",
        "may_read",
        "memory",
        "node_id",
        "outstanding",
        "plain_version",
        "rtt",
        "state",
        "throttled_until",
        "window",
    )

    def __init__(
        self,
        link_id: int,
        node_id: int,
        max_in_flight: int,
        now: float,
        discovery: Discovery,
        memory: BrokerMemory,
    ) -> None:
        self.link_id = link_id
        self.node_id = node_id
        self.state = LinkState.CONNECTING
        self.window = ConnectionWindow(max_in_flight)
        self.outstanding: OrderedDict[int, Outstanding] = OrderedDict()
        # The Produce version below v14 that both sides speak; what the node knows of v14 and is
        # believed to remember.
        self.plain_version = 0
        self.discovery = discovery
        self.memory = memory
        self.throttled_until = 0.0
        self.last_progress = now
        self.goodput = Goodput()
        self.bytes_in_flight = 0
        self.rtt: float | None = None
        # When a Produce request was last answered here; None until one was.
        self.answered_at: float | None = None
        self.last_throttle = 0.0
        self.asked_broker = False
        # Which cluster it leads to (None: the broker names none), once `identified`. Before that
        # nothing goes here that bears a producer id, or asks for one.
        self.asked_cluster = self.identified = False
        self.cluster_id: str | None = None
        # Whether DescribeProducers and Fetch are worth asking here: until one was refused.
        self.knows_producers = True
        self.may_read = True
        self.limits = BatchLimits()

    @property
    def produce_version(self) -> int:
        """The Produce version to write in now."""
        return PRODUCE_WITH_WINDOW if self.discovery.speaks else self.plain_version

    @property
    def closed(self) -> bool:
        """Whether its life is over."""
        return self.state is LinkState.CLOSED

    def note_asked_broker(self) -> None:
        """Take note that the broker was asked about itself."""
        self.asked_broker = True

    def note_asked_cluster(self) -> None:
        """Take note that the broker was asked which cluster it belongs to."""
        self.asked_cluster = True

    def note_producers(self, *, worth_asking: bool) -> None:
        """Say whether DescribeProducers is worth asking here."""
        self.knows_producers = worth_asking

    def refuse_reading(self) -> None:
        """Take note that Fetch was refused here."""
        self.may_read = False

    def progress(self, now: float) -> None:
        """Take note that bytes moved, either way."""
        self.last_progress = now

    def identify(self, cluster_id: str | None) -> None:
        """Note which cluster it leads to; None: the broker names none."""
        self.identified = self.asked_cluster = True
        self.cluster_id = cluster_id

    def opened(self, plain_version: int, now: float) -> None:
        """Begin to be used; `plain_version`: of Produce below v14, that both sides speak."""
        self.move(LinkEvent.OPENED)
        self.last_progress = now
        self.plain_version = plain_version

    def move(self, event: LinkEvent) -> None:
        """Take one step of the life cycle.

        Raises:
            InternalError: the table has no such step.
        """
        self.state = transition(LINK_TRANSITIONS, self.state, event, f"link {self.link_id}")

    def admits(self, now: float) -> bool:
        """Whether one more request may be written now."""
        return (
            self.state is LinkState.READY and self.window.admits() and now >= self.throttled_until
        )

    def add(self, request: Outstanding) -> None:
        """Note that a request was given to the connection."""
        request.delivered_at_send = self.goodput.delivered
        self.outstanding[request.token] = request
        self.window.outstanding += 1
        self.bytes_in_flight += request.nbytes
        if len(self.outstanding) == 1:
            self.last_progress = max(self.last_progress, request.sent_at)

    def take(self, token: int, now: float) -> Outstanding | None:
        """Take out a request that was answered; None if it is not outstanding here."""
        request = self.outstanding.pop(token, None)
        if request is None:
            return None
        self._forget(request)
        elapsed = now - request.sent_at
        self.rtt = (
            elapsed if self.rtt is None else min(self.rtt + (elapsed - self.rtt) / 8, elapsed * 8)
        )
        if request.kind is RequestKind.PRODUCE:
            self.answered_at = now
            self.goodput.acknowledge(
                request.nbytes,
                sent_at=request.sent_at,
                delivered_at_send=request.delivered_at_send,
                now=now,
            )
        return request

    def withdraw(self, token: int) -> Outstanding | None:
        """Take out a request that was never written, or that expects no answer (acks=0)."""
        request = self.outstanding.pop(token, None)
        if request is not None:
            self._forget(request)
        return request

    def _forget(self, request: Outstanding) -> None:
        self.window.outstanding -= 1
        self.bytes_in_flight -= request.nbytes

    def throttle(self, throttle_ms: int, now: float) -> None:
        """Honour throttle_time (KIP-219): nothing new is sent until it is over.

        The timeout of what is outstanding is that much longer.
        """
        self.last_throttle = min(max(throttle_ms, 0) / 1000.0, MAX_THROTTLE)
        if throttle_ms > 0:
            self.throttled_until = max(
                self.throttled_until, now + min(throttle_ms / 1000.0, MAX_THROTTLE)
            )

    def timeout_at(self, request_timeout: float, longest: float) -> float | None:
        """When the oldest outstanding request times out, or None.

        Moving bytes put it off, but not for ever: a peer that drips one byte at a time has
        `longest` seconds in all.
        """
        if not self.outstanding:
            return None
        oldest = next(iter(self.outstanding.values()))
        started = max(oldest.sent_at, self.throttled_until)
        return min(max(started, self.last_progress) + request_timeout, started + longest)


class Leaving(NamedTuple):
    """A connection that is to be closed: the reason, and the error where it is one."""

    link: Link
    reason: str
    error: Exception | None


class Node:
    """One broker address: its current link, if any, and when to try again."""

    __slots__ = (
        "backoff",
        "discovery",
        "host",
        "last_error",
        "limit_lost",
        "link",
        "memory",
        "misrouted_to",
        "node_id",
        "port",
        "question_lost",
        "retry_at",
    )

    def __init__(
        self,
        node_id: int,
        host: str,
        port: int,
        config: ProducerConfig,
        random: Callable[[], float],
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.link: Link | None = None
        self.backoff = Backoff(config.reconnect_backoff, config.reconnect_backoff_max, random)
        self.discovery = Discovery(f"broker {node_id}", config, random)
        self.memory = BrokerMemory(random)
        self.retry_at = 0.0
        self.last_error: Exception | None = None
        # The other cluster that its address was last seen to lead to.
        self.misrouted_to: str | None = None
        # Its last connection ended over DescribeProducers: an answer above the frame cap, or none
        # at all. The next one does without that hint, or doubt would never be resolved.
        self.question_lost = False
        # Likewise over the question for a topic's limit.
        self.limit_lost = False

    def misrouted(self, cluster_id: str) -> bool:
        """Take note that its address leads to another cluster; whether that is news."""
        news, self.misrouted_to = self.misrouted_to != cluster_id, cluster_id
        return news
