"""What all parts of the Sender's drill share: outcomes, lines of the log, and calls that wait.

Outcomes are delivered in the order in which they came, up to a limit for each turn of the loop.
Only after the last one are the other things told, and the calls that wait woken.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from aioidem._engine.incidents import Event
from aioidem._engine.settlement import Settlement
from aioidem._log import LogLine, Phase

from .comparing import unequal
from .sent_bench import CLIENT, Bench
from .sent_parts import Noting, Row, UserRecord, first_difference

__all__ = ["Delivering"]

_WAITS: Final = (None, 0.0, 0.5, 3.0)


class Delivering:
    """A Sender without its tasks, and the rows that are due of it."""

    def __init__(self, dice: Random) -> None:
        self.bench = bench = Bench(dice)
        self._dice = dice
        self._sender = sender = bench.sender
        self._due: list[Row] = [("engine.observe",)] if bench.observed else []
        # The records whose outcome is not delivered, with their places; those of one poll or
        # answer come when it has returned.
        self._waiting: list[tuple[Settlement, UserRecord, int]] = []
        self._left = 2_000  # how many outcomes may still be delivered in this turn
        # Whether all outcomes are to be delivered, the Sender has ended, and it ended without loop.
        self._all = self._ended = self._abandoned = False
        self._dispatched: list[object] = []
        self._lines: list[Event] = []
        self._now = bench.now
        self._tokens = 1000
        self._links = 0
        # The calls that wait, and whether what each waits for holds.
        self._waiters: list[str] = []
        self._holds: dict[str, bool] = {}
        # The times at which the loop is to be woken.
        self._asks: list[float | None] = []
        sender.settled.at_once = dice.choice((1, 2, 5))
        self._started = sender.unseen.wanted and sender.now() == bench.meters.now
        sender.unseen = bench.unseen
        sender.clock = lambda: bench.now
        alarm: Any = Noting("alarm", bench.log)
        sender._alarm = alarm
        tasks: Any = Noting("tasks", bench.log)
        self._tasks: Any = tasks if dice.random() < 0.7 else None
        sender._tasks = self._tasks

    def _compare(self, what: str) -> Iterator[str]:
        """Yield what has happened after something that differs from what is due; begin anew."""
        bench, log = self.bench, self.bench.log
        told = [row for row in log if row[0] != "alarm.set"]
        wrong = first_difference(told, self._due)
        if wrong is not None:
            yield f"{what}: {wrong}"
        asks: list[Any] = [row[1] for row in log if row[0] == "alarm.set" and row[1] is not None]
        due_at = min((at for at in self._asks if at is not None), default=None)
        pairs: dict[str, tuple[object, object]] = {
            "the loop asks to be woken at": (min(asks, default=None), due_at),
            f"the loop is woken after {told}": (self._sender.wakeup.raised, bench.wakes),
            "time": (bench.now, self._now),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            yield f"{what}: {wrong}"
        yield from self._compare_times(what)
        log.clear()
        self._due.clear()
        self._asks.clear()
        self._sender.wakeup.raised = bench.wakes = False

    def _compare_times(self, what: str) -> Iterator[str]:
        """Yield if metrics are of another time, or the loop finds itself late by another one."""
        runs = self._tasks is not None and not self._ended
        metrics_at = self._now if runs else self.bench.meters.now
        if self._sender.now() != metrics_at:
            yield f"{what}: metrics are of {self._sender.now()}, not {metrics_at}"
        wake_at = self.bench.core.wake_at = self._some_time()
        expected = self.bench.expected = self._some_time()
        due = min((at for at in (wake_at, expected) if at is not None), default=math.inf)
        late, due_late = self._sender._late(), self._sender.clock() - due
        if late != due_late:
            yield f"{what}: late by {late} s, not {due_late}, for {wake_at} and {expected}"

    def _some_time(self) -> float | None:
        wait = self._dice.choice(_WAITS)
        return None if wait is None else self._now + wait

    # -- outcomes

    def _settle(self) -> None:
        """Have the next poll or answer settle some records."""
        for _ in range(self._dice.choice((0, 0, 1, 2))):
            count = self._dice.randrange(1, 4)
            names = [f"record {self._tokens + at}" for at in range(count)]
            self._tokens += count
            settlement = self.bench.settlement(names)
            self.bench.to_settle.append(settlement)
            records: Any = settlement.records
            for place, record in enumerate(records):
                record.seconds = self._dice.choice((0.0, 0.25))
                record.delivers = self._dice.random() < 0.1
                self._waiting.append((settlement, record, place))

    def _time(self) -> float:
        """Return the time that the Sender tells others; without a loop it has no clock."""
        return 0.0 if self._abandoned else self._now

    def _deliver(self) -> None:
        """Note what is delivered: outcomes up to the limit, and the rest only after the last."""
        bench = self.bench
        if bench.observed:
            self._due += [("observer.on_dispatched", entry) for entry in self._dispatched]
            self._dispatched = []
        while self._waiting and (self._left or self._all):
            settlement, record, place = self._waiting.pop(0)
            if not place and bench.observed:
                self._due.append(("observer.on_settled", settlement, self._time()))
            self._due.append(("outcome", record.name, place))
            self._left -= 1
            self._now += record.seconds
            bench.wakes = bench.wakes or record.delivers
        if self._waiting:
            bench.wakes = True
            return
        now = self._time()
        if bench.unseen.due_at is not None and not bench.core.accumulator.assigning:
            self._due.append(("unseen.report", now))
        if self._lines:
            self._due.append(("watch.take", now))
        for event in self._lines:
            level = event.line.level if event.level is None else event.level
            text = f"{CLIENT}: {event.text} [{event.line.value}]"
            facts = level, text, event.phase.value, CLIENT, event.fields.get("number")
            self._due.append(("line", *facts))
        self._lines = []
        self._due += [(f"{name}.set",) for name in self._waiters if self._holds[name]]
        self._waiters = [name for name in self._waiters if not self._holds[name]]

    def _prepare(self) -> None:
        """Let there be something to deliver besides outcomes, or not."""
        bench, dice = self.bench, self._dice
        if dice.random() < 0.3:
            bench.dispatched.append(object())
            self._dispatched = list(bench.dispatched)
        bench.unseen.due_at = self._some_time()
        bench.core.accumulator.assigning = dice.random() < 0.3
        if dice.random() < 0.3:
            level = dice.choice((None, logging.INFO))
            line, phase = dice.choice((LogLine.THROTTLED, LogLine.NEVER_LOOKED_AT)), Phase.CONTINUES
            self._lines.append(Event(line, "so it is", phase, level, {"number": dice.random()}))
            bench.lines = list(self._lines)
            bench.outcomes.has_events = True
        for name in self._waiters:
            self._holds[name] = dice.random() < 0.5

    def _wait(self) -> None:
        """Have a call wait for the state of the engine."""
        self._tokens += 1
        name = f"waiter {self._tokens}"
        self._waiters.append(name)
        self._holds[name] = False
        signal: Any = Noting(name, self.bench.log)
        self._sender._watchers.append((lambda: self._holds[name], signal))
