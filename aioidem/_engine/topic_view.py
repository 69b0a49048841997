"""A topic as the producer sees it: its partitions, their leaders, and the lists a partitioner gets.

The lists are made once and kept until partitions come or lose or gain a leader: sorting them for
each record took longer than all else that is done for it. They are tuples, since callers' code sees
them.

A topic may have hundreds of thousands of partitions, of which a producer uses few: only those that
are asked for get a `PartitionView`. The others are numbers, which no garbage collection looks at.
As objects they made each collection take a tenth of a second.

Invariants: `leaderless` holds exactly the partitions of the view that have no leader; a
`PartitionView` that was given out shows what is known now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from aioidem._protocol.metadata import PartitionUpdate

__all__ = ["NO_LEADER", "PartitionView", "TopicView"]

NO_LEADER = -1


@dataclass(slots=True)
class PartitionView:
    """Who leads a partition, as far as we know."""

    leader_id: int = NO_LEADER
    leader_epoch: int = -1


@dataclass(slots=True)
class TopicView:
    """A topic and its partitions.

    `leaders` only ever grows for one topic id; a topic that was deleted and made anew gets a view
    of its own, with as many partitions as it has now.
    """

    name: str
    topic_id: UUID | None
    leaders: dict[int, int] = field(default_factory=dict)
    """The node id of the leader by partition, or `NO_LEADER`. Changed only in here."""
    leaderless: set[int] = field(default_factory=set)
    _epochs: dict[int, int] = field(default_factory=dict)
    _views: dict[int, PartitionView] = field(default_factory=dict)
    _everything: tuple[int, ...] | None = None
    _available: tuple[int, ...] | None = None

    def view(self, index: int) -> PartitionView | None:
        """Who leads a partition; None when there is no such partition."""
        view = self._views.get(index)
        if view is None and index in self.leaders:
            view = self._views[index] = PartitionView(self.leaders[index], self._epochs[index])
        return view

    @property
    def everything(self) -> tuple[int, ...]:
        """All partitions, sorted."""
        if self._everything is None:
            self._everything = tuple(sorted(self.leaders))
        return self._everything

    @property
    def available(self) -> tuple[int, ...]:
        """Those that have a leader, sorted."""
        if not self.leaderless:
            return self.everything
        if self._available is None:
            leaderless = self.leaderless
            self._available = tuple(each for each in self.everything if each not in leaderless)
        return self._available

    def merge(self, update: PartitionUpdate) -> None:
        """Note what Metadata says of one partition, unless it is older than what is known."""
        index, epoch = update.index, update.leader_epoch
        known = self._epochs.get(index)
        if known is None:
            self._everything = self._available = None
            self.leaders[index] = NO_LEADER
            self.leaderless.add(index)
            known = -1
        elif 0 <= epoch < known:
            return
        self.lead(index, update.leader_id, epoch if epoch >= 0 else known)

    def lead(self, index: int, leader_id: int, epoch: int) -> None:
        """Another broker leads one of the partitions now, or none does (-1)."""
        leader_id = leader_id if leader_id >= 0 else NO_LEADER
        if leader_id == NO_LEADER:
            self.leaderless.add(index)
        else:
            self.leaderless.discard(index)
        if (leader_id == NO_LEADER) is not (self.leaders[index] == NO_LEADER):
            self._available = None
        self.leaders[index] = leader_id
        self._epochs[index] = epoch
        view = self._views.get(index)
        if view is not None:
            view.leader_id, view.leader_epoch = leader_id, epoch

    def adopt(self, grown: TopicView) -> None:
        """Take over the partitions of another view of the same topic, none of which is known."""
        if grown.leaders:
            self.leaders.update(grown.leaders)
            self._epochs.update(grown._epochs)
            self.leaderless |= grown.leaderless
            self._everything = self._available = None
