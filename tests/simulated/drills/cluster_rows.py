"""Rows of a cluster: its topics as they are, and what Metadata answers have said of them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

from aioidem._engine.accusations import Accusation
from aioidem._protocol.metadata import MetadataUpdate, PartitionUpdate, TopicUpdate

from .engine_parts import addresses

__all__ = ["NAMES", "ClusterRows", "TopicRow"]

NAMES: Final = ("t", "u", "w")
"""The topics that there are."""
_PASSING: Final = (-1, 3, 38, 56)
"""UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICATION_FACTOR,
KAFKA_STORAGE_ERROR: what may pass by itself."""
_PERMANENT: Final = (17, 29)
"""INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED: what does not."""
_USUAL: Final = 5
"""The batches that every broker retains of a producer."""


@dataclass
class TopicRow:
    """A topic as it is in the cluster, and what answers have said of it.

    Each time that a topic is recreated it has another generation, and so another topic id.
    """

    name: str
    generation: int = 0
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The leader and leader epoch of each partition, as they are."""
    known: dict[int, tuple[int, int]] | None = None
    """The same, as the answers have said; None before one has."""
    known_generation: int | None = None
    """The generation by the last answer that names a topic id."""
    former: list[int] = field(default_factory=list)
    """The generations that were known before."""
    outdated: int = 0
    """How many answers in a row have named one of those."""
    code: int = 0
    """Its error code in the last answer."""
    named_by: int = 0
    """The number of the last request whose answer named partitions."""
    waiting: list[tuple[int | None, int]] = field(default_factory=list)
    """For each record that waits: its partition, and how many requests were sent before."""
    calls: list[ExitStack] = field(default_factory=list)
    """The calls that wait until the topic is known."""

    @property
    def permanent(self) -> bool:
        """Whether the last answer refuses the topic for good."""
        return self.code in _PERMANENT

    def topic_id(self, generation: int) -> UUID:
        """Return the id that the topic has in one of its generations."""
        return UUID(int=(NAMES.index(self.name) + 1) * 1000 + generation)

    @property
    def present_id(self) -> UUID:
        """The id that the topic has by the last answer that names one."""
        return self.topic_id(self.known_generation or 0)

    def learn(self, told: TopicUpdate, number: int, *, counts: bool) -> bool:
        """Note what an answer says of the topic, and return whether it was recreated since.

        Args:
            told: the topic's part of the answer.
            number: the number of the request.
            counts: whether an outdated answer is one more in a row.
        """
        if told.error_code:
            self.code = told.error_code
            return False
        named = None if told.topic_id is None else told.topic_id.int % 1000
        if named in self.former:
            self.outdated += counts
            return False
        self.outdated = 0
        new = None not in (named, self.known_generation) and named != self.known_generation
        if new:
            self.former.append(self.known_generation or 0)
            self.known = {}
        if named is not None:
            self.known_generation = named
        parts = {each.index: (each.leader_id, each.leader_epoch) for each in told.partitions}
        self.known = (self.known or {}) | parts
        if parts:
            self.named_by = number
        return new

    def place(self) -> int:
        """Give records that wait a partition; return how many are refused.

        A record is refused if the answer to a request that was sent after it came names partitions,
        and not its own; and so is each if the topic is refused.
        """
        refused = 0
        waiting, self.waiting = self.waiting, []
        if self.permanent:
            return len(waiting)
        for partition, asked in waiting:
            if not self.known:
                self.waiting.append((partition, asked))
            elif partition is not None and partition not in self.known:
                if self.named_by > asked:
                    refused += 1
                else:
                    self.waiting.append((partition, asked))
        return refused

    def forget(self) -> None:
        """Forget what answers have said of leaders and generations."""
        self.known = self.known_generation = None
        self.former.clear()
        self.outdated = 0


class ClusterRows:
    """The topics of a cluster, the brokers that answers have named, and verdicts on brokers."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._epoch = 0
        self.truth = {name: TopicRow(name) for name in NAMES}
        self.wanted: dict[str, TopicRow] = {}
        """The topics that the producer uses."""
        self.brokers: set[int] = set()
        self.nodes = {-1}
        """All brokers ever named, and the bootstrap address."""
        self.verdicts: list[Accusation] = []
        self._limits: dict[int, int] = {}
        """By convicted broker: how many batches it is believed to retain."""
        for topic in self.truth.values():
            for partition in range(dice.choice((1, 2))):
                self.lead(topic, partition)

    def lead(self, topic: TopicRow, partition: int) -> None:
        """Elect a leader, or leave the partition without one."""
        self._epoch += 1
        topic.leaders[partition] = (self._dice.choice((-1, 0, 1, 3)), self._epoch)

    def answer(self, cluster: str | None) -> MetadataUpdate:
        """Return an answer of a cluster that shows a part of the truth, or something outdated."""
        dice = self._dice
        topics: list[TopicUpdate] = []
        for name in dice.sample(NAMES, dice.choice((1, 2, 3, 3))):
            topic = self.truth[name]
            code = dice.choice((0, 0, 0, 0, 0, dice.choice(_PASSING), dice.choice(_PERMANENT)))
            generation = topic.generation
            if topic.former and topic.outdated < 8 and dice.random() < 0.5:
                generation = dice.choice(topic.former)
            number = None if dice.random() < 0.05 else topic.topic_id(generation)
            leaders = {} if not topic.known and dice.random() < 0.2 else topic.leaders
            parts = [PartitionUpdate(at, *leader) for at, leader in leaders.items()]
            topics.append(TopicUpdate(name, number, code, parts))
        brokers = tuple(addresses(dice.choice((0, 2, 3, 4))))
        return MetadataUpdate(cluster, brokers, tuple(topics), dice.choice((0, 0, 500)))

    def learn(self, update: MetadataUpdate, number: int, *, counts: bool) -> list[str]:
        """Note what an answer of this cluster says; return the topics that were recreated."""
        if update.brokers:
            self.brokers = {each.node_id for each in update.brokers}
        self.nodes |= self.brokers
        for topic in self.wanted.values():
            topic.code = 0
        told = [each for each in update.topics if each.name in self.wanted]
        return [
            each.name for each in told if self.wanted[each.name].learn(each, number, counts=counts)
        ]

    def lacks(self, update: MetadataUpdate) -> bool:
        """Return whether something is still missing after an answer.

        That is a broker, a topic or partition that somebody waits for, a leader in a topic that the
        answer shows, or the present state of a topic.
        """
        told = [each for each in update.topics if each.name in self.wanted and not each.error_code]
        for each in told:
            topic = self.wanted[each.name]
            leaderless = any(leader < 0 for leader, _ in (topic.known or {}).values())
            named = None if each.topic_id is None else each.topic_id.int % 1000
            if leaderless or named in topic.former:
                return True
        waited = any(t.waiting or (t.calls and not t.known) for t in self.wanted.values())
        return not update.brokers or waited

    def judge(self, sent_at: float) -> int:
        """Convict brokers of retaining fewer batches than they say; return how often.

        The verdicts that are older than the request are judged by its answer.

        A verdict stands if the partition still has the same leader in the same epoch. A broker is
        not convicted anew for the same number of batches.
        """
        due = [each for each in self.verdicts if each.at <= sent_at]
        self.verdicts = [each for each in self.verdicts if each.at > sent_at]
        convicted = 0
        for each in due:
            topic, node_id = self.wanted.get(each.topic), each.route.leader_id
            known = {} if topic is None else topic.known or {}
            if known.get(each.partition) == each.route[1:] and node_id in self.nodes:
                limit = max(_USUAL, each.disproof.proved)
                convicted += self._limits.get(node_id) != limit
                self._limits[node_id] = limit
        return convicted
