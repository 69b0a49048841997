"""Incidents: when a line is logged about a condition that lasts, and about events that repeat.

A condition, such as "no broker can be reached", becomes an incident when it has held for a grace
time. One line is logged when the incident begins and one when it ends. In between there are lines
at INFO, whose intervals double, so that an outage of a day has about thirty. An incident ends when
its condition has not held for a calm time; a condition that comes and goes is one incident.

An event, such as an epoch bump, is logged when it happens. If events of one kind follow one
another, all but the first few are counted, and the count is logged after intervals that double.

An outage has several symptoms. If an incident is explained by another one that goes on, its lines
are logged at INFO: whoever reads only warnings sees the cause. If the other one ends and this one
goes on, it has one more line at its own level, and so has its end. An event that an incident
explains is logged at INFO, too.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from aioidem._engine.lifecycle import transition
from aioidem._log import LogLine, Phase

__all__ = [
    "INCIDENT_TRANSITIONS",
    "Condition",
    "Event",
    "Incident",
    "IncidentEvent",
    "IncidentState",
    "Incidents",
    "Repeats",
]

FIRST_INTERVAL = 10.0
"""Seconds until the first line that an incident goes on; each later interval is twice as long."""

LONGEST_INTERVAL = 3600.0


class Event(NamedTuple):
    """A line for the log."""

    line: LogLine
    text: str
    phase: Phase = Phase.ONCE
    level: int | None = None
    """The level of the logging module; None is the line's own."""
    fields: Mapping[str, object] = {}
    """Structured fields; they never hold a secret or a part of a record."""


class Condition(NamedTuple):
    """A condition that holds now."""

    since: float | None
    """Since when it holds, in seconds; None if only the looks that find it tell."""
    number: int
    """How many partitions, brokers, batches or callers it concerns."""
    describe: Callable[[], str]
    """Returns what the condition is, for a line; called only if a line is due."""


class IncidentState(enum.Enum):
    """The state of an incident."""

    QUIET = "quiet"
    SUSPECTED = "suspected"
    """The condition holds, but not for long enough to be logged."""
    OPEN = "open"
    CALMING = "calming"
    """The condition does not hold any more, but not for long enough to be over."""


class IncidentEvent(enum.Enum):
    """An event that changes the state of an incident."""

    APPEARED = "appeared"
    LASTED = "lasted"
    CEASED = "ceased"
    CALMED = "calmed"


_S, _E = IncidentState, IncidentEvent

INCIDENT_TRANSITIONS: dict[tuple[IncidentState, IncidentEvent], IncidentState] = {
    (_S.QUIET, _E.APPEARED): _S.SUSPECTED,
    (_S.SUSPECTED, _E.LASTED): _S.OPEN,
    (_S.SUSPECTED, _E.CEASED): _S.QUIET,
    (_S.OPEN, _E.CEASED): _S.CALMING,
    (_S.CALMING, _E.APPEARED): _S.OPEN,
    (_S.CALMING, _E.CALMED): _S.QUIET,
}


class _Timing(NamedTuple):
    grace: float
    """Seconds for which the condition must hold before the incident begins."""
    calm: float
    """Seconds for which it must not hold before the incident ends."""
    explained_by: frozenset[LogLine]


_OUTAGES = frozenset(
    {
        LogLine.AUTHENTICATION,
        LogLine.NO_BROKER,
        LogLine.LEADER_MISSING,
        LogLine.LEADER_UNREACHABLE,
    }
)

# In the order in which incidents are looked at: those that explain others come first.
_TIMINGS = {
    LogLine.AUTHENTICATION: _Timing(0.0, 1.0, frozenset()),
    LogLine.NO_BROKER: _Timing(1.0, 1.0, frozenset({LogLine.AUTHENTICATION})),
    # A leader that dies cannot be reached, and a while later the cluster names no leader any more.
    # Each of the two explains the other, so the one that is seen first is the warning.
    LogLine.LEADER_MISSING: _Timing(
        1.0, 1.0, frozenset({LogLine.NO_BROKER, LogLine.LEADER_UNREACHABLE})
    ),
    LogLine.LEADER_UNREACHABLE: _Timing(
        1.0,
        1.0,
        frozenset({LogLine.AUTHENTICATION, LogLine.NO_BROKER, LogLine.LEADER_MISSING}),
    ),
    LogLine.THROTTLED: _Timing(1.0, 10.0, frozenset()),
    # These have two seconds, so that an outage that explains them is logged before.
    LogLine.IN_DOUBT: _Timing(2.0, 0.0, _OUTAGES),
    LogLine.BUFFER_FULL: _Timing(2.0, 10.0, _OUTAGES | {LogLine.IN_DOUBT, LogLine.THROTTLED}),
}

_EXPLAINED_EVENTS: Mapping[LogLine, frozenset[LogLine]] = {
    # The batches that an outage delays reach their deadline, and give up their sequence numbers.
    LogLine.EPOCH_BUMPED: _OUTAGES | {LogLine.IN_DOUBT, LogLine.THROTTLED},
}
"""The events that need no warning of their own while one of these incidents goes on."""


class Incident:
    """One kind of incident of a producer.

    Args:
        line: its line in the log.
    """

    __slots__ = (
        "_alone_since",
        "_begun",
        "_interval",
        "_level",
        "_next_at",
        "_quiet_at",
        "_timing",
        "line",
        "state",
    )

    def __init__(self, line: LogLine) -> None:
        self.line = line
        self.state = IncidentState.QUIET
        self._timing = _TIMINGS[line]
        # Since when the condition holds, in seconds, and since when it does not.
        self._begun = self._quiet_at = 0.0
        # When the next line is due that the incident goes on, and after which interval, in seconds.
        self._next_at = 0.0
        self._interval = FIRST_INTERVAL
        self._level = line.level
        # Since when no other incident explains this one, whose lines are at INFO; None if one does.
        self._alone_since: float | None = None

    def _move(self, event: IncidentEvent) -> None:
        self.state = transition(INCIDENT_TRANSITIONS, self.state, event, self.line.value)

    @property
    def open(self) -> bool:
        """Whether the incident has begun and has not ended."""
        return self.state in (IncidentState.OPEN, IncidentState.CALMING)

    def see(
        self, condition: Condition | None, now: float, opened: frozenset[LogLine]
    ) -> Event | None:
        """Take note of whether the condition holds, and return the line that is due, if any.

        Args:
            condition: what holds; None if the condition does not hold.
            now: seconds.
            opened: the other incidents that go on now.
        """
        if condition is None:
            return self._see_calm(now)
        if self.state is IncidentState.QUIET:
            self._move(IncidentEvent.APPEARED)
            self._begun = now if condition.since is None else min(condition.since, now)
        elif self.state is IncidentState.CALMING:
            self._move(IncidentEvent.APPEARED)
        if self.state is IncidentState.SUSPECTED:
            if condition.since is not None and condition.since > self._begun:
                # Between two looks the condition was over, and came back: it has not lasted.
                self._begun = min(condition.since, now)
            return self._begin_if_due(condition, now, opened)
        if self._outlasts(now, opened):
            self._level = self.line.level
            return self._continue(condition, now, self._level)
        return self._continue(condition, now, logging.INFO) if now >= self._next_at else None

    def _begin_if_due(
        self, condition: Condition, now: float, opened: frozenset[LogLine]
    ) -> Event | None:
        if now < self._begun + self._timing.grace:
            return None
        self._move(IncidentEvent.LASTED)
        self._interval = FIRST_INTERVAL
        self._next_at = now + self._interval
        explained = self._timing.explained_by & opened
        self._level = logging.INFO if explained else self.line.level
        self._alone_since = None
        return self._event(Phase.BEGINS, condition.describe(), self._level, condition.number, now)

    def _outlasts(self, now: float, opened: frozenset[LogLine]) -> bool:
        """Return whether the incidents that explained this one have been over for a grace time."""
        if self._level == self.line.level or self._timing.explained_by & opened:
            self._alone_since = None
            return False
        if self._alone_since is None:
            self._alone_since = now
        return now >= self._alone_since + self._timing.grace

    def _continue(self, condition: Condition, now: float, level: int) -> Event:
        self._interval = min(2 * self._interval, LONGEST_INTERVAL)
        self._next_at = now + self._interval
        text = f"still after {now - self._begun:.0f} s: {condition.describe()}"
        return self._event(Phase.CONTINUES, text, level, condition.number, now)

    def _see_calm(self, now: float) -> Event | None:
        if self.state is IncidentState.SUSPECTED:
            self._move(IncidentEvent.CEASED)
        elif self.state is IncidentState.OPEN:
            self._move(IncidentEvent.CEASED)
            self._quiet_at = now
        if self.state is IncidentState.CALMING and now >= self._quiet_at + self._timing.calm:
            self._move(IncidentEvent.CALMED)
            return self._event(Phase.ENDS, "", self._level, 0, self._quiet_at)
        return None

    def close(self) -> Event | None:
        """Return the last line of an incident whose condition does not hold any more, if any.

        The producer is closing, and does not wait until the condition has not held for long enough.
        """
        if self.state is not IncidentState.CALMING:
            return None
        self._move(IncidentEvent.CALMED)
        return self._event(Phase.ENDS, "", self._level, 0, self._quiet_at)

    def _event(self, phase: Phase, text: str, level: int, count: int, now: float) -> Event:
        fields = {"seconds": round(now - self._begun, 3), "count": count}
        return Event(self.line, text, phase, level, fields)


class Incidents:
    """All incidents of a producer."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all = [Incident(line) for line in _TIMINGS]

    @property
    def quiet(self) -> bool:
        """Whether no incident is suspected or goes on."""
        return all(each.state is IncidentState.QUIET for each in self._all)

    @property
    def suspects(self) -> bool:
        """Whether a condition holds that may become an incident soon, or an incident may end."""
        waits = (IncidentState.SUSPECTED, IncidentState.CALMING)
        return any(each.state in waits for each in self._all)

    def see(self, conditions: Mapping[LogLine, Condition], now: float) -> Iterable[Event]:
        """Take note of the conditions that hold now, and yield the lines that are due.

        Args:
            conditions: the conditions that hold.
            now: seconds.
        """
        for incident in self._all:
            opened = frozenset(each.line for each in self._all if each.open)
            event = incident.see(conditions.get(incident.line), now, opened)
            if event is not None:
                yield event

    def goes_on(self, line: LogLine) -> bool:
        """Return whether an incident has begun and has not ended."""
        return any(each.open for each in self._all if each.line is line)

    def explained(self, event: Event) -> Event:
        """Return an event as it is to be logged: at INFO if an incident that goes on explains it.

        Args:
            event: what happened.
        """
        by = _EXPLAINED_EVENTS.get(event.line, frozenset())
        if any(map(self.goes_on, by)):
            return event._replace(level=logging.INFO)
        return event

    def close(self) -> Iterable[Event]:
        """Yield the last lines of the incidents that are over, because the producer is closing."""
        for incident in self._all:
            event = incident.close()
            if event is not None:
                yield event


class Repeats:
    """Counts the events of each kind, so that many of them do not become many lines."""

    __slots__ = ("_ended", "_kinds")

    def __init__(self) -> None:
        self._kinds: dict[LogLine, _Repeated] = {}
        self._ended = False

    def admit(self, event: Event, now: float) -> bool:
        """Return whether a line is to be logged for an event; if not, the event is counted.

        Args:
            event: what happened.
            now: seconds.
        """
        if event.phase is not Phase.ONCE or self._ended:
            return True
        kind = self._kinds.get(event.line)
        if kind is None:
            kind = self._kinds[event.line] = _Repeated(event.line.burst, now)
        if kind.left:
            kind.left -= 1
            return True
        kind.held += 1
        kind.last = event
        return False

    @property
    def due_at(self) -> float | None:
        """When `due` has something to do, in seconds; None if no event was counted lately."""
        return min((each.next_at for each in self._kinds.values() if each.held), default=None)

    def due(self, now: float) -> Iterable[Event]:
        """Yield a line for each kind of which events were counted and whose interval is over.

        A kind without a new event in its interval begins anew with the next event.

        Args:
            now: seconds.
        """
        for line, kind in list(self._kinds.items()):
            if now < kind.next_at:
                continue
            if kind.last is None:
                del self._kinds[line]
                continue
            yield _counting(line, kind.held, kind.last, now - kind.since)
            kind.next_interval(now)

    def end(self, now: float) -> list[Event]:
        """Return a line for each kind of which events were counted; later ones are not counted.

        Args:
            now: seconds.
        """
        kinds, self._kinds = self._kinds, {}
        self._ended = True
        return [
            _counting(line, kind.held, kind.last, now - kind.since)
            for line, kind in kinds.items()
            if kind.last is not None
        ]


def _counting(line: LogLine, count: int, last: Event, seconds: float) -> Event:
    """Return the line that stands for some events of one kind, of which `last` was the last."""
    text = f"{count} more in {seconds:.0f} s; the last: {last.text}"
    level = logging.INFO if line.burst == 1 else line.level
    return Event(line, text, Phase.CONTINUES, level, {"count": count, "seconds": round(seconds, 3)})


class _Repeated:
    """The events of one kind that follow one another."""

    __slots__ = ("_interval", "held", "last", "left", "next_at", "since")

    def __init__(self, burst: int, now: float) -> None:
        # How many more events are logged at once, and how many were counted instead.
        self.left = burst
        self.held = 0
        self.last: Event | None = None
        self.since = now
        self._interval = FIRST_INTERVAL
        self.next_at = now + self._interval

    def next_interval(self, now: float) -> None:
        """Begin to count again, in an interval that is twice as long."""
        self.left = 0
        self.held = 0
        self.last = None
        self.since = now
        self._interval = min(2 * self._interval, LONGEST_INTERVAL)
        self.next_at = now + self._interval
