"""The copies that a broker appended when the producer could not prevent it any more.

A broker that has forgotten the producer takes a copy of a batch for a new one. If the copy was in a
request that it serves after the connection was closed, no client can prevent that, nor if it forgot
the producer early while it held the request back. If it was in any other request, the producer has
sent it when it should not have. Which copy made a duplicate is
seen by looking at the logs before and after the broker serves a request that is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aioidem.testing import ValueId

__all__ = ["LateCopies"]

_Copies = Callable[[], Mapping[ValueId | None, int]]
_Values = Callable[[], set[ValueId]]
_Held = tuple[set[ValueId], Callable[[], bool]]


class LateCopies:
    """Notes which values a late request has appended once more.

    Args:
        copies: Returns how often each value is in the logs.
        matters: Whether brokers forget producers, so that it matters.
    """

    def __init__(self, copies: _Copies, *, matters: bool) -> None:
        self._copies = copies
        self._matters = matters
        self._before: Mapping[ValueId | None, int] = {}
        # The values of the request that is served now: those of a late one, and of another one.
        self._late: set[ValueId] = set()
        self._timely: set[ValueId] = set()
        # The requests that brokers hold back: their values, and whether they are late by now.
        self._held: list[_Held] = []
        # Those that are served in this instant: perhaps their batches are appended a moment later.
        self._served: list[_Held] = []
        self._found: set[ValueId] = set()

    def found(self) -> set[ValueId]:
        """Return the values that a late request has appended when they were in a log already."""
        self._look()
        return self._found

    def serving(self, values: _Values, *, late: bool) -> None:
        """Note that a broker is about to serve a request.

        Args:
            values: Returns the values in the request.
            late: Whether the producer cannot prevent that it is appended.
        """
        if not self._matters:
            return
        self._look()
        self._late = values() if late else set()
        self._timely = values() if self._held and not late else set()
        if late or self._held:
            self._before = self._copies()

    def holding(self, values: _Values, late: Callable[[], bool]) -> _Held:
        """Note that the broker does not serve that request now, but some time later."""
        held = values(), late
        if self._matters:
            self._late, self._timely = set(), set()
            self._before = self._copies()
            self._held.append(held)
        return held

    def held_served(self, held: _Held) -> None:
        """Note that a broker has served a request that it had held back."""
        if self._matters:
            self._look()
            self._held.remove(held)
            self._served.append(held)

    def passed(self) -> None:
        """Note that something has happened elsewhere: what was served on time was appended."""
        if self._timely:
            self._look()
            self._before, self._timely = self._copies(), set()

    def _look(self) -> None:
        """Note those values of late requests of which the logs have another copy now."""
        held = [*self._held, *self._served]
        late, self._late = self._late.union(*(v for v, late in held if late())), set()
        self._served.clear()
        if late:
            before, self._before = self._before, self._copies()
            # The request that was served on time has appended each of its values once at most.
            others = {v: before.get(v, 0) + (v in self._timely) for v in late}
            self._found |= {v for v in late if self._before.get(v, 0) > others[v] >= 1}
