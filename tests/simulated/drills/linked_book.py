"""The book of connections: the rows of all of them, and what is derived from them together.

That is which connection is begun next and to which address, which one a request takes, which are
closed, and when something is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.requests import RequestKind

from .linked_rows import WITH_WINDOW, End, Place, Wire

__all__ = ["Book"]

_MOST_PLACES: Final = 1000
"""With more addresses than this, those that nobody needs are forgotten."""
_REFUSALS: Final = 5
"""After so many refusals in a row a password counts as refused for good."""


class Book:
    """The rows of all addresses and connections of a producer."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        # How many connections were begun; which credentials are used, by number; and the refusals
        # of these since a connection was up.
        self._made = 0
        self._secret = 0
        self._refused: list[Exception] = []
        self.unreached: list[float] = []
        """When connections failed while none was up, since one was up last."""
        self.astray = False
        """Whether a broker has named another cluster."""
        self.places = {
            -number: Place(-number, host, port)
            for number, (host, port) in enumerate(config.bootstrap_servers, start=1)
        }

    def wires(self, where: Callable[[Wire], bool] = bool) -> list[Wire]:
        """Return the present connections, or some of them, in the order in which they began."""
        found = [place.wires[-1] for place in self.places.values() if place.wires]
        chosen = [wire for wire in found if not wire.gone and where(wire)]
        return sorted(chosen, key=lambda wire: wire.number)

    def any_up(self) -> bool:
        """Return whether a connection is up."""
        return bool(self.wires(lambda wire: wire.up))

    # what happens

    def learn(self, brokers: Iterable[tuple[int, str, int]]) -> None:
        """Note the brokers that metadata names; of too many addresses those in no use go."""
        brokers = list(brokers)
        if len(self.places) > _MOST_PLACES:
            named = {node_id for node_id, _, _ in brokers}
            for node_id, place in list(self.places.items()):
                if node_id >= 0 and node_id not in named and place.wire is None:
                    del self.places[node_id]
        for node_id, host, port in brokers:
            place = self.places.setdefault(node_id, Place(node_id, host, port))
            if (place.host, place.port) != (host, port):
                place.host, place.port, place.retry_at = host, port, 0.0

    def begin(self, place: Place, now: float) -> Wire:
        """Begin a connection."""
        self._made += 1
        unasked = place.unasked()
        knows = RequestKind.DESCRIBE_PRODUCERS not in unasked
        limits = RequestKind.TOPIC_LIMIT not in unasked
        place.wires.append(Wire(self._made, place, self._secret, [now], knows, limits))
        return place.wires[-1]

    def up(self, wire: Wire, offered: int, now: float) -> None:
        """Note that a connection is up."""
        wire.up, wire.offered = True, offered
        wire.moved.append(now)
        wire.place.down = []
        if offered < WITH_WINDOW:
            wire.place.held = None
        self.unreached, self._refused = [], []

    def name(self, wire: Wire, cluster: str | None, *, at_home: bool) -> None:
        """Note which cluster a connection leads to."""
        wire.named, wire.cluster = True, cluster
        if at_home:
            wire.place.failed, wire.place.elsewhere = [], None
        else:
            self.astray = True

    def end(self, wire: Wire, error: Exception | None, now: float, draw: float) -> None:
        """Note that a connection ended."""
        wire.gone = True
        wire.place.hold(wire, now, draw)
        if error is not None or not wire.up:
            wire.place.fail(End(now, error, draw), self._config)
            if not self.any_up():
                self.unreached.append(now)
        password = not isinstance(error, errors.SslAuthenticationError)
        if (
            isinstance(error, errors.AuthenticationFailedError)
            and password
            and wire.secret == self._secret
        ):
            self._refused.append(error)

    def renew(self) -> None:
        """Note that the next connections use other credentials."""
        self._secret += 1
        self._refused = []

    def may_speak(self, wire: Wire, now: float) -> bool:
        """Return whether v14 may be used on a connection that was just opened."""
        wanted = self._config.window_discovery == "on" and wire.offered >= WITH_WINDOW
        return wanted and (wire.place.held is None or now >= wire.place.held)

    # what must be done

    def best(self, now: float, *, identified: bool) -> list[Wire]:
        """Return the connections that suit a request for any broker; all are equally good."""
        most = self._config.max_in_flight_requests_per_connection
        fit = self.wires(lambda wire: wire.admits(now, most) and (wire.named or not identified))

        def rank(wire: Wire) -> tuple[bool, bool, int]:
            return not wire.named, wire.place.node_id < 0, len(wire.requests)

        least = min(map(rank, fit), default=None)
        return [wire for wire in fit if rank(wire) == least]

    def try_somewhere(self, now: float, draw: float) -> Iterator[Wire]:
        """Begin connections until one is up, or is to an address without failures.

        Each is to an address that failed least often; among these one is drawn.
        """
        while not self.wires(lambda wire: wire.up or not wire.place.failed):
            free = [each for each in self.places.values() if each.wire is None]
            free = [each for each in free if now >= each.retry_at]
            if not free:
                return
            least = min(len(each.failed) for each in free)
            free = [each for each in free if len(each.failed) == least]
            yield self.begin(free[int(draw * len(free))], now)

    def overdue(self, now: float) -> list[int]:
        """Return the connections whose oldest request has timed out."""
        config = self._config
        found = self.wires(lambda wire: (wire.timeout_at(config) or math.inf) <= now)
        return [wire.number for wire in found]

    def spare(self, now: float) -> list[int]:
        """Return the connections that are not needed.

        They are idle for too long, or lead to a bootstrap address although one to a broker is up.
        """
        config = self._config
        proper = self.wires(lambda wire: wire.up and wire.named and wire.place.node_id >= 0)
        free = self.wires(lambda w: w.up and not w.requests and now >= w.throttled_until())
        return [
            wire.number
            for wire in free
            if (proper and wire.place.node_id < 0) or now >= wire.idle_until(config)
        ]

    def wake(self, now: float) -> float:
        """Return when the next timeout, throttle time or back-off ends."""
        times = [math.inf]
        for wire in self.wires():
            at = wire.timeout_at(self._config)
            times.append(wire.idle_until(self._config) if at is None else at)
            if now < wire.throttled_until():
                times.append(wire.throttled_until())
        places = [each for each in self.places.values() if each.wire is None]
        return min([*times, *(each.retry_at for each in places if now < each.retry_at)])

    def shut_out(self, error: Exception | None) -> Exception | None:
        """Return the error if the brokers refuse the password for good."""
        enough = len(self._refused) >= _REFUSALS and self._config.sasl_password is not None
        password = isinstance(error, errors.AuthenticationFailedError) and not isinstance(
            error, errors.SslAuthenticationError
        )
        return error if enough and password and not self.any_up() else None
