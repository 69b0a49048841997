"""Tests of the judge of alarms: an incident that is not told, or told wrongly, is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from aioidem._engine.incidents import Incident
from aioidem._engine.watch import OperatorWatch
from aioidem.testing import Anomaly

from .schedule import Call, Fault, Schedule
from .test_written_schedules import clean, schedule
from .world import World

_LOAD = tuple(Call(0.3 * number, "t", 0, None, 60) for number in range(100))


def _plan(*faults: Fault) -> Schedule:
    options = {"request_timeout": 2.0, "delivery_timeout": 30.0}
    return schedule(options=options, calls=_LOAD, faults=faults)


DOWN = _plan(Fault(1.0, "kill", (0, True, 12.0, True)))
LEADERLESS = _plan(Fault(0.9, "leaderless", (12.0,)), Fault(1.0, "kill", (0, True, 1.0, True)))
THROTTLED = _plan(Fault(1.0, "throttle", (0, 0.5, 8.0)))


def _never(*_: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("plan", "part", "name"),
    [
        (DOWN, OperatorWatch, "_see_connections"),
        (DOWN, OperatorWatch, "_see_leaders"),
        (DOWN, Incident, "_begin_if_due"),
        (DOWN, Incident, "_see_calm"),
        (LEADERLESS, OperatorWatch, "_see_partitions"),
        (THROTTLED, OperatorWatch, "_see_connections"),
    ],
)
def test_an_incident_that_is_not_told_is_noticed(
    plan: Schedule, part: type[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean(plan)
    monkeypatch.setattr(part, name, _never)
    assert Anomaly.MISCOUNTED in {each.anomaly for each in World(plan).run().violations}


def test_a_symptom_of_another_incident_that_is_a_warning_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see = Incident.see
    monkeypatch.setattr(
        Incident, "see", lambda self, holds, now, _: see(self, holds, now, frozenset())
    )
    told = World(DOWN).run().violations
    assert any("at level" in each.detail for each in told)


def test_an_incident_that_is_told_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Incident._begin_if_due
    monkeypatch.setattr(
        Incident,
        "_begin_if_due",
        lambda self, holds, now, opened: begin(self, holds, now + 1.0, opened),
    )
    told = World(DOWN).run().violations
    assert any("goes on" in each.detail for each in told)
