"""The judge of alarms: what an operator is told when it has held for long, and until it ends.

It derives by itself, from the state of the connections and partitions, what an operator should know
at each look of the producer's driver, and compares that with the incidents that were told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from aioidem._engine import ProducerCore
from aioidem._engine.incidents import Event
from aioidem._engine.links import LinkState
from aioidem._log import LogLine, Phase

__all__ = ["Alarms"]

_L = LogLine
_OUTAGES = {_L.AUTHENTICATION, _L.NO_BROKER, _L.LEADER_MISSING, _L.LEADER_UNREACHABLE}


class _Rule(NamedTuple):
    lasts: float
    """For how many seconds it must hold before it is told."""
    over: float
    """For how many seconds it must not hold before its end is told."""
    because: Collection[LogLine]
    """What explains it: while that is told, this is no warning."""


_RULES: Mapping[LogLine, _Rule] = {
    _L.NO_BROKER: _Rule(1.0, 1.0, {_L.AUTHENTICATION}),
    _L.LEADER_MISSING: _Rule(1.0, 1.0, {_L.NO_BROKER, _L.LEADER_UNREACHABLE}),
    _L.LEADER_UNREACHABLE: _Rule(1.0, 1.0, _OUTAGES - {_L.LEADER_UNREACHABLE}),
    _L.THROTTLED: _Rule(1.0, 10.0, ()),
    _L.IN_DOUBT: _Rule(2.0, 0.0, _OUTAGES),
    _L.BUFFER_FULL: _Rule(2.0, 10.0, {*_OUTAGES, _L.IN_DOUBT, _L.THROTTLED}),
}
"""In the order in which they are looked at."""

_WAITED = 1.0
"""Seconds for which the first caller must wait for room."""


class _Alarm:
    """What is known of one condition: since when it holds, and whether it has been told."""

    def __init__(self, rule: _Rule) -> None:
        self.rule = rule
        self.told = False
        self._since: float | None = None
        self._over_since: float | None = None

    def holds(self, since: float | None, now: float) -> bool:
        """Note that it holds; return whether it is to be told now.

        Args:
            since: Since when, in seconds; None if only the looks tell.
            now: Seconds.
        """
        self._over_since = None
        if self.told:
            return False
        if self._since is None:
            self._since = now if since is None else min(since, now)
        elif since is not None:
            self._since = max(self._since, min(since, now))
        self.told = now - self._since >= self.rule.lasts
        return self.told

    def ceased(self, now: float) -> None:
        """Note that it does not hold."""
        self._since = None
        if not self.told:
            return
        if self._over_since is None:
            self._over_since = now
        self.told = now - self._over_since < self.rule.over


class Alarms:
    """Judges at each look which incidents go on.

    Args:
        core: The engine.
        complain: Is told what is wrong.
    """

    def __init__(self, core: ProducerCore, complain: Callable[[str], None]) -> None:
        self._core: Any = core
        self._complain = complain
        self._alarms = {line: _Alarm(rule) for line, rule in _RULES.items()}
        self._first: tuple[object, float] = None, 0.0
        # The lines that begin at this look with their levels, those that have begun, and the lines
        # that are to begin at this look.
        self._levels: dict[LogLine, int | None] = {}
        self._begun: set[LogLine] = set()
        self._expected: dict[LogLine, int] = {}

    def logged(self, event: Event) -> None:
        """Note a line that the producer logs."""
        if event.phase is Phase.BEGINS:
            self._levels[event.line] = event.level
            self._begun.add(event.line)
        elif event.phase is Phase.ENDS:
            self._begun.discard(event.line)

    def look(self, now: float) -> None:
        """Note what holds when the producer looks."""
        found = self._found(now)
        self._levels = {}
        self._expected = {}
        for line, alarm in self._alarms.items():
            if line not in found:
                alarm.ceased(now)
            elif alarm.holds(found[line], now):
                told = {each for each, other in self._alarms.items() if other.told} - {line}
                explained = told & {*alarm.rule.because}
                self._expected[line] = logging.INFO if explained else line.level

    def looked(self, now: float) -> None:
        """Compare what holds with what was told, after the lines of the look are logged."""
        if _L.AUTHENTICATION in self._begun:
            return  # brokers that refuse this client are none of the simulation's faults
        told = {line for line, alarm in self._alarms.items() if alarm.told}
        for line in self._begun - told:
            self._complain(f"at {now:.3f} {line.value} goes on")
        for line in told - self._begun:
            self._complain(f"at {now:.3f} {line.value} is not told")
        for line, level in self._expected.items():
            if self._levels.get(line, level) != level:
                self._complain(f"{line.value} is told at level {self._levels[line]}, not {level}")

    # -- what holds --------------------------------------------------------------------------------

    def _found(self, now: float) -> dict[LogLine, float | None]:
        """Return what holds now, and since when; None if only the looks tell."""
        found: dict[LogLine, list[float]] = {}
        core = self._core
        links = core.connections.links.values()
        ready = [link for link in links if link.state is LinkState.READY]
        if not ready and core.connections.reach.since is not None:
            found[_L.NO_BROKER] = [core.connections.reach.since]
        for state in core._partitions:
            if state.queue.records or state.unresolved or state.outstanding:
                self._find(state, found)
        head = core.budget.head
        if head is not self._first[0]:
            self._first = head, now
        if head is not None and now - self._first[1] >= _WAITED:
            found[_L.BUFFER_FULL] = [self._first[1]]
        since: dict[LogLine, float | None] = {line: min(times) for line, times in found.items()}
        if any(link.throttle_at(now) for link in ready):
            since[_L.THROTTLED] = None
        return since

    def _find(self, state: Any, found: dict[LogLine, list[float]]) -> None:
        """Add what holds for a partition with records that wait."""
        view = self._core.cluster.leader_of(state.topic, state.partition)
        leader = -1 if view is None else view.leader_id
        trouble = state.trouble
        if leader == -1 and trouble is not None and trouble.leaderless_since is not None:
            found.setdefault(_L.LEADER_MISSING, []).append(trouble.leaderless_since)
        if leader == -1 and _L.LEADER_UNREACHABLE in self._begun and state.route is not None:
            leader = state.route.leader_id
        node = self._core.connections.nodes.get(leader)
        if node is not None and node.down_since is not None:
            found.setdefault(_L.LEADER_UNREACHABLE, []).append(node.down_since)
        doubts = [b.doubted_at for b in state.unresolved if b.in_doubt and b.doubted_at is not None]
        if doubts:
            found.setdefault(_L.IN_DOUBT, []).append(min(doubts))
