"""The bench of Produce requests: partitions with records, their leaders, and connections to these.

Each record is a batch by itself, so it is known what fits into a request. What happens to a batch
is done by the parts of its partition; `produced` derives what is sent, and `produced_answers` what
an answer means.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Final, Literal
from uuid import UUID

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.cluster import TopicView
from aioidem._engine.links import Link, LinkState
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.recovery import Rung
from aioidem._engine.requests import Entry, Outstanding, RequestKind
from aioidem._engine.retention import Disproof
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.metadata import PartitionUpdate
from aioidem._protocol.topic_config import TopicConfig
from aioidem._records import build_batch

from .engine_parts import EngineParts, addresses

__all__ = ["IDS", "RETRY", "ProduceBench", "Row", "batch_size_of"]

RETRY: Final = 0.25
"""The back-off after each failure, in seconds."""
IDS: Final[dict[str, UUID | None]] = {"t": UUID(int=1), "u": None, "w": UUID(int=3)}
"""The topics and their ids; brokers of old releases name none."""
_VALUES: Final = (10, 100, 200, 350)
"""Sizes of values, in bytes."""
_Kind = Literal["idempotent", "no offsets trusted", "acks=1", "acks=0"]
_KINDS: Final[tuple[_Kind, ...]] = (
    *("idempotent", "idempotent", "idempotent", "idempotent", "no offsets trusted"),
    *("acks=1", "acks=1", "acks=0"),
)
"""Kinds of producers; one that trusts no offsets is idempotent, without `trust_base_offset`."""


@cache
def batch_size_of(value: int) -> int:
    """Return the bytes of a batch with one record of so large a value."""
    return len(build_batch([PendingRecord(None, bytes(value), (), 0, None, 10)]).data)


@cache
def _config(
    kind: _Kind, window: Literal["off", "on", "auto"], most_requests: int, request_size: int
) -> ProducerConfig:
    acks: dict[_Kind, Literal[0, 1]] = {"acks=1": 1, "acks=0": 0}
    return ProducerConfig.build(
        "b0:9092",
        enable_idempotence=kind not in acks,
        acks=acks.get(kind, "all"),
        trust_base_offset=kind != "no offsets trusted",
        window_discovery=window,
        max_in_flight_requests_per_connection=most_requests,
        max_request_size=request_size,
        batch_size=1,
        late_sealing=False,
        linger=0.0,
        compression_type="none",
        retry_backoff=RETRY,
        retry_backoff_max=RETRY,
        request_timeout=8.0,
        delivery_timeout=1e6,
    )


@dataclass
class Row:
    """A partition, and what is known of it without asking the engine."""

    topic: str
    index: int
    state: PartitionState
    queue: deque[PendingRecord] = field(default_factory=deque)
    """The records that are in no batch."""
    said: int = 5
    """How many batches its leader has said that it retains, on this route."""
    leaderless_since: float | None = None
    """Since when no broker leads it, in seconds."""
    follows: bool = False
    """Whether it goes over to another connection in this poll."""

    @property
    def name(self) -> tuple[str, int]:
        """The topic, and the number of the partition."""
        return self.topic, self.index


class ProduceBench:
    """Partitions whose batches are sent to their leaders, and what happens to these."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._kind = dice.choice(_KINDS)
        self._most_requests = dice.choice((1, 2, 5))
        window: Literal["off", "on", "auto"] = dice.choice(("off", "on", "on", "auto"))
        self._request_size = dice.choice((300, 500, 900))
        self._config = _config(self._kind, window, self._most_requests, self._request_size)
        self._parts = parts = EngineParts(self._config, lambda: 0.5)
        self._part = parts.produce
        self._idempotent = self._config.enable_idempotence
        parts.cluster.brokers = {each.node_id: each for each in addresses(2)}
        parts.connections.learn(addresses(2))
        self._now = dice.choice((0.0, 4096.0))
        self._producer_id = 7
        if self._idempotent:
            parts.grant(self._producer_id, 0)
        self._views: dict[str, TopicView] = {}
        self._rows: list[Row] = []
        self._order: list[Row] = []
        """The partitions that have something to do, by turn: who was served last comes last."""
        self._sent = self._retried = 0
        """How many batches were sent, and how many of these once more."""
        self._observed = False
        """Whether an observer is told of the batches that are sent."""
        self._first_list: list[Entry] | None = None
        """The list that the observer was given at first, until it is taken with some batches."""
        self._expected_entries: list[Entry] = []
        self._memory: dict[int, int] = {}
        """By broker that was convicted: how many batches it is believed to retain."""
        topics = dice.sample(list(IDS), dice.choice((1, 2, 3, 3)))
        for topic in topics:
            topic_id = IDS[topic]
            view = parts.cluster.topics[topic] = self._views[topic] = TopicView(topic, topic_id)
            parts.accumulator.topic(topic)
            for index in range(dice.choice((1, 2))):
                view.merge(PartitionUpdate(index, dice.choice((0, 0, 1)), 1))
                self._rows.append(Row(topic, index, parts.partitions.state(topic, index)))
        parts.metadata.wanted = False

    def _links(self) -> list[Link]:
        return list(self._parts.connections.links.values())

    def _some_row(self) -> Row:
        return self._dice.choice(self._rows)

    def _leader(self, row: Row) -> tuple[int, int]:
        """Return the leader of a partition and its epoch, as far as metadata has them."""
        view = self._parts.cluster.leader_of(row.topic, row.index)
        return (-1, -1) if view is None else (view.leader_id, view.leader_epoch)

    # -- what happens ------------------------------------------------------------------------------

    def _append(self) -> None:
        """Queue some records on some partitions."""
        rows = [row for row in self._rows if row.topic in self._parts.cluster.topics]
        for row in self._dice.sample(rows, min(len(rows), self._dice.choice((1, 2, 4)))):
            for _ in range(self._dice.choice((1, 2, 4))):
                value = self._dice.choice(_VALUES)
                record = PendingRecord(None, bytes(value), (), 0, row.index, value + 21)
                self._parts.accumulator.append(row.topic, record, self._now)
                row.queue.append(record)
            if row not in self._order:
                self._order.append(row)
                row.leaderless_since = None

    def _open(self) -> None:
        """Let connections be opened, and let their brokers name the cluster."""
        for link in self._links():
            if link.state is LinkState.CONNECTING:
                version = self._dice.choice((12, 13, 14, 14))
                self._parts.connections.opened(link, version, self._now)
            if not link.identified and self._dice.random() < 0.8:
                self._parts.connections.identified(link, None, at_home=True)

    def _reply(self) -> None:
        """Answer a question: what a broker or topic is configured for."""
        owed = [
            (link, request)
            for link in self._links()
            for request in link.outstanding.values()
            if request.kind is not RequestKind.PRODUCE
        ]
        if owed:
            link, request = self._dice.choice(owed)
            self._parts.requests.answered(link.link_id, request.token, self._now)
            self._reply_to(link, request)

    def _reply_to(self, link: Link, request: Outstanding) -> None:
        inquiries = self._parts.inquiries
        if request.kind is RequestKind.DESCRIBE_CONFIGS:
            config = TopicConfig(0, names_window=self._dice.random() < 0.8)
            inquiries.on_topic_config(link, "t", config, self._now)
        elif request.kind is RequestKind.BROKER_CONFIG:
            inquiries.on_broker_config(link.node_id, BrokerFacts(5000.0))
        elif request.topic_limit is not None:
            inquiries.on_topic_limit(link, request.topic_limit, 1 << 20, self._now)

    def _lead(self) -> None:
        """Elect another leader, perhaps a broker that is not known, or none.

        Metadata may also lack a topic for a while.
        """
        row, topics = self._some_row(), self._parts.cluster.topics
        if self._dice.random() < 0.3:
            topics.pop(row.topic, None)
            return
        view = topics[row.topic] = self._views[row.topic]
        known = view.view(row.index)
        leader = self._dice.choice((0, 1, 0, 1, 0, 1, -1, 9))
        newer = leader >= 0 and self._dice.random() < 0.85
        epoch = (0 if known is None else known.leader_epoch) + newer
        view.lead(row.index, leader, epoch)

    def _convict(self) -> None:
        """Have a broker convicted of retaining fewer batches than it says (KIP-1269)."""
        node_id, proved = self._dice.choice((0, 1)), self._dice.choice((6, 7))
        memory = self._parts.connections.nodes[node_id].memory
        memory.disprove(Disproof(20, proved, proved + 1), self._now)
        self._memory[node_id] = proved

    def _throttle(self) -> None:
        links = self._links()
        if links:
            self._dice.choice(links).throttle(500, self._now)

    def _recreate(self) -> None:
        """Delete and recreate a partition's topic; its other partition stays as it is."""
        if self._dice.random() < 0.5:
            self._renew(self._some_row())

    def _renew(self, row: Row) -> None:
        """Replace the state of a partition; its records end, and it has nothing to do."""
        partitions = self._parts.partitions
        partitions.retire(row.state, errors.UnknownTopicId("recreated"))
        row.state = partitions.state(row.topic, row.index)
        row.queue.clear()
        row.said, row.leaderless_since = 5, None
        if row in self._order:
            self._order.remove(row)

    def _disown(self) -> None:
        """Let a partition see that another client uses the producer id, as in `Partitions`."""
        if self._idempotent and self._dice.random() < 0.4:
            error = errors.InvalidProducerEpoch("shared")
            self._some_row().state.endings.disown(error, self._parts.effects)

    def _settle_down(self) -> None:
        """Give the producer an id if it lost it, and renew partitions that must resolve doubt.

        `DoubtResolution` would do that, which has a drill of its own (`resolved`).
        """
        lost = self._idempotent and self._parts.identity.current is None
        if lost and self._dice.random() < 0.5:
            self._producer_id += 1
            self._parts.grant(self._producer_id, 0)
        identity = self._parts.identity.current
        for row in self._rows:
            if row.state.recovery.rung is not Rung.CLEAR:
                self._renew(row)
            if identity is not None:
                row.state.adopt(identity)
