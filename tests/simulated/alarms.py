"""The judge of alarms: what an operator is told when it has held for long, and until it ends.

It derives by itself, from the state of the connections and partitions, what an operator should know
at each look of the producer's driver, and compares that with the incidents that were told.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from aioidem._engine import ProducerCore
from aioidem._engine.links import LinkState
from aioidem._engine.watch import OperatorWatch
from aioidem._log import LogLine, Phase

__all__ = ["Alarms", "Watch"]

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

_TOGETHER = 2.0
"""Seconds between two calls that find no room, at most, if they belong together."""


class _Streak(NamedTuple):
    """Calls that found no room and did not wait, while no record was queued."""

    since: float
    last: float
    queued: int

    def lasts(self, queued: int, now: float) -> bool:
        """Return whether there is still no room, and has been none for long."""
        return queued == self.queued and self.since + _WAITED <= now <= self.last + _TOGETHER


class Watch:
    """An `OperatorWatch` with a judge."""

    def __init__(self, watch: OperatorWatch, alarms: Alarms) -> None:
        self._watch = watch
        self._alarms = alarms

    def look(self, now: float) -> None:
        """Look as usual, and judge what is told."""
        self._alarms.look(self._watch, now)

    def close(self, now: float) -> None:
        """End as usual; nothing is judged any more."""
        self._alarms.over = True
        self._watch.close(now)

    def no_room(self, now: float) -> None:
        """Note as usual that a call found no room."""
        self._alarms.refused(now)
        self._watch.no_room(now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watch, name)


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
        self.told = now >= self._since + self.rule.lasts
        return self.told

    def ceased(self, now: float) -> None:
        """Note that it does not hold."""
        self._since = None
        if not self.told:
            return
        if self._over_since is None:
            self._over_since = now
        self.told = now < self._over_since + self.rule.over


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
        self._streak = _Streak(0.0, -math.inf, 0)
        self.over = False
        """Whether the producer closes."""
        self.looks = 0
        """How often the producer has looked."""
        # The lines that have begun, and not ended.
        self._begun: set[LogLine] = set()

    def look(self, watch: OperatorWatch, now: float) -> None:
        """Let the producer look, and judge what it tells."""
        self.looks += 1
        due = self._due(now)
        outcomes = self._core.outcomes
        before = len(outcomes._events)
        watch.look(now)
        levels: dict[LogLine, int | None] = {}
        for event in [*outcomes._events][before:]:
            if event.phase is Phase.BEGINS:
                levels[event.line] = event.level
                self._begun.add(event.line)
            elif event.phase is Phase.ENDS:
                self._begun.discard(event.line)
        self._compare(due, levels, now)

    def refused(self, now: float) -> None:
        """Note that a call found no room in the buffer, and does not wait for it."""
        queued = self._queued()
        if queued != self._streak.queued or now > self._streak.last + _TOGETHER:
            self._streak = _Streak(now, now, queued)
        self._streak = self._streak._replace(last=now)

    def _queued(self) -> int:
        return int(self._core.outcomes.settled + self._core.unsettled)

    def _due(self, now: float) -> dict[LogLine, int]:
        """Note what holds now; return the lines that are to begin, with their levels."""
        found = self._found(now)
        due: dict[LogLine, int] = {}
        for line, alarm in self._alarms.items():
            if line not in found:
                alarm.ceased(now)
            elif alarm.holds(found[line], now):
                told = {each for each, other in self._alarms.items() if other.told} - {line}
                explained = told & {*alarm.rule.because}
                due[line] = logging.INFO if explained else line.level
        return due

    def _compare(
        self, due: Mapping[LogLine, int], levels: Mapping[LogLine, int | None], now: float
    ) -> None:
        """Compare what holds with what was told, and with the levels of the lines that begin."""
        if self.over or _L.AUTHENTICATION in self._begun:
            return  # brokers that refuse this client are none of the simulation's faults
        told = {line for line, alarm in self._alarms.items() if alarm.told}
        for line in self._begun - told:
            self._complain(f"at {now:.3f} {line.value} goes on")
        for line in told - self._begun:
            self._complain(f"at {now:.3f} {line.value} is not told")
        for line, level in due.items():
            if levels.get(line, level) != level:
                self._complain(f"{line.value} is told at level {levels[line]}, not {level}")

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
            if state in core._partitions.retired:
                continue  # no record waits in a topic that was deleted, only answers may
            if state.queue.records or state.batches.unresolved or state.batches.outstanding:
                self._find(state, found)
        head = next((each for each in core.budget._waiters if not each.abandoned), None)
        if head is not self._first[0]:
            self._first = head, now
        streak = self._streak
        if head is not None and now >= self._first[1] + _WAITED:
            found[_L.BUFFER_FULL] = [self._first[1]]
        elif streak.lasts(self._queued(), now):
            found[_L.BUFFER_FULL] = [streak.since]
        since: dict[LogLine, float | None] = {line: min(times) for line, times in found.items()}
        if any(link.throttle_at(now) for link in ready):
            since[_L.THROTTLED] = None
        return since

    def _find(self, state: Any, found: dict[LogLine, list[float]]) -> None:
        """Add what holds for a partition with records that wait."""
        view = self._core.cluster.leader_of(state.topic, state.partition)
        leader = -1 if view is None else view.leader_id
        trouble = state.setbacks.trouble
        if leader == -1 and trouble is not None and trouble.leaderless_since is not None:
            found.setdefault(_L.LEADER_MISSING, []).append(trouble.leaderless_since)
        if (
            leader == -1
            and _L.LEADER_UNREACHABLE in self._begun
            and state.leadership.route is not None
        ):
            leader = state.leadership.route.leader_id
        # The number -1 means no leader here, and among the nodes the first bootstrap server.
        node = None if leader == -1 else self._core.connections.nodes.get(leader)
        if node is not None and node.down_since is not None:
            found.setdefault(_L.LEADER_UNREACHABLE, []).append(node.down_since)
        doubts = [
            b.doubted_at
            for b in state.batches.unresolved
            if b.in_doubt and b.doubted_at is not None
        ]
        if doubts:
            found.setdefault(_L.IN_DOUBT, []).append(min(doubts))
