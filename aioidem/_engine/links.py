"""Links and nodes: connections and broker addresses, as the engine sees them.

There is one `Link` per connection ever opened, and one `Node` per broker address.

A link has a state, which changes as `LINK_TRANSITIONS` says. It also has its outstanding requests,
oldest first, because Kafka answers the requests of one connection in order. Everything that is true
only of one connection is kept in its link: the Produce version in use, throttling, goodput
(acknowledged bytes per second), round-trip time. Whether a broker supports Produce v14 (KIP-1269,
`discovery`) is kept in its node, and so outlives the link.

Invariants: link ids are never reused, so an answer or an event of a closed connection is never
taken for one of the connection that replaced it. A closed link has no outstanding requests. Batches
in requests that were outstanding when it closed may have been appended, unless no byte of the
request was written.

Request timeout: a connection is closed when its oldest request has been outstanding for
`request_timeout`, and no byte has moved in either direction during that time. Throttle time does
not count (KIP-219): the broker delays the client on purpose, and closing the connection would only
evade the quota and leave requests behind that the broker still serves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch_limits import BatchLimits
from aioidem._engine.discovery import PRODUCE_WITH_WINDOW, Discovery
from aioidem._engine.goodput import Goodput
from aioidem._engine.lifecycle import Named, transition
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
"""The longest throttle time that is obeyed, in seconds; a longer one is cut to this."""

_LATELY = 1.0
"""For how many seconds after a delay by a quota the broker still counts as throttling."""


class LinkState(Named):
    """The state of a connection."""

    CONNECTING = "connecting"
    READY = "ready"
    CLOSED = "closed"


class LinkEvent(Named):
    """An event that changes the state of a connection."""

    OPENED = "opened"
    LOST = "lost"


LINK_TRANSITIONS: dict[tuple[LinkState, LinkEvent], LinkState] = {
    (LinkState.CONNECTING, LinkEvent.OPENED): LinkState.READY,
    (LinkState.CONNECTING, LinkEvent.LOST): LinkState.CLOSED,
    (LinkState.READY, LinkEvent.LOST): LinkState.CLOSED,
}


class Link:
    """One connection to a broker: its state, outstanding requests, and what was learnt on it."""

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
        "latencies",
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
        "transaction_version",
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
        # `plain_version`: the highest Produce version below v14 that client and broker support.
        # `discovery`: the node's support for v14. `memory`: how many batches the node's broker is
        # believed to retain per producer and partition.
        self.plain_version = 0
        # The level of `transaction.version` that the broker's cluster has finalised (KIP-890).
        self.transaction_version = 0
        self.discovery = discovery
        self.memory = memory
        self.throttled_until = 0.0
        self.last_progress = now
        self.goodput = Goodput()
        self.bytes_in_flight = 0
        self.rtt: float | None = None
        # How long Produce requests took, in seconds: the list of the broker's metrics.
        self.latencies: list[float] = []
        # When a Produce request was last answered on this connection, in seconds; None before the
        # first answer.
        self.answered_at: float | None = None
        self.last_throttle = 0.0
        self.asked_broker = False
        # `cluster_id`: the cluster that the connection leads to; None if the broker names none.
        # `identified`: whether that is known yet. Until then no request that carries or requests a
        # producer id is sent on the connection.
        self.asked_cluster = self.identified = False
        self.cluster_id: str | None = None
        # Whether DescribeProducers (`knows_producers`) and Fetch (`may_read`) may be sent on this
        # connection; False after a refusal.
        self.knows_producers = True
        self.may_read = True
        self.limits = BatchLimits()

    @property
    def produce_version(self) -> int:
        """The Produce version to use for the next request."""
        return PRODUCE_WITH_WINDOW if self.discovery.speaks else self.plain_version

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self.state is LinkState.CLOSED

    def note_asked_broker(self) -> None:
        """Note that the broker was asked for its config."""
        self.asked_broker = True

    def note_asked_cluster(self) -> None:
        """Note that the broker was asked which cluster it belongs to."""
        self.asked_cluster = True

    def note_producers(self, *, worth_asking: bool) -> None:
        """Set whether DescribeProducers is worth sending on this connection."""
        self.knows_producers = worth_asking

    def refuse_reading(self) -> None:
        """Note that Fetch was refused on this connection."""
        self.may_read = False

    def progress(self, now: float) -> None:
        """Note that bytes moved on the connection, in either direction."""
        self.last_progress = now

    def identify(self, cluster_id: str | None) -> None:
        """Record which cluster the connection leads to; None if its broker names none."""
        self.identified = self.asked_cluster = True
        self.cluster_id = cluster_id

    def opened(self, plain_version: int, now: float) -> None:
        """Note that the connection is up.

        Args:
            plain_version: the highest Produce version below v14 that both sides support. It is
            used when v14, whose answers name the window (KIP-1269), is not.
            now: seconds.
        """
        self.move(LinkEvent.OPENED)
        self.last_progress = now
        self.plain_version = plain_version

    def move(self, event: LinkEvent) -> None:
        """Change the connection's state as `LINK_TRANSITIONS` says.

        Raises:
            InternalError: the event is not allowed in the present state.
        """
        self.state = transition(LINK_TRANSITIONS, self.state, event, f"link {self.link_id}")

    def admits(self, now: float) -> bool:
        """Return whether one more request may be written now."""
        return (
            self.state is LinkState.READY and self.window.admits() and now >= self.throttled_until
        )

    def add(self, request: Outstanding) -> None:
        """Record a request that is given to the connection."""
        request.delivered_at_send = self.goodput.delivered
        self.outstanding[request.token] = request
        self.window.outstanding += 1
        self.bytes_in_flight += request.nbytes
        if len(self.outstanding) == 1 and request.sent_at > self.last_progress:
            self.last_progress = request.sent_at

    def take(self, token: int, now: float) -> Outstanding | None:
        """Take out a request that was answered; return None if it is not outstanding here.

        An answer is progress, too: short ones are not reported apart from it.
        """
        request = self.outstanding.pop(token, None)
        if request is None:
            return None
        self.last_progress = now
        self._forget(request)
        elapsed = now - request.sent_at
        self._measure(elapsed)
        if request.kind is RequestKind.PRODUCE:
            self.latencies.append(elapsed)
            self.answered_at = now
            self.goodput.acknowledge(
                request.nbytes,
                sent_at=request.sent_at,
                delivered_at_send=request.delivered_at_send,
                now=now,
            )
        return request

    def _measure(self, elapsed: float) -> None:
        """Update the estimate of the round-trip time: a request was answered after so long."""
        rtt = self.rtt
        if rtt is None:
            self.rtt = elapsed
            return
        rtt += (elapsed - rtt) / 8
        if rtt > elapsed * 8:
            rtt = elapsed * 8
        self.rtt = rtt

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
        """Obey a throttle time (KIP-219): no new request is sent until it has passed.

        The timeout of outstanding requests is counted from the end of the throttle time.
        """
        if throttle_ms <= 0:
            self.last_throttle = 0.0
            return
        self.last_throttle = min(throttle_ms / 1000.0, MAX_THROTTLE)
        self.throttled_until = max(self.throttled_until, now + self.last_throttle)

    def throttle_at(self, now: float) -> float:
        """Return by how many seconds the broker delayed requests lately; 0 if it does not."""
        return self.last_throttle if now < self.throttled_until + _LATELY else 0.0

    def timeout_at(self, request_timeout: float, longest: float) -> float | None:
        """Return when the oldest outstanding request times out; None if there is none.

        Each byte that moves extends the timeout, but not without end: a broker that sends single
        bytes has `longest` seconds in all.

        Args:
            request_timeout: seconds without a byte.
            longest: seconds from the sending of the request, whatever bytes move.
        """
        if not self.outstanding:
            return None
        # `min` and `max` would take most of the time of this method, which each poll calls.
        started = next(iter(self.outstanding.values())).sent_at
        if started < self.throttled_until:
            started = self.throttled_until
        moved = self.last_progress
        if moved < started:
            moved = started
        at, last = moved + request_timeout, started + longest
        if at > last:
            at = last
        return at


class Leaving(NamedTuple):
    """A connection to close, the reason (a text for the log), and the error, if there is one."""

    link: Link
    reason: str
    error: Exception | None


class Node:
    """One broker address, with its current connection, its back-off and facts about the broker."""

    __slots__ = (
        "backoff",
        "discovery",
        "down_since",
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
        # `last_error`: why the last connection could not be opened or was lost. `down_since`: since
        # when there has been none, in seconds; None if the last one was opened, or closed without
        # an error.
        self.last_error: Exception | None = None
        self.down_since: float | None = None
        # The cluster id that the last connection to this address found, if it is not the id of the
        # producer's cluster. None if the broker named the producer's cluster, or no cluster.
        self.misrouted_to: str | None = None
        # Whether the last connection ended before DescribeProducers was answered, perhaps because
        # the answer was larger than the client accepts. If so, DescribeProducers is not sent on the
        # next connection, because it could end every connection. Whether unanswered batches are
        # stored can be found out without DescribeProducers, whose answer is only a hint.
        self.question_lost = False
        # Whether the last connection ended before the request for a topic's size limit was
        # answered. Then that request is not sent on the next connection (`BatchLimits.may_ask`).
        self.limit_lost = False

    @property
    def address(self) -> str:
        """The host and port, for messages, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def misrouted(self, cluster_id: str) -> bool:
        """Record the id of the wrong cluster behind the address; return whether this id is new."""
        news, self.misrouted_to = self.misrouted_to != cluster_id, cluster_id
        return news
