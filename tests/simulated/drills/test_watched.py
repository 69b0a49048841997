"""The drill of the watch finds nothing wrong, and notices a watch that sees something else."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import watch
from aioidem._engine.incidents import Event
from aioidem._engine.links import Node
from aioidem._engine.watch import OperatorWatch

from .watched import drill_watched

SEEDS = range(60)


def wrong() -> bool:
    return any(True for seed in SEEDS for _ in drill_watched(Random(seed)))


def test_an_operator_is_told_what_is_so() -> None:
    assert not [what for seed in SEEDS for what in drill_watched(Random(seed))]


def begins_with_the_last_broker(nodes: list[Node]) -> float:
    return max(node.down_since for node in nodes if node.down_since is not None)


def names_the_last(nodes: list[Node]) -> str:
    return named(nodes[::-1])


def complains_at_any_time(self: watch._FullBuffer, queued: int, _now: float) -> bool:
    return self.calls > 0 and queued == self._queued


def counts_from_the_start(self: OperatorWatch, event: Event) -> Event:
    self._before[event.line] = (0, 0, 0)
    return counted(self, event)


def says_nothing(_self: OperatorWatch, _now: float) -> str:
    return ""


def once_a_second(self: OperatorWatch, now: float) -> None:
    look(self, now)
    if self.wakes_at is not None:
        self.due_at = self.wakes_at = now + 1.0


def ignores_new_records(self: OperatorWatch) -> float | None:
    return self.wakes_at


named, counted, look = watch._named, OperatorWatch._counted, OperatorWatch.look


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (watch, "_since", begins_with_the_last_broker),
        (watch, "_named", names_the_last),
        (watch, "_REFUSALS", (errors.AuthenticationFailedError,)),
        (watch._FullBuffer, "lasts", complains_at_any_time),
        (OperatorWatch, "_counted", counts_from_the_start),
        (OperatorWatch, "_because", says_nothing),
        (OperatorWatch, "look", once_a_second),
        (OperatorWatch, "expected_at", ignores_new_records),
    ],
)
def test_a_watch_that_sees_something_else_is_noticed(
    part: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
