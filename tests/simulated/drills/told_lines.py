"""The drill of incidents: conditions come and go, events are many, and which lines are logged.

A run has few incidents that last for minutes, or of which one explains another. Here conditions are
drawn for hours, and looked at irregularly. The lines are derived from what an operator is promised:
when an incident begins, goes on and ends, at which level, and how many events a line stands for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from random import Random
from typing import Final, NamedTuple

from aioidem._engine.incidents import Condition, Event, Incidents, Repeats
from aioidem._log import LogLine, Phase

from .comparing import unequal

__all__ = ["drill_lines"]

_L = LogLine
_OUTAGES: Final = frozenset(
    {_L.AUTHENTICATION, _L.NO_BROKER, _L.LEADER_MISSING, _L.LEADER_UNREACHABLE}
)
_FIRST: Final = 10.0
"""Seconds until an incident is told to go on; each next time takes twice as long."""
_LONGEST: Final = 3600.0
_STEPS: Final = 60
_WAITS: Final = (0.0, 0.1234567, 0.3, 0.5, 1.0, 2.0, 9.0, 10.0, 31.0, 700.0, 3600.0)


class _Rule(NamedTuple):
    """When an incident is told."""

    lasts: float
    """Seconds for which its condition must hold before it is told."""
    over: float
    """Seconds for which the condition must not hold before the end is told."""
    because: frozenset[LogLine] = frozenset()
    """The incidents that explain it: while one of them goes on, this one is no warning."""


_RULES: Final[Mapping[LogLine, _Rule]] = {
    _L.AUTHENTICATION: _Rule(0.0, 1.0),
    _L.NO_BROKER: _Rule(1.0, 1.0, frozenset({_L.AUTHENTICATION})),
    _L.LEADER_MISSING: _Rule(1.0, 1.0, frozenset({_L.NO_BROKER, _L.LEADER_UNREACHABLE})),
    _L.LEADER_UNREACHABLE: _Rule(1.0, 1.0, _OUTAGES - {_L.LEADER_UNREACHABLE}),
    _L.THROTTLED: _Rule(1.0, 10.0),
    _L.IN_DOUBT: _Rule(2.0, 0.0, _OUTAGES),
    _L.BUFFER_FULL: _Rule(2.0, 10.0, _OUTAGES | {_L.IN_DOUBT, _L.THROTTLED}),
}
"""The rules of all incidents, in the order in which they are looked at."""
_EXPLAIN_EPOCHS: Final = _OUTAGES | {_L.IN_DOUBT, _L.THROTTLED}
"""The incidents that explain why the epoch is raised."""


def drill_lines(dice: Random) -> Iterator[str]:
    """Yield which line of an incident, or of many events, is missing, surplus or different."""
    drill: _IncidentDrill | _EventDrill
    drill = _IncidentDrill(dice) if dice.random() < 0.6 else _EventDrill(dice)
    for wrong in drill.run():
        yield f"lines: {wrong}"
        return


def _differing(told: list[Event], due: list[Event]) -> Iterator[str]:
    """Yield the first line that is not as it is due."""
    for line, due_line in zip_longest(told, due):
        if line != due_line:
            yield f"the line {line}, not {due_line} ({len(told)} lines, not {len(due)})"
            return


# -- incidents -------------------------------------------------------------------------------------


class _Incident:
    """An incident of one kind, and the lines that an operator should be told of it."""

    def __init__(self, line: LogLine) -> None:
        self.line, self.rule = line, _RULES[line]
        self.goes_on = False
        self.began = 0.0
        # Since when the condition holds, since when it does not hold any more, and since when it
        # holds without an explanation.
        self.since: float | None = None
        self.over_since: float | None = None
        self._alone_since: float | None = None
        self._level = line.level
        # When the next line is due, and how long after the last one.
        self._next, self._interval = 0.0, _FIRST

    def look(self, condition: Condition | None, now: float, others: set[LogLine]) -> Event | None:
        """Return the line that is due at a look; None if none is.

        Args:
            condition: the condition; None if it does not hold.
            now: seconds.
            others: the other incidents that go on.
        """
        if condition is None:
            return self._not_now(now)
        self.over_since = None
        text, number = condition.describe(), condition.number
        explained = bool(others & self.rule.because)
        if not self.goes_on:
            since = now if condition.since is None else min(condition.since, now)
            if self.since is None or (condition.since is not None and since > self.since):
                self.since = since
            if now < self.since + self.rule.lasts:
                return None
            self.goes_on, self.began, self._alone_since = True, self.since, None
            self._level = logging.INFO if explained else self.line.level
            self._interval = _FIRST
            return self._event(Phase.BEGINS, text, self._level, number, now)
        # An incident that was explained when it began becomes a warning without the explanation.
        if explained or self._level == self.line.level:
            self._alone_since = None
        else:
            self._alone_since = now if self._alone_since is None else self._alone_since
        level = logging.INFO
        if self._alone_since is not None and now >= self._alone_since + self.rule.lasts:
            level = self._level = self.line.level
        elif now < self._next:
            return None
        self._interval = min(2 * self._interval, _LONGEST)
        text = f"still after {now - self.began:.0f} s: {text}"
        return self._event(Phase.CONTINUES, text, level, number, now)

    def _event(self, phase: Phase, text: str, level: int, count: int, now: float) -> Event:
        """Return a line, after which the next one is due when the interval has passed."""
        self._next = now + self._interval
        fields = {"seconds": round(now - self.began, 3), "count": count}
        return Event(self.line, text, phase, level, fields)

    def _not_now(self, now: float) -> Event | None:
        """Return the line that is due while the condition does not hold."""
        self.since = None
        if not self.goes_on:
            return None
        self.over_since = now if self.over_since is None else self.over_since
        return self.end() if now >= self.over_since + self.rule.over else None

    def end(self) -> Event | None:
        """Return the last line, if the condition does not hold any more."""
        if not self.goes_on or self.over_since is None:
            return None
        self.goes_on = False
        return self._event(Phase.ENDS, "", self._level, 0, self.over_since)


class _IncidentDrill:
    """Conditions, and what is told of them."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._incidents = Incidents()
        self._due = {line: _Incident(line) for line in _RULES}
        # How often a condition that holds ends at a look, and one that does not hold begins.
        self._ends, self._begins = dice.choice((0.05, 0.3)), dice.choice((0.05, 0.3))
        # The conditions that hold, and since when they say so.
        self._holding: dict[LogLine, float | None] = {}

    def run(self) -> Iterator[str]:
        """Look at conditions, and yield what is wrong."""
        now = self._dice.choice((0.0, 1e6))
        for _ in range(_STEPS):
            now += self._dice.choice(_WAITS)
            self._change(now)
            conditions = {
                line: Condition(since, self._dice.randrange(1, 9), lambda: "so many")
                for line, since in self._holding.items()
            }
            told = list(self._incidents.see(conditions, now))
            due = [
                event
                for line, each in self._due.items()
                if (event := each.look(conditions.get(line), now, self._others(line))) is not None
            ]
            for wrong in (*_differing(told, due), *self._differences()):
                yield f"{wrong} at {now}"
                return
        told = list(self._incidents.close())
        yield from _differing(told, [last for each in self._due.values() if (last := each.end())])

    def _change(self, now: float) -> None:
        for line in _RULES:
            if line not in self._holding:
                if self._dice.random() < self._begins:
                    self._holding[line] = self._since(now)
            elif self._dice.random() < self._ends:
                del self._holding[line]
            elif self._dice.random() < 0.1:
                self._holding[line] = self._since(now)  # it was over, and came back

    def _since(self, now: float) -> float | None:
        return self._dice.choice((None, now, now - 0.5, now - 5.0, now + 0.1))

    def _others(self, line: LogLine) -> set[LogLine]:
        return {other for other, each in self._due.items() if each.goes_on} - {line}

    def _differences(self) -> Iterator[str]:
        incidents = self._due.values()
        going = {each.line for each in incidents if each.goes_on}
        suspected = any(each.since is not None and not each.goes_on for each in incidents)
        calming = any(each.goes_on and each.over_since is not None for each in incidents)
        pairs: dict[str, tuple[object, object]] = {
            "going on": ({line for line in _RULES if self._incidents.goes_on(line)}, going),
            "nothing goes on, or may begin": (self._incidents.quiet, not going and not suspected),
            "something may begin or end soon": (self._incidents.suspects, suspected or calming),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            yield wrong
        line = self._dice.choice((_L.EPOCH_BUMPED, _L.EPOCH_BUMPED, *LogLine))
        event = Event(line, "it happened")
        expected = event
        if line is _L.EPOCH_BUMPED and going & _EXPLAIN_EPOCHS:
            expected = event._replace(level=logging.INFO)
        explained = self._incidents.explained(event)
        if explained != expected:
            yield f"while {going} go on, {event} becomes {explained}, not {expected}"


# -- many events -----------------------------------------------------------------------------------


class _Group:
    """Events of one kind: some are logged one by one, and one line stands for the others.

    Attributes:
        left: how many are still logged one by one.
        since: when the interval began, in seconds.
        counted: the events for which a line will stand.
    """

    def __init__(self, line: LogLine, now: float) -> None:
        self.line, self.left = line, line.burst
        self.since, self._interval = now, _FIRST
        self.counted: list[Event] = []

    @property
    def until(self) -> float:
        """When the interval ends, in seconds."""
        return self.since + self._interval

    def line_of(self, now: float) -> Event:
        """Return the line that stands for the events that were counted."""
        seconds, count = now - self.since, len(self.counted)
        text = f"{count} more in {seconds:.0f} s; the last: {self.counted[-1].text}"
        level = logging.INFO if self.line.burst == 1 else self.line.level
        fields = {"count": count, "seconds": round(seconds, 3)}
        return Event(self.line, text, Phase.CONTINUES, level, fields)

    def again(self, now: float) -> None:
        """Begin another interval, which is twice as long."""
        self.left, self.since = 0, now
        self._interval = min(2 * self._interval, _LONGEST)
        self.counted.clear()


class _EventDrill:
    """Events, and the lines that stand for them."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._repeats = Repeats()
        self._lines = dice.sample(list(LogLine), 3)
        self._groups: dict[LogLine, _Group] = {}

    def run(self) -> Iterator[str]:
        """Let events happen, and yield what is wrong."""
        now = self._dice.choice((0.0, 1e6))
        for number in range(_STEPS):
            now += self._dice.choice((0.0, 0.0, *_WAITS))
            event = Event(self._dice.choice(self._lines), f"event {number}")
            if self._dice.random() < 0.1:
                event = event._replace(phase=Phase.BEGINS)
            told, due = self._repeats.admit(event, now), self._admits(event, now)
            if told is not due:
                yield f"{event.text!r} of {event.line} at {now} is logged: {told}, not {due}"
                return
            if self._dice.random() < 0.5:
                yield from _differing(list(self._repeats.due(now)), list(self._due(now)))
            ends = [group.until for group in self._groups.values() if group.counted]
            if self._repeats.due_at != min(ends, default=None):
                yield f"the next line is due at {self._repeats.due_at}, not at the first of {ends}"
                return
        left = [group.line_of(now) for group in self._groups.values() if group.counted]
        yield from _differing(self._repeats.end(now), left)
        late = Event(self._lines[0], "a late one")
        if not all(self._repeats.admit(late, now) for _ in range(20)):
            yield "an event after the end is not logged"

    def _admits(self, event: Event, now: float) -> bool:
        if event.phase is not Phase.ONCE:
            return True
        group = self._groups.setdefault(event.line, _Group(event.line, now))
        if group.left:
            group.left -= 1
            return True
        group.counted.append(event)
        return False

    def _due(self, now: float) -> Iterator[Event]:
        for line, group in list(self._groups.items()):
            if now < group.until:
                continue
            if group.counted:
                yield group.line_of(now)
                group.again(now)
            else:
                del self._groups[line]
