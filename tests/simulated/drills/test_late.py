"""The drill of deadlines finds nothing wrong, and notices parts that are broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import deadlines, overdue
from aioidem._engine.batch import Batch
from aioidem._engine.deadlines import Deadlines
from aioidem._engine.overdue import LeaderStatus, Trouble
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import PendingRecord

from .late import drill_late

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_late(Random(f"late {seed}"))]


def test_what_is_late_expires_in_time() -> None:
    assert not wrong()


def after_any_answer(batch: Batch, answered_at: float | None) -> bool:
    return batch.in_doubt and answered_at is not None


def without_a_grace(_batch: Batch, _answered_at: float | None) -> bool:
    return False


def at_the_next_moment(self: Deadlines, now: float) -> bool:
    return past(self, now - 0.5)


def without_a_linger(self: Deadlines, now: float, grace: float, _linger: float) -> float:
    return next_wake(self, now, grace, 0.0)


def one_at_a_time(self: PartitionQueue, now: float) -> list[PendingRecord]:
    expired = expire(self, now)
    self.put_back(expired[1:], flushing=False)
    return expired[:1]


def uncounted(self: Trouble, reason: errors.KafkaError | str) -> None:
    self.last = reason


def once(_batch: Batch, _now: float) -> str:
    return "sent once"


def never_behind(_earlier: int) -> str:
    return "never sent"


def of_the_leader(
    trouble: Trouble | None, leader: LeaderStatus, now: float, *, identified: bool = True
) -> str:
    del identified
    return obstacle(trouble, leader, now)


past, next_wake, expire = Deadlines.past, Deadlines.next_wake, PartitionQueue.expire
obstacle = overdue.obstacle


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (deadlines, "_resolving", after_any_answer),
        (deadlines, "_resolving", without_a_grace),
        (Deadlines, "past", at_the_next_moment),
        (Deadlines, "next_wake", without_a_linger),
        (PartitionQueue, "expire", one_at_a_time),
        (Trouble, "add", uncounted),
        (deadlines, "batch_progress", once),
        (deadlines, "queue_progress", never_behind),
        (deadlines, "obstacle", of_the_leader),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
