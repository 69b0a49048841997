"""SettledRecords: what the engine has settled, on its way to its callers, some records at a time.

One answer may settle tens of thousands of records, and each has a caller that waits for its
outcome: a future, a callback, a line to count. To deliver all of them at once would block the event
loop. So they are delivered until the turn has had enough, and the rest in the turns that follow.

Invariants:

- Each record's outcome is delivered once, in the order in which the engine settled them.
- If a callback calls `tell` again, that call does nothing; the outer one continues.
- If delivering one outcome raises, the others are still there to be delivered.

Rejected: a pause by the clock, after so many milliseconds. What a turn delivers would depend on
what else the machine does, and no test could say how much that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from aioidem._engine.record import Settlement

__all__ = ["AT_ONCE", "SettledRecords"]

AT_ONCE: Final = 2_000
"""Records told in one turn of the loop: 3 ms, or 10 ms where each has an error of its own."""


class SettledRecords:
    """The outcomes of one producer that have to be delivered.

    Args:
        take_settled: takes what the engine has settled since the last call.
        announce: called with a settlement before the first of its outcomes is delivered.
    """

    __slots__ = (
        "_all",
        "_announce",
        "_left",
        "_take_settled",
        "_telling",
        "_told",
        "_untold",
        "at_once",
    )

    def __init__(
        self,
        take_settled: Callable[[], list[Settlement]],
        announce: Callable[[Settlement], None] | None = None,
    ) -> None:
        self._take_settled = take_settled
        self._announce = announce
        self._untold: deque[Settlement] = deque()
        # How many outcomes of the first settlement were delivered in earlier turns.
        self._told = 0
        self._telling = self._all = False
        self.at_once = self._left = AT_ONCE

    def begin_turn(self) -> None:
        """Begin another turn of the loop: it may deliver `at_once` outcomes."""
        self._left = self.at_once

    def all_at_once(self) -> None:
        """Deliver everything from here on: there may be no other turn."""
        self._all = True

    @property
    def pending(self) -> bool:
        """Whether a turn has left something to the next one."""
        return bool(self._untold)

    @property
    def untold(self) -> int:
        """Records whose outcome was not delivered yet."""
        self._untold += self._take_settled()
        return sum(len(settlement.records) for settlement in self._untold) - self._told

    def tell(self) -> bool:
        """Deliver what this turn may deliver.

        Returns:
            Whether that was everything.
        """
        if self._telling:
            return False
        self._telling = True
        try:
            while True:
                # Callbacks may have settled more.
                self._untold += self._take_settled()
                if not self._untold or (self._left <= 0 and not self._all):
                    return not self._untold
                self._tell_first()
        finally:
            self._telling = False

    def _tell_first(self) -> None:
        """Deliver outcomes of the first settlement, as many as this turn may."""
        settlement, begin = self._untold[0], self._told
        records = settlement.records
        if begin == 0 and self._announce is not None:
            self._announce(settlement)
        if begin or (len(records) > self._left and not self._all):
            end = len(records) if self._all else begin + self._left
            records = records[begin:end]
        index = begin
        try:
            for index, record in enumerate(records, begin):
                record.sink.settle(settlement, index)
        finally:
            told = index + 1
            self._left -= told - begin
            self._told = told
            if told >= len(settlement.records):
                self._untold.popleft()
                self._told = 0
