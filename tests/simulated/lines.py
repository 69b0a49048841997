"""The judge of the lines that an operator reads: incidents, and what became of records meanwhile.

An incident has a line when it begins and one when it ends, and may have some in between. These say
how many records had which outcome since it began. That batches are in doubt must be told when it
has lasted for two seconds, to the next look of the producer's driver, and not sooner. Lines that an
incident goes on come after 10 s, 20 s more, 40 s more, and so on. One more is a warning, if the
first was none because other incidents had explained it.

Of events that repeat, the first few are written, and all others are counted.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection

from aioidem._engine.incidents import Event
from aioidem._log import LogLine, Phase

__all__ = ["Lines"]

_GRACE = 2.0
_ROUNDED = 0.001
_FIRST_INTERVAL = 10.0
_EXPLAINS_BUMPS = {
    LogLine.AUTHENTICATION,
    LogLine.NO_BROKER,
    LogLine.LEADER_MISSING,
    LogLine.LEADER_UNREACHABLE,
    LogLine.IN_DOUBT,
    LogLine.THROTTLED,
}
"""The incidents that need no warning of their own for an epoch that is bumped meanwhile."""


class Lines:
    """Judges lines when they are logged.

    Args:
        counts: Returns how many records have been acknowledged, not written, and unknown.
        complain: Is told what is wrong.
    """

    def __init__(
        self, counts: Callable[[], tuple[int, int, int]], complain: Callable[[str], None]
    ) -> None:
        self._counts = counts
        self._complain = complain
        # For each incident that goes on: the counts when its first line was logged.
        self._began: dict[LogLine, tuple[int, int, int]] = {}
        self._told = False
        # By line: how many events there were, how many of them were written, and how many counted.
        self._events: Counter[LogLine] = Counter()
        self._written: Counter[LogLine] = Counter()
        self._counted: Counter[LogLine] = Counter()
        # How many events had been written or counted when lines were last written.
        self._taken: Counter[LogLine] = Counter()
        # The same before each line that counts some, in the order of these lines.
        self._before: dict[LogLine, list[int]] = {}
        # By line: when the first of some events that follow one another was written, and how many.
        self._bursts: dict[LogLine, tuple[float, int]] = {}
        # By incident: when its last line was written, and after how many seconds the next is due.
        self._due: dict[LogLine, tuple[float, float]] = {}
        # By incident: the level of its gravest line.
        self._levels: dict[LogLine, int] = {}
        # By line: when the last one that counts events was written.
        self._counted_at: dict[LogLine, float] = {}
        self.closing = False
        """Whether the producer closes. Then outcomes may come between a line and its logging."""

    def logged(self, event: Event) -> None:
        """Note a line that is to be written or counted, after the outcomes that came before it."""
        line = event.line
        if event.phase is Phase.ONCE:
            self._events[line] += 1
        elif event.phase is Phase.BEGINS:
            if line in self._began:
                self._complain(f"{line.value} began twice")
            self._began[line] = self._counts()
        elif "acked" in event.fields:
            self._follow(event)
        else:
            self._before.setdefault(line, []).append(self._taken[line])

    def took(self) -> None:
        """Note that all lines so far have been written or counted."""
        self._taken = self._events.copy()

    def written(self, event: Event, now: float) -> None:
        """Note a line that is written, after all lines were noted that come before it."""
        line = event.line
        level = line.level if event.level is None else event.level
        if event.phase is Phase.ONCE:
            self._write(event, now)
        elif event.phase is Phase.BEGINS:
            self._due[line] = now, _FIRST_INTERVAL
            self._levels[line] = level
        elif event.phase is Phase.CONTINUES and "acked" in event.fields:
            last, interval = self._due[line]
            if level == logging.INFO and now < last + interval:
                self._complain(f"{now - last:.3f} s after a line, not {interval:g} s: {event}")
            if level != logging.INFO and self._levels[line] != logging.INFO:
                self._complain(f"a second line at level {level}: {event}")
            self._due[line] = now, 2 * interval
            self._levels[line] = max(level, self._levels[line])
        elif event.phase is Phase.CONTINUES:
            left = self._before[line].pop(0) - self._written[line] - self._counted[line]
            self._counted[line] += left
            if event.fields["count"] != left and not self.closing:
                self._complain(f"{left} events were not written: {event.text}")
            self._judge_count(event, now)

    def _judge_count(self, event: Event, now: float) -> None:
        """Judge the level of a line that counts events, and the seconds that it tells."""
        line = event.line
        level = logging.INFO if line.burst == 1 else line.level
        if event.level != level:
            self._complain(f"at level {event.level}, not {level}: {event.text}")
        seconds, last = event.fields["seconds"], self._counted_at.get(line, -math.inf)
        if not isinstance(seconds, float) or seconds > now - last + _ROUNDED:
            self._complain(f"{now - last:.3f} s after such a line: {event}")
        self._counted_at[line] = now

    def _write(self, event: Event, now: float) -> None:
        line = event.line
        self._written[line] += 1
        since, number = self._bursts.get(line, (now, 0))
        if now >= since + _FIRST_INTERVAL:
            since, number = now, 0
        self._bursts[line] = since, number + 1
        if number >= line.burst and not self.closing:
            self._complain(f"more than {line.burst} events in {now - since:.3f} s: {event.text}")
        explained = event.level == logging.INFO
        if line is LogLine.EPOCH_BUMPED and explained is not bool(_EXPLAINS_BUMPS & {*self._began}):
            self._complain(f"{event.text} at level {event.level} while {[*self._began]} go on")

    def judge(self) -> None:
        """Judge what only the end shows: few events are all written."""
        for line, number in self._events.items():
            if number <= line.burst and self._written[line] != number and not self.closing:
                self._complain(f"{self._written[line]} of {number} lines {line.value} are written")

    def _follow(self, event: Event) -> None:
        line, fields = event.line, event.fields
        before = self._began.get(line)
        if before is None:
            self._complain(f"{line.value} never began: {event.text}")
            return
        counted = [now - then for now, then in zip(self._counts(), before, strict=True)]
        told = [fields["acked"], fields["not_written"], fields["unknown"]]
        if told != counted and not self.closing:
            self._complain(f"{line.value} counts {told}, not {counted}")
        if event.phase is Phase.ENDS:
            del self._began[line]

    def looked(self, doubts: Collection[float], now: float) -> None:
        """Note that the producer has looked for incidents, and that their lines are logged.

        Args:
            doubts: For each record in doubt: since when it is, in seconds.
            now: When that was, in seconds.
        """
        lasts = bool(doubts) and now - min(doubts) >= _GRACE
        due = bool(doubts) and (self._told or lasts)
        self._told = LogLine.IN_DOUBT in self._began
        if self._told != due and not self.closing:
            what = "is not told" if due else "is told"
            since = f"since {min(doubts):.3f}" if doubts else "of none"
            self._complain(f"at {now:.3f} a doubt {since} {what}")
