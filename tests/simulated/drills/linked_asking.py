"""Requests on connections: which connection takes one, and what is told when it is answered."""

from __future__ import annotations

from typing import Final

from aioidem._engine.links import Link
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.steps import OpenLink

from .linked_bench import Bench
from .linked_rows import WITH_WINDOW, Asked, Wire
from .linked_told import due_when_lost

__all__ = ["Asking"]


_KINDS: Final = (
    *RequestKind,
    *(RequestKind.METADATA, RequestKind.DESCRIBE_PRODUCERS, RequestKind.DESCRIBE_PRODUCERS),
    *(RequestKind.TOPIC_LIMIT, RequestKind.READ_BACK, RequestKind.READ_BACK),
)


class Asking(Bench):
    """A bench whose connections are asked for, and get requests and answers."""

    def _any(self) -> None:
        """Ask for a connection to any broker; send requests on it, or begin one."""
        identified = self._dice.random() < 0.6
        best = self._book.best(self._now, identified=identified)
        link = self._ledger.any_link(self._now, identified=identified)
        if link is None or not best:
            self._expect("connection to any broker", link, next(iter(best), None))
            for wire in self._book.try_somewhere(self._now, self._draw):
                self._begun(wire)
            return
        numbers = [wire.number for wire in best]
        self._expect(f"link {link.link_id} is one of {numbers}", link.link_id in numbers, True)
        self._send_some(next(wire for wire in best if wire.number == link.link_id))

    def _begun(self, wire: Wire) -> None:
        """Expect the step that begins a connection."""
        self._due_steps.append(OpenLink(wire.number, wire.place.host, wire.place.port))

    def _one(self) -> None:
        """Ask for the connection to one broker, or to one that is unknown (77)."""
        up = [wire.place.node_id for wire in self._book.wires(lambda wire: wire.up)]
        node_id = self._dice.choice([*self._book.places, *up, *up, -1, -1, -1, 0, 77])
        self._connect(node_id)

    def _connect(self, node_id: int) -> None:
        """Ask for the connection to a broker, and send requests if it is ready."""
        place = self._book.places.get(node_id)
        if place is not None and place.wire is None and self._now >= place.retry_at:
            self._begun(self._book.begin(place, self._now))
        wire = None if place is None else place.wire
        link = self._ledger.link_to(node_id, self._now)
        due = wire.number if wire is not None and wire.up else None
        self._expect(f"connection to {node_id}", None if link is None else link.link_id, due)
        if link is not None and wire is not None and link.admits(self._now):
            self._send_some(wire)

    def _send_some(self, wire: Wire) -> None:
        """Send a request, and perhaps more while the connection takes them."""
        self._send(wire)
        while self._dice.random() < 0.5 and self._connections.links[wire.number].admits(self._now):
            self._send(wire)

    def _send(self, wire: Wire) -> None:
        """Send a request of any kind."""
        dice, link = self._dice, self._connections.links[wire.number]
        self._tokens += 1
        kind = RequestKind.PRODUCE if dice.random() < 0.4 else dice.choice(_KINDS)
        each = Asked(self._tokens, kind, self._now, behind=len(wire.answered))
        if kind is RequestKind.PRODUCE:
            each.nbytes = dice.choice((0, 100, 1000, 30_000))
            each.version = link.produce_version
            each.sent_at -= dice.choice((0.0, 0.0, 0.25))
            each.entries = dice.choice(({}, {("t", 0): "batch"}))
            each.names = dice.choice(({}, {"id": "t"}))
            token = self._ledger.next_token()
            request = Outstanding(
                *(token, kind, each.sent_at),
                entries=each.entries or None,
                names=each.names or None,
                nbytes=each.nbytes,
                version=each.version,
            )
            self._ledger.carry(link, request)
        elif dice.random() < 0.35:
            token = self._ledger.register(link, kind, self._now)
        else:
            own = dice.random() < 0.5
            each.subject, each.topic_limit = self._others.partition(own=own), object()
            token = self._ledger.register(link, kind, self._now, each.subject, each.topic_limit)
        self._expect("token", token, each.token)
        if not wire.requests:
            wire.moved.append(each.sent_at)
        wire.requests.append(each)

    def _answer(self) -> None:
        """Answer a request, mostly the oldest one of a connection."""
        wire = self._wire(lambda wire: bool(wire.requests))
        if wire is None:
            return
        at = 0 if self._dice.random() < 0.8 else self._dice.randrange(len(wire.requests))
        each = wire.requests.pop(at)
        found = self._ledger.answered(wire.number, each.token, self._now)
        self._expect_request(wire, each, found)
        each.took = self._now - each.sent_at
        wire.answered.append(each)
        wire.moved.append(self._now)
        if each.version == WITH_WINDOW:
            self._connections.links[wire.number].discovery.answered()
            wire.heard = True

    def _expect_request(
        self, wire: Wire, each: Asked, found: tuple[Link, Outstanding] | None
    ) -> Outstanding | None:
        """Compare a request that the ledger has returned, and return it."""
        if found is None:
            self._expect("token of the request", None, each.token)
            return None
        link, got = found
        told = (link.link_id, got.token, got.kind, got.sent_at, got.nbytes, got.version)
        due = (wire.number, each.token, each.kind, each.sent_at, each.nbytes, each.version)
        self._expect("request (link, token, kind, sent at, bytes, version)", told, due)
        about = (got.entries, got.names, got.subject, got.topic_limit)
        due_about = each.entries, each.names, each.subject, each.topic_limit
        self._expect("what the request is about", about, due_about)
        return got

    def _withdraw(self) -> None:
        """Take a request back that will get no answer, and tell who made it."""
        wire = self._wire(lambda wire: bool(wire.requests))
        if wire is None:
            return
        each = wire.requests.pop(self._dice.randrange(len(wire.requests)))
        found = self._ledger.withdrawn(wire.number, each.token)
        got = self._expect_request(wire, each, found)
        if got is not None and self._dice.random() < 0.7:
            written = self._dice.random() < 0.5
            self._lost_links.lose(got, written=written, now=self._now)
            self._due_told += due_when_lost(each, written=written, now=self._now)
