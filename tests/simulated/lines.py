"""The judge of the lines that an operator reads: incidents, and what became of records meanwhile.

An incident has a line when it begins and one when it ends, and may have some in between. These say
how many records had which outcome since it began. That batches are in doubt must be told when it
has lasted for two seconds, to the next look of the producer's driver, and not sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from aioidem._engine.incidents import Event
from aioidem._log import LogLine, Phase

__all__ = ["Lines"]

_GRACE = 2.0


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
        self.closing = False
        """Whether the producer closes. Then outcomes may come between a line and its logging."""

    def logged(self, event: Event) -> None:
        """Note a line, after the outcomes that came before it."""
        line = event.line
        if event.phase is Phase.BEGINS:
            if line in self._began:
                self._complain(f"{line.value} began twice")
            self._began[line] = self._counts()
        elif event.phase is not Phase.ONCE and "acked" in event.fields:
            self._follow(event)

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
