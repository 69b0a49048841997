"""TopicView: a topic's partitions, their leaders, and the lists of partitions for a partitioner.

The lists are kept until the topic gains a partition, or a partition gains or loses its leader.
Making and sorting them for each record would take longer than all other work for the record. The
lists are tuples, because a user's partitioner receives them and must not change them.

A topic may have hundreds of thousands of partitions, of which a producer uses few. So only
partitions that are asked for get a `PartitionView` object. The others are kept as numbers, which
the garbage collector does not visit; as objects they made each collection take a tenth of a second.

Invariants: `leaderless` holds exactly the partitions of the view that have no leader; a
`PartitionView` that was given out is updated when its leader changes.
"""

from __future__ import annotations

from uuid import UUID

from aioidem._protocol.metadata import PartitionUpdate

__all__ = ["NO_LEADER", "PartitionView", "TopicView"]

NO_LEADER = -1
_FORMER_IDS = 16
"""How many earlier ids of a topic are remembered."""
_BELIEVED = 10
"""How many answers in a row must name an earlier id of a topic to be believed."""


class PartitionView:
    """The leader and leader epoch of one partition; each is -1 if it is not known."""

    __slots__ = ("leader_epoch", "leader_id")

    def __init__(self, leader_id: int, leader_epoch: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class TopicView:
    """A topic and its partitions, none at first.

    As long as the topic has the same id, it gains partitions but loses none. A topic that was
    deleted and recreated gets a new view.
    """

    __slots__ = (
        "_available",
        "_epochs",
        "_everything",
        "_views",
        "former_ids",
        "leaderless",
        "leaders",
        "name",
        "outdated_answers",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: UUID | None) -> None:
        self.name = name
        self.topic_id = topic_id
        self.former_ids: tuple[UUID, ...] = ()
        """The ids of the topics of this name that were deleted since, the latest ones."""
        self.outdated_answers = 0
        """How many answers in a row have named one of `former_ids`."""
        # The node id of the leader by partition, or `NO_LEADER`. Only methods of this class change
        # it.
        self.leaders: dict[int, int] = {}
        self.leaderless: set[int] = set()
        self._epochs: dict[int, int] = {}
        self._views: dict[int, PartitionView] = {}
        self._everything: tuple[int, ...] | None = None
        self._available: tuple[int, ...] | None = None

    def follow(self, former: TopicView) -> None:
        """Note that the topic was recreated: no topic ever has an earlier one's id again."""
        ids = (*former.former_ids, former.topic_id)
        self.former_ids = tuple(each for each in ids if each not in (None, self.topic_id))
        self.former_ids = self.former_ids[-_FORMER_IDS:]

    def is_outdated(self, topic_id: UUID | None, *, counts: bool = True) -> bool:
        """Return whether an answer names an earlier topic's id, because its broker lags behind.

        If ten in a row do, and none names the present id, that one was the mistake: perhaps an
        address led to another cluster that has a topic of this name.

        Args:
            topic_id: the id that the answer names.
            counts: whether the answer is one more in a row. If it came without a pause, its broker
            has had no time to hear of the topic since the one before.
        """
        if topic_id not in self.former_ids:
            self.outdated_answers = 0
            return False
        self.outdated_answers += counts
        return self.outdated_answers < _BELIEVED

    def view(self, index: int) -> PartitionView | None:
        """Return the leader and leader epoch of a partition; None if there is no such partition."""
        view = self._views.get(index)
        if view is None and index in self.leaders:
            view = self._views[index] = PartitionView(self.leaders[index], self._epochs[index])
        return view

    @property
    def everything(self) -> tuple[int, ...]:
        """The numbers of all partitions, sorted."""
        if self._everything is None:
            self._everything = tuple(sorted(self.leaders))
        return self._everything

    @property
    def available(self) -> tuple[int, ...]:
        """The numbers of the partitions that have a leader, sorted."""
        if not self.leaderless:
            return self.everything
        if self._available is None:
            leaderless = self.leaderless
            self._available = tuple(each for each in self.everything if each not in leaderless)
        return self._available

    def merge(self, update: PartitionUpdate) -> None:
        """Record a partition's leader from metadata, unless a newer leader epoch is known."""
        index, epoch = update.index, update.leader_epoch
        known = self._epochs.get(index)
        if known is None:
            self._everything = self._available = None
            self.leaders[index] = NO_LEADER
            known = -1
        elif 0 <= epoch < known:
            return
        self.lead(index, update.leader_id, epoch if epoch >= 0 else known)

    def lead(self, index: int, leader_id: int, epoch: int) -> None:
        """Record that another broker leads a partition, or that none does (-1)."""
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
        """Add the partitions of another view of the same topic; this view has none of them."""
        if grown.leaders:
            self.leaders.update(grown.leaders)
            self._epochs.update(grown._epochs)
            self.leaderless |= grown.leaderless
            self._everything = self._available = None
