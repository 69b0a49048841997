"""The drill of queues and batches finds nothing wrong, and notices a part that is broken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

import pytest

from aioidem._engine import partition_queue, sealing
from aioidem._engine.batch import Batch
from aioidem._engine.drafts import Drafts
from aioidem._engine.links import Link
from aioidem._engine.partition import PartitionState
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import PendingRecord
from aioidem._engine.sealing import Sealer
from aioidem._records import BatchBody

from .queued import drill_queued

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_queued(Random(f"queued {seed}"))]


def test_queues_and_batches_are_as_they_should_be() -> None:
    assert not wrong()


def lingers_since_the_last_record(
    self: PartitionQueue, now: float, *, linger: float, batch_size: int
) -> bool:
    if self.records:
        now += self.records[0].queued_at - self.records[-1].queued_at
    return ready(self, now, linger=linger, batch_size=batch_size)


def forgets_the_flush(
    self: PartitionQueue, records: Sequence[PendingRecord], *, flushing: bool
) -> None:
    del flushing
    put_back(self, records, flushing=False)


def expires_one_by_one(self: PartitionQueue, now: float) -> list[PendingRecord]:
    return expire(self, now) if len(self.records) < 2 else []


def measures_only_once(*_: object) -> int:
    return 0


def allows_half_the_size(self: Sealer, state: PartitionState, link: Link, most: int) -> int:
    return limit(self, state, link, most) // 2


def leaves_numbers_out(self: Sealer, batch: Batch, culprits: Collection[int]) -> Batch | None:
    rebuilt = without(self, batch, culprits)
    if rebuilt is not None:
        rebuilt.base += len(culprits)
    return rebuilt


def divides_into_halves(records: list[PendingRecord], target: int) -> list[list[PendingRecord]]:
    del target
    middle = len(records) // 2
    return [records[:middle], records[middle:]]


def learns_nothing(self: Sealer, topic: str, body: BatchBody) -> None:
    """Leave the estimate of the compression as it is."""


def is_never_full(self: Drafts) -> bool:
    return self.at_once < 0


ready, put_back, expire = PartitionQueue.ready, PartitionQueue.put_back, PartitionQueue.expire
limit, without = Sealer.limit, Sealer.without


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (PartitionQueue, "ready", lingers_since_the_last_record),
        (PartitionQueue, "put_back", forgets_the_flush),
        (PartitionQueue, "expire", expires_one_by_one),
        (partition_queue, "squeeze", measures_only_once),
        (Sealer, "limit", allows_half_the_size),
        (Sealer, "without", leaves_numbers_out),
        (Sealer, "learn", learns_nothing),
        (sealing, "_chunks", divides_into_halves),
        (Drafts, "full", property(is_never_full)),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object] | property, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
