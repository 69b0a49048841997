"""SettledRecords: delivers the outcomes of records to their callers, a limited number per turn.

One answer may settle tens of thousands of records, and each outcome wakes a caller or runs a
callback. To deliver all of them at once would block the event loop. So one turn of the loop
delivers at most `AT_ONCE` outcomes, and the following turns deliver the rest.

Invariants:

- Each record's outcome is delivered once, in the order in which the engine settled the records.
- `tell` delivers outcomes. If a callback that it runs calls `tell`, that inner call does nothing.
- If delivering one outcome raises, the others are delivered all the same: as many as this turn may
  deliver before the exception is raised, the rest later.

Rejected: a limit in milliseconds. How much a turn delivers would then depend on the machine's other
work, and no test could predict it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from aioidem._engine.record import Outcome
from aioidem._engine.record_block import RecordRuns
from aioidem._engine.settlement import Settlement
from aioidem._hot import settle_each
from aioidem.structs import DeliveryStatus

__all__ = ["AT_ONCE", "SettledRecords"]

AT_ONCE: Final = 2_000
"""The most outcomes delivered per turn of the event loop.

They take 3 ms, or 10 ms if each record has an error of its own.
"""


class SettledRecords:
    """The outcomes of one producer that have to be delivered.

    Args:
        take_settled: Returns what the engine has settled since the last call.
        announce: Called with a settlement (records with a common outcome) before the first of its
            outcomes is delivered.
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
        take_settled: Callable[[], Sequence[Settlement]],
        announce: Callable[[Settlement], None] | None = None,
    ) -> None:
        self._take_settled = take_settled
        self._announce = announce
        self._untold: deque[Settlement] = deque()
        # How many records of the first settlement have had their outcome delivered.
        self._told = 0
        self._telling = self._all = False
        self.at_once = self._left = AT_ONCE

    def begin_turn(self) -> None:
        """Begin a turn of the event loop, in which up to `at_once` outcomes may be delivered."""
        self._left = self.at_once

    def all_at_once(self) -> None:
        """Lift the limit per turn, because the producer closes and there may be no other turn."""
        self._all = True

    @property
    def pending(self) -> bool:
        """Whether outcomes are left for the next turn."""
        return bool(self._untold)

    @property
    def untold(self) -> int:
        """How many records have an outcome that is not delivered yet."""
        return self.untold_by_status().total()

    def untold_by_status(self) -> Counter[DeliveryStatus]:
        """Return how many records have an outcome that is not delivered yet, by that outcome."""
        self._untold += self._take_settled()
        counts: Counter[DeliveryStatus] = Counter()
        for settlement in self._untold:
            counts[settlement.outcome.status] += len(settlement.records)
        if self._untold:
            counts[self._untold[0].outcome.status] -= self._told
        return counts

    def tell(self) -> bool:
        """Deliver outcomes, up to the limit for this turn of the event loop.

        Returns:
            Whether all outcomes are delivered now.

        Raises:
            BaseException: What a callback has raised that has to end the program.
        """
        if self._telling:
            return False
        self._untold += self._take_settled()
        if not self._untold:
            return True
        self._telling = True
        try:
            while self._untold and (self._left > 0 or self._all):
                self._tell_first()
                # Callbacks may have caused more records to be settled.
                self._untold += self._take_settled()
        except BaseException:
            self._tell_others()
            raise
        else:
            return not self._untold
        finally:
            self._telling = False

    def _tell_others(self) -> None:
        """Deliver what this turn may still deliver, before the exception of one outcome is raised.

        Only that one is raised; further ones are dropped.
        """
        while True:
            self._untold += self._take_settled()
            if not self._untold or not (self._left > 0 or self._all):
                return
            first, told = self._untold[0], self._told
            with suppress(BaseException):
                self._tell_first()
            if self._untold and self._untold[0] is first and self._told == told:
                return  # it would be raised again and again

    def _tell_first(self) -> None:
        """Deliver outcomes of the first settlement, up to the limit for this turn of the loop."""
        settlement, begin = self._untold[0], self._told
        records = settlement.records
        if begin == 0 and self._announce is not None:
            self._announce(settlement)
        if type(records) is RecordRuns:
            self._tell_items(settlement.outcome, records)
            return
        if begin or (len(records) > self._left and not self._all):
            end = len(records) if self._all else begin + self._left
            records = records[begin:end]
        settle_each(records, settlement.outcome, begin, self._told_until)

    def _told_until(self, end: int) -> None:
        """Note that the first settlement's records before the place `end` have their outcome."""
        self._left -= end - self._told
        self._end_slice(end, len(self._untold[0].records))

    def _tell_items(self, outcome: Outcome, records: RecordRuns) -> None:
        """Deliver the outcome to single records and to blocks (a block stands for several records).

        A block gets its outcome in one call, which counts as one outcome towards the limit per
        turn. `_told` rises by the number of records in the block.
        """
        place = 0
        told = self._told
        try:
            for item in records.items:
                if place >= told:
                    if self._left <= 0 and not self._all:
                        break
                    self._left -= 1
                    told = place + item.count
                    item.settle(outcome, place)
                place += item.count
        finally:
            self._end_slice(told, len(records))

    def _end_slice(self, told: int, count: int) -> None:
        """Note that `told` of the first settlement's `count` records have got their outcome."""
        self._told = told
        if told >= count:
            self._untold.popleft()
            self._told = 0
