"""The drill of counters finds nothing wrong, and notices a part that counts something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine.accusations import Accusation, Accusations
from aioidem._engine.effects import Effects
from aioidem._engine.flushing import FlushCount
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.meters import Meters
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.record import PendingRecord
from aioidem._engine.settlement import Settlement

from .counted import drill_counted

SEEDS = range(60)


def wrong() -> bool:
    return any(True for seed in SEEDS for _ in drill_counted(Random(seed)))


def test_what_is_counted_is_what_has_happened() -> None:
    assert not [what for seed in SEEDS for what in drill_counted(Random(seed))]


def looks_at_each(_self: Meters, records: Sequence[PendingRecord], _count: int) -> int:
    return max(each.size for each in records)


def counts_aborts(self: Meters, topic: str, count: int, error: BaseException, now: float) -> None:
    self.errors.record(count, now)
    self.topics[topic].errors.record(count, now)
    self.kinds[type(error).__name__] += count


def over_when_the_newest_is(self: Outcomes, generation: int) -> bool:
    return generation not in self._left


def without_the_untold(self: FlushCount, generation: int, _untold: object = None) -> None:
    begin(self, generation)


def payload_only(_self: Settlement) -> int:
    return 0


def for_any_identity(self: Effects, where: str, _of: ProducerIdentity | None, reason: str) -> None:
    raise_epoch(self, where, self._identity.current, reason)


def the_last_error_stays(self: Effects, error: errors.KafkaError) -> None:
    self._transactions.die(error)
    self.fatal_error = error


def of_later_requests_only(self: Accusations, asked_at: float) -> list[Accusation]:
    due = [each for each in self._waiting if each.at < asked_at]
    self._waiting = [each for each in self._waiting if each not in due]
    return due


begin, raise_epoch = FlushCount.__init__, Effects.bump


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (Meters, "_largest", looks_at_each),
        (Meters, "failed", counts_aborts),
        (Outcomes, "flushed", over_when_the_newest_is),
        (FlushCount, "__init__", without_the_untold),
        (Settlement, "overhead", payload_only),
        (Effects, "bump", for_any_identity),
        (Effects, "fatal", the_last_error_stays),
        (Accusations, "take_due", of_later_requests_only),
    ],
)
def test_a_part_that_counts_something_else_is_noticed(
    part: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
