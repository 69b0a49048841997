"""The bench of connections: a producer's connections, and the book with which they are compared."""

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

from .comparing import differs, typed
from .linked_book import Book
from .linked_rows import Place, Wire
from .linked_told import OtherParts, due_when_lost, facts_of_link, facts_of_node
from .linked_words import failure_of_all, like, state_of_all, unreachable

__all__ = ["Bench"]

_SECRET: Final[dict[str, Any]] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": "me",
    "sasl_password": "secret",
}
_CONFIGS: Final[tuple[tuple[str, float | None, float, float, int, bool], ...]] = (
    # Servers; seconds: idle time, shortest and longest back-off; requests in flight; a password.
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
    """The connections of a producer, the book of them, and how they are compared.

    Each step appends what is wrong to `_wrong`, because several things are done in one step.
    """

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        window = dice.choice(("off", "on"))
        self._config = config = _config(dice.randrange(len(_CONFIGS)), window)
        # What the engine draws whenever it draws a random number.
        self._draw = 0.5
        self._now = dice.choice((0.0, 4096.0))
        # The id of the producer's cluster.
        self._home = "home"
        self._connections = Connections(config, lambda: self._draw)
        self._book = Book(config)
        self._budget = ByteBudget(10**6)
        self._ledger = RequestLedger(self._connections, self._budget)
        self._others = OtherParts()
        self._lost_links = LostLinks(self._connections, self._ledger, *self._others.parts())
        self._ended: list[Link] = []
        # The steps of the engine, those that are due, and what other parts must be told.
        self._steps: list[Step] = []
        self._due_steps: list[Step] = []
        self._due_told: list[tuple[object, ...]] = []
        self._tokens = 0
        self._wake = math.inf
        self._wrong: list[str] = []

    # -- comparing

    def _expect(self, what: str, told: object, due: object) -> None:
        """Note a complaint if two objects differ."""
        wrong = differs(what, told, due)
        if wrong is not None:
            self._wrong.append(wrong)

    def _expect_alike(self, who: str, told: dict[str, object], due: dict[str, object]) -> None:
        """Note a complaint about each fact that differs."""
        if told != due:
            for name, value in due.items():
                self._expect(f"{who}, {name}", told[name], value)

    def _compare_links(self) -> None:
        """Compare which connections and addresses there are, and what others are told of them."""
        self._expect("steps", typed(self._steps), typed(self._due_steps))
        self._expect("told to other parts", self._others.told, self._due_told)
        self._others.told.clear()
        self._due_told.clear()
        numbers = [wire.number for wire in self._book.wires()]
        self._expect("links", list(self._connections.links), numbers)
        self._expect("nodes", list(self._connections.nodes), list(self._book.places))

    def _compare(self, *, whole: bool) -> None:
        """Compare all that is known of connections and addresses, or of some of them."""
        book, parts, now = self._book, self._connections, self._now
        if self._wrong:
            return
        wires, places = book.wires(), list(book.places.values())
        for wire in wires if whole else self._some(wires):
            link = parts.links[wire.number]
            name, facts = f"link {wire.number}", wire.facts(self._config, now)
            self._expect_alike(name, facts_of_link(link, self._config, now), facts)
            node = parts.nodes[wire.place.node_id]
            kept = link.memory is node.memory and link.discovery is node.discovery
            self._expect(f"{name} shares what outlives it with its address", kept, True)
        for place in places if whole else self._some(places):
            name = f"address {place.node_id}"
            self._expect_alike(name, facts_of_node(parts.nodes[place.node_id]), place.facts())
        self._wake = book.wake(now)
        self._expect("when something is due", parts.next_wake(now), self._wake)
        copies = sum(each.nbytes for wire in wires for each in wire.requests)
        self._expect("bytes of outstanding requests", self._budget.copies, copies)
        self._expect("a broker has named another cluster", parts.astray, book.astray)
        for question in self._questions() if whole else self._some(self._questions()):
            question()
        self._ask_leaving()

    def _some(self, rows: list[Any]) -> list[Any]:
        """Return one of some rows, if there are any."""
        return [self._dice.choice(rows)] if rows else []

    def _wire(self, where: Callable[[Wire], bool]) -> Wire | None:
        """Return one of the present connections that fit; None if none does."""
        found = self._book.wires(where)
        return self._dice.choice(found) if found else None

    def _ask_leaving(self) -> None:
        """Compare which connections are to be left, and why."""
        overdue, spare = self._connections.overdue(self._now), self._connections.spare(self._now)
        self._expect("overdue", _numbers(overdue), self._book.overdue(self._now))
        self._expect("spare", _numbers(spare), self._book.spare(self._now))
        for each in spare:
            self._expect("spare, why", each[1:], ("idle", None))
        why = "no answer within request_timeout (8 s)"
        for each in overdue:
            due = (why, (errors.KafkaConnectionError, (why,), None))
            self._expect("overdue, why", (each.reason, like(each.error)), due)

    def _questions(self) -> list[Callable[[], None]]:
        """Return what other parts ask about all connections together."""
        return [self._ask_state, self._ask_failure, self._ask_reach, self._ask_homes]

    def _servers(self) -> list[Place]:
        """Return the bootstrap addresses."""
        return [place for place in self._book.places.values() if place.node_id < 0]

    def _ask_state(self) -> None:
        told = self._connections.bootstrap_state(self._now)
        self._expect(
            "state of the bootstrap addresses", told, state_of_all(self._servers(), self._now)
        )

    def _ask_failure(self) -> None:
        told = self._connections.bootstrap_failure()
        self._expect(
            "error of the bootstrap addresses", like(told), failure_of_all(self._servers())
        )

    def _ask_reach(self) -> None:
        due = unreachable(list(self._book.places.values()), self._book.unreached, self._now)
        self._expect(
            "error if no broker is reached", like(self._connections.unreachable(self._now)), due
        )
        refused = errors.AuthenticationFailedError("refused")
        self._expect(
            "password refused for good",
            self._connections.shut_out(refused),
            self._book.shut_out(refused),
        )

    def _ask_homes(self) -> None:
        up = self._book.wires(lambda wire: wire.up)
        home = any(wire.named and wire.cluster in (None, self._home) for wire in up)
        self._expect(
            "a connection leads to the producer's cluster",
            self._connections.at_home(self._home),
            home,
        )
        of_servers = all(wire.place.node_id < 0 for wire in up)
        told = [link.link_id for link in self._connections.bootstrap_only()]
        self._expect(
            "connections, if all are to bootstrap addresses",
            told,
            [wire.number for wire in up if of_servers],
        )

    # -- connections that end

    def _end(
        self, wire: Wire, link: Link, error: Exception | None, unwritten: list[int] | None = None
    ) -> None:
        """Note that a connection has ended, and compare what is derived from that at once."""
        self._due_told += [("home", wire.number), ("node", wire.place.node_id)]
        for each in wire.requests:
            written = each.token not in (unwritten or ())
            self._due_told += due_when_lost(each, written=written, now=self._now)
        self._book.end(wire, error, self._now, self._draw)
        self._ended.append(link)
        self._expect("closed", link.closed, True)
        self._expect(
            "password refused for good",
            self._connections.shut_out(error),
            self._book.shut_out(error),
        )
        if wire.speaks:
            self._expect("when v14 is tried again", link.discovery.again_at(), wire.place.held)

    def _leave_one(self, leaving: Leaving) -> None:
        """Close a connection for a reason, and expect the step that closes it."""
        (wire,) = self._book.wires(lambda wire: wire.number == leaving.link.link_id)
        self._lost_links.leave(leaving, self._now)
        self._due_steps.append(CloseLink(wire.number, leaving.reason))
        self._end(wire, leaving.link, leaving.error)


def _numbers(leaving: Any) -> list[int]:
    """Return the numbers of connections that are to be left."""
    return [each.link.link_id for each in leaving]
