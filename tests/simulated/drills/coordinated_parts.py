"""Stand-ins for the other parts of an engine, which keep what `Coordination` tells them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aioidem._engine import steps
from aioidem._engine.requests import RequestKind
from aioidem._protocol.metadata import BrokerAddress
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus

__all__ = ["Surroundings", "Wire"]


@dataclass
class Wire:
    """A connection to a broker."""

    link_id: int = 0
    identified: bool = True
    open: bool = True
    throttles: list[tuple[int, float]] = field(default_factory=list)
    """The throttle times that were told, in milliseconds, and when, in seconds."""

    def admits(self, _now: float) -> bool:
        """Return whether a request may be written now."""
        return self.open

    def throttle(self, throttle_ms: int, now: float) -> None:
        """Keep the throttle time of an answer."""
        self.throttles.append((throttle_ms, now))


class Surroundings:
    """The brokers, connections, records and effects of one producer, as plain counts and lists.

    One object stands in for all the other parts.
    """

    def __init__(self) -> None:
        # Records that are queued, in batches that are outstanding, and in batches in doubt.
        self.queued = self.flying = self.doubtful = 0
        # Batches that are outstanding, and whose records have ended by their deadline.
        self.overdue = 0
        self.nodes: dict[int, None] = dict.fromkeys(range(4))
        # The connections that there are: to the broker with this id, or to any (None).
        self.wires: dict[int | None, Wire] = {}
        self.token = 0
        self.flushed = 0
        self.gates: list[bool] = []
        self.begin_step()

    def begin_step(self) -> None:
        """Forget what was told before the next step of a drill."""
        self.asked: list[steps.Step] = []
        self.kinds: list[RequestKind] = []
        self.settled: list[tuple[KafkaError, DeliveryStatus | None]] = []
        self.deaths: list[KafkaError] = []
        self.learnt: list[BrokerAddress] = []
        self.refreshed = 0

    # -- records -----------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """The number of records without an outcome."""
        return self.queued + self.flying + self.doubtful

    @property
    def quiet(self) -> bool:
        """Whether no batch is outstanding."""
        return self.flying == self.overdue == 0

    def begin_transaction(self, *, gated: bool) -> None:
        """Note whether the first-ack gates close."""
        self.gates.append(gated)

    def begin_flush(self) -> int:
        """Count the flushes."""
        self.flushed += 1
        return 0

    def abort(self, error: KafkaError, doubt: DeliveryStatus | None) -> None:
        """End the records that are queued, and those in doubt if their outcome is given."""
        self.settled.append((error, doubt))
        self.queued = 0
        if doubt is not None:
            self.doubtful = 0

    # -- connections and requests ------------------------------------------------------------------

    def any_link(self, _now: float) -> Wire | None:
        """Return a connection to any broker."""
        return self.wires.get(None)

    def link_to(self, node_id: int, _now: float) -> Wire | None:
        """Return the connection to a broker."""
        return self.wires.get(node_id) if node_id in self.nodes else None

    def learn(self, brokers: Iterable[BrokerAddress]) -> None:
        """Keep addresses of brokers."""
        self.learnt += brokers
        self.nodes.update(dict.fromkeys(broker.node_id for broker in self.learnt))

    def register(self, _link: Wire, kind: RequestKind, _now: float) -> int:
        """Return the token of a request."""
        self.kinds.append(kind)
        self.token += 1
        return self.token

    def add(self, step: steps.Step) -> None:
        """Keep a step."""
        self.asked.append(step)

    # -- effects -----------------------------------------------------------------------------------

    def fatal(self, error: KafkaError) -> None:
        """Keep the error that ends the producer."""
        self.deaths.append(error)

    def refresh_metadata(self) -> None:
        """Count the requests for metadata."""
        self.refreshed += 1
