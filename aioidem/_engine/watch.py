"""OperatorWatch: looks at the engine once a second, and finds what an operator should know.

It looks at the state of the engine's parts, so that the parts themselves do nothing more per record
or per batch. `incidents` decides which lines are logged about what it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from operator import itemgetter

from aioidem import errors
from aioidem._engine.cluster import NO_LEADER, ClusterView
from aioidem._engine.connections import Connections
from aioidem._engine.incidents import Condition, Event, Incidents, Repeats
from aioidem._engine.links import Node
from aioidem._engine.memory import ByteBudget, MemoryWaiter
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.overdue import last_failure
from aioidem._engine.partition import PartitionState
from aioidem._engine.partitions import Partitions
from aioidem._engine.reach import reason_of
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._log import LogLine, Phase

__all__ = ["OperatorWatch"]

_INTERVAL = 1.0
"""Seconds between two looks."""

_SOON = 0.25
"""Seconds until the next look while something may become an incident."""

_STUCK = 1.0
"""Seconds for which the same caller must wait for room until the buffer counts as full."""

_STREAK = 2.0
"""Calls that do not wait for room belong together if no more seconds are between them."""

_REFUSALS = (errors.AuthenticationFailedError, errors.BrokerNotAllowedError)

_OVER = {
    LogLine.AUTHENTICATION: "no broker refuses this client any more",
    LogLine.NO_BROKER: "a broker can be reached again",
    LogLine.LEADER_MISSING: "no record waits for a missing leader any more",
    LogLine.LEADER_UNREACHABLE: "no record waits for an unreachable leader any more",
    LogLine.THROTTLED: "no broker throttles this client any more",
    LogLine.IN_DOUBT: "no batch is in doubt any more",
    LogLine.BUFFER_FULL: "the buffer has room again",
}


class _FullBuffer:
    """The calls that found no room and did not wait (`send_nowait`), since a record was queued."""

    __slots__ = ("_last", "_queued", "calls", "since")

    def __init__(self) -> None:
        self.calls = 0
        self.since = 0.0
        self._last = float("-inf")
        self._queued = 0

    def add(self, queued: int, now: float) -> None:
        """Note a call; `queued` is the number of records that were ever queued."""
        if queued != self._queued or now > self._last + _STREAK:
            self.calls, self.since, self._queued = 0, now, queued
        self.calls += 1
        self._last = now

    def lasts(self, queued: int, now: float) -> bool:
        """Return whether calls find no room now, and have found none for long enough."""
        return queued == self._queued and now <= self._last + _STREAK and now >= self.since + _STUCK


class OperatorWatch:
    """Finds conditions of one producer that an operator should know of, such as a missing leader.

    Args:
        cluster: has the leaders.
        connections: has the brokers and why they cannot be reached.
        partitions: has the batches in doubt.
        budget: has the callers that wait for room.
        outcomes: has the counts of records, and receives the lines for the log.
        accumulator: has the number of records without an outcome.

    Attributes:
        due_at: when `look` has something to do, in seconds.
        wakes_at: when the driver must call `look` at the latest; None if nothing waits.
    """

    __slots__ = (
        "_accumulator",
        "_before",
        "_budget",
        "_cluster",
        "_connections",
        "_full",
        "_head",
        "_head_since",
        "_incidents",
        "_outcomes",
        "_partitions",
        "_repeats",
        "_rests",
        "due_at",
        "wakes_at",
    )

    def __init__(
        self,
        cluster: ClusterView,
        connections: Connections,
        partitions: Partitions,
        budget: ByteBudget,
        outcomes: Outcomes,
        accumulator: RecordAccumulator,
    ) -> None:
        self._cluster = cluster
        self._connections = connections
        self._partitions = partitions
        self._budget = budget
        self._outcomes = outcomes
        self._accumulator = accumulator
        self._incidents = Incidents()
        self._repeats = Repeats()
        # For each incident that goes on: the counts of acknowledged, not written and unknown
        # records at its beginning.
        self._before: dict[LogLine, tuple[int, int, int]] = {}
        # The caller that has waited longest for room, and since when it is the one, in seconds.
        self._head: MemoryWaiter | None = None
        self._head_since = 0.0
        self._full = _FullBuffer()
        # Whether nothing waited at the last look: every record that waits now was queued since.
        self._rests = True
        self.due_at = 0.0
        self.wakes_at: float | None = None

    def hurry(self) -> None:
        """Have the next `look` at once, because a connection has ended."""
        self.due_at = 0.0

    def no_room(self, now: float) -> None:
        """Note that a call found no room in the buffer, and that it does not wait for it."""
        self._full.add(self._queued, now)

    @property
    def _queued(self) -> int:
        """How many records were ever queued."""
        return self._outcomes.settled + self._accumulator.unsettled

    def look(self, now: float) -> None:
        """Find what holds now, and give the lines that are due to `Outcomes`."""
        for event in self._incidents.see(self._conditions(now), now):
            self._outcomes.add_event(self._counted(event))
        for event in self._repeats.due(now):
            self._outcomes.add_event(event)
        waits = self._accumulator.unsettled or self._budget.waiting
        self._rests = not waits and self._incidents.quiet
        if self._rests:
            # The next turn looks again, so that it notices when records are queued.
            self.due_at = now
            self.wakes_at = self._repeats.due_at
            return
        self.due_at = self.wakes_at = now + (_SOON if self._incidents.suspects else _INTERVAL)

    def expected_at(self) -> float | None:
        """Return by when the driver was to run at the latest, in seconds; None if nothing waits.

        A record that is queued while nothing waits wakes the driver at once.
        """
        if not self._rests or not self._accumulator.unsettled:
            return self.wakes_at
        queued = self._accumulator.first_queued_at
        return queued if self.wakes_at is None else min(queued, self.wakes_at)

    def close(self, now: float) -> None:
        """Give the last lines to `Outcomes`, because the producer is closing.

        They are those of incidents that are over, and those that stand for events not logged yet.
        """
        self.look(now)
        for event in self._incidents.close():
            self._outcomes.add_event(self._counted(event))
        for event in self._repeats.end(now):
            self._outcomes.add_event(event)

    def take(self, now: float) -> list[Event]:
        """Take out the lines that are to be logged now; events that repeat too often are counted.

        Args:
            now: seconds.
        """
        events = map(self._incidents.explained, self._outcomes.take_events())
        told = [each for each in events if self._repeats.admit(each, now)]
        if self._rests:
            self.wakes_at = self._repeats.due_at
        return told

    def _counted(self, event: Event) -> Event:
        """Add to a line what became of the records since the incident began."""
        counters = self._outcomes.counters
        counts = (counters.records_acked, counters.records_not_written, counters.records_unknown)
        if event.phase is Phase.BEGINS:
            self._before[event.line] = counts
            return event
        before = self._before.get(event.line, counts)
        acked, not_written, unknown = (now - then for now, then in zip(counts, before, strict=True))
        fields = {**event.fields, "acked": acked, "not_written": not_written, "unknown": unknown}
        text = event.text
        if event.phase is Phase.ENDS:
            del self._before[event.line]
            text = f"{_OVER[event.line]}, after {event.fields['seconds']:.1f} s"
        return event._replace(
            text=f"{text}; records meanwhile: {acked} acknowledged, {not_written} not written, "
            f"{unknown} unknown",
            fields=fields,
        )

    # -- what holds now ----------------------------------------------------------------------------

    def _conditions(self, now: float) -> dict[LogLine, Condition]:
        found: dict[LogLine, Condition] = {}
        self._see_connections(found, now)
        self._see_partitions(found, now)
        self._see_buffer(found, now)
        return found

    def _see_connections(self, found: dict[LogLine, Condition], now: float) -> None:
        connections = self._connections
        down = {
            node.node_id: node for node in connections.nodes.values() if node.down_since is not None
        }
        reach = connections.reach
        needed = self._waited_for(down) if down else {}
        # While a broker is connected, those that nobody needs may not be tried again for long.
        tried = down if reach.since is not None else needed
        refused = [down[node] for node in tried if isinstance(down[node].last_error, _REFUSALS)]
        if refused:
            found[LogLine.AUTHENTICATION] = Condition(
                _since(refused), len(refused), partial(_refused_by, refused)
            )
        if reach.since is not None:
            found[LogLine.NO_BROKER] = Condition(
                reach.since, reach.attempts, lambda: _text(connections.unreachable(now))
            )
        if needed:
            self._see_leaders([down[node_id] for node_id in needed], needed, found, now)
        slowed = [link for link in connections.links.values() if link.throttle_at(now)]
        if slowed:
            nodes = [connections.nodes[link.node_id] for link in slowed]
            longest = max(link.throttle_at(now) for link in slowed)
            found[LogLine.THROTTLED] = Condition(
                None,
                len(slowed),
                lambda: (
                    f"{_named(nodes)} throttles this client (a quota): requests wait up to "
                    f"{longest:.1f} s"
                ),
            )

    def _waited_for(self, down: Mapping[int, Node]) -> dict[int, list[PartitionState]]:
        """Return the partitions with waiting records that each of these brokers leads, if any.

        If it was logged already that leaders cannot be reached, a broker still counts that led a
        partition when it was lost, until there is another leader: it is why there is none.
        """
        known = self._incidents.goes_on(LogLine.LEADER_UNREACHABLE)
        needed: dict[int, list[PartitionState]] = {}
        for state in self._partitions.busy:
            view = self._cluster.leader_of(state.topic, state.partition)
            leader = NO_LEADER if view is None else view.leader_id
            route = state.leadership.route
            if leader == NO_LEADER:
                # The first bootstrap address has this number, too, and leads nothing.
                if not known or route is None:
                    continue
                leader = route.leader_id
            if leader in down and state.active:
                needed.setdefault(leader, []).append(state)
        return needed

    def _see_leaders(
        self,
        nodes: list[Node],
        needed: Mapping[int, list[PartitionState]],
        found: dict[LogLine, Condition],
        now: float,
    ) -> None:
        """Note that brokers cannot be reached that lead partitions with waiting records."""
        led = [state for states in needed.values() for state in states]
        found[LogLine.LEADER_UNREACHABLE] = Condition(
            _since(nodes),
            len(led),
            lambda: (
                f"{_named(nodes)}, the last leader of {_several(led[0].where, len(led))} with "
                f"waiting records, cannot be reached for {now - _since(nodes):.1f} s and "
                f"{_many(nodes[0].backoff.failures, 'attempt')}: {_text(nodes[0].last_error)}"
            ),
        )

    def _see_partitions(self, found: dict[LogLine, Condition], now: float) -> None:
        leaderless: list[tuple[float, PartitionState]] = []
        doubtful: list[tuple[float, PartitionState]] = []
        for state in self._partitions.busy:
            trouble = state.setbacks.trouble
            if trouble is not None and trouble.leaderless_since is not None and state.active:
                view = self._cluster.leader_of(state.topic, state.partition)
                if view is None or view.leader_id == NO_LEADER:
                    leaderless.append((trouble.leaderless_since, state))
            since = state.batches.doubted_since
            if since is not None:
                doubtful.append((since, state))
        if leaderless:
            since, first = min(leaderless, key=itemgetter(0))
            more = len(leaderless)
            found[LogLine.LEADER_MISSING] = Condition(
                since,
                more,
                lambda: (
                    f"{_several(first.where, more)} with waiting records: "
                    f"{self._obstacle(first, now)}"
                    f"{last_failure(first.setbacks.trouble)}"
                ),
            )
        if doubtful:
            oldest, doubted = min(doubtful, key=itemgetter(0))
            batches = sum(state.batches.in_doubt for _, state in doubtful)
            many = len(doubtful)
            found[LogLine.IN_DOUBT] = Condition(
                oldest,
                batches,
                lambda: (
                    f"{_many(batches, 'batch', 'batches')} of {_several(doubted.where, many)} in "
                    f"doubt for {now - oldest:.1f} s: sent, and not known to be in the log; "
                    f"{self._obstacle(doubted, now)}"
                    f"{last_failure(doubted.setbacks.trouble)}"
                ),
            )

    def _obstacle(self, state: PartitionState, now: float) -> str:
        """Return what a partition's records wait for, in words."""
        return state.deadlines.obstacle(self._partitions.leader_status(state, now), now)

    def _see_buffer(self, found: dict[LogLine, Condition], now: float) -> None:
        head = self._budget.head
        if head is not self._head:
            self._head, self._head_since = head, now
        if head is not None and now >= self._head_since + _STUCK:
            waiting = self._budget.waiting
            found[LogLine.BUFFER_FULL] = Condition(
                self._head_since,
                waiting,
                lambda: (
                    f"{_many(waiting, 'caller')} of send {'waits' if waiting == 1 else 'wait'} for "
                    f"room, the first for {now - self._head_since:.1f} s: "
                    f"{self._budget.usage()}{self._because(now)}"
                ),
            )
        elif self._full.lasts(self._queued, now):
            calls, since = self._full.calls, self._full.since
            found[LogLine.BUFFER_FULL] = Condition(
                since,
                calls,
                lambda: (
                    f"send_nowait has found no room {_many(calls, 'time')} in {now - since:.1f} s: "
                    f"{self._budget.usage()}{self._because(now)}"
                ),
            )

    def _because(self, now: float) -> str:
        obstacle = self._partitions.obstacle(now)
        return "" if obstacle is None else f"; {obstacle.args[0]}"


def _since(nodes: Iterable[Node]) -> float:
    return min(node.down_since for node in nodes if node.down_since is not None)


def _text(error: Exception | None) -> str:
    return "the connection was closed" if error is None else reason_of(error)


def _named(nodes: list[Node]) -> str:
    """Name the first of some brokers, and how many others there are."""
    first = nodes[0]
    name = "a bootstrap server" if first.node_id < 0 else f"broker {first.node_id}"
    more = f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
    return f"{name} ({first.address}){more}"


def _refused_by(nodes: list[Node]) -> str:
    error = nodes[0].last_error
    if isinstance(error, errors.BrokerResponseError):
        return f"{_named(nodes)} refuses this client: {error}"
    return f"no session with {_named(nodes)}: {error}"


def _several(where: str, count: int) -> str:
    return where if count == 1 else f"{where} and {_many(count - 1, 'more partition')}"


def _many(count: int, one: str, more: str = "") -> str:
    return f"1 {one}" if count == 1 else f"{count} {more or one + 's'}"
