"""What brokers have said of topics, kept as rows: the model of the drill of a cluster's view.

A topic that is deleted and recreated begins another `Life`. Which leader a partition has is derived
from the rows of its life: the one with the newest leader epoch counts, and of several with that
epoch, the latest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from aioidem._engine.cluster import PartitionView
from aioidem._engine.metadata_merge import MergeResult
from aioidem._protocol.metadata import PartitionUpdate

__all__ = ["REMEMBERED", "Fact", "Found", "Life", "Naming"]

REMEMBERED: Final = 16
"""How many former ids of a topic are known."""
_BELIEVED: Final = 10
"""How many answers in a row must name a former id, so that the topic has it again."""


class Fact(NamedTuple):
    """What one answer says of one partition."""

    partition: int
    leader: int
    epoch: int

    @staticmethod
    def all(partitions: Iterable[PartitionUpdate]) -> list[Fact]:
        """Return what an answer says of all partitions of a topic."""
        return [Fact(each.index, each.leader_id, each.leader_epoch) for each in partitions]


class Naming(NamedTuple):
    """One answer that describes a topic."""

    topic_id: UUID | None
    """The id that it names."""
    in_turn: bool
    """Whether it counts among the answers in a row that name a former id."""


@dataclass
class Life:
    """A topic from its creation to its deletion."""

    ids: list[UUID]
    """The ids of all topics of this name, in the order in which they became the present one."""
    named: UUID | None
    """The present id; None if no answer has named one."""
    facts: list[Fact] = field(default_factory=list)
    namings: list[Naming] = field(default_factory=list)
    given: dict[int, PartitionView] = field(default_factory=dict)
    """The objects that the view gave out for partitions."""

    @property
    def former(self) -> list[UUID]:
        """The ids of the latest topics of this name that were deleted."""
        return [each for each in self.ids if each != self.named][-REMEMBERED:]

    @property
    def indexes(self) -> list[int]:
        """The partitions that any answer has described."""
        return sorted({fact.partition for fact in self.facts})

    def row(self, index: int) -> tuple[int, int] | None:
        """Return the leader and leader epoch of a partition; None if no answer describes it."""
        return (self.leader(index), self.epoch(index)) if index in self.indexes else None

    def epoch(self, index: int) -> int:
        """Return the newest leader epoch of a partition; -1 if no answer names one."""
        return max(fact.epoch for fact in self.facts if fact.partition == index)

    def leader(self, index: int) -> int:
        """Return the leader by the latest fact that was not outdated when it came; -1 if none."""
        newest = -1
        current: list[Fact] = []
        for fact in (each for each in self.facts if each.partition == index):
            if fact.epoch < 0 or fact.epoch >= newest:
                current.append(fact)
            newest = max(newest, fact.epoch)
        return max(current[-1].leader, -1)

    def is_ended_by(self, topic_id: UUID | None) -> bool:
        """Return whether an answer that is believed says that the topic was recreated."""
        return None not in (topic_id, self.named) and topic_id != self.named

    def lags(self) -> bool:
        """Return whether the latest answer comes from a broker that does not know this life yet."""
        if self.namings[-1].topic_id not in self.former:
            return False
        others = [n for n, each in enumerate(self.namings) if each.topic_id not in self.former]
        row = self.namings[max(others, default=-1) + 1 :]
        return sum(each.in_turn for each in row) < _BELIEVED


@dataclass
class Found:
    """What the merge of one answer should find."""

    recreated: list[str] = field(default_factory=list)
    outdated: set[str] = field(default_factory=set)
    failed: dict[str, int] = field(default_factory=dict)
    leaderless: bool = False

    def difference(self, result: MergeResult) -> str | None:
        """Return how a result differs from this; None if it does not."""
        told = Found(result.recreated, result.outdated, result.failed, result.leaderless)
        return None if told == self else f"a merge finds {told}, not {self}"
