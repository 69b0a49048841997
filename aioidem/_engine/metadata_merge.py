"""One Metadata answer on its way into the view of the cluster, some partitions at a time.

A topic may have hundreds of thousands of partitions, and to merge them at once would block
the event loop. So `slices` does it in pieces, and `finish` shows the result.

Invariants:

- Until `finish`, the view has every partition that it had, and no other: a key is hashed over the
  number of partitions, which must not pass through what a topic never had.
- What changes before that are the leaders of known partitions, each of which is true by itself.
- `finish` does little, however long the answer was.

Rejected: to merge in a thread. The engine has no locks, and every other line of it would have to
know which of its parts are changing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from aioidem._engine.cluster import ClusterView
from aioidem._engine.topic_view import TopicView
from aioidem._protocol.metadata import MetadataUpdate, PartitionUpdate, TopicUpdate

__all__ = ["SLICE", "MergeResult", "MetadataMerge"]

SLICE = 2_000
"""Partitions merged in one piece."""


@dataclass(slots=True)
class MergeResult:
    """What a merge found out that someone must act on."""

    recreated: list[str] = field(default_factory=list)
    """Topics whose id changed."""
    failed: dict[str, int] = field(default_factory=dict)
    """Topics answered with an error code."""
    leaderless: bool = False
    """Some partition we asked about has no leader now."""


@dataclass(slots=True)
class _Merging:
    """One topic: its view, and beside it what the view gets at the end."""

    update: TopicUpdate
    known: TopicView | None
    """None: a topic not known so far, or one that was made anew."""
    grown: TopicView


class MetadataMerge:
    """One answer, merged into `view`; of the topics in `wanted` alone, None: of all."""

    def __init__(
        self, view: ClusterView, update: MetadataUpdate, wanted: Container[str] | None = None
    ) -> None:
        self.update = update
        self._view = view
        # Those of the cluster that the answer is about: the view may be given another one's.
        self._known = view.topics
        self._brokers = update.brokers
        self._merging: list[_Merging] = []
        self._result = MergeResult()
        # By name: an answer that tells of a topic twice counts as its last word.
        named = {topic.name: topic for topic in update.topics}
        self.topics = [each for each in named.values() if wanted is None or each.name in wanted]
        """What the answer says of those topics."""
        self._slices = self._merge()

    @property
    def stale(self) -> bool:
        """Whether the view is of another cluster now than when this was begun."""
        return self._view.topics is not self._known

    def slices(self) -> Iterator[int]:
        """Merge, and yield after each piece how many partitions were in it.

        It may be left off and taken up again.
        """
        return self._slices

    def _merge(self) -> Iterator[int]:
        for topic in self.topics:
            if topic.error_code:
                self._result.failed[topic.name] = topic.error_code
                continue
            known = self._known.get(topic.name)
            if known is not None and _recreated(known.topic_id, topic.topic_id):
                known = None
            grown = TopicView(topic.name, topic.topic_id)
            self._merging.append(_Merging(topic, known, grown))
            for start in range(0, len(topic.partitions), SLICE):
                places = range(start, min(start + SLICE, len(topic.partitions)))
                _merge_piece(topic.partitions, places, known, grown)
                yield len(places)

    def finish(self) -> MergeResult:
        """Merge what is left, and show it all.

        An answer that names no broker changes no address.
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
    # One at a time: thousands of them at once would call for a garbage collection.
    if known is None:
        for place in places:
            grown.merge(updates[place])
        return
    for place in places:
        update = updates[place]
        (known if update.index in known.leaders else grown).merge(update)


def _recreated(old: UUID | None, new: UUID | None) -> bool:
    return old is not None and new is not None and old != new
