"""Rows of connections: what happened to each connection, address and request, and what follows.

Nothing is summed up in a row: it lists when bytes moved, which requests were sent and answered, and
how connections ended. What a connection or an address must do is derived from that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aioidem._config import ProducerConfig
from aioidem._engine.links import LinkState
from aioidem._engine.requests import RequestKind

__all__ = ["WITH_WINDOW", "Asked", "End", "Place", "Wire"]

WITH_WINDOW: Final = 14
"""The version of Produce whose answers name the window."""
_LONGEST_THROTTLE: Final = 300.0
"""Seconds; a longer throttle time is not obeyed."""
_TOLD_AFTER: Final = 1.0
"""For how many seconds after a throttle time the broker counts as throttling."""
_SAMPLES: Final = 8
"""So many rates are remembered."""


@dataclass(eq=False)
class Asked:
    """A request on a connection."""

    token: int
    kind: RequestKind
    sent_at: float
    nbytes: int = 0
    version: int = 0
    subject: Any = None
    topic_limit: Any = None
    entries: Any = field(default_factory=dict)
    names: Any = field(default_factory=dict)
    behind: int = 0
    """How many requests had been answered on the connection when this one was sent."""
    took: float = 0.0
    """Seconds until it was answered."""


@dataclass(eq=False)
class Wire:
    """A connection."""

    number: int
    place: Place
    secret: int
    """Which credentials it uses, by number."""
    moved: list[float]
    """When it was begun, and when bytes moved."""
    knows: bool = True
    """Whether its broker may be asked about producers (DescribeProducers)."""
    asks_limits: bool = True
    """Whether its broker may be asked for the size limits of topics."""
    up: bool = False
    gone: bool = False
    offered: int = 0
    """The highest version of Produce that its broker offers."""
    speaks: bool = False
    """Whether Produce v14 is used."""
    heard: bool = False
    """Whether a request in v14 was answered."""
    requests: list[Asked] = field(default_factory=list)
    """The outstanding ones, oldest first. Those of a connection that is gone were outstanding."""
    answered: list[Asked] = field(default_factory=list)
    throttles: list[tuple[float, float]] = field(default_factory=list)
    """When a throttle time was told, and how many seconds."""
    named: bool = False
    """Whether its broker has named its cluster, or that it has no name."""
    cluster: str | None = None
    asked_broker: bool = False
    asked_cluster: bool = False
    reads: bool = True
    """Whether its broker may be asked to read a log back."""

    def throttle(self, milliseconds: int, now: float) -> None:
        """Note a throttle time; a negative one is none."""
        self.throttles.append((now, max(0.0, min(milliseconds / 1000, _LONGEST_THROTTLE))))

    def throttled_until(self) -> float:
        """Return when the last throttle time ends."""
        return max((at + wait for at, wait in self.throttles if wait), default=0.0)

    def admits(self, now: float, most: int) -> bool:
        """Return whether one more request may be sent."""
        return self.up and len(self.requests) < most and now >= self.throttled_until()

    def timeout_at(self, config: ProducerConfig) -> float | None:
        """Return when the oldest request times out; a throttle time does not count."""
        if not self.requests:
            return None
        begin = max(self.requests[0].sent_at, self.throttled_until())
        silent_since = max([begin, *self.moved])
        return min(silent_since + config.request_timeout, begin + config.delivery_timeout)

    def idle_until(self, config: ProducerConfig) -> float:
        """Return when it is closed because it is idle, if nothing else happens."""
        if config.connections_max_idle is None or self.requests or not self.up:
            return math.inf
        return max(max(self.moved) + config.connections_max_idle, self.throttled_until())

    def silent(self) -> bool:
        """Return whether Produce v14 is used, and no request in it has been answered yet."""
        waits = any(each.version == WITH_WINDOW for each in self.requests)
        return self.speaks and waits and not self.heard

    def rate(self) -> float | None:
        """Return the largest of the last rates; None if there is none.

        A rate is measured for each Produce request: the bytes of all requests that were answered
        while it was under way, by the seconds that it took.
        """
        rates = []
        for number, each in enumerate(self.answered, start=1):
            if each.kind is RequestKind.PRODUCE and each.took > 0:
                rates.append(_delivered(self.answered[each.behind : number]) / each.took)
        return max(rates[-_SAMPLES:], default=None)

    def round_trip(self) -> float | None:
        """Return the mean round trip in seconds, in which each later one counts for an eighth.

        It is at most eight times the last one.
        """
        mean: float | None = None
        for each in self.answered:
            mean = each.took if mean is None else min(mean * 7 / 8 + each.took / 8, each.took * 8)
        return None if mean is None else round(mean, 9)

    def facts(self, config: ProducerConfig, now: float) -> dict[str, object]:
        """Return what the connection must tell of itself."""
        until, most = self.throttled_until(), config.max_in_flight_requests_per_connection
        produced = [each for each in self.answered if each.kind is RequestKind.PRODUCE]
        state = LinkState.READY if self.up else LinkState.CONNECTING
        plain = min(self.offered, WITH_WINDOW - 1)
        wait = self.throttles[-1][1] if self.throttles else 0.0
        return {
            "address": self.place.node_id,
            "state": LinkState.CLOSED if self.gone else state,
            "Produce": (WITH_WINDOW if self.speaks else plain, plain, 0),
            "requests": [each.token for each in self.requests],
            "window": (len(self.requests), most),
            "bytes": sum(each.nbytes for each in self.requests),
            "moved": max(self.moved),
            "throttled": (until, wait if now < until + _TOLD_AFTER else 0.0),
            "admits": self.admits(now, most) and not self.gone,
            "times out": self.timeout_at(config),
            "delivered": _delivered(self.answered),
            "rate": self.rate(),
            "round trip": self.round_trip(),
            "latencies": [each.took for each in produced],
            "answered": produced[-1].sent_at + produced[-1].took if produced else None,
            "cluster": (self.named, self.cluster),
            "asked": (self.asked_broker, self.asked_cluster or self.named),
            "may ask": (self.knows, self.reads, self.asks_limits),
        }


def _delivered(answered: Iterable[Asked]) -> int:
    return sum(each.nbytes for each in answered)


class End(NamedTuple):
    """A connection that failed, when, why, and what was drawn for the back-off."""

    at: float
    error: Exception | None
    draw: float


@dataclass(eq=False)
class Place:
    """An address, with all connections to it."""

    node_id: int
    host: str
    port: int
    wires: list[Wire] = field(default_factory=list)
    failed: list[End] = field(default_factory=list)
    """The failures since a connection last led to the producer's cluster."""
    down: list[float] = field(default_factory=list)
    """When connections failed since one was up."""
    retry_at: float = 0.0
    elsewhere: str | None = None
    """The other cluster that the broker at this address has named."""
    held: float | None = None
    """Until when Produce v14 is not used."""

    @property
    def wire(self) -> Wire | None:
        """The present connection."""
        return self.wires[-1] if self.wires and not self.wires[-1].gone else None

    @property
    def address(self) -> str:
        """The address in texts."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def fail(self, end: End, config: ProducerConfig) -> None:
        """Note that a connection failed; the back-off doubles with each failure in a row."""
        self.retry_at = end.at + self.delay(len(self.failed), end.draw, config)
        self.failed.append(end)
        self.down.append(end.at)

    def hold(self, wire: Wire, now: float, draw: float) -> None:
        """Hold v14 back if a second connection ended without its first answer in v14.

        A broker that has ever answered in v14 is believed to have it.
        """
        silent = [each for each in self.wires if each.gone and each.silent()]
        if wire.silent() and len(silent) > 1 and not any(each.heard for each in self.wires):
            self.held = now + min(2.0 ** (len(silent) - 2), 15.0) * (0.8 + 0.4 * draw)

    def delay(self, failures: int, draw: float, config: ProducerConfig) -> float:
        """Return the back-off after so many earlier failures, which varies by a fifth."""
        plain = min(config.reconnect_backoff * 2.0**failures, config.reconnect_backoff_max)
        return plain * (0.8 + 0.4 * draw)

    def error(self) -> Exception | None:
        """Return why the last connection failed."""
        return self.failed[-1].error if self.failed else None

    def unasked(self) -> set[RequestKind]:
        """Return the kinds of requests that the last connection owed: one may have ended it."""
        before = [each for each in self.wires if each.gone and each.up]
        return {each.kind for each in before[-1].requests} if before else set()

    def facts(self) -> dict[str, object]:
        """Return what the address must tell of itself."""
        return {
            "address": (self.host, self.port, self.address),
            "connection": None if self.wire is None else self.wire.number,
            "failures": len(self.failed),
            "tried again": self.retry_at,
            "error": self.error(),
            "down": self.down[0] if self.down else None,
            "elsewhere": self.elsewhere,
        }
