"""When a line is logged about a condition that lasts, and about events that repeat.

The tests drive `Incidents` and `Repeats` with a virtual time, in steps of a quarter of a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest

from aioidem._engine.incidents import (
    INCIDENT_TRANSITIONS,
    Condition,
    Event,
    Incident,
    IncidentEvent,
    Incidents,
    IncidentState,
    Repeats,
)
from aioidem._log import LogLine, Phase

STEP = 0.25


def condition(since: float, number: int = 1) -> Condition:
    return Condition(since, number, lambda: f"{number} of them")


def run(
    seconds: float, holds: Callable[[float], Mapping[LogLine, Condition]]
) -> list[tuple[float, Event]]:
    """Return the lines of some seconds; `holds(now)` returns the conditions that hold then."""
    incidents, told = Incidents(), []
    for tick in range(int(seconds / STEP)):
        now = tick * STEP
        told += [(now, event) for event in incidents.see(holds(now), now)]
    return told


def between(
    line: LogLine, begin: float, end: float
) -> Callable[[float], Mapping[LogLine, Condition]]:
    return lambda now: {line: condition(begin)} if begin <= now < end else {}


def test_an_incident_has_a_line_when_it_begins_and_one_when_it_ends() -> None:
    """An incident begins after its grace time, and ends after its calm time; both are warnings."""
    told = run(20.0, between(LogLine.NO_BROKER, 2.0, 6.0))
    assert [(now, event.phase) for now, event in told] == [(3.0, Phase.BEGINS), (7.0, Phase.ENDS)]
    assert [event.level for _, event in told] == [logging.WARNING, logging.WARNING]
    assert told[0][1].text == "1 of them"
    assert told[1][1].fields["seconds"] == 4.0


def test_a_condition_that_passes_within_the_grace_time_is_not_logged() -> None:
    """A condition that holds for less than its grace time is no incident."""
    assert run(20.0, between(LogLine.NO_BROKER, 2.0, 2.75)) == []


@pytest.mark.parametrize(
    ("line", "grace", "calm"),
    [
        (LogLine.AUTHENTICATION, 0.0, 1.0),
        (LogLine.NO_BROKER, 1.0, 1.0),
        (LogLine.LEADER_MISSING, 1.0, 1.0),
        (LogLine.LEADER_UNREACHABLE, 1.0, 1.0),
        (LogLine.THROTTLED, 1.0, 10.0),
        (LogLine.IN_DOUBT, 2.0, 0.0),
        (LogLine.BUFFER_FULL, 2.0, 10.0),
    ],
)
def test_each_incident_has_its_grace_time_and_its_calm_time(
    line: LogLine, grace: float, calm: float
) -> None:
    told = [(now, event.phase) for now, event in run(40.0, between(line, 4.0, 9.0))]
    assert told == [(4.0 + grace, Phase.BEGINS), (9.0 + calm, Phase.ENDS)]


def test_the_grace_time_counts_from_when_the_condition_began() -> None:
    """A condition that is noticed late is logged at once if it has held for the grace time."""
    told = run(1.0, lambda _now: {LogLine.NO_BROKER: condition(-5.0)})
    assert [now for now, _ in told] == [0.0]


@pytest.mark.parametrize("line", [LogLine.NO_BROKER, LogLine.IN_DOUBT])
def test_a_condition_that_is_new_at_each_look_does_not_last(line: LogLine) -> None:
    """A condition that is over between two looks, and comes back, is no incident."""
    assert run(20.0, lambda now: {line: condition(now - 0.1)}) == []
    # It becomes one when it lasts, and its duration is that of its last beginning.
    told = run(20.0, lambda now: {line: condition(min(now, 5.0) - 0.25)})
    assert told[0][1].phase is Phase.BEGINS
    assert told[0][0] >= 4.75 + 1.0
    assert told[0][1].fields["seconds"] == told[0][0] - 4.75


def test_a_condition_whose_beginning_nothing_tells_lasts_from_look_to_look() -> None:
    """A condition without a beginning of its own counts from the first look that finds it."""
    throttled = Condition(None, 1, lambda: "slow")
    told = run(5.0, lambda _now: {LogLine.THROTTLED: throttled})
    assert [now for now, _ in told] == [1.0]


def test_a_condition_that_did_not_last_counts_anew_when_it_returns() -> None:
    """Between two looks that find it there is one that does not. Nothing tells its beginning."""
    throttled = {LogLine.THROTTLED: Condition(None, 1, lambda: "slow")}
    told = run(9.0, lambda now: throttled if now < 0.5 or now >= 5.0 else {})
    assert [now for now, _ in told] == [6.0]


def test_a_condition_that_comes_and_goes_is_one_incident() -> None:
    """An incident does not end while its condition returns within the calm time."""

    def flapping(now: float) -> Mapping[LogLine, Condition]:
        begun = now - now % 2.0
        return {LogLine.NO_BROKER: condition(begun)} if now % 2.0 < 1.5 and now < 9.0 else {}

    phases = [event.phase for _, event in run(20.0, flapping)]
    assert phases == [Phase.BEGINS, Phase.ENDS]


def test_an_incident_of_a_day_has_about_thirty_lines() -> None:
    """The lines of an incident that goes on come after intervals that double up to an hour."""
    day = 86400.0
    incident, told = Incident(LogLine.NO_BROKER), []
    now = 0.0
    while now < day:
        event = incident.see(condition(0.0), now, frozenset())
        if event is not None:
            told.append((now, event))
        now += 1.0
    assert [at for at, _ in told[:5]] == [1.0, 11.0, 31.0, 71.0, 151.0]
    assert 25 < len(told) < 40
    assert {event.level for _, event in told[1:]} == {logging.INFO}
    assert {event.phase for _, event in told[1:]} == {Phase.CONTINUES}


def test_an_incident_that_another_one_explains_is_no_warning() -> None:
    """With no broker at all, a leader that cannot be reached is logged at INFO, to its end."""

    def outage(now: float) -> Mapping[LogLine, Condition]:
        if now >= 8.0:
            return {}
        lines = (LogLine.LEADER_UNREACHABLE, LogLine.IN_DOUBT, LogLine.NO_BROKER)
        return {line: condition(0.0) for line in lines}

    told = [event for _, event in run(30.0, outage)]
    assert [e.line for e in told if e.level == logging.WARNING] == [LogLine.NO_BROKER] * 2
    assert {event.line for event in told if event.level == logging.INFO} == {
        LogLine.LEADER_UNREACHABLE,
        LogLine.IN_DOUBT,
    }
    alone = [event for _, event in run(30.0, between(LogLine.IN_DOUBT, 0.0, 8.0))]
    assert {event.level for event in alone} == {logging.WARNING}


def test_a_leader_that_is_lost_is_one_warning() -> None:
    """A dead leader is unreachable, and then there is none: the second is not another warning."""

    def outage(now: float) -> Mapping[LogLine, Condition]:
        holds = {}
        if now < 20.0:
            holds[LogLine.LEADER_UNREACHABLE] = condition(0.0)
        if 4.0 <= now < 19.0:
            holds[LogLine.LEADER_MISSING] = condition(4.0)
        return holds

    told = [event for _, event in run(30.0, outage)]
    warnings = [(event.line, event.phase) for event in told if event.level == logging.WARNING]
    line = LogLine.LEADER_UNREACHABLE
    assert warnings == [(line, Phase.BEGINS), (line, Phase.ENDS)]

    def at_once(_now: float) -> Mapping[LogLine, Condition]:
        return {LogLine.LEADER_UNREACHABLE: condition(0.0), LogLine.LEADER_MISSING: condition(0.0)}

    warned = {event.line for _, event in run(30.0, at_once) if event.level == logging.WARNING}
    assert warned == {LogLine.LEADER_MISSING}


def test_an_incident_that_outlasts_its_explanation_becomes_a_warning() -> None:
    """A symptom that stays when its cause is over has a line of its own, and so has its end."""

    def outage(now: float) -> Mapping[LogLine, Condition]:
        holds = {}
        if now < 8.0:
            holds[LogLine.NO_BROKER] = condition(0.0)
        if now < 15.0:
            holds[LogLine.IN_DOUBT] = condition(0.0)
        return holds

    told = run(30.0, outage)
    doubt = [(now, e.phase, e.level) for now, e in told if e.line is LogLine.IN_DOUBT]
    assert doubt == [
        (2.0, Phase.BEGINS, logging.INFO),
        (11.0, Phase.CONTINUES, logging.WARNING),  # 1 s until the cause is over, 2 s of grace
        (15.0, Phase.ENDS, logging.WARNING),
    ]


def test_an_epoch_bump_that_an_outage_explains_is_no_warning() -> None:
    """An event is logged at INFO while an incident goes on that explains it."""
    incidents = Incidents()
    bump, loss = Event(LogLine.EPOCH_BUMPED, "x"), Event(LogLine.DATA_LOSS, "x")
    assert incidents.explained(bump) is bump
    assert list(incidents.see({LogLine.NO_BROKER: condition(0.0)}, 2.0))
    assert incidents.explained(bump).level == logging.INFO
    assert incidents.explained(loss) is loss


def test_a_closing_producer_ends_the_incidents_whose_condition_is_over() -> None:
    """`close` does not wait for the calm time, and ends no incident whose condition holds."""
    incidents = Incidents()
    both = {LogLine.NO_BROKER: condition(0.0), LogLine.THROTTLED: condition(0.0)}
    assert len(list(incidents.see(both, 2.0))) == 2
    assert not list(incidents.see({LogLine.NO_BROKER: condition(0.0)}, 3.0))
    [last] = incidents.close()
    assert (last.line, last.phase) == (LogLine.THROTTLED, Phase.ENDS)
    assert not list(incidents.close())


def test_the_table_reaches_every_state_and_leaves_every_state() -> None:
    """Each state of an incident is the end of a transition and the beginning of another."""
    assert set(INCIDENT_TRANSITIONS.values()) == set(IncidentState)
    assert {state for state, _ in INCIDENT_TRANSITIONS} == set(IncidentState)
    assert {event for _, event in INCIDENT_TRANSITIONS} == set(IncidentEvent)


def test_whether_an_incident_is_suspected_or_goes_on_and_may_end() -> None:
    """While one is suspected, or may end, the conditions are looked at often (`suspects`)."""
    incidents, holds = Incidents(), {LogLine.NO_BROKER: condition(0.0)}

    def now() -> tuple[bool, bool, bool]:
        return incidents.quiet, incidents.suspects, incidents.goes_on(LogLine.NO_BROKER)

    assert now() == (True, False, False)
    assert not list(incidents.see(holds, 0.5))
    assert now() == (False, True, False)
    assert list(incidents.see(holds, 1.0))
    assert now() == (False, False, True)
    assert not incidents.goes_on(LogLine.THROTTLED)
    assert not list(incidents.see({}, 1.5))
    assert now() == (False, True, True)
    assert list(incidents.see({}, 2.5))
    assert now() == (True, False, False)


def test_an_incident_that_begins_again_is_told_of_as_often_as_the_first_one() -> None:
    """Its lines are 10 s and 30 s after its own beginning, and its level is looked up anew."""

    def holds(now: float) -> Mapping[LogLine, Condition]:
        begin = 0.0 if now < 80.0 else 100.0
        both = {LogLine.IN_DOUBT: condition(begin), LogLine.NO_BROKER: condition(begin)}
        if 80.0 <= now < 100.0:
            return {}
        return both if now < 100.0 else {LogLine.IN_DOUBT: both[LogLine.IN_DOUBT]}

    told = [(now, e) for now, e in run(140.0, holds) if e.line is LogLine.IN_DOUBT]
    assert [(now, e.phase, e.level) for now, e in told] == [
        (2.0, Phase.BEGINS, logging.INFO),
        (12.0, Phase.CONTINUES, logging.INFO),
        (32.0, Phase.CONTINUES, logging.INFO),
        (72.0, Phase.CONTINUES, logging.INFO),
        (80.0, Phase.ENDS, logging.INFO),
        (102.0, Phase.BEGINS, logging.WARNING),
        (112.0, Phase.CONTINUES, logging.INFO),
        (132.0, Phase.CONTINUES, logging.INFO),
    ]


def test_the_grace_of_a_cause_that_is_over_begins_anew_if_the_cause_returns() -> None:
    """The symptom becomes a warning only when no cause has gone on for its whole grace time."""

    def holds(now: float) -> Mapping[LogLine, Condition]:
        found = {LogLine.IN_DOUBT: condition(0.0)}
        if now < 4.0 or 6.0 <= now < 7.0:
            found[LogLine.AUTHENTICATION] = condition(0.0 if now < 4.0 else 6.0)
        return found

    told = [(now, e) for now, e in run(12.0, holds) if e.line is LogLine.IN_DOUBT]
    assert [(now, e.level) for now, e in told] == [(2.0, logging.INFO), (10.0, logging.WARNING)]


def test_an_incident_that_begins_again_has_its_own_grace_after_its_cause() -> None:
    incidents = Incidents()

    def see(now: float, *lines: LogLine, since: float) -> list[tuple[Phase, int | None]]:
        events = incidents.see({line: condition(since) for line in lines}, now)
        return [(e.phase, e.level) for e in events if e.line is LogLine.IN_DOUBT]

    both = LogLine.AUTHENTICATION, LogLine.IN_DOUBT
    assert see(2.0, *both, since=0.0) == [(Phase.BEGINS, logging.INFO)]
    assert see(3.0, LogLine.IN_DOUBT, since=0.0) == []
    assert see(4.5, LogLine.IN_DOUBT, since=0.0) == []
    assert see(5.0, since=0.0) == [(Phase.ENDS, logging.INFO)]
    assert see(12.0, *both, since=10.0) == [(Phase.BEGINS, logging.INFO)]
    assert see(12.5, since=10.0) == [(Phase.ENDS, logging.INFO)]
    assert see(13.0, LogLine.IN_DOUBT, since=13.0) == []


def test_a_condition_that_is_said_to_begin_later_begins_now() -> None:
    incidents = Incidents()
    assert not list(incidents.see({LogLine.IN_DOUBT: condition(1.0)}, 1.0))
    assert not list(incidents.see({LogLine.IN_DOUBT: condition(9.0)}, 2.0))
    [begins] = incidents.see({LogLine.IN_DOUBT: condition(1.0)}, 4.0)
    assert begins.fields["seconds"] == 2.0


def test_an_end_counts_nothing_and_says_how_long_in_milliseconds() -> None:
    incidents = Incidents()
    assert list(incidents.see({LogLine.NO_BROKER: condition(0.0, 3)}, 1.23449))
    assert not list(incidents.see({}, 2.71828))
    [last] = incidents.see({}, 4.0)
    assert last.fields == {"seconds": 2.718, "count": 0}
    assert list(incidents.see({LogLine.NO_BROKER: condition(5.0)}, 7.0))
    assert not list(incidents.see({}, 8.0))
    [last] = incidents.close()
    assert last.fields == {"seconds": 3.0, "count": 0}
    assert incidents.quiet


# --- events ---------------------------------------------------------------------------------------


def logged(line: LogLine, times: list[float], until: float) -> list[tuple[float, Event]]:
    """Return the lines of events at these times, in quarters of a second."""
    repeats, told = Repeats(), []
    for tick in range(int(until / STEP)):
        now = tick * STEP
        told += [(now, event) for event in repeats.due(now)]
        for _ in range(times.count(now)):
            event = Event(line, f"at {now:g}")
            if repeats.admit(event, now):
                told.append((now, event))
    return told


def test_events_that_follow_one_another_are_counted() -> None:
    """One epoch bump is logged at once; the others are counted, in intervals that double."""
    told = logged(LogLine.EPOCH_BUMPED, [float(second) for second in range(60)], 200.0)
    assert [now for now, _ in told] == [0.0, 10.0, 30.0, 70.0]
    assert [event.text for _, event in told] == [
        "at 0",
        "9 more in 10 s; the last: at 9",
        "20 more in 20 s; the last: at 29",
        "30 more in 40 s; the last: at 59",
    ]
    assert [event.level for _, event in told] == [None, *[logging.INFO] * 3]
    assert [event.fields["seconds"] for _, event in told[1:]] == [10.0, 20.0, 40.0]


def test_the_line_of_counted_events_says_how_many_and_in_how_many_milliseconds() -> None:
    """It goes on with the lines before it, and ends nothing."""
    repeats = Repeats()
    for now in (0.0, 1.0):
        repeats.admit(Event(LogLine.EPOCH_BUMPED, "x"), now)
    (event,) = repeats.due(10.1254)
    assert (event.phase, event.fields) == (Phase.CONTINUES, {"count": 1, "seconds": 10.125})


def test_an_event_after_a_quiet_interval_is_logged_at_once() -> None:
    """After an interval without events the next one counts as the first."""
    told = logged(LogLine.EPOCH_BUMPED, [0.0, 30.0], 60.0)
    assert [now for now, _ in told] == [0.0, 30.0]


@pytest.mark.parametrize("line", [each for each in LogLine if each.burst > 1][:3])
def test_a_few_events_of_most_kinds_are_logged_one_by_one(line: LogLine) -> None:
    """The first events of a kind are logged one by one, as many as the line's burst."""
    told = logged(line, [1.0] * 50, 60.0)
    assert [now for now, _ in told] == [*[1.0] * line.burst, 11.0]
    assert told[-1][1].fields["count"] == 50 - line.burst


def test_a_hundred_events_a_second_for_an_hour_are_a_dozen_lines() -> None:
    """However many events there are, the number of lines grows with the logarithm of the time."""
    repeats, lines = Repeats(), 0
    for second in range(3600):
        lines += len(list(repeats.due(float(second))))
        lines += sum(
            repeats.admit(Event(LogLine.DATA_LOSS, "x"), float(second)) for _ in range(100)
        )
    assert lines <= 15


def test_lines_that_go_on_are_never_counted_and_those_counted_are_due_at_the_next_interval() -> (
    None
):
    repeats = Repeats()
    due: list[float | None] = []
    goes_on = Event(LogLine.EPOCH_BUMPED, "x", Phase.CONTINUES)
    assert all(repeats.admit(goes_on, 0.0) for _ in range(3))
    due.append(repeats.due_at)
    assert repeats.admit(Event(LogLine.EPOCH_BUMPED, "x"), 1.0)
    due.append(repeats.due_at)
    assert not repeats.admit(Event(LogLine.EPOCH_BUMPED, "x"), 2.0)
    due.append(repeats.due_at)
    several = next(line for line in LogLine if line.burst > 1)
    for _ in range(several.burst + 1):
        repeats.admit(Event(several, "x"), 0.5)
    due.append(repeats.due_at)
    assert due == [None, None, 11.0, 10.5]


def test_what_was_counted_is_told_at_the_end_and_later_events_are_told_one_by_one() -> None:
    repeats = Repeats()
    for number in range(LogLine.DATA_LOSS.burst + 3):
        repeats.admit(Event(LogLine.DATA_LOSS, f"loss {number}"), 5.0)
    repeats.admit(Event(LogLine.EPOCH_BUMPED, "once"), 6.0)
    [line] = repeats.end(7.25)
    assert line.text == f"3 more in 2 s; the last: loss {LogLine.DATA_LOSS.burst + 2}"
    assert (line.phase, line.level) == (Phase.CONTINUES, LogLine.DATA_LOSS.level)
    assert line.fields == {"count": 3, "seconds": 2.25}
    assert all(repeats.admit(Event(LogLine.DATA_LOSS, "late"), 8.0) for _ in range(20))
    assert repeats.end(9.0) == []


def test_in_later_intervals_no_event_is_logged_by_itself() -> None:
    """A kind whose first events are logged one by one is only counted while it goes on."""
    several = next(line for line in LogLine if line.burst > 1)
    repeats = Repeats()
    admitted = [repeats.admit(Event(several, "x"), 5.0) for _ in range(several.burst)]
    assert admitted == [True] * several.burst
    assert not list(repeats.due(14.0))
    assert not repeats.admit(Event(several, "x"), 14.5)
    [line] = repeats.due(15.0)
    assert line.text == "1 more in 10 s; the last: x"
    assert not repeats.admit(Event(several, "x"), 16.0)
