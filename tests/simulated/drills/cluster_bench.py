"""The bench of questions about the cluster: parts of an engine, and rows compared with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Final

from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.links import Link
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.requests import RequestKind
from aioidem._engine.steps import FetchMetadata, Request, Step
from aioidem._engine.transactions import TransactionState
from aioidem._log import LogLine
from aioidem.structs import DeliveryStatus

from .cluster_rows import ClusterRows
from .engine_parts import EngineParts

__all__ = ["LIMIT", "ClusterBench", "Wire"]

_AGE: Final = 64.0
LIMIT: Final = 5000
"""The size limit that brokers name for each topic."""


@cache
def _config(plain: int, most: int, *, create: bool) -> ProducerConfig:
    return ProducerConfig.build(
        "b7:9092",
        enable_idempotence=plain != 1,
        transactional_id="x" if plain == 2 else None,
        allow_auto_create_topics=create,
        metadata_max_age=_AGE,
        max_in_flight_requests_per_connection=most,
        retry_backoff=0.25,
        retry_backoff_max=2.0,
    )


@dataclass
class Wire:
    """A connection, and what has happened on it."""

    link: Link
    level: int
    """The level of `transaction.version` that its broker names."""
    owed: dict[int, Request] = field(default_factory=dict)
    asked: bool = False
    identified: bool = False
    cluster: str | None = None
    paused_until: float = 0.0
    limits: set[str] = field(default_factory=set)
    """The topics whose limit was told."""


class ClusterBench:
    """The Metadata requests of a producer, and rows of all that the cluster has said."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._plain = dice.choice((0, 0, 1, 2))
        self._most = dice.choice((1, 2))
        self._config = _config(self._plain, self._most, create=dice.random() < 0.5)
        self._parts = parts = EngineParts(self._config, lambda: 0.5)
        self._part = parts.questions
        # A second refresher, which is told what the rules say.
        self._refresher = MetadataRefresher(_AGE, Backoff(0.25, 2.0, lambda: 0.5))
        self._now = dice.choice((0.0, 4096.0))
        self._tokens = self._level = self._refused = self._unknown = 0
        self._home: str | None = None
        self._astray = self._failed = False
        self._rows = ClusterRows(dice)
        self._wires: list[Wire] = []
        self._numbered: dict[str, ProducerIdentity] = {}
        """The identity under which the batches of a topic have had numbers."""
        self._doubted: set[str] = set()
        """The topics that have a batch in doubt."""
        self._sized: set[str] = set()
        """The topics of which a batch was refused for its size."""
        self._lines: list[LogLine] = []
        self._identity = parts.grant(7, 1)
        if self._plain == 2:
            parts.transactions.state = TransactionState.READY
            parts.transactions.begin(2)

    def _free(self, wire: Wire) -> bool:
        return self._now >= wire.paused_until and len(wire.owed) < self._most

    def _note_asked(self, wire: Wire, step: Request) -> None:
        self._tokens += 1
        wire.asked = True
        wire.owed[self._tokens] = step

    def _compare(self, made: list[Step], due: list[Request]) -> str | None:
        if [(type(each), *each) for each in made] != [(type(each), *each) for each in due]:
            return f"{made}, not {due}"
        for step in due:
            request = self._parts.connections.links[step.link_id].outstanding[step.token]
            kind = RequestKind.METADATA if type(step) is FetchMetadata else RequestKind.CLUSTER
            if (request.kind, request.sent_at) != (kind, self._now):
                return f"a request is kept as {request.kind} at {request.sent_at}"
        return None

    def _identify(self, wire: Wire, named: str | None) -> bool:
        """Note which cluster a broker names, and return whether it is the producer's."""
        self._home = self._home or named
        home = named is None or named == self._home
        if home and not wire.identified:
            self._level = wire.level
        self._astray |= not home
        wire.identified = wire.asked = True
        wire.cluster = named
        return home

    # -- comparing ---------------------------------------------------------------------------------

    def _difference(self) -> str | None:
        parts, rows = self._parts, self._rows
        settled = parts.outcomes.take_settled()
        statuses = [each.outcome.status for each in settled for _ in each.records]
        refused, self._refused = self._refused, 0
        unknown, self._unknown = self._unknown, 0
        lines, self._lines = self._lines, []
        failed = self._failed and self._plain == 2
        pairs: dict[str, tuple[object, object]] = {
            "due": (_facts(parts.metadata), _facts(self._refresher)),
            "cluster": (parts.cluster.cluster_id, self._home),
            "level": (parts.cluster.transaction_version, self._level),
            "astray": (parts.connections.astray, self._astray),
            "brokers": (set(parts.cluster.brokers), rows.brokers),
            "nodes": (set(parts.connections.nodes), rows.nodes),
            "lines": ([event.line for event in parts.outcomes.take_events()], lines),
            "identity": (parts.identity.current, self._identity),
            "failed": (parts.transactions.state is TransactionState.ABORTABLE, failed),
            "ended": (
                sorted(statuses, key=str),
                [DeliveryStatus.NOT_WRITTEN] * refused + [DeliveryStatus.UNKNOWN] * unknown,
            ),
            "links": ([*map(_link_facts, self._wires)], [*map(_wire_facts, self._wires)]),
            "topics": (self._topic_facts(), self._due_facts()),
            "views": (self._views(), self._due_views()),
        }
        for name, (told, due) in pairs.items():
            if told != due:
                return f"{name}: {told}, not {due}"
        return None

    def _topic_facts(self) -> dict[str, object]:
        """Return what is kept of each topic that the producer uses."""
        return {
            name: (
                state.error_code,
                state.refused is not None,
                state.described_by,
                len(state.unassigned),
                state.ceiling(10 * LIMIT, self._now),
                sum(wire.link.limits.of(name).told == LIMIT for wire in self._wires),
            )
            for name, state in self._parts.accumulator.topics.items()
        }

    def _due_facts(self) -> dict[str, object]:
        return {
            name: (
                topic.code,
                topic.permanent,
                topic.named_by,
                len(topic.waiting),
                LIMIT if name in self._sized else 10 * LIMIT,
                sum(name in wire.limits for wire in self._wires),
            )
            for name, topic in self._rows.wanted.items()
        }

    def _views(self) -> dict[str, object]:
        """Return the view of each topic: who leads, and how many answers were outdated."""
        views = self._parts.cluster.topics
        return {name: (view.leaders, view.outdated_answers) for name, view in views.items()}

    def _due_views(self) -> dict[str, object]:
        return {
            name: ({at: leader for at, (leader, _) in topic.known.items()}, topic.outdated)
            for name, topic in self._rows.wanted.items()
            if topic.known is not None
        }


def _facts(refresher: MetadataRefresher) -> tuple[object, ...]:
    due_at = refresher.due_at()
    return (
        *(refresher.wanted, refresher.in_flight, refresher.requests, refresher.out_of_turn),
        due_at,
    )


def _link_facts(wire: Wire) -> tuple[object, ...]:
    link = wire.link
    return link.asked_cluster, link.identified, link.cluster_id, link.throttled_until


def _wire_facts(wire: Wire) -> tuple[object, ...]:
    return wire.asked, wire.identified, wire.cluster, wire.paused_until
