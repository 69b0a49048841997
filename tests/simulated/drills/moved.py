"""The drill of `HomeCluster`: connections to several clusters, and moves from one to the next.

A run has few connections to another cluster at a time. Here each address leads anywhere. All
connections are kept as rows, and from them it is derived which ones are closed, in which order, and
whether the producer moves, ends or stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.accusations import Accusation
from aioidem._engine.links import Leaving, Link, LinkState
from aioidem._engine.record import PendingRecord
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._engine.suspicion import DEFAULT_EXPIRATION
from aioidem._engine.topic_view import TopicView
from aioidem._log import LogLine
from aioidem._protocol.metadata import BrokerAddress, PartitionUpdate

from .comparing import unequal
from .home_parts import HomeParts

__all__ = ["drill_moved"]

_STEPS: Final = 60
_BOOTSTRAP: Final = (-1, -2)
_BROKERS: Final = (0, 1, 2)
_CLUSTERS: Final = ("home", "away", "third", None)
_TOPIC: Final = "t"
_ACCUSED: Final = Accusation(_TOPIC, 0, Route(1, 1, 1), Disproof(20, 8, 11), 0.0)


def drill_moved(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the connections that are closed, and with a move."""
    yield from _HomeDrill(dice).run()


@dataclass
class _Row:
    """One open connection."""

    link: Link
    up: bool = False
    named: bool = False
    """Whether its broker has answered which cluster it is in."""
    cluster: str | None = None
    owes: bool = False
    """Whether a request is unanswered on it."""
    moved_at: float = 0.0
    """When the last byte moved."""


class _Closed(NamedTuple):
    """A connection that is to be closed."""

    link: Link
    error: bool
    """Whether it is closed with an error."""
    words: tuple[str, ...]
    """Words that the reason must have."""

    def __str__(self) -> str:
        """Return the address, and what the reason must say."""
        kind = "an error" if self.error else "no error"
        return f"the connection to {self.link.node_id} with {kind}, because of {self.words}"


class _HomeDrill:
    """A producer with connections, and what it should do about those that lead elsewhere."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        options: dict[str, Any] = dice.choice(
            ({}, {}, {}, {"on_cluster_change": "fail"}, {"transactional_id": "x"})
        )
        self._stays = bool(options)
        self._transactional = "transactional_id" in options
        self._parts = HomeParts(ProducerConfig.build("s1:9092,s2:9092", **options), dice)
        self._now = 100.0
        self._rows: list[_Row] = []
        # The cluster to which most addresses lead now, and the share of those that lead anywhere.
        self._leading = "home"
        self._scattered = dice.choice((0.0, 0.2, 0.6))
        self._home: str | None = None
        self._ended = False
        self._heard_at = 0.0
        """When the last byte moved on a connection that ended after it had named its cluster."""
        self._told: dict[int, str] = {}
        """By address: the other cluster that the operator was told of, until it leads home."""
        self._events: list[tuple[LogLine, tuple[str, ...]]] = []
        self._records = 0
        self._learn()

    def run(self) -> Iterator[str]:
        """Open and lose connections, at random, and yield what is wrong."""
        actions = [*[self._open] * 9, self._lose, self._owe, self._lose_all]
        for _ in range(_STEPS):
            self._now += self._dice.choice((0.0, 3.0, 20.0))
            self._dice.choice(actions)()
            wrong = self._leave() if self._dice.random() < 0.4 else None
            if wrong is not None:
                yield f"home: {wrong} at {self._now}"
                return

    # -- what connections there are ----------------------------------------------------------------

    def _learn(self) -> None:
        """Learn the cluster's brokers, a topic, an identity; queue a record; accuse a broker."""
        parts, core = self._parts, self._parts.core
        self._parts.connections.learn([BrokerAddress(n, f"h{n}", 9092) for n in _BROKERS])
        view = parts.cluster.topics[_TOPIC] = TopicView(_TOPIC, None)
        view.merge(PartitionUpdate(0, 0, 1))
        parts.cluster.brokers = {0: BrokerAddress(0, "h0", 9092)}
        parts.accusations.clear()
        parts.accusations.add(_ACCUSED)
        parts.inquiries.expiration = 5.0
        parts.identity_request.error = errors.KafkaError("refused")
        if self._transactional:
            return
        if core.identity.current is None:
            core.identity.ask()
            core.identity.grant(7, 0)
        if self._dice.random() < 0.5:
            record = PendingRecord(None, b"v", (), 0, self._dice.choice((None, 0)), 20)
            parts.accumulator.append(_TOPIC, record, self._now)
            self._records += 1

    def _open(self) -> None:
        """Open a connection to an address, or let one that is open go on."""
        node_id = self._dice.choice(_BOOTSTRAP + _BROKERS)
        row = next((each for each in self._rows if each.link.node_id == node_id), None)
        connections = self._parts.connections
        if row is None:
            connections.to(node_id, self._now, [])
            node = connections.nodes.get(node_id)
            if node is None or node.link is None:
                return
            row = _Row(node.link, moved_at=self._now)
            self._rows.append(row)
        for _ in range(self._dice.choice((0, 1, 2, 2, 2))):
            self._go_on(row)

    def _go_on(self, row: _Row) -> None:
        """Let a connection come up, then lead to a cluster, then carry bytes."""
        parts = self._parts
        if not row.up:
            row.up = True
            parts.connections.opened(row.link, 13, self._now)
        elif not row.named:
            elsewhere = self._dice.random() < self._scattered
            row.named = True
            row.cluster = self._dice.choice(_CLUSTERS) if elsewhere else self._leading
            self._home = self._home or row.cluster
            if parts.cluster.cluster_id is None:
                parts.cluster.learn_id(row.cluster)
            at_home = row.cluster in (None, self._home) or self._home is None
            parts.connections.identified(row.link, row.cluster, at_home=at_home)
            if at_home:
                self._told.pop(row.link.node_id, None)
            return
        else:
            row.link.progress(self._now)
        row.moved_at = self._now

    def _owe(self) -> None:
        """Let a broker owe an answer."""
        if self._rows:
            row = self._dice.choice(self._rows)
            if row.named and not row.owes:
                row.link.add(Outstanding(1, RequestKind.METADATA, row.moved_at))
                row.owes = True

    def _lose(self) -> None:
        if self._rows and self._dice.random() < 0.5:
            self._drop(self._dice.choice(self._rows).link, errors.KafkaConnectionError("lost"))

    def _lose_all(self) -> None:
        """Lose all connections: the addresses lead to another cluster perhaps."""
        if self._dice.random() < 0.6:
            self._leading = self._dice.choice(("home", "away", "third"))
        for row in list(self._rows):
            self._drop(row.link, errors.KafkaConnectionError("lost"))

    def _drop(self, link: Link, error: Exception | None) -> None:
        (row,) = (each for each in self._rows if each.link is link)
        self._rows.remove(row)
        if row.named:
            self._heard_at = max(self._heard_at, row.moved_at)
        self._parts.home.lost(link)
        self._parts.connections.drop(link, error, self._now)

    # -- which are closed --------------------------------------------------------------------------

    def _leads_home(self, row: _Row) -> bool:
        return row.named and row.cluster in (None, self._home)

    def _due(self) -> Iterator[_Closed]:
        """Yield the connections to close.

        Each is closed before the next one is asked for. If a bootstrap server leads elsewhere, no
        connection leads home, and no answer is owed on it, the producer moves there. Any other
        connection that leads elsewhere is closed.
        """
        strangers = [row for row in self._rows if row.named and not self._leads_home(row)]
        if self._home is None or self._ended:
            return
        for row in strangers:
            if row not in self._rows:
                continue
            node_id, to = row.link.node_id, str(row.cluster)
            nothing_home = not any(self._leads_home(each) for each in self._rows)
            if node_id in _BOOTSTRAP and nothing_home and not row.owes:
                for other in [each for each in self._rows if each is not row]:
                    yield _Closed(other.link, error=False, words=("leaves this cluster for", to))
                self._move(row, to)
                return
            server = f"broker {node_id}" if node_id >= 0 else "a bootstrap server"
            words = (server, f"leads to cluster {to}", f"writes to {self._home}")
            if self._told.get(node_id) != to:
                self._events.append((LogLine.OTHER_CLUSTER, words))
            self._told[node_id] = to
            yield _Closed(row.link, error=True, words=words)
            left = [each for each in self._rows if each.up]
            if all(each.link.node_id in _BOOTSTRAP for each in left):
                for each in left:
                    yield _Closed(each.link, error=False, words=("are resolved again",))

    def _move(self, row: _Row, to: str) -> None:
        silent = f"came {self._now - self._heard_at:.1f} s ago"
        words = (f"from {self._home} to {to}", f"s{-row.link.node_id}:9092", silent)
        if self._stays:
            self._ended = True
            self._events.append((LogLine.CLUSTER_CHANGED, (*words, "This producer ends")))
        else:
            self._home = to
            self._told = {node: told for node, told in self._told.items() if node in _BOOTSTRAP}
            self._events.append((LogLine.CLUSTER_CHANGED, (*words, "under a new producer id")))

    def _leave(self) -> str | None:
        """Let the connections to other clusters be closed, and look at what was done."""
        parts, home, ended = self._parts, self._home, self._ended
        core = parts.core
        core.metadata.sent()
        leaving, due = parts.home.leave_strangers(self._now), self._due()
        refreshed = False
        while True:
            told, expected = next(leaving, None), next(due, None)
            wrong = _differs(told, expected)
            if wrong is not None:
                return wrong
            if told is None:
                break
            refreshed |= told.error is not None
            self._drop(told.link, told.error)
        events = [(event.line, event.text) for event in core.outcomes.take_events()]
        fits = len(events) == len(self._events) and all(
            line is due_line and all(word in text for word in words)
            for (line, text), (due_line, words) in zip(events, self._events, strict=True)
        )
        if not fits:
            return f"the operator is told {events}, not lines with the words {self._events}"
        self._events.clear()
        moved = self._home != home
        if core.metadata.wanted is not (refreshed or moved):
            due_words = f"after a move: {moved}, after an error: {refreshed}"
            return f"metadata is {'' if core.metadata.wanted else 'not '}wanted {due_words}"
        core.metadata.answered(self._now, enough=True)
        wrong = self._ending() if self._ended and not ended else None
        return wrong or self._knowledge(moved=moved)

    def _ending(self) -> str | None:
        error = self._parts.effects.fatal_error
        fits = isinstance(error, errors.ClusterChangedError)
        return None if fits else f"the producer ends with {error!r}, not a ClusterChangedError"

    def _knowledge(self, *, moved: bool) -> str | None:
        """Return what a producer should have forgotten, or should still know; None if all fits."""
        parts, core = self._parts, self._parts.core
        records = sum(len(topic.unassigned) for topic in parts.accumulator.topics.values())
        queued = sum(len(state.queue.records) for state in parts.partitions.live.values())
        brokers: set[int] = set() if moved else set(_BROKERS)
        pairs: dict[str, tuple[object, object]] = {
            "cluster": (parts.cluster.cluster_id, self._home),
            "topics": (set(parts.cluster.topics), set() if moved else {_TOPIC}),
            "brokers": (len(parts.cluster.brokers), int(not moved)),
            "nodes": (set(parts.connections.nodes), {*_BOOTSTRAP, *brokers}),
            "no identity": (core.identity.current is None, moved or self._transactional),
            "memory of brokers (s)": (
                parts.inquiries.expiration,
                DEFAULT_EXPIRATION if moved else 5.0,
            ),
            "no refusal of an identity": (parts.identity_request.error is None, moved),
            "any partitions": (bool(parts.partitions.live), not moved and self._records > 0),
            "records": (records + queued, self._records),
            "settled": (core.outcomes.settled, 0),
            "ended": (parts.effects.fatal_error is not None, self._ended),
            "connections that are up": (
                [
                    link.link_id
                    for link in parts.connections.links.values()
                    if link.state is LinkState.READY
                ],
                [row.link.link_id for row in self._rows if row.up],
            ),
        }
        accused = parts.accusations.take_due(self._now)
        pairs["accused"] = (accused, [] if moved else [_ACCUSED])
        for each in accused:
            parts.accusations.add(each)
        wrong = unequal(pairs)
        if wrong is not None:
            return wrong + " after a move" * moved
        if moved:
            self._learn()
            parts.accumulator.assign_known(self._now)
            parts.accumulator.assign_due()
        return None


def _differs(told: Leaving | None, due: _Closed | None) -> str | None:
    """Return how a connection that is closed differs from the one that should be."""
    if told is None or due is None:
        neither = told is None and due is None
        return None if neither else f"{_words_of(told)} is closed, not {due or 'nothing'}"
    missing = [word for word in due.words if word not in told.reason]
    if told.link is not due.link or (told.error is not None) is not due.error or missing:
        return f"{_words_of(told)} is closed, not {due}"
    return None


def _words_of(told: Leaving | None) -> str:
    if told is None:
        return "nothing"
    kind = "no error" if told.error is None else repr(told.error)
    return f"the connection to {told.link.node_id} with {kind}, because of {told.reason!r}"
