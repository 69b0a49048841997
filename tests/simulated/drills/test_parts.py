"""The drills of parts find nothing wrong, and notice a part that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from aioidem._engine.memory import ByteBudget, MemoryWaiter
from aioidem._engine.samples import Distribution, Sensor

from .parts import drill_budget, drill_distribution

SEEDS = range(60)


def wrong() -> list[str]:
    told: list[str] = []
    for seed in SEEDS:
        for drill in (drill_budget, drill_distribution):
            told += drill(Random(seed))
    return told


def test_the_parts_do_what_they_should() -> None:
    assert not wrong()


def fits_beside_the_copies(self: ByteBudget, size: int) -> bool:
    return self.used + self.copies + size <= self.capacity or self.used == 0


def refuses_large_records(self: ByteBudget, size: int) -> bool:
    return self.used + size <= self.limit


def grants_nothing_to_the_next(self: ByteBudget, waiter: MemoryWaiter) -> None:
    waiter.abandoned = True
    self.waiting -= 1


def averages_over_all_time(self: Sensor, _now: float) -> float:
    return self.total / self.count if self.count else 0.0


def is_off_by_one_class(self: Distribution, share: float, now: float) -> float:
    return percentile(self, share, now) * 1.02


percentile = Distribution.percentile


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (ByteBudget, "fits", fits_beside_the_copies),
        (ByteBudget, "fits", refuses_large_records),
        (ByteBudget, "abandon", grants_nothing_to_the_next),
        (Sensor, "average", averages_over_all_time),
        (Distribution, "percentile", is_off_by_one_class),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
