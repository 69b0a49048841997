"""Run a schedule: on the engine alone, on the whole producer, or with transactions."""

from __future__ import annotations

from .schedule import Schedule
from .transactional_run import Transactional
from .whole import Whole
from .world import Result, run

__all__ = ["perform"]


def perform(schedule: Schedule, *, trace: bool = False) -> Result:
    """Run a schedule to its end, and judge the run."""
    if schedule.work:
        return Transactional(schedule, trace=trace).run()
    return Whole(schedule, trace=trace).run() if schedule.backend else run(schedule, trace=trace)
