"""The drill of Produce requests: which batches go into which request, and what answers change.

A run fills few requests to their limits. Here partitions of several topics share connections that
take one or a few requests, requests have room for a few batches, and leaders, connections and
versions change in between. The requests that are due follow from the rules: who waits longest is
first, a batch that waits to be resent goes before a new one, and whoever was served comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem._engine.links import Link, LinkState
from aioidem._engine.partition import PartitionState
from aioidem._engine.requests import Entry, RequestKind
from aioidem._engine.route import Route
from aioidem._engine.steps import OpenLink, SendProduce, TopicData

from .comparing import unequal
from .engine_parts import act
from .produce_bench import IDS, Row
from .produce_turns import Sent, Turn
from .produced_answers import AnswerBench

__all__ = ["drill_produced"]

_STEPS: Final = 100
_USUAL: Final = 5
"""The window of a leader that names none."""


def drill_produced(dice: Random) -> Iterator[str]:
    """Yield what is wrong with Produce requests, or with what their answers change."""
    yield from _ProduceDrill(dice).run()


class _ProduceDrill(AnswerBench):
    """Produce requests that are sent, answered and lost at random."""

    def run(self) -> Iterator[str]:
        """Let things happen at random, and yield what is wrong."""
        checked = [self._send] * 10 + [self._answer] * 9 + [self._lose, self._withdraw]
        events = [self._append] * 6 + [self._open] * 4 + [self._reply] * 3
        events += [self._lead, self._convict, self._throttle, self._recreate, self._disown]
        if self._part.refused:
            yield "produced: a refusal is told before any batch was sent"
        if self._dice.random() < 0.8:
            self._observed, self._first_list = True, self._part.observe()
        for _ in range(_STEPS):
            self._now += self._dice.choice((0.0, 0.0, 0.125, 0.25, 1.0))
            wrong = act(self._dice, checked, events) or self._difference()
            if wrong is not None:
                yield f"produced: {wrong}"
                return
        meters = self._parts.core.meters
        meters.fold(self._now)
        if meters.per_request.total != self._sent:
            yield f"produced: {meters.per_request.total} records are measured, not {self._sent}"

    # -- sending -----------------------------------------------------------------------------------

    def _send(self) -> str | None:
        """Send what is due, and compare the requests with those that follow from the rules."""
        parts = self._parts
        self._settle_down()
        self._order = [row for row in self._order if row.state.active]
        active = parts.partitions.active()
        if active != self._order_of_states():
            return f"partitions {active} have something to do, not {self._order_of_states()}"
        parts.metadata.wanted, lost = False, [row for row in self._order if self._is_lost(row)]
        turns, opens = [self._turn(row) for row in self._order], self._opens()
        busy = {link: len(link.outstanding) for link in self._links()}
        made = parts.poll()
        self._part.send(active, self._now)
        if parts.metadata.wanted is not bool(lost):
            names = [row.name for row in lost]
            return f"metadata is {'not ' * bool(lost)}wanted; partitions without a leader: {names}"
        opened = [step.host for step in made if type(step) is OpenLink]
        if opened != [f"b{each}" for each in opens]:
            return f"connections are opened to {opened}, not to brokers {opens}"
        for step in made:
            link = parts.connections.links[step[0]]  # all these steps begin with a connection's id
            asks = type(step) not in (SendProduce, OpenLink)
            busy[link] = busy.get(link, 0) + asks
        due = self._due(turns, busy)
        sent = [step for step in made if type(step) is SendProduce]
        told = [(step.link_id, [b.records[0] for _, b in self._entries(step)]) for step in sent]
        if told != [(link.link_id, [each.record for _, each in them]) for link, them in due]:
            return self._other_requests(sent, due)
        for step, (link, them) in zip(sent, due, strict=True):
            wrong = self._wrong_request(step, link, [turn.row for turn, _ in them])
            if wrong is not None:
                return wrong
        return self._wrong_rest(turns)

    def _order_of_states(self) -> list[PartitionState]:
        return [row.state for row in self._order]

    def _other_requests(
        self, sent: list[SendProduce], due: list[tuple[Link, list[tuple[Turn, Sent]]]]
    ) -> str:
        """Say which batches were sent, and which should have been, by connection and request."""
        told = [
            (step.link_id, [(state, batch.ordinal) for state, batch in self._entries(step)])
            for step in sent
        ]
        expected = [
            (link.link_id, [(turn.row.state, each.ordinal) for turn, each in them])
            for link, them in due
        ]
        return f"requests with (partition, ordinal of the batch) {told} are sent, not {expected}"

    def _turn(self, row: Row) -> Turn:
        """Return what a partition may send, and on which connection."""
        row.follows = False
        several = row.state.leadership.gate_open
        link = self._leader_link(row)
        several = several and not (row.follows and self._idempotent)
        return Turn(row, link, several=several, idempotent=self._idempotent)

    def _is_lost(self, row: Row) -> bool:
        """Return whether no leader, or no address of it, is known; note since when none leads."""
        leader, _ = self._leader(row)
        if leader >= 0:
            row.leaderless_since = None
        elif row.leaderless_since is None:
            row.leaderless_since = self._now
        return leader < 0 or leader not in self._parts.connections.nodes

    def _leader_link(self, row: Row) -> Link | None:
        """Return the connection to a partition's leader, if its batches may use it.

        A partition goes over to another connection only if nothing is outstanding on its old one,
        and only to a broker that has named its cluster.
        """
        leader, epoch = self._leader(row)
        node = self._parts.connections.nodes.get(leader)
        link = None if node is None or leader < 0 else node.link
        if link is None or link.state is not LinkState.READY or not link.identified:
            return None
        route, known = Route(link.link_id, leader, epoch), row.state.leadership.route
        if route == known:
            return link
        if row.state.batches.outstanding:
            return None
        row.said, row.follows = _USUAL, True
        return link

    def _opens(self) -> list[int]:
        """Return the leaders to which a connection should be opened."""
        nodes = self._parts.connections.nodes
        leaders = dict.fromkeys(self._leader(row)[0] for row in self._order)
        ready = [node for each in leaders if each >= 0 and (node := nodes.get(each)) is not None]
        return [node.node_id for node in ready if node.link is None and self._now >= node.retry_at]

    def _usable(self, row: Row, link: Link) -> bool:
        """Return whether a partition's batches need not wait for another answer first.

        They may wait for the size of batches that the broker accepts, for the Produce version that
        it speaks, and, with batches in doubt, for how long it remembers a producer.
        """
        memory = row.state.batches.in_doubt and self._parts.inquiries.awaits_memory(link)
        awaits = link.limits.of(row.topic).awaited() or link.discovery.holds_up()
        return not awaits and not memory

    def _due(
        self, turns: list[Turn], busy: dict[Link, int]
    ) -> list[tuple[Link, list[tuple[Turn, Sent]]]]:
        """Return the requests that are due, each with the partitions and batches that it carries.

        Args:
            turns: what each partition may send, in the order of their turn.
            busy: how many requests each connection carries already.
        """
        links: dict[Link, list[Turn]] = {}
        for turn in turns:
            if turn.link is not None and self._usable(turn.row, turn.link):
                links.setdefault(turn.link, []).append(turn)
        due: list[tuple[Link, list[tuple[Turn, Sent]]]] = []
        for link, waiting in links.items():
            free = self._most_requests - busy[link] if self._now >= link.throttled_until else 0
            for _ in range(free):
                chosen = self._fill(waiting)
                if not chosen:
                    break
                due.append((link, chosen))
                served = [turn for turn, _ in chosen]
                waiting[:] = [turn for turn in waiting if turn not in served] + served
        return due

    def _fill(self, turns: list[Turn]) -> list[tuple[Turn, Sent]]:
        """Return what the next request carries: at most one batch of each partition, by turn."""
        chosen: list[tuple[Turn, Sent]] = []
        room = self._request_size
        for turn in turns:
            row = turn.row
            if self._now < row.state.setbacks.retry_at or room < 1:
                continue
            sent = turn.take(room, alone=not chosen)
            if sent is not None:
                chosen.append((turn, sent))
                room -= sent.size
                self._order.remove(row)
                self._order.append(row)
                if sent.batch is None:
                    row.queue.popleft()
        return chosen

    # -- comparing ---------------------------------------------------------------------------------

    def _unasked(self, link: Link) -> bool:
        """Return whether a connection has room for the question about v14, which is not asked."""
        discovery = link.discovery
        return link.admits(self._now) and not discovery.speaks and discovery.due(self._now)

    def _entries(self, step: SendProduce) -> list[Entry]:
        link = self._parts.connections.links[step.link_id]
        return list(link.outstanding[step.token].entries.values())

    def _wrong_request(self, step: SendProduce, link: Link, rows: list[Row]) -> str | None:
        """Compare a request, and what is kept of it, with what it should be."""
        entries, request = self._entries(step), link.outstanding[step.token]
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for row, (_, batch) in zip(rows, entries, strict=True):
            topics.setdefault(row.topic, []).append((row.index, batch.data))
        # A topic without an id can be named only by a request of a version without ids.
        offered = 14 if link.discovery.speaks else link.plain_version
        version = min([offered, *(12 for topic in topics if IDS[topic] is None)])
        acks = {"acks=1": 1, "acks=0": 0}.get(self._kind, -1)
        data = [TopicData(topic, IDS[topic], parts) for topic, parts in topics.items()]
        due = (link.link_id, step.token, version, acks, 8000, None, data, len(rows))
        if tuple(step) != due:
            return f"{step}, not {due}"
        kept = (request.kind, request.sent_at, request.version, request.nbytes)
        nbytes = sum(len(batch.data) for _, batch in entries)
        if kept != (RequestKind.PRODUCE, self._now, version, nbytes):
            return f"a request is kept as {kept}, sent at {self._now} with {nbytes} bytes"
        names = {topic_id: topic for topic in topics if (topic_id := IDS[topic]) is not None}
        where = {row.name: row.state for row in rows}
        found = {name: state for name, (state, _) in request.entries.items()}
        if request.names != names or found != where:
            return f"a request is kept for {request.names} and {found}, not {names} and {where}"
        self._sent += len(rows)
        self._retried += sum(batch.attempts > 1 for _, batch in entries)
        self._expected_entries += entries
        return None

    def _wrong_rest(self, turns: list[Turn]) -> str | None:
        """Compare what else follows from sending: counts, observers, and what is held back."""
        counters = self._parts.outcomes.counters
        moved = any(turn.row.follows and not turn.row.state.untroubled() for turn in turns)
        expected, self._expected_entries = self._expected_entries, []
        first = None if self._first_list is None else [*self._first_list]
        rerouted = self._part.take_rerouted(), self._part.take_rerouted()
        pairs: dict[str, tuple[object, object]] = {
            "batches counted as sent": (counters.batches_sent, self._sent),
            "batches counted as sent again": (counters.batches_retried, self._retried),
            "a partition with something to resolve has another route": (rerouted, (moved, False)),
            "the observer's first list": (first, None if first is None else expected),
            "batches observed": (self._part.take_dispatched(), expected if self._observed else []),
        }
        self._first_list = None if expected else self._first_list
        for turn in turns:
            row, state, link = turn.row, turn.row.state, turn.link
            trouble, route = state.setbacks.trouble, state.leadership.route
            since = None if trouble is None else trouble.leaderless_since
            pairs[f"{state} is held back"] = state.queue.blocked, bool(row.queue)
            pairs[f"no broker leads {state} since"] = since, row.leaderless_since
            if link is not None:
                pairs[f"broker {link.node_id} is to be asked for v14"] = self._unasked(link), False
                used = None if route is None else route.link_id
                pairs[f"the connection of {state}"] = used, link.link_id
        return unequal(pairs)
