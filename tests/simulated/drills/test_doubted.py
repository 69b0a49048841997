"""The drill of batches in doubt finds nothing wrong, and notices parts that are broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from aioidem._engine import recovery
from aioidem._engine.batch import Batch, BatchEvent
from aioidem._engine.record import PendingRecord
from aioidem._engine.recovery import Recovery
from aioidem._engine.unresolved import UnresolvedBatches

from .doubted import drill_doubted

SEEDS = range(60)


def wrong() -> list[str]:
    return [what for seed in SEEDS for what in drill_doubted(Random(f"doubted {seed}"))]


def test_what_is_told_of_doubt_is_so() -> None:
    assert not wrong()


def oldest_first(self: Recovery, unresolved: Sequence[Batch], now: float) -> Batch | None:
    return next_probe(self, unresolved[::-1], now)


def without_a_hint(self: Recovery, _batch: Batch | None) -> None:
    hint(self, None)


def counts_from_its_end(self: Recovery, now: float, pause: float) -> bool:
    enough = end_pass(self, now, pause)
    self.pass_not_before = now + pause
    return enough


def newest_always(self: Recovery, *, oldest: bool) -> Batch | None:
    del oldest
    return next_salvage(self, oldest=False)


def of_all_batches(self: UnresolvedBatches) -> Batch | None:
    return self.unresolved[0] if self.unresolved else None


def the_newest_doubt(self: UnresolvedBatches) -> float | None:
    since = [each.doubted_at for each in self.unresolved if each.doubted_at is not None]
    return max(since, default=None)


def without_a_shift(self: UnresolvedBatches, batch: Batch, parts: Sequence[Batch]) -> None:
    position = self.unresolved.index(batch)
    batch.move(BatchEvent.SPLIT)
    self.unresolved[position : position + 1] = parts


def even_in_doubt(self: UnresolvedBatches) -> list[PendingRecord]:
    taken: list[PendingRecord] = []
    for batch in [each for each in self.unresolved if each.due]:
        batch.move(BatchEvent.SPLIT)
        self.unresolved.remove(batch)
        taken.extend(batch.records)
    return taken


next_probe, hint, end_pass = Recovery.next_probe, Recovery.hint, Recovery.end_pass
next_salvage = Recovery.next_salvage


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (recovery, "PASSES_NEEDED", 1),
        (Recovery, "next_probe", oldest_first),
        (Recovery, "hint", without_a_hint),
        (Recovery, "end_pass", counts_from_its_end),
        (Recovery, "next_salvage", newest_always),
        (UnresolvedBatches, "head", property(of_all_batches)),
        (UnresolvedBatches, "doubted_since", property(the_newest_doubt)),
        (UnresolvedBatches, "replace", without_a_shift),
        (UnresolvedBatches, "reclaim", even_in_doubt),
    ],
)
def test_a_broken_part_is_noticed(
    part: Any,
    name: str,
    broken: Callable[..., object] | property | int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
