"""The drill of the accumulator finds nothing wrong, and notices a part that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aioidem._engine import record_accumulator
from aioidem._engine.batch import Batch
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.record_block import RecordBlock
from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.topic_view import TopicView
from aioidem._engine.unassigned import Unassigned, UnassignedRecords

from .accumulated import drill_accumulated

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_accumulated(Random(f"accumulated {seed}"))]


def test_the_accumulator_does_what_it_should() -> None:
    assert not wrong()


def overtakes(self: UnassignedRecords, until: float, asked: int, record: PendingRecord) -> None:
    self.due.appendleft(Unassigned(until, asked, record))


def in_any_order(self: UnassignedRecords) -> None:
    for each in reversed(self.take()):
        self.wait(*each)


def lingers_anew(self: RecordAccumulator, record: PendingRecord) -> float:
    return called_at(self, record) + 1.0


def never_draws(self: StickyPartitioner, size: int, topic: TopicView) -> int:
    if self.current is not None and self.current in topic.leaders:
        self.left = max(self.left, size + 1)
    return choose(self, size, topic)


def to_the_first(
    block: RecordBlock, sticky: StickyPartitioner, topic: TopicView
) -> list[tuple[int, RecordBlock]]:
    del sticky
    return [(topic.everything[0], block)]


def before_its_time(self: RecordAccumulator, state: PartitionState, now: float) -> bool:
    return may_seal(self, state, now + 1.0)


def never_divided(*arguments: Any) -> Batch:
    batch: Batch = arguments[2]
    return batch


def holds_everything_back(*arguments: Any) -> None:
    for state in arguments[1]:
        state.queue.hold_back()


called_at = RecordAccumulator._called_at
may_seal = RecordAccumulator._may_seal
choose = StickyPartitioner.choose


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (UnassignedRecords, "follow", overtakes),
        (UnassignedRecords, "put_in_order", in_any_order),
        (RecordAccumulator, "_called_at", lingers_anew),
        (StickyPartitioner, "choose", never_draws),
        (record_accumulator, "spread", to_the_first),
        (RecordAccumulator, "_may_seal", before_its_time),
        (RecordAccumulator, "_cut_down", never_divided),
        (RecordAccumulator, "hold_back", holds_everything_back),
        (record_accumulator, "MOST_BATCHES", 2),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object] | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
