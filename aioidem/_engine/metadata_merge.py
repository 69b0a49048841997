"""MetadataMerge: puts one Metadata answer into the view of the cluster, some partitions at a time.

The view (`ClusterView`) is what the producer knows of the cluster. A topic may have hundreds of
thousands of partitions, and merging them at once would block the event loop. So `slices` merges
them in pieces, and `finish` puts the result into the view.

Invariants:

- Until `finish`, each topic of the view keeps its set of partitions. A key is hashed modulo the
  number of partitions, so a number in between, which the topic never had, must not be visible.
- Before `finish` only the leaders of known partitions change; each change is correct by itself.
- `finish` does little work, however long the answer was.

Rejected: merging in a thread. The engine has no locks, and all other code of the engine would have
to know which data may be changing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from aioidem._engine.cluster import ClusterView
from aioidem._engine.topic_view import TopicView
from aioidem._protocol.metadata import MetadataUpdate, PartitionUpdate, TopicUpdate

__all__ = ["SLICE", "MergeResult", "MetadataMerge"]

SLICE = 2_000
"""The number of partitions merged in one piece."""


class MergeResult:
    """What a merge found that requires action.

    Attributes:
        recreated: names of the topics whose topic id changed.
        outdated: names of the topics that the answer gives an earlier topic id: the broker has not
            heard yet that they were recreated. What it says of them is left out.
        failed: the error codes of the topics that the broker answered with an error, by topic name.
        leaderless: whether any partition of the merged topics has no leader now.
    """

    __slots__ = ("failed", "leaderless", "outdated", "recreated")

    def __init__(self) -> None:
        self.recreated: list[str] = []
        self.outdated: set[str] = set()
        self.failed: dict[str, int] = {}
        self.leaderless = False


class _Merging(NamedTuple):
    """A topic that is being merged: its present view, and a view of its new partitions."""

    update: TopicUpdate
    known: TopicView | None
    """None for a topic that was not known, or that was deleted and recreated."""
    grown: TopicView


class MetadataMerge:
    """The merge of one Metadata answer into the view of the cluster.

    Args:
        view: the view to update.
        update: the answer.
        wanted: names of the topics to merge; None for all.
        in_turn: whether the answer counts as one more in a row (see `TopicView.is_outdated`).
    """

    def __init__(
        self,
        view: ClusterView,
        update: MetadataUpdate,
        wanted: Container[str] | None = None,
        *,
        in_turn: bool = True,
    ) -> None:
        self.update = update
        self._view = view
        self._in_turn = in_turn
        # The view's mapping of topics at the beginning of the merge. The view gets another mapping
        # if the producer moves to another cluster before `finish`.
        self._known = view.topics
        self._brokers = update.brokers
        self._merging: list[_Merging] = []
        self._result = MergeResult()
        # If an answer describes a topic twice, the last description replaces the first one. The
        # answer of another cluster changes nothing here, although it is merged before anybody has
        # looked at its cluster id.
        at_home = view.is_home_of(update.cluster_id)
        named = {topic.name: topic for topic in update.topics} if at_home else {}
        self.topics = [each for each in named.values() if wanted is None or each.name in wanted]
        """The descriptions of the topics to merge, one per topic."""
        self._slices = self._merge()

    @property
    def stale(self) -> bool:
        """Whether the view has changed to another cluster since this merge began."""
        return self._view.topics is not self._known

    def slices(self) -> Iterator[int]:
        """Merge in pieces, and yield the number of partitions of each piece.

        A caller may stop and continue later with the same iterator.
        """
        return self._slices

    def _merge(self) -> Iterator[int]:
        for topic in self.topics:
            if topic.error_code:
                self._result.failed[topic.name] = topic.error_code
                continue
            known = self._known.get(topic.name)
            grown = TopicView(topic.name, topic.topic_id)
            if known is not None and known.is_outdated(topic.topic_id, counts=self._in_turn):
                self._result.outdated.add(topic.name)
                continue
            if known is not None and _recreated(known.topic_id, topic.topic_id):
                grown.follow(known)
                known = None
            self._merging.append(_Merging(topic, known, grown))
            for start in range(0, len(topic.partitions), SLICE):
                places = range(start, min(start + SLICE, len(topic.partitions)))
                _merge_piece(topic.partitions, places, known, grown)
                yield len(places)

    def finish(self) -> MergeResult:
        """Merge the rest, update the view, and return what the merge found that requires action.

        If the answer names no broker, the known addresses stay.
        """
        for _ in self._slices:
            pass
        view, result = self._view, self._result
        if self._brokers:
            view.brokers = {broker.node_id: broker for broker in self._brokers}
        for each in self._merging:
            shown = each.known
            if shown is None:
                if each.update.name in view.topics:
                    result.recreated.append(each.update.name)
                shown = view.topics[each.update.name] = each.grown
            else:
                shown.adopt(each.grown)
                if shown.topic_id is None:
                    shown.topic_id = each.update.topic_id
            result.leaderless |= bool(shown.leaderless)
        return result


def _merge_piece(
    updates: Sequence[PartitionUpdate], places: range, known: TopicView | None, grown: TopicView
) -> None:
    # Partitions are merged one by one, without a list of objects in between: thousands of new
    # objects would trigger a garbage collection.
    if known is None:
        for place in places:
            grown.merge(updates[place])
        return
    for place in places:
        update = updates[place]
        (known if update.index in known.leaders else grown).merge(update)


def _recreated(old: UUID | None, new: UUID | None) -> bool:
    return old is not None and new is not None and old != new
