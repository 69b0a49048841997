"""LineTap: a Sender whose lines for the log go to judges, when they are made and when written."""

from __future__ import annotations

from aioidem._engine.incidents import Event
from aioidem._producer.sender import Sender

from .numbers import Numbers

__all__ = ["LineTap"]


class LineTap(Sender):
    """The part that the Sender without a loop shares with that of the whole producer."""

    _numbers: Numbers
    # How many of the engine's lines were noted already and wait to be logged.
    _noted = 0

    def _new_lines(self) -> list[Event]:
        """Return the lines that are new, and leave them to be logged; foresee what they say."""
        outcomes = self._core.outcomes
        if not outcomes.has_events:
            return []
        waiting = outcomes.take_events()
        for line in waiting:
            outcomes.add_event(line)
        lines, self._noted = waiting[self._noted :], len(waiting)
        self._numbers.foresee(lines)
        return lines

    def _log(self) -> None:
        """Pass the lines that would be written to a judge."""
        self._noted = 0
        for line in self._watch.take(self.clock()):
            self._numbers.lines.written(line, self.clock())
        self._numbers.lines.took()
