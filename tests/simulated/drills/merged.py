"""The drill of the view of a cluster: Metadata answers of all kinds, and leaders told otherwise.

Everything that a broker has said of a partition is kept as a row (`topic_lives`), and what the view
must tell is derived from the rows after each answer, and between the pieces of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final
from uuid import UUID

from aioidem._engine.cluster import ClusterView, PartitionView
from aioidem._engine.metadata_merge import SLICE, MetadataMerge
from aioidem._protocol.metadata import (
    BrokerAddress,
    MetadataUpdate,
    PartitionColumns,
    PartitionUpdate,
    TopicUpdate,
)

from .comparing import unequal
from .topic_lives import REMEMBERED, Fact, Found, Life, Naming

__all__ = ["drill_merged"]

_STEPS: Final = 40
_TOPICS: Final = ("a", "b", "c")
_HOME: Final = "home"
_ERRORS: Final = (3, 5, 29)
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, TOPIC_AUTHORIZATION_FAILED."""


def drill_merged(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the view of a cluster that many answers describe."""
    yield from _ViewDrill(dice).run()
    if dice.random() < 0.1:
        yield from _long(dice)


class _ViewDrill:
    """A view, and all that brokers have said of its cluster."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._view = ClusterView()
        self._cluster: str | None = None
        self._transaction_version = 0
        self._brokers: dict[int, BrokerAddress] = {}
        self._lives: dict[str, Life] = {}
        self._ids = 0  # how many topic ids were made
        # How often an answer names a topic's id, how often that is a former id, and how often a
        # new one: the topic was recreated.
        self._named = dice.choice((0.0, 0.7, 0.95))
        self._lagging = dice.choice((0.02, 0.3))
        self._renewed = dice.choice((0.03, 0.3))

    def run(self) -> Iterator[str]:
        """Let answers come, at random, and yield what is wrong."""
        actions = [self._merge, self._merge, self._merge, self._hint, self._hint, self._add]
        actions += [self._identify, self._lag]
        wrong: str | None = None
        for step in range(_STEPS):
            action = self._dice.choice(actions)
            if step == _STEPS // 2 and self._dice.random() < 0.2:
                action = self._recreate_often
            wrong = action() or self._difference()
            if wrong is not None:
                yield f"view: {wrong} after {action.__name__}"
                return
            if self._dice.random() < 0.01:
                self._move()

    def _difference(self) -> str | None:
        """Return how the view differs from what was said; None if it does not."""
        view = self._view
        pairs: dict[str, tuple[object, object]] = {
            "cluster": (view.cluster_id, self._cluster),
            "transaction version": (view.transaction_version, self._transaction_version),
            "brokers": (view.brokers, self._brokers),
            "topics": (set(view.topics), set(self._lives)),
        }
        for name in _TOPICS:
            life = self._lives.get(name)
            indexes = [] if life is None else life.indexes
            leaders = {} if life is None else {index: life.leader(index) for index in indexes}
            pairs[f"leaders of {name}"] = (view.partitions(name), leaders or None)
            if life is None:
                pairs[f"leader of {name}-0"] = (view.leader_of(name, 0), None)
                continue
            there = view.topics[name]
            led = tuple(index for index in indexes if leaders[index] >= 0)
            pairs[f"id of {name}"] = (there.topic_id, life.named)
            pairs[f"former ids of {name}"] = (list(there.former_ids), life.former)
            pairs[f"partitions of {name}"] = (there.everything, tuple(indexes))
            pairs[f"available of {name}"] = (there.available, led)
            pairs[f"leaderless of {name}"] = (there.leaderless, set(indexes) - set(led))
            for index in (*indexes, 99):
                said = view.leader_of(name, index)
                pairs[f"leader of {name}-{index}"] = (_row(said), life.row(index))
                if said is not None:
                    same = life.given.setdefault(index, said) is said
                    pairs[f"the view of {name}-{index} is the same object"] = (same, True)
        return unequal(pairs)

    # -- what answers say --------------------------------------------------------------------------

    def _new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=self._ids)

    def _topic_id(self, name: str) -> UUID | None:
        """Return an id that an answer gives to a topic: its own one mostly."""
        dice, life = self._dice, self._lives.get(name)
        if dice.random() > self._named:
            return None
        if life is None or life.named is None:
            return self._new_id()
        former = life.former
        if former and dice.random() < self._lagging:
            return dice.choice(former)
        return self._new_id() if dice.random() < self._renewed else life.named

    def _partitions(self) -> list[PartitionUpdate]:
        dice = self._dice
        return [
            PartitionUpdate(
                dice.randrange(5), dice.choice((-1, -1, 0, 1, 2, 3, -5)), dice.randrange(-1, 8)
            )
            for _ in range(dice.choice((0, 1, 2, 4)))
        ]

    def _topic(self) -> TopicUpdate:
        name = self._dice.choice(_TOPICS)
        code = self._dice.choice(_ERRORS) if self._dice.random() < 0.1 else 0
        return TopicUpdate(name, self._topic_id(name), code, self._partitions())

    def _answer(self, topics: list[TopicUpdate]) -> MetadataUpdate:
        dice = self._dice
        brokers = tuple(
            BrokerAddress(node, dice.choice("hi"), 9092)
            for node in sorted(dice.sample(range(4), dice.choice((0, 0, 2, 4))))
        )
        named = dice.choice((None, self._cluster, _HOME, self._cluster, "another"))
        return MetadataUpdate(named, brokers, tuple(topics))

    # -- what happens; each returns what is wrong by itself ----------------------------------------

    def _merge(self) -> str | None:
        """Merge one answer of some topics, in pieces."""
        answer = self._answer([self._topic() for _ in range(self._dice.choice((0, 1, 2, 4)))])
        wanted: tuple[str, ...] | None = self._dice.choice((None, None, _TOPICS, _TOPICS[:2], ()))
        return self._merge_one(answer, wanted, in_turn=self._dice.random() < 0.8)

    def _merge_one(
        self, answer: MetadataUpdate, wanted: tuple[str, ...] | None = None, *, in_turn: bool = True
    ) -> str | None:
        merge = MetadataMerge(self._view, answer, wanted, in_turn=in_turn)
        if self._cluster is not None and answer.cluster_id not in (None, self._cluster):
            found = list(merge.slices())
            merged = found or merge.topics
            return f"{merge.topics} of another cluster are merged in {found}" if merged else None
        # The last description of a topic counts, in the place of the first one.
        last = {topic.name: topic for topic in answer.topics}
        topics = [each for each in last.values() if wanted is None or each.name in wanted]
        if merge.topics != topics or merge.update is not answer:
            return f"{merge.topics} of {merge.update} are merged, not {topics} of {answer}"
        due = Found()
        grown: list[tuple[TopicUpdate, list[Fact] | None]] = []
        pieces = merge.slices()
        for topic in topics:
            if topic.error_code:
                due.failed[topic.name] = topic.error_code
                continue
            life = self._lives.get(topic.name)
            if life is not None:
                life.namings.append(Naming(topic.topic_id, in_turn))
                if life.lags():
                    due.outdated.add(topic.name)
                    continue
            grown.append((topic, self._read(topic, life)))
            wrong = self._take_piece(pieces, len(topic.partitions))
            if wrong is not None:
                return wrong
            if self._dice.random() < 0.02:
                self._move()
                return None if merge.stale else "a merge is not stale after a move"
        if self._dice.random() < 0.3 and (more := next(pieces, None)) is not None:
            return f"another piece of {more} partitions is merged after the last topic"
        if merge.stale:
            return "a merge is stale, and the producer has not moved"
        result = merge.finish()
        self._finish(answer, grown, due)
        return due.difference(result)

    def _read(self, topic: TopicUpdate, life: Life | None) -> list[Fact] | None:
        """Note what is said of known partitions; return the rest, or None if the topic is new."""
        facts = Fact.all(topic.partitions)
        if life is None or life.is_ended_by(topic.topic_id):
            return None
        known = life.indexes
        life.facts += [fact for fact in facts if fact.partition in known]
        return [fact for fact in facts if fact.partition not in known]

    def _take_piece(self, pieces: Iterator[int], count: int) -> str | None:
        """Merge one topic, and look at the view then: only leaders have changed."""
        if count and (piece := next(pieces, None)) != count:
            return f"a piece of {piece} partitions is merged, not of {count}"
        wrong = self._difference()
        if wrong is None and self._dice.random() < 0.2:
            wrong = self._hint()
        return None if wrong is None else f"during a merge: {wrong}"

    def _finish(
        self,
        answer: MetadataUpdate,
        grown: list[tuple[TopicUpdate, list[Fact] | None]],
        due: Found,
    ) -> None:
        """Note what changes with the end of a merge.

        Args:
            answer: what was merged.
            grown: its topics, each with what was said of new partitions; None if it is new itself.
            due: what the merge should find, which is completed.
        """
        if answer.brokers:
            self._brokers = {broker.node_id: broker for broker in answer.brokers}
        for topic, facts in grown:
            life = self._lives.get(topic.name)
            if facts is None or life is None:
                if life is not None:
                    due.recreated.append(topic.name)
                life = self._begin_life(topic, life)
            else:
                life.facts += facts
                if life.named is None and topic.topic_id is not None:
                    life.named = topic.topic_id
                    life.ids.append(topic.topic_id)
            due.leaderless |= any(life.leader(index) < 0 for index in life.indexes)

    def _begin_life(self, topic: TopicUpdate, before: Life | None) -> Life:
        ids = [] if before is None else [each for each in before.ids if each != topic.topic_id]
        ids = ids[-REMEMBERED:]
        if topic.topic_id is not None:
            ids.append(topic.topic_id)
        facts = Fact.all(topic.partitions)
        life = self._lives[topic.name] = Life(ids, topic.topic_id, facts)
        return life

    def _hint(self) -> str | None:
        """Let a Produce answer name another leader, which counts if its leader epoch is newer."""
        dice = self._dice
        name, index = dice.choice((*_TOPICS, "d")), dice.randrange(6)
        fact = Fact(index, dice.randrange(-1, 6), dice.randrange(-1, 10))
        life = self._lives.get(name)
        newer = life is not None and index in life.indexes and fact.epoch > life.epoch(index)
        taken = newer and fact.leader in self._brokers
        if self._view.hint(name, *fact) is not taken:
            return f"a hint, {fact} of {name}, is {'not ' * taken}taken"
        if taken and life is not None:
            life.facts.append(fact)
        return None

    def _add(self) -> str | None:
        """Let a Produce answer name the addresses of new leaders."""
        nodes = self._dice.sample(range(6), self._dice.choice((1, 2)))
        named = [BrokerAddress(node, "new", 9093) for node in nodes]
        self._view.add_brokers(named)
        self._brokers = {each.node_id: each for each in named} | self._brokers
        return None

    def _identify(self) -> str | None:
        """Let a connection's broker name its cluster, which may be another one, or none."""
        view, told = self._view, self._dice.choice((None, _HOME, "another"))
        due = told is None or self._cluster is None or told == self._cluster
        if view.is_home_of(told) is not due:
            return f"a broker of cluster {told} is {'not ' * due}at home in {self._cluster}"
        if self._cluster is None:
            view.learn_id(told)
            self._cluster = told
        self._transaction_version = self._dice.randrange(3)
        view.learn_transaction_version(self._transaction_version)
        return None

    def _move(self) -> None:
        """Let the producer go over to another cluster."""
        self._cluster = self._dice.choice((None, _HOME, "another"))
        self._view.forget(self._cluster)
        self._brokers, self._lives = {}, {}

    def _describe(self, name: str, topic_id: UUID, *, in_turn: bool = True) -> str | None:
        topic = TopicUpdate(name, topic_id, 0, self._partitions())
        return self._merge_one(self._answer([topic]), in_turn=in_turn) or self._difference()

    def _lag(self) -> str | None:
        """Let brokers name a former id of one topic, many times in a row."""
        former = [(name, life.former) for name, life in self._lives.items() if life.former]
        if not former:
            return None
        name, ids = self._dice.choice(former)
        for _ in range(self._dice.choice((3, 12))):
            in_turn = self._dice.random() < 0.95
            wrong = self._describe(name, self._dice.choice(ids[:1] + ids), in_turn=in_turn)
            if wrong is not None:
                return wrong
        return None

    def _recreate_often(self) -> str | None:
        """Let one topic be recreated so often that its first ids are forgotten."""
        for _ in range(REMEMBERED + 3):
            wrong = self._describe("a", self._new_id())
            if wrong is not None:
                return wrong
        return None


def _row(view: PartitionView | None) -> tuple[int, int] | None:
    return None if view is None else (view.leader_id, view.leader_epoch)


def _long(dice: Random) -> Iterator[str]:
    """Yield what is wrong with an answer of so many partitions that it is merged in pieces."""
    view = ClusterView()
    before = 0
    for topic_id in (1, dice.choice((1, 2))):
        count = dice.choice((SLICE - 1, SLICE, SLICE + 1, 2 * SLICE))
        partitions = PartitionColumns()
        for index in range(count):
            partitions.append(index, index % 3, 0, 0)
        topic = TopicUpdate("long", UUID(int=topic_id), 0, partitions)
        merge = MetadataMerge(view, MetadataUpdate(None, (), (topic,)))
        pieces = []
        for piece in merge.slices():
            pieces.append(piece)
            known = view.partitions("long")
            if len(known or ()) != before:
                yield f"view: {len(known or ())} partitions are known in a merge, not {before}"
                return
        due = [min(SLICE, count - start) for start in range(0, count, SLICE)]
        recreated = merge.finish().recreated
        before = count if recreated else max(before, count)
        if pieces != due:
            yield f"view: {pieces} partitions are merged in pieces, not {due}"
            return
        if view.partitions("long") != {n: n % 3 for n in range(before)}:
            yield f"view: {count} partitions were merged, and other leaders than theirs are known"
            return
