"""The bench of questions about the cluster: parts of an engine, and rows compared with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Final, Literal

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
from .comparing import differs, typed, unequal
from .engine_parts import EngineParts

__all__ = ["LIMIT", "ClusterBench", "Wire"]

_AGE: Final = 64.0
"""`metadata_max_age`, in seconds."""
_BACK_OFF: Final = 0.25
_LONGEST_BACK_OFF: Final = 2.0
"""`retry_backoff` and `retry_backoff_max`, in seconds."""
LIMIT: Final = 5000
"""The size limit that brokers name for each topic, in bytes."""
_Kind = Literal["idempotent", "not idempotent", "transactional"]


@cache
def _config(kind: _Kind, most_in_flight: int, *, create: bool) -> ProducerConfig:
    return ProducerConfig.build(
        "b7:9092",
        enable_idempotence=kind != "not idempotent",
        transactional_id="x" if kind == "transactional" else None,
        allow_auto_create_topics=create,
        metadata_max_age=_AGE,
        max_in_flight_requests_per_connection=most_in_flight,
        retry_backoff=_BACK_OFF,
        retry_backoff_max=_LONGEST_BACK_OFF,
    )


@dataclass
class Wire:
    """A connection, and what has happened on it."""

    link: Link
    level: int
    """The level of `transaction.version` that its broker names."""
    owed: dict[int, Request] = field(default_factory=dict)
    """The requests without an answer, by token."""
    asked: bool = False
    """Whether its broker was asked which cluster it belongs to."""
    identified: bool = False
    """Whether it has answered that."""
    cluster: str | None = None
    paused_until: float = 0.0
    limits: set[str] = field(default_factory=set)
    """The topics whose limit was told."""


class ClusterBench:
    """A producer's questions about its cluster, and rows of all that brokers have answered."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        kinds: tuple[_Kind, ...]
        kinds = "idempotent", "idempotent", "not idempotent", "transactional"
        self._kind = dice.choice(kinds)
        self._most_in_flight = dice.choice((1, 2))
        self._config = _config(self._kind, self._most_in_flight, create=dice.random() < 0.5)
        self._parts = parts = EngineParts(self._config, lambda: 0.5)
        self._questions = parts.questions
        # A twin of the engine's refresher, which is told only what the rules say. When it asks is
        # derived in the drill "refreshed".
        self._refresher = MetadataRefresher(
            _AGE, Backoff(_BACK_OFF, _LONGEST_BACK_OFF, lambda: 0.5)
        )
        self._now = dice.choice((0.0, 4096.0))
        self._tokens = self._transaction_level = 0
        # How many records must have ended NOT_WRITTEN, and UNKNOWN, since the last comparison.
        self._refused = self._unknown = 0
        self._home: str | None = None
        """The id of the producer's cluster, once a broker has named it."""
        self._astray = False
        """Whether a broker has named another cluster."""
        self._failed = False
        """Whether a transaction can only be aborted, if the producer has any."""
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
        if self._kind == "transactional":
            parts.transactions.state = TransactionState.READY
            parts.transactions.begin(2)

    def _free(self, wire: Wire) -> bool:
        """Return whether a connection takes one more request."""
        return self._now >= wire.paused_until and len(wire.owed) < self._most_in_flight

    def _note_asked(self, wire: Wire, step: Request) -> None:
        self._tokens += 1
        wire.asked = True
        wire.owed[self._tokens] = step

    def _wrong_requests(self, made: list[Step], due: list[Request]) -> str | None:
        """Return how the requests that were made, and are kept, differ from those that are due."""
        wrong = differs("requests", typed(made), typed(due))
        if wrong is not None:
            return wrong
        for step in due:
            request = self._parts.connections.links[step.link_id].outstanding[step.token]
            kind = RequestKind.METADATA if type(step) is FetchMetadata else RequestKind.CLUSTER
            told = request.kind, request.sent_at
            if told != (kind, self._now):
                return differs("kind and time of an outstanding request", told, (kind, self._now))
        return None

    def _identify(self, wire: Wire, named: str | None) -> bool:
        """Note which cluster a broker names, and return whether it is the producer's."""
        self._home = self._home or named
        home = named is None or named == self._home
        if home and not wire.identified:
            self._transaction_level = wire.level
        self._astray |= not home
        wire.identified = wire.asked = True
        wire.cluster = named
        return home

    # -- comparing ---------------------------------------------------------------------------------

    def _difference(self) -> str | None:
        """Return how the engine differs from the rows; None if it does not."""
        parts, rows = self._parts, self._rows
        settled = parts.outcomes.take_settled()
        statuses = [each.outcome.status for each in settled for _ in each.records]
        refused, self._refused = self._refused, 0
        unknown, self._unknown = self._unknown, 0
        lines, self._lines = self._lines, []
        failed = self._failed and self._kind == "transactional"
        pairs: dict[str, tuple[object, object]] = {
            "when metadata is asked for": (_facts(parts.metadata), _facts(self._refresher)),
            "cluster": (parts.cluster.cluster_id, self._home),
            "level of transaction.version": (
                parts.cluster.transaction_version,
                self._transaction_level,
            ),
            "a broker has named another cluster": (parts.connections.astray, self._astray),
            "brokers of the last answer": (set(parts.cluster.brokers), rows.brokers),
            "addresses": (set(parts.connections.nodes), rows.nodes),
            "lines": ([event.line for event in parts.outcomes.take_events()], lines),
            "identity": (parts.identity.current, self._identity),
            "transaction can only be aborted": (
                parts.transactions.state is TransactionState.ABORTABLE,
                failed,
            ),
            "statuses of the records that ended": (
                sorted(statuses, key=str),
                [DeliveryStatus.NOT_WRITTEN] * refused + [DeliveryStatus.UNKNOWN] * unknown,
            ),
            "connections (asked, identified, cluster, paused until)": (
                [*map(_link_facts, self._wires)],
                [*map(_wire_facts, self._wires)],
            ),
            "topics": (self._topic_facts(), self._due_facts()),
            "leaders, and outdated answers in a row": (self._views(), self._due_views()),
        }
        return unequal(pairs)

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
        """Return the same, as the rows have it."""
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
        """Return the same, as the rows have it."""
        return {
            name: ({at: leader for at, (leader, _) in topic.known.items()}, topic.outdated)
            for name, topic in self._rows.wanted.items()
            if topic.known is not None
        }


def _facts(refresher: MetadataRefresher) -> tuple[object, ...]:
    """Return when a refresher asks, and what it has asked."""
    due_at = refresher.due_at()
    return (
        *(refresher.wanted, refresher.in_flight, refresher.requests, refresher.out_of_turn),
        due_at,
    )


def _link_facts(wire: Wire) -> tuple[object, ...]:
    """Return what the engine knows of a connection."""
    link = wire.link
    return link.asked_cluster, link.identified, link.cluster_id, link.throttled_until


def _wire_facts(wire: Wire) -> tuple[object, ...]:
    """Return the same, as the rows have it."""
    return wire.asked, wire.identified, wire.cluster, wire.paused_until
