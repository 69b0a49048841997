"""The bench of inquiries: parts of an engine, and rows of what brokers were asked and have said.

An inquiry is a question to a broker about its config, or about the config of a topic.
"""

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

from .comparing import differs, unequal
from .engine_parts import EngineParts, addresses

__all__ = ["BATCH", "DELIVERY", "MAX_AGE", "PATIENCE", "InquiryBench", "Row", "Wire"]

BATCH: Final = 1000
"""`batch_size`, in bytes."""
MAX_AGE: Final = 8.0
PATIENCE: Final = 16.0
DELIVERY: Final = 64.0
"""`metadata_max_age`, `request_timeout` and `delivery_timeout`, in seconds."""
_DAY: Final = 86_400.0
"""Seconds for which a broker remembers producers unless it says otherwise."""
_RANGE: Final = 10_000_000
_CAP: Final = 1 << 30
"""How many sequences a broker recognises that names no number (KIP-758), and the most used."""

_Variant = Literal["idempotent", "not idempotent", "early sealing"]


@cache
def _config(
    window: Literal["off", "on"],
    dedup: Literal["window", "range"],
    told: float | None,
    variant: _Variant,
    most_in_flight: int,
) -> ProducerConfig:
    return ProducerConfig.build(
        "b0:9092",
        window_discovery=window,
        broker_dedup=dedup,
        producer_id_expiration=told,
        enable_idempotence=variant != "not idempotent",
        late_sealing=variant != "early sealing",
        batch_size=BATCH,
        metadata_max_age=MAX_AGE,
        request_timeout=PATIENCE,
        delivery_timeout=DELIVERY,
        max_in_flight_requests_per_connection=most_in_flight,
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
    """Whether no earlier connection to the broker was lost while it owed a limit."""
    owed: list[Row] = field(default_factory=list)
    asked_itself: bool = False
    """Whether its broker was asked about its own config."""
    paused_until: float = 0.0
    limits: dict[str, BatchLimit] = field(default_factory=dict)
    """By topic: a twin of the engine's limit, which is told only what the rules say."""


class InquiryBench:
    """The inquiries of a producer, and rows of what was asked and answered."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        told = dice.choice((None, None, 2 * DELIVERY, 2 * DELIVERY + 1))
        window = dice.choice(("off", "on", "auto"))
        dedup = dice.choice(("window", "range"))
        self._most_in_flight = dice.choice((1, 1, 2))
        variants: tuple[_Variant, ...]
        variants = "idempotent", "idempotent", "idempotent", "not idempotent", "early sealing"
        variant = dice.choice(variants)
        self._config = _config(window, dedup, told, variant, self._most_in_flight)
        self._parts = EngineParts(self._config, dice.random)
        self._parts.connections.learn(addresses(3))
        self._inquiries = self._parts.inquiries
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
        """Expect a warning if a batch may be retried for at least half of what brokers remember."""
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
        return self._now >= wire.paused_until and len(wire.owed) + more < self._most_in_flight

    def _outgrows(self, topic: str) -> bool:
        """Return whether the next batch may exceed `batch_size`: five such are not enough."""
        queue = self._states[topic].queue
        waits = sum(record.size for record in queue.records) > 5 * BATCH
        return self._config.late_sealing and (queue.blocked or waits)

    def _limit(self, wire: Wire, topic: str) -> BatchLimit:
        return wire.limits.setdefault(topic, BatchLimit(topic))

    # -- comparing ---------------------------------------------------------------------------------

    def _difference(self) -> str | None:
        """Return how the inquiries differ from the rows; None if they do not."""
        told = {topic: each.window.sequence_cap for topic, each in self._states.items()}
        wrong = unequal(
            {
                "seconds for which brokers remember": (
                    self._inquiries.expiration,
                    self._expiration(),
                ),
                "sequences that each topic's partition may use": (told, self._caps),
            }
        )
        if wrong is not None:
            return wrong
        lines = [(event.line, event.text) for event in self._parts.outcomes.take_events()]
        due, self._lines = self._lines, []
        alike = len(lines) == len(due) and all(
            line is is_due and words in text
            for (line, text), (is_due, words) in zip(lines, due, strict=True)
        )
        if not alike:
            return f"lines, and words in them: told {lines}, expected {due}"
        silent = {
            node
            for node in (-1, 0, 1, 2)
            if not any(n == node and f.expiration for n, f in self._facts)
        }
        for wire in self._wires.values():
            asked = any(row.kind is DescribeBrokerConfig for row in wire.owed)
            configured = self._config.producer_id_expiration is not None
            awaits = asked and (configured or wire.link.node_id in silent)
            wrong = differs(
                f"broker {wire.link.node_id} owes how long it remembers",
                self._inquiries.awaits_memory(wire.link),
                awaits,
            ) or self._differing_limit(wire)
            if wrong is not None:
                return wrong
        return None

    def _differing_limit(self, wire: Wire) -> str | None:
        """Compare each limit with its twin: by what is known, and by when it is asked for again."""
        for topic, twin in wire.limits.items():
            limit = wire.link.limits.of(topic)
            later = self._now + self._dice.choice((0.0, 7.5, 8.0, 15.5))
            wanted = [each.wants(later, MAX_AGE, PATIENCE, growth=True) for each in (limit, twin)]
            facts = [(each.told, each.unused, each.awaited()) for each in (limit, twin)]
            wrong = unequal(
                {
                    f"at {later} the limit of {topic} is wanted": (wanted[0], wanted[1]),
                    f"limit of {topic}, unused, awaited": (facts[0], facts[1]),
                }
            )
            if wrong is not None:
                return wrong
        return None
