"""Make a failing schedule smaller, by leaving out whatever its failure does not need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .perform import perform
from .schedule import Schedule

__all__ = ["shrink"]


def shrink(schedule: Schedule, *, budget: int = 2000) -> Schedule:
    """Find, within `budget` runs, a smaller schedule with one of the same anomalies."""
    wanted = {violation.anomaly for violation in perform(schedule).violations}
    left = [budget]

    def fails(candidate: Schedule) -> bool:
        left[0] -= 1
        return bool(wanted & {violation.anomaly for violation in perform(candidate).violations})

    before = None
    while before != schedule and left[0] > 0:
        before = schedule
        for name in ("faults", "coordination", "glitches", "reads", "work", "calls"):
            kept = _thin(schedule, name, fails, left)
            schedule = _changed(schedule, name, kept)
        schedule = _simplify(schedule, fails)
    return schedule


def _changed(schedule: Schedule, name: str, value: Any) -> Schedule:
    change: dict[str, Any] = {name: value}
    return dataclasses.replace(schedule, **change)


def _thin(
    schedule: Schedule, name: str, fails: Callable[[Schedule], bool], left: list[int]
) -> tuple[Any, ...]:
    """Return the items of one field that the failure needs; try halves first, single items last."""
    items = list(getattr(schedule, name))
    least = 1 if name == "work" else 0
    step = max(1, len(items) // 2)
    while items and left[0] > 0:
        at = 0
        while at < len(items) and left[0] > 0:
            fewer = items[:at] + items[at + step :]
            if len(fewer) >= least and fails(_changed(schedule, name, tuple(fewer))):
                items = fewer
            else:
                at += step
        if step == 1:
            break
        step //= 2
    return tuple(items)


def _simplify(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Return the schedule with the defaults of all settings that the failure does not need."""
    plain: dict[str, Any] = {
        "callbacks": False,
        "blocks": False,
        "close_at": None,
        "first_sequence": 0,
        "first_epoch": 0,
        "topic_configs": {},
        "grants_read": True,
        "grants_describe": True,
    }
    for name, value in plain.items():
        if getattr(schedule, name) != value:
            candidate = _changed(schedule, name, value)
            if fails(candidate):
                schedule = candidate
    for option in ("compression_type", "buffer_memory", "trust_base_offset", "linger"):
        if option in schedule.options:
            fewer = {k: v for k, v in schedule.options.items() if k != option}
            candidate = _changed(schedule, "options", fewer)
            if fails(candidate):
                schedule = candidate
    return schedule
