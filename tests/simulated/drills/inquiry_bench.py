"""The bench of inquiries: parts of an engine, and rows of what brokers were asked and have said."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Final, Literal, NamedTuple

from aioidem._config import ProducerConfig
from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.links import Link
from aioidem._engine.partition import PartitionState
from aioidem._engine.steps import DescribeBrokerConfig, Request
from aioidem._log import LogLine
from aioidem._protocol.broker_config import BrokerFacts

from .engine_parts import EngineParts, addresses

__all__ = ["BATCH", "DELIVERY", "InquiryBench", "Row", "Wire"]

BATCH: Final = 1000
_DAY: Final = 86_400.0
DELIVERY: Final = 64.0
_RANGE: Final = 10_000_000
_CAP: Final = 1 << 30


@cache
def _config(
    window: Literal["off", "on"],
    dedup: Literal["window", "range"],
    told: float | None,
    plain: int,
    most: int,
) -> ProducerConfig:
    return ProducerConfig.build(
        "b0:9092",
        window_discovery=window,
        broker_dedup=dedup,
        producer_id_expiration=told,
        enable_idempotence=plain != 1,
        late_sealing=plain != 2,
        batch_size=BATCH,
        metadata_max_age=8.0,
        request_timeout=16.0,
        delivery_timeout=DELIVERY,
        max_in_flight_requests_per_connection=most,
    )


class Row(NamedTuple):
    """A request that is unanswered."""

    token: int
    kind: type[Request]
    topic: str


@dataclass
class Wire:
    """A connection, and what has happened on it."""

    link: Link
    may_ask_limits: bool
    owed: list[Row] = field(default_factory=list)
    asked_itself: bool = False
    paused_until: float = 0.0
    limits: dict[str, BatchLimit] = field(default_factory=dict)
    """A second limit for each topic, which is told only what the rules say."""


class InquiryBench:
    """The inquiries of a producer, and rows of what was asked and answered."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        told = dice.choice((None, None, 2 * DELIVERY, 2 * DELIVERY + 1))
        window = dice.choice(("off", "on", "auto"))
        dedup = dice.choice(("window", "range"))
        self._most = dice.choice((1, 1, 2))
        self._config = _config(window, dedup, told, dice.choice((0, 0, 0, 1, 2)), self._most)
        self._parts = EngineParts(self._config, dice.random)
        self._parts.connections.learn(addresses(3))
        self._part = self._parts.inquiries
        self._now = dice.choice((0.0, 4096.0))
        self._tokens = 0
        self._wires: dict[int, Wire] = {}
        self._facts: list[tuple[int, BrokerFacts]] = []
        """What brokers have said of themselves in this cluster."""
        self._states: dict[str, PartitionState] = {}
        self._caps: dict[str, int | None] = {}
        """How many sequences each partition may use, as it was told last."""
        self._warned_untold = False
        self._lines: list[tuple[LogLine, str]] = []
        if told is not None:
            self._short_memory()

    # -- what follows from the rows ----------------------------------------------------------------

    def _expiration(self) -> float:
        """Return how long brokers remember: what is configured, or the shortest that one says."""
        if self._config.producer_id_expiration is not None:
            return self._config.producer_id_expiration
        said = {node: each.expiration for node, each in self._facts if each.expiration is not None}
        return min(said.values(), default=_DAY)

    def _short_memory(self) -> None:
        """Expect a warning if a batch may be retried for longer than half of that time."""
        if self._config.enable_idempotence and self._expiration() <= 2 * DELIVERY:
            seconds = f"({self._expiration():g} s)"
            self._lines.append((LogLine.SHORT_EXPIRATION, seconds))

    def _cap(self) -> int | None:
        """Return how many sequences all brokers that have said it recognise (KIP-758)."""
        if self._config.broker_dedup != "range":
            return None
        said = {n: each.sequence_cap for n, each in self._facts if each.sequence_cap is not None}
        return min(_CAP, *said.values()) if said else _RANGE

    def _free(self, wire: Wire, more: int) -> bool:
        """Return whether a connection takes a request, after so many more."""
        return self._now >= wire.paused_until and len(wire.owed) + more < self._most

    def _outgrows(self, topic: str) -> bool:
        """Return whether the next batch may exceed `batch_size`: five such are not enough."""
        queue = self._states[topic].queue
        waits = sum(record.size for record in queue.records) > 5 * BATCH
        return self._config.late_sealing and (queue.blocked or waits)

    def _limit(self, wire: Wire, topic: str) -> BatchLimit:
        return wire.limits.setdefault(topic, BatchLimit(topic))

    # -- comparing ---------------------------------------------------------------------------------

    def _difference(self) -> str | None:
        if self._part.expiration != self._expiration():
            return f"brokers remember for {self._part.expiration}, not {self._expiration()}"
        told = {topic: each.window.sequence_cap for topic, each in self._states.items()}
        if told != self._caps:
            return f"{told} sequences, not {self._caps}"
        lines = [(event.line, event.text) for event in self._parts.outcomes.take_events()]
        due, self._lines = self._lines, []
        alike = len(lines) == len(due) and all(
            line is is_due and words in text
            for (line, text), (is_due, words) in zip(lines, due, strict=True)
        )
        if not alike:
            return f"{lines} are told, not {due}"
        silent = {
            node
            for node in (-1, 0, 1, 2)
            if not any(n == node and f.expiration for n, f in self._facts)
        }
        for wire in self._wires.values():
            asked = any(row.kind is DescribeBrokerConfig for row in wire.owed)
            configured = self._config.producer_id_expiration is not None
            awaits = asked and (configured or wire.link.node_id in silent)
            if self._part.awaits_memory(wire.link) is not awaits:
                return f"{'no ' if awaits else ''}answer of {wire.link.node_id} is awaited"
            wrong = self._differing_limit(wire)
            if wrong is not None:
                return wrong
        return None

    def _differing_limit(self, wire: Wire) -> str | None:
        """Compare a limit with its twin: by what is known, and by when it is asked for again."""
        for topic, twin in wire.limits.items():
            limit = wire.link.limits.of(topic)
            later = self._now + self._dice.choice((0.0, 7.5, 8.0, 15.5))
            told = [each.wants(later, 8.0, 16.0, growth=True) for each in (limit, twin)]
            facts = [(each.told, each.unused, each.awaited()) for each in (limit, twin)]
            if told[0] is not told[1] or facts[0] != facts[1]:
                return f"the limit of {topic} is wanted, or known, as {facts[0]}, not {facts[1]}"
        return None
