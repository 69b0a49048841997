"""The bench of connections: a producer's connections and the book of them, which are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, Final, Literal

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.connections import Connections
from aioidem._engine.links import Leaving, Link
from aioidem._engine.lost_links import LostLinks
from aioidem._engine.memory import ByteBudget
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.steps import CloseLink, Step

from .linked_book import Book
from .linked_rows import Place, Wire
from .linked_told import Heard, heard_of, said, said_of
from .linked_words import failure_of_all, like, state_of_all, unreachable

__all__ = ["Bench"]

_SECRET: Final[dict[str, Any]] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": "me",
    "sasl_password": "secret",
}
_CONFIGS: Final[tuple[tuple[str, float | None, float, float, int, bool], ...]] = (
    # servers, idle time, the shortest and the longest back-off, requests in flight, a password
    ("b1:9092,b2:9092", 4.0, 0.25, 1.0, 2, False),
    ("b1:9092,[::1]:9093,b3:9092", None, 0.5, 16.0, 5, True),
    ("b1:9092", 16.0, 0.125, 0.75, 1, True),
    ("b1:9092,b2:9092,b3:9092,b4:9092", 30.0, 0.0, 0.0, 3, True),
)


@cache
def _config(number: int, window: Literal["off", "on"]) -> ProducerConfig:
    servers, idle, shortest, longest, most, secret = _CONFIGS[number]
    return ProducerConfig.build(
        servers,
        connections_max_idle=idle,
        reconnect_backoff=shortest,
        reconnect_backoff_max=longest,
        max_in_flight_requests_per_connection=most,
        window_discovery=window,
        request_timeout=8.0,
        delivery_timeout=20.0,
        linger=0.0,
        **(_SECRET if secret else {}),
    )


class Bench:
    """The connections of a producer, the book of them, and how they are compared."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        window = dice.choice(("off", "on"))
        self._config = config = _config(dice.randrange(len(_CONFIGS)), window)
        self._draw = 0.5
        self._now = dice.choice((0.0, 4096.0))
        self._home = "home"
        self._parts = Connections(config, lambda: self._draw)
        self._book = Book(config)
        self._budget = ByteBudget(10**6)
        self._ledger = RequestLedger(self._parts, self._budget)
        self._heard = Heard()
        self._lost = LostLinks(self._parts, self._ledger, *self._heard.parts())
        self._ended: list[Link] = []
        self._steps: list[Step] = []
        self._due: list[Step] = []
        self._told: list[tuple[object, ...]] = []
        self._tokens = 0
        self._wake = math.inf
        self._wrong: list[str] = []

    # -- comparing

    def _expect(self, what: str, told: object, due: object) -> None:
        if told != due:
            self._wrong.append(f"{what}: {told!r}, not {due!r}")

    def _expect_alike(self, who: str, told: dict[str, object], due: dict[str, object]) -> None:
        if told != due:
            for name, value in due.items():
                self._expect(f"{who}, {name}", told[name], value)

    def _compare_links(self) -> None:
        """Compare which connections and addresses there are, and what others are told of them."""
        self._expect("steps", [*map(_step, self._steps)], [*map(_step, self._due)])
        self._expect("told", self._heard.told, self._told)
        self._heard.told.clear()
        self._told.clear()
        numbers = [wire.number for wire in self._book.wires()]
        self._expect("links", list(self._parts.links), numbers)
        self._expect("nodes", list(self._parts.nodes), list(self._book.places))

    def _compare(self, *, whole: bool) -> None:
        """Compare all that is known of connections and addresses, or of some of them."""
        book, parts, now = self._book, self._parts, self._now
        if self._wrong:
            return
        wires, places = book.wires(), list(book.places.values())
        for wire in wires if whole else self._some(wires):
            link = parts.links[wire.number]
            name, facts = f"link {wire.number}", wire.facts(self._config, now)
            self._expect_alike(name, said(link, self._config, now), facts)
            node = parts.nodes[wire.place.node_id]
            kept = link.memory is node.memory and link.discovery is node.discovery
            self._expect(f"{name}, what outlives it", kept, True)
        for place in places if whole else self._some(places):
            name = f"address {place.node_id}"
            self._expect_alike(name, said_of(parts.nodes[place.node_id]), place.facts())
        self._wake = book.wake(now)
        self._expect("wake", parts.next_wake(now), self._wake)
        copies = sum(each.nbytes for wire in wires for each in wire.requests)
        self._expect("copies", self._budget.copies, copies)
        self._expect("astray", parts.astray, book.astray)
        for question in self._questions() if whole else self._some(self._questions()):
            question()
        self._ask_leaving()

    def _some(self, rows: list[Any]) -> list[Any]:
        return [self._dice.choice(rows)] if rows else []

    def _wire(self, where: Callable[[Wire], bool]) -> Wire | None:
        found = self._book.wires(where)
        return self._dice.choice(found) if found else None

    def _ask_leaving(self) -> None:
        overdue, spare = self._parts.overdue(self._now), self._parts.spare(self._now)
        self._expect("overdue", _numbers(overdue), self._book.overdue(self._now))
        self._expect("spare", _numbers(spare), self._book.spare(self._now))
        for each in spare:
            self._expect("spare, why", each[1:], ("idle", None))
        why = "no answer within request_timeout (8 s)"
        for each in overdue:
            due = (why, (errors.KafkaConnectionError, (why,), None))
            self._expect("overdue, why", (each.reason, like(each.error)), due)

    def _questions(self) -> list[Callable[[], None]]:
        return [self._ask_state, self._ask_failure, self._ask_reach, self._ask_homes]

    def _servers(self) -> list[Place]:
        return [place for place in self._book.places.values() if place.node_id < 0]

    def _ask_state(self) -> None:
        told = self._parts.bootstrap_state(self._now)
        self._expect("state", told, state_of_all(self._servers(), self._now))

    def _ask_failure(self) -> None:
        told = self._parts.bootstrap_failure()
        self._expect("failure", like(told), failure_of_all(self._servers()))

    def _ask_reach(self) -> None:
        due = unreachable(list(self._book.places.values()), self._book.unreached, self._now)
        self._expect("unreachable", like(self._parts.unreachable(self._now)), due)
        refused = errors.AuthenticationFailedError("refused")
        self._expect("shut out", self._parts.shut_out(refused), self._book.shut_out(refused))

    def _ask_homes(self) -> None:
        up = self._book.wires(lambda wire: wire.up)
        home = any(wire.named and wire.cluster in (None, self._home) for wire in up)
        self._expect("home", self._parts.at_home(self._home), home)
        of_servers = all(wire.place.node_id < 0 for wire in up)
        told = [link.link_id for link in self._parts.bootstrap_only()]
        self._expect("of servers alone", told, [wire.number for wire in up if of_servers])

    # -- connections that end

    def _end(
        self, wire: Wire, link: Link, error: Exception | None, unwritten: list[int] | None = None
    ) -> None:
        """Note that a connection has ended, and compare what is derived from that at once."""
        self._told += [("home", wire.number), ("node", wire.place.node_id)]
        for each in wire.requests:
            written = each.token not in (unwritten or ())
            self._told += heard_of(each, written=written, now=self._now)
        self._book.end(wire, error, self._now, self._draw)
        self._ended.append(link)
        self._expect("closed", link.closed, True)
        self._expect("shut out", self._parts.shut_out(error), self._book.shut_out(error))
        if wire.speaks:
            self._expect("v14 again", link.discovery.again_at(), wire.place.held)

    def _leave_one(self, leaving: Leaving) -> None:
        (wire,) = self._book.wires(lambda wire: wire.number == leaving.link.link_id)
        self._lost.leave(leaving, self._now)
        self._due.append(CloseLink(wire.number, leaving.reason))
        self._end(wire, leaving.link, leaving.error)


def _step(step: Step) -> tuple[object, ...]:
    return type(step), *step


def _numbers(leaving: Any) -> list[int]:
    return [each.link.link_id for each in leaving]
