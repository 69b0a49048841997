"""The judge of waiting records notices a record that is held back for no reason."""

from __future__ import annotations

from typing import Any

import pytest

from aioidem._engine.partition_queue import PartitionQueue

from .schedule import Call, Fault, Schedule
from .world import World


def complaints(calls: int, size: int, *faults: Fault, **options: Any) -> list[str]:
    """Run records of one partition, and return what the judge says of them."""
    times = [0.1, *(1.0 + 0.002 * number for number in range(calls))]
    at = tuple(Call(time, "t", 0, None, size) for time in times)
    schedule = Schedule(0, profile="waiting", calls=at, faults=faults, options=options)
    return [each.detail for each in World(schedule).run().violations]


def late(self: PartitionQueue, now: float, *, linger: float, batch_size: int) -> bool:
    """Hold records back for 20 ms after their linger time, whatever else there is."""
    del batch_size
    return bool(self.records) and now >= self.records[0].queued_at + linger + 0.02


@pytest.mark.parametrize(
    ("calls", "size", "faults", "options", "what"),
    [
        (1, 20, (), {}, "has lingered"),
        (1, 20, (), {"linger": 0.01}, "has lingered"),
        (1, 20, (Fault(1.5, "flush", ()),), {"linger": 5.0}, "was queued before a flush"),
        (9, 90, (), {"linger": 5.0, "batch_size": 300}, "fills a batch"),
    ],
)
def test_a_record_that_waits_for_no_reason_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    calls: int,
    size: int,
    faults: tuple[Fault, ...],
    options: dict[str, Any],
    what: str,
) -> None:
    assert not complaints(calls, size, *faults, **options)
    monkeypatch.setattr(PartitionQueue, "ready", late)
    assert any(what in each for each in complaints(calls, size, *faults, **options))
