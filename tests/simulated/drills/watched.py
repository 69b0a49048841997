"""The drill of the watch: which conditions it finds in the engine, and the lines of each.

`told_lines` drills when a line is due. Here brokers fail, refuse and throttle, partitions lose
their leaders and doubt batches, callers find no room, in any order (`staged`). What holds is
derived (`conditions`) and given to incidents of the drill's own; the watch must tell the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.incidents import Event, Incidents, Repeats
from aioidem._log import LogLine, Phase

from .conditions import AND
from .staged import Stage

__all__ = ["drill_watched"]

_STEPS: Final = 25
_WAITS: Final = (0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 2.25, 10.0)
_USUALLY: Final = 1.0
_SOON: Final = 0.25
"""Seconds until the next look: usually, and if something may begin or end before."""
_OVER: Final = {
    LogLine.AUTHENTICATION: "refuses",
    LogLine.NO_BROKER: "a broker can be reached",
    LogLine.LEADER_MISSING: "missing leader",
    LogLine.LEADER_UNREACHABLE: "unreachable leader",
    LogLine.THROTTLED: "throttles",
    LogLine.IN_DOUBT: "in doubt",
    LogLine.BUFFER_FULL: "room",
}
"""A word in the last line of each incident."""
_ENDS: Final = ("acked", "not_written", "unknown")
"""The fields with the numbers of records that got each outcome during an incident."""


def drill_watched(dice: Random) -> Iterator[str]:
    """Yield what an operator is told that is not so, or is not told although it is so."""
    for wrong in _WatchDrill(dice).run():
        yield f"watch: {wrong}"
        return


class _WatchDrill:
    """An `OperatorWatch`, and what it should tell."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._stage = Stage(dice)
        self._watch = self._stage.watch
        self._incidents, self._repeats = Incidents(), Repeats()
        # How many records had ended in each way when an incident began.
        self._before: dict[LogLine, list[int]] = {}
        # The lines that are due at a look.
        self._due: list[Event] = []
        # Whether nothing waited at the last look, and when the Sender is to be woken for the next.
        self._rested = True
        self._wakes: float | None = None

    def run(self) -> Iterator[str]:
        """Let things happen, and yield what is told against them."""
        dice, stage, watch = self._dice, self._stage, self._watch
        if (watch.due_at, watch.wakes_at) != (0.0, None):
            first = watch.due_at, watch.wakes_at
            yield f"the first look and wake-up are at {first}, not (0.0, None)"
        every, often = stage.acts()
        for _ in range(_STEPS):
            stage.now += dice.choice(_WAITS)
            for _ in range(dice.choice((0, 1, 1, 3))):
                dice.choice(often if dice.random() < 0.8 else every)()
            if watch.expected_at() != self._expected():
                yield f"the Sender is expected at {watch.expected_at()}, not {self._expected()}"
            if dice.random() < 0.8:
                yield from self._look()
            if dice.random() < 0.1:
                watch.hurry()
                if watch.due_at != 0.0:
                    yield f"told to hurry, the watch looks at {watch.due_at}, not at once (0.0)"
        dice.choice(often)()
        stage.now += dice.choice(_WAITS)
        yield from self._close()

    def _expected(self) -> float | None:
        """Return by when the Sender was to run: also for a record, if nothing waited before it."""
        records, wakes = self._stage.records, [] if self._wakes is None else [self._wakes]
        if self._rested and records.unsettled:
            wakes.append(records.first_queued_at)
        return min(wakes, default=None)

    def _look(self) -> Iterator[str]:
        """Let the watch look, and yield what it tells, or when it wants to look next, if wrong."""
        now, watch, rows = self._stage.now, self._watch, self._stage.rows
        self._see()
        watch.look(now)
        waits = self._stage.records.unsettled or rows.callers
        self._rested = not waits and self._incidents.quiet
        soon = now + (_SOON if self._incidents.suspects else _USUALLY)
        self._wakes = self._repeats.due_at if self._rested else soon
        # The next turn looks again if nothing waits.
        due = now if self._rested else soon, self._wakes
        if (watch.due_at, watch.wakes_at) != due:
            yield f"the next look and wake-up are at {(watch.due_at, watch.wakes_at)}, not {due}"
        yield from self._told()
        if self._rested:
            self._wakes = self._repeats.due_at
        if watch.wakes_at != self._wakes:
            yield f"after the lines the wake-up is at {watch.wakes_at}, not {self._wakes}"

    def _see(self) -> None:
        """Note the lines that are due now."""
        stage, told = self._stage, self._incidents.goes_on(LogLine.LEADER_UNREACHABLE)
        stage.show()
        conditions = stage.rows.holds(stage.now, told=told)
        self._due = [self._counted(each) for each in self._incidents.see(conditions, stage.now)]
        self._due += self._repeats.due(stage.now)

    def _close(self) -> Iterator[str]:
        """End, and yield which of the last lines are wrong."""
        now = self._stage.now
        self._see()
        self._due += map(self._counted, self._incidents.close())
        self._due += self._repeats.end(now)
        self._watch.close(now)
        yield from self._told()

    def _counted(self, event: Event) -> Event:
        """Return a line with the words and numbers of what became of records meanwhile."""
        ended = list(self._stage.ended)
        if event.phase is Phase.BEGINS:
            self._before[event.line] = ended
            return event
        meanwhile = [now - then for now, then in zip(ended, self._before[event.line], strict=True)]
        words = [event.text] if event.phase is Phase.CONTINUES else [_OVER[event.line]]
        if event.phase is Phase.ENDS:
            words.append(f"after {event.fields['seconds']:.1f} s")
        words += [
            f"{count} {name}"
            for count, name in zip(meanwhile, ("ack", "not written", "unknown"), strict=True)
        ]
        fields = {**event.fields, **dict(zip(_ENDS, meanwhile, strict=True))}
        return event._replace(text=AND.join(words), fields=fields)

    def _told(self) -> Iterator[str]:
        """Yield which lines the watch gives, if they are not those that are due."""
        now = self._stage.now
        events = [self._incidents.explained(each) for each in (*self._stage.events, *self._due)]
        self._stage.events.clear()
        due = [each for each in events if self._repeats.admit(each, now)]
        told = self._watch.take(now)
        shown = [each._replace(text="") for each in told]
        if shown != [each._replace(text="") for each in due]:
            yield f"the lines {told} at {now}, not {due}"
            return
        for is_told, is_due in zip(told, due, strict=True):
            missing = [word for word in is_due.text.split(AND) if word not in is_told.text]
            if missing:
                yield f"the line {is_told.text!r} lacks {missing}"
