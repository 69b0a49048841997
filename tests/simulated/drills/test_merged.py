"""The drills of metadata and of sizes find nothing wrong, and notice a part that is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest

from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.cluster import ClusterView
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.topic_view import TopicView
from aioidem._engine.topics import TopicState
from aioidem._protocol.metadata import PartitionUpdate

from .merged import drill_merged
from .refreshed import drill_refreshed
from .sizes import drill_sizes

Drill = Callable[[Random], Iterator[str]]
SEEDS = range(60)


def wrong(drill: Drill) -> list[str]:
    return [what for seed in SEEDS for what in drill(Random(seed))]


@pytest.mark.parametrize("drill", [drill_merged, drill_refreshed, drill_sizes])
def test_the_parts_do_what_they_should(drill: Drill) -> None:
    assert not wrong(drill)


def goes_back_to_an_older_epoch(self: TopicView, update: PartitionUpdate) -> None:
    self.leaders.setdefault(update.index, -1)
    self._everything = self._available = None
    self.lead(update.index, update.leader_id, update.leader_epoch)


def believes_each_former_id(_self: TopicView, _id: UUID | None, **_counts: bool) -> bool:
    return False


def never_believes_a_former_id(self: TopicView, topic_id: UUID | None, **_counts: bool) -> bool:
    return topic_id in self.former_ids


def takes_any_leader(
    self: ClusterView, topic: str, partition: int, leader_id: int, leader_epoch: int
) -> bool:
    view = self.leader_of(topic, partition)
    if view is None or leader_epoch <= view.leader_epoch:
        return False
    self.topics[topic].lead(partition, leader_id, leader_epoch)
    return True


def takes_no_cluster_for_another(_self: ClusterView, _cluster_id: str | None) -> bool:
    return True


def shows_partitions_too_early(self: MetadataMerge) -> Iterator[int]:
    for piece in merge(self):
        for each in self._merging:
            if each.known is not None:
                each.known.adopt(each.grown)
        yield piece


merge = MetadataMerge._merge
answered, due = MetadataRefresher.answered, MetadataRefresher.due
refuse, wants, too_large = BatchLimit.refuse, BatchLimit.wants, TopicState.too_large


def counts_what_is_out_of_turn(self: MetadataRefresher, now: float, *, enough: bool) -> None:
    self.out_of_turn = False
    answered(self, now, enough=enough)


def waits_for_age_alone(self: MetadataRefresher, now: float) -> bool:
    return due(self, now) and not (self.wanted and self.requests > 0 and self.refreshed_at is None)


def keeps_what_was_acknowledged(self: BatchLimit, nbytes: int) -> None:
    before = self.acknowledged
    refuse(self, nbytes)
    self.acknowledged = before


def ages_without_room(
    self: BatchLimit, now: float, max_age: float, _unused_for: float, *, growth: bool
) -> bool:
    return wants(self, now, max_age, 0.0, growth=growth)


def limits_by_the_last_refusal(self: TopicState, nbytes: int, now: float) -> None:
    self.forget_sizes()
    too_large(self, nbytes, now)


@pytest.mark.parametrize(
    ("drill", "part", "name", "broken"),
    [
        (drill_merged, TopicView, "merge", goes_back_to_an_older_epoch),
        (drill_merged, TopicView, "is_outdated", believes_each_former_id),
        (drill_merged, TopicView, "is_outdated", never_believes_a_former_id),
        (drill_merged, ClusterView, "hint", takes_any_leader),
        (drill_merged, ClusterView, "is_home_of", takes_no_cluster_for_another),
        (drill_merged, MetadataMerge, "_merge", shows_partitions_too_early),
        (drill_refreshed, MetadataRefresher, "answered", counts_what_is_out_of_turn),
        (drill_refreshed, MetadataRefresher, "due", waits_for_age_alone),
        (drill_sizes, BatchLimit, "refuse", keeps_what_was_acknowledged),
        (drill_sizes, BatchLimit, "wants", ages_without_room),
        (drill_sizes, TopicState, "too_large", limits_by_the_last_refusal),
    ],
)
def test_a_broken_part_is_noticed(
    drill: Drill,
    part: Any,
    name: str,
    broken: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong(drill)
