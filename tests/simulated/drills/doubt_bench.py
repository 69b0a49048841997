"""The bench of doubt: a few partitions with batches that are answered, refused or lost at random.

What happens to a batch here is done by the parts of its partition, as in an engine. Each partition
has a log, to which its leader may have appended what was sent. What the engine does about batches
in doubt is judged in `resolved`.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Final, Literal
from uuid import UUID

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.batch import Batch
from aioidem._engine.classify import Action, Disposition
from aioidem._engine.cluster import TopicView
from aioidem._engine.failed_attempts import Refusal
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.links import Link
from aioidem._engine.recovery import Rung
from aioidem._engine.route import Route
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.metadata import PartitionUpdate
from aioidem._protocol.produce import PartitionAnswer

from .doubt_rows import MODES, Lane, Stored, key_of
from .engine_parts import EngineParts, addresses, whole_batch

__all__ = ["PATIENCE", "RETRY", "DoubtBench"]

PATIENCE: Final = 16.0
"""The request timeout, in seconds."""
RETRY: Final = 0.25
"""The back-off after each failure, in seconds."""
_TOPIC: Final = "t"
_ID: Final = UUID(int=1)
_MOST: Final = 4
"""The most batches of a partition that have no outcome yet."""
_REFUSALS: Final = (
    Disposition(Action.RETRY, precedes_append=True, refresh_metadata=False),
    Disposition(Action.RETRY, precedes_append=True, refresh_metadata=False),
    Disposition(Action.RETRY, precedes_append=False, refresh_metadata=False),
    Disposition(Action.OUT_OF_ORDER, precedes_append=True, refresh_metadata=False),
    Disposition(Action.OUT_OF_ORDER, precedes_append=True, refresh_metadata=False),
)
"""What refusals mean; a batch in doubt gets none of the first two."""


@cache
def _config(in_doubt: Literal["fail", "resend"]) -> ProducerConfig:
    return ProducerConfig.build(
        "b0:9092",
        in_doubt=in_doubt,
        window_discovery="off",
        request_timeout=PATIENCE,
        delivery_timeout=4 * PATIENCE,
        retry_backoff=RETRY,
        retry_backoff_max=RETRY,
        max_in_flight_requests_per_connection=2,
    )


class DoubtBench:
    """Partitions of one producer, whose batches are sent, answered and lost."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._resend = dice.random() < 0.1
        self._parts = parts = EngineParts(
            _config("resend" if self._resend else "fail"), lambda: 0.5
        )
        parts.connections.learn(addresses(3))
        self._part = parts.doubt
        self._now = dice.choice((0.0, 4096.0))
        self._view = parts.cluster.topics[_TOPIC] = TopicView(_TOPIC, _ID)
        parts.grant(7, 1)
        self._lanes: list[Lane] = []
        for index in range(dice.choice((1, 2))):
            self._view.merge(PartitionUpdate(index, 0, 1))
            state = parts.partitions.state(_TOPIC, index)
            self._lanes.append(Lane(index, state))
        self._batches: dict[int, Batch] = {}
        """All batches ever made, by the `id` of their list of records."""
        self._stamp_ms = 1e9
        """The time of day at the time 0 of the engine's clock."""
        # See `MODES`.
        self._ages_ms, self._memories = dice.choice(MODES)

    def _begin_well(self) -> None:
        """Let a batch of most partitions be acknowledged, so that an end of its log is known."""
        self._connect()
        self._tell()
        for lane in self._lanes:
            if self._dice.random() < 0.9:
                self._send_of(lane)
            for batch in lane.flights:
                self._acknowledge(lane, batch)
            lane.flights.clear()

    def _some_lane(self) -> Lane:
        return self._dice.choice(self._lanes)

    def _link_of(self, lane: Lane) -> Link | None:
        """Return the connection that a partition uses, if it is open."""
        route = lane.state.leadership.route
        return None if route is None else self._parts.connections.links.get(route.link_id)

    # -- sending -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Open a connection to each leader, and let the partitions use them."""
        for lane in self._lanes:
            view = self._parts.cluster.leader_of(_TOPIC, lane.index)
            if view is None or view.leader_id < 0:
                continue
            leader, epoch = view.leader_id, view.leader_epoch
            self._parts.connect(leader, 13, self._now)
            link = self._parts.connections.nodes[leader].link
            if link is None:
                continue
            route, known = Route(link.link_id, leader, epoch), lane.state.leadership.route
            if lane.state.follow(route) and route != known:
                lane.end_reading()

    def _send(self) -> None:
        """Send a batch, if possible one of a partition that has none in flight."""
        idle = [lane for lane in self._lanes if not lane.flights]
        self._send_of(self._dice.choice(idle or self._lanes))

    def _send_of(self, lane: Lane) -> None:
        """Send what is to be resent, or else a new batch, if the partition may send one."""
        state, identity = lane.state, self._parts.identity.current
        if self._link_of(lane) is None or identity is None:
            return
        state.adopt(identity)
        batch = state.next_resend(self._now)
        waits = lane.reading is not None or self._now < state.setbacks.retry_at
        if batch is None and not waits and state.may_send_new():
            batch = self._new_batch(lane)
        if batch is None:
            return
        if batch.first_attempt is None:
            lane.known_when_sent[batch] = state.log.offset
        if state.recovery.rung is Rung.PROBING and lane.pass_began is None:
            lane.pass_began = self._now
        state.send(batch, self._now)
        lane.flights.append(batch)
        if self._dice.random() < 0.5:
            self._append(lane, batch)

    def _new_batch(self, lane: Lane) -> Batch | None:
        state, identity = lane.state, lane.state.ledger.identity
        if identity is None or len(state.batches.unresolved) >= _MOST:
            return None
        count = self._dice.choice((1, 2))
        stamp = self._stamp_ms + self._now * 1000.0 - self._dice.choice(self._ages_ms)
        base = state.ledger.take(count)
        batch = whole_batch(identity, state.batches.next_ordinal, base, count, int(stamp))
        state.enlist(batch)
        self._batches[id(batch.records)] = batch
        return batch

    def _append(self, lane: Lane, batch: Batch) -> int:
        """Append a batch to a log, unless it is there; return its offset."""
        key = key_of(batch)
        for each in lane.log:
            if each.identity == key:
                return each.base_offset
        begin = lane.tail + self._dice.choice((0, 0, 3))
        at_ms = self._dice.choice((-1, -1, 0, 77))
        lane.log.append(Stored(begin, begin + batch.count, bytes(batch.data), key, at_ms))
        if self._dice.random() < 0.2:  # a leader that forgot the producer takes it once more
            again = lane.log[-1]._replace(
                base_offset=lane.tail, next_offset=lane.tail + batch.count
            )
            lane.log.append(again)
        return begin

    def _append_other(self) -> None:
        """Append a batch of another client to a log."""
        lane = self._some_lane()
        base, tail = self._dice.choice((0, 1, 2)), lane.tail
        data = whole_batch(ProducerIdentity(8, 1), 0, base).data
        lane.log.append(Stored(tail, tail + 1, bytes(data), (8, 1, base), -1))

    def _trouble(self) -> None:
        """Send several batches of a partition: some are lost, and the others refused.

        The last one may be acknowledged after that.
        """
        lane = self._some_lane()
        if not lane.flights:
            self._send_of(lane)
            if len(lane.flights) == 1:
                self._acknowledge(lane, lane.flights.pop())
        for _ in range(3):
            self._send_of(lane)
        flights, lane.flights = lane.flights, []
        later = flights.pop() if len(flights) > 1 and self._dice.random() < 0.3 else None
        for batch in flights:
            stored = any(each.identity == key_of(batch) for each in lane.log)
            if stored or self._dice.random() < 0.6:
                lane.state.failures.on_lost(batch, written=True, now=self._now)
            else:
                refusal = Refusal(_REFUSALS[0], errors.KafkaError("refused"), {}, None)
                lane.state.failures.on_error(batch, refusal, self._now, self._parts.effects)
        if later is not None:
            self._acknowledge(lane, later)

    # -- answers -----------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Acknowledge or refuse a batch, or lose the request."""
        owing = [lane for lane in self._lanes if lane.flights]
        if not owing:
            return
        lane = self._dice.choice(owing)
        batch = lane.flights.pop(0)
        state, effects, dice = lane.state, self._parts.effects, self._dice
        way = dice.random()
        if way < 0.2:
            self._acknowledge(lane, batch)
        elif way < (0.35 if batch.in_doubt else 0.8):
            state.failures.on_lost(batch, written=dice.random() < 0.9, now=self._now)
        else:
            disposition = dice.choice(_REFUSALS[2 * batch.in_doubt :])
            refusal = Refusal(disposition, errors.KafkaError("refused"), {}, None)
            state.failures.on_error(batch, refusal, self._now, effects)

    def _acknowledge(self, lane: Lane, batch: Batch) -> None:
        answer = PartitionAnswer(_TOPIC, None, lane.index, 0, self._append(lane, batch))
        lane.state.acknowledgements.on_ack(
            batch, answer, self._now, current=True, out=self._parts.effects
        )

    def _lose(self) -> None:
        """Lose a connection, and the batches in flight on it."""
        links = list(self._parts.connections.links.values())
        if links:
            self._lose_link(self._dice.choice(links))

    def _lose_link(self, link: Link) -> None:
        for lane in self._lanes:
            if self._link_of(lane) is link:
                flights, lane.flights = lane.flights, []
                for batch in flights:
                    lane.state.failures.on_lost(batch, written=True, now=self._now)
                if lane.awaited is not None:
                    lane.end_reading()
        self._parts.lose(link, self._now)

    # -- what happens besides ----------------------------------------------------------------------

    def _lead(self) -> None:
        """Elect another leader, or the same in a new epoch, or leave a partition without one.

        Sometimes metadata has no such topic for a while.
        """
        topics = self._parts.cluster.topics
        if not topics:
            topics[_TOPIC] = self._view
        elif self._dice.random() < 0.3:
            topics.clear()
        owing = [lane for lane in self._lanes if lane.flights]
        lane = self._dice.choice(owing or self._lanes)
        leader = self._dice.choice((0, 0, 1, 2, -1))
        view = self._view.view(lane.index)
        if view is not None:
            new = leader >= 0 and self._dice.random() < 0.8
            self._view.lead(lane.index, leader, view.leader_epoch + new)

    def _expire(self) -> None:
        """Let the batches in doubt of a partition end, perhaps while its log is read."""
        state = self._some_lane().state
        for batch in [b for b in state.batches.unresolved if b.in_doubt and b.due]:
            state.endings.give_up(batch, errors.KafkaError("late"), self._parts.effects)

    def _tell(self) -> None:
        """Let a broker say how long it remembers producers."""
        seconds = self._dice.choice(self._memories)
        self._parts.inquiries.on_broker_config(self._dice.choice((0, 1)), BrokerFacts(seconds))

    def _disturb(self) -> None:
        """Let a connection be throttled, measured, or found unable to answer a question."""
        links = list(self._parts.connections.links.values())
        if not links:
            return
        link, what = self._dice.choice(links), self._dice.random()
        if what < 0.3:
            link.throttle(self._dice.choice((500, 40_000)), self._now)
        elif what < 0.7:
            link.rtt = self._dice.choice((None, 0.5, 1.0))
        elif what < 0.8:
            link.progress(self._now)
        elif what < 0.9:
            link.refuse_reading()
        else:
            link.note_producers(worth_asking=False)
