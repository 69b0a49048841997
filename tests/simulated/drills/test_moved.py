"""The drills of leaders and of clusters find nothing wrong, and notice a part that is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.connections import Connections
from aioidem._engine.effects import Effects
from aioidem._engine.home_cluster import HomeCluster
from aioidem._engine.leadership import Leadership
from aioidem._engine.links import Link
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.retention import Disproof, RetentionEvidence
from aioidem._engine.route import Route

from .led import drill_led
from .moved import drill_moved

Drill = Callable[[Random], Iterator[str]]
SEEDS = range(60)


def wrong(drill: Drill) -> list[str]:
    return [what for seed in SEEDS for what in drill(Random(seed))]


@pytest.mark.parametrize("drill", [drill_led, drill_moved])
def test_the_parts_do_what_they_should(drill: Drill) -> None:
    assert not wrong(drill)


def keeps_the_window(self: Leadership, route: Route) -> None:
    self.route = route
    self.evidence.clear()
    self.gate.restart()


def keeps_the_gate(self: Leadership, route: Route) -> None:
    self.route = route
    self.window.reset()
    self.evidence.clear()


def hears_any_connection(
    self: Leadership, batch: Batch, _attempt: Attempt | None, now: float
) -> None:
    if self.route is not None and batch.identity == self._ledger.identity:
        self.gate.hear_none((batch.identity, self.route), now)


def reports_each_window(self: Leadership, retained: int | None, where: str, out: Effects) -> None:
    before = self.window.said
    self.window.learn(retained)
    out.window_changed(where, self.route, before, self.window.said)


def trusts_the_largest_refusal(self: RetentionEvidence, said: int) -> Disproof | None:
    proof = verdict(self, said)
    return proof and proof._replace(refused=said)


verdict = RetentionEvidence.verdict
at_home, bootstrap_only = Connections.at_home, Connections.bootstrap_only
carry = RecordAccumulator.carry


def moves_at_once(_self: Connections, _home: str | None) -> bool:
    return False


def closes_only_what_leads_elsewhere(_self: Connections) -> list[Link]:
    return []


def takes_the_nameless_for_strangers(self: Connections, home: str | None) -> bool:
    return any(link.identified and link.cluster_id == home for link in self.links.values())


def loses_records(
    self: RecordAccumulator, unwritten: dict[str, list[PendingRecord]], now: float
) -> None:
    carry(self, {name: [] for name in unwritten}, now)


def hears_the_nameless(self: HomeCluster, link: Link) -> None:
    self._heard_at = max(self._heard_at, link.last_progress)


@pytest.mark.parametrize(
    ("drill", "part", "name", "broken"),
    [
        (drill_led, Leadership, "take", keeps_the_window),
        (drill_led, Leadership, "take", keeps_the_gate),
        (drill_led, Leadership, "hear_none", hears_any_connection),
        (drill_led, Leadership, "learn_window", reports_each_window),
        (drill_led, RetentionEvidence, "verdict", trusts_the_largest_refusal),
        (drill_moved, Connections, "at_home", moves_at_once),
        (drill_moved, Connections, "at_home", takes_the_nameless_for_strangers),
        (drill_moved, Connections, "bootstrap_only", closes_only_what_leads_elsewhere),
        (drill_moved, RecordAccumulator, "carry", loses_records),
        (drill_moved, HomeCluster, "lost", hears_the_nameless),
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
