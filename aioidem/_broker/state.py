"""The cluster without a socket: brokers, topics, connections, time as an argument.

This is a discrete-event machine. Requests go in with `ClusterState.submit`, time goes in with
`ClusterState.advance`, and what is due for the clients comes out of `advance` as `Delivery` objects
in order; `next_due` says when to call again. There is no event loop, no clock and no
randomness but the seed: the same calls give the same deliveries.

Times: ``now`` is in seconds on any monotonic scale, ``wall_ms`` is the brokers' wall clock in
milliseconds since the epoch. An event is carried out at its own due time, however late `advance`
is called, so a slow caller distorts no delay.

Invariants
    Per connection: one request is being served at a time, and answers leave in request order.
    A request that was read is served even if its connection is gone (until its broker stops).
    The producer expiry check happens at its own times, before any event that is later.

Memory, because this is for tests and demos: a log holds what was produced until ``retention.bytes``
(256 MiB per partition unless set), all in RAM and once for all replicas; producer state is bounded
by expiry only; a connection's queue by what its client sends without waiting.

Rejected
    Tasks and sleeps per request: 100,000 seeded schedules on a virtual clock need no scheduler.
    Expiry as an event of its own: the machine would never be idle.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker import dispatch
from aioidem._broker.batch import RefusedError
from aioidem._broker.configs import DEFAULT_RETAIN
from aioidem._broker.entities import Entity
from aioidem._broker.group_coordinator import GroupCoordinator
from aioidem._broker.group_rebalance import Rebalances
from aioidem._broker.intercept import (
    Action,
    AfterAppend,
    BatchSeen,
    CloseConnection,
    Delay,
    Drop,
    Interceptor,
    Refuse,
    RequestSeen,
    Respond,
    RespondRaw,
    Rewrite,
)
from aioidem._broker.link import Link
from aioidem._broker.partition import Partition, Topic
from aioidem._broker.requests import (
    Connection,
    Context,
    Delayed,
    Delivery,
    Later,
    Never,
    Now,
    Override,
    Pending,
    ProduceItem,
    Promised,
)
from aioidem._broker.security import BrokerSecurity, SaslSession
from aioidem._broker.spans import Verdict
from aioidem._broker.topology import FIRST_RETAINING_VERSION, Broker, Topology
from aioidem._broker.transaction_coordinator import TransactionCoordinator
from aioidem._broker.verdicts import verdicts
from aioidem._protocol.frames import frame as framed
from aioidem._protocol.messages import encode_response

__all__ = ["ClusterState"]

_PRODUCE: Final = 0


class ClusterState(Topology):
    """All brokers of one cluster and everything they remember.

    :param brokers: how many; their ids are 0, 1, ...
    :param retain: ``log.producer.state.batches.to.retain``, of all brokers or by broker id.
    :param produce_versions: highest Produce version, of all brokers or by broker id; 14 and up
        means the broker implements KIP-1269.
    :param security: how clients get in; None: nothing is asked of them.
    :param sequence_range: brokers of KIP-758 with that range, which keep one batch and speak
        Produce v13 at most; None: brokers that know a retry by their last batches.
    :param transaction_version: level of the feature of that name: 2 (KIP-890), or 0 or 1 before.
    :param configs: further cluster-wide broker configs.
    :param seed: of cluster id and topic ids.
    :param encode: deliveries carry answers as bytes, made when the answer is and not when it is
        due; always so on a link with a bandwidth, which must know their size.
    :raises RefusedError: INVALID_CONFIG for a config value no broker would start with.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        retain: int | Mapping[int, int] = DEFAULT_RETAIN,
        produce_versions: int | Mapping[int, int] = FIRST_RETAINING_VERSION,
        configs: Mapping[str, str] | None = None,
        rtt: float = 0.0,
        bandwidth: float | None = None,
        seed: int = 0,
        encode: bool = False,
        sequence_range: int | None = None,
        security: BrokerSecurity | None = None,
        transaction_version: int = 2,
    ) -> None:
        super().__init__(
            brokers=brokers,
            retain=retain,
            produce_versions=produce_versions,
            configs=configs,
            seed=seed,
            sequence_range=sequence_range,
        )
        self.rtt = rtt
        self.bandwidth = bandwidth
        self.security = security
        self.interceptor: Interceptor | None = None
        self._encode = encode
        self._connections: dict[int, Connection] = {}
        self._connection_ids = count(1)
        self._events: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._order = count()
        self._deliveries: list[Delivery] = []
        self._now = 0.0
        self._wall_offset_ms = 0.0
        self._next_check: float | None = None
        self.transactions = TransactionCoordinator(self, transaction_version)
        self.groups = GroupCoordinator(self)
        self.rebalances = Rebalances(self)

    # -- time and traffic ------------------------------------------------------------------------

    def connect(self, broker_id: int) -> Connection:
        """A client opened a connection to that broker.

        Raises ConnectionRefusedError while it is stopped.
        """
        if not self.brokers[broker_id].online:
            raise ConnectionRefusedError(f"broker {broker_id} is stopped")
        link, security = Link(self.rtt, self.bandwidth), self.security
        sasl = SaslSession(security) if security is not None and security.mechanisms else None
        connection = Connection(next(self._connection_ids), broker_id, link, sasl)
        self._connections[connection.id] = connection
        return connection

    def submit(
        self,
        connection: Connection,
        request: Entity,
        *,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        now: float,
        wall_ms: int,
        size: int = 0,
    ) -> None:
        """A request came off the socket at ``now``; it reaches the broker after the link's delay.

        ``size`` is its bytes, for links with a bandwidth. Answers come out of `advance`.
        """
        self._set_clock(now, wall_ms)
        items: tuple[ProduceItem, ...] = ()
        if api_key == _PRODUCE:
            items = self._produce_items(request, api_version)
            if request.acks != 0:
                _note_read(items)
        pending = Pending(
            connection, api_key, api_version, correlation_id, client_id, request, items
        )
        self._schedule(connection.link.up.due(now, size), self._arrive, pending)

    def disconnect(self, connection: Connection) -> None:
        """The client closed it. What was read of it is still served; its answers go nowhere."""
        connection.closed = True
        self._forget_if_done(connection)

    def advance(self, now: float, wall_ms: int) -> list[Delivery]:
        """Carry out everything that is due at ``now``; returns what goes to clients, in order."""
        self._set_clock(now, wall_ms)
        events = self._events
        while events and events[0][0] <= now:
            due, _, act, argument = heapq.heappop(events)
            if due > self._now:
                self._now = due
            self._expire_producers(self._now)
            act(self._now, argument)
        self._now = now
        self._expire_producers(now)
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def next_due(self) -> float | None:
        """When `advance` has something to do next; None: nothing until something is submitted."""
        return self._events[0][0] if self._events else None

    def undelivered(self, delivery: Delivery) -> None:
        """Its bytes could not be written: its batches have had no answer after all."""
        if delivery.pending is not None:
            _note_read(delivery.pending.items)
            _note_unanswered(delivery.pending)

    @property
    def now(self) -> float:
        """The instant being carried out, seconds."""
        return self._now

    def later(self, seconds: float, act: Callable[[float], None]) -> None:
        """Call ``act(now)`` in so many seconds."""
        self.at(self._now + seconds, act)

    def at(self, due: float, act: Callable[[float], None]) -> None:
        """Call ``act(now)`` then."""
        self._schedule(due, lambda now, _nothing: act(now), None)

    @property
    def connections(self) -> list[Connection]:
        """The open ones, and the closed ones whose requests are not all served."""
        return list(self._connections.values())

    def wall_ms(self, broker: Broker) -> int:
        """That broker's clock at the instant being carried out."""
        return int(self._now * 1000 + self._wall_offset_ms) + broker.clock_offset_ms

    # -- topology (at the instant of the last `advance`) ----------------------------------------

    def delete_topic(self, topic: Topic) -> None:
        """Forget it; parked requests for it are answered UNKNOWN_TOPIC_OR_PARTITION."""
        del self.topics[topic.name]
        del self.topics_by_id[topic.id]
        self.groups.forget_topic(topic.name)
        for partition in topic.partitions:
            partition.deleted = True
            self.wake(partition)

    def move_leader(self, partition: Partition, broker_id: int) -> None:
        """Make that broker the leader: an election if it has a replica, else a reassignment.

        Requests parked at the old leader are answered NOT_LEADER_OR_FOLLOWER, base offset kept.
        Raises `RefusedError` if that broker does not run.
        """
        broker = self.brokers.get(broker_id)
        if broker is None or not broker.online:
            raise RefusedError(
                ErrorCode.preferred_leader_not_available, f"broker {broker_id} does not run"
            )
        if broker_id == partition.leader:
            return
        if broker_id in partition.replicas:
            partition.elect(broker_id)
        else:
            partition.reassign(broker_id)
        self.wake(partition)

    def stop_broker(self, broker_id: int, *, clean: bool) -> None:
        """Stop it. Its connections end, queued requests are lost, leadership moves if it can.

        ``clean`` leaves a snapshot, with one remembered batch per producer, and hands leadership
        over before the connections go.
        """
        broker = self.brokers[broker_id]
        coordinated = [g for g in self.groups.all() if self.coordinator_of(g.name) is broker]
        broker.online = False
        for partition in self.partitions():
            partition.broker_stopped(broker_id)
            for waiting in list(partition.waiting):
                self._retry(self._now, waiting) if clean else None
            replica = partition.replicas.get(broker_id)
            if replica is not None and clean:
                replica.pass_through_snapshot()
        for connection in self._connections_of(broker_id):
            self._break(connection)
        for partition in self.partitions():
            self.wake(partition)
        for group in coordinated:
            self.rebalances.move(group)

    def move_coordinator(self, key: str, broker_id: int) -> None:
        """Let that broker coordinate a transactional id or a group from now on."""
        before = self.coordinator_of(key)
        self.coordinators[key] = broker_id
        group = self.groups.find(key)
        if group is not None and self.coordinator_of(key) is not before:
            self.rebalances.move(group)

    def start_broker(self, broker_id: int, *, clean: bool) -> None:
        """Start it again; ``clean`` is how it was stopped.

        After a crash the log is replayed, and then, as on Kafka (measured on 4.3.1 and 3.9.1), the
        outcome goes through a snapshot, too.
        """
        broker = self.brokers[broker_id]
        broker.online = True
        for partition in self.partitions():
            replica = partition.replicas.get(broker_id)
            if replica is not None:
                if not clean:
                    retain = self._retain(broker_id, partition.topic)
                    replica.producers.recover(replica.log.batches, retain)
                    replica.pass_through_snapshot()
                # Expired ones are left out of a snapshot when it is loaded, not when it is written.
                replica.producers.expire(self.wall_ms(broker), self._expiration_ms(broker))
            partition.broker_started(broker_id)
            self.wake(partition)

    def wake(self, partition: Partition) -> None:
        """Something about it changed: try what is parked there again."""
        for waiting in partition.waiting:
            self._schedule(self._now, self._retry, waiting)
        if self.transactions.waits_for_partitions:
            self.later(0.0, lambda _now: self.transactions.write_markers())

    # -- serving ----------------------------------------------------------------------------------

    def _arrive(self, now: float, pending: Pending) -> None:
        connection = pending.connection
        if connection.doomed:
            _note_unanswered(pending)
            return
        connection.inbox.append(pending)
        if not connection.serving:
            self._serve_next(now, connection)

    def _serve_next(self, now: float, connection: Connection) -> None:
        connection.serving = False
        if connection.doomed:
            self._discard_queue(connection)
        if not connection.inbox:
            self._forget_if_done(connection)
            return
        connection.serving = True
        pending = connection.inbox.popleft()
        action = self._intercepted(now, pending)
        if action is None:
            self._serve(now, pending)
        else:
            self._obey(now, pending, action)

    def _intercepted(self, now: float, pending: Pending) -> Action | None:
        if self.interceptor is None or pending.intercepted:
            return None
        pending.intercepted = True
        return self.interceptor(_seen(now, pending))

    def _obey(self, now: float, pending: Pending, action: Action) -> None:
        connection = pending.connection
        match action:
            case Delay(seconds, then):
                self._schedule(now + seconds, self._resume, (pending, then))
            case Drop(processed, silent):
                connection.silent = connection.silent or silent
                if processed:
                    pending.rewrite = _no_answer
                    self._serve(now, pending)
                    return
                if silent:
                    connection.doomed = True
                self._unanswered(now, pending)
            case CloseConnection(processed):
                if processed:
                    pending.rewrite = _no_answer
                    self._serve(now, pending)
                else:
                    _note_unanswered(pending)
                self._break(connection)
            case Respond(response):
                self._answer(now, pending, response)
            case RespondRaw(payload):
                self._send(now, pending, None, framed(payload))
            case Rewrite(change):
                pending.rewrite = change
                self._serve(now, pending)
            case Refuse(code, only):
                pending.forced = Override(code, only)
                self._serve(now, pending)
            case AfterAppend(code, only):
                pending.afterwards = Override(code, only)
                self._serve(now, pending)

    def _resume(self, now: float, held: tuple[Pending, Action | None]) -> None:
        pending, action = held
        if pending.connection.doomed:
            _note_unanswered(pending)
        elif action is None:
            self._serve(now, pending)
        else:
            self._obey(now, pending, action)

    def _serve(self, now: float, pending: Pending) -> None:
        sasl = pending.connection.sasl
        if sasl is not None and not sasl.admits(pending.api_key, now):
            _note_unanswered(pending)
            self._break(pending.connection)
            return
        broker = self.brokers[pending.connection.broker_id]
        handle = dispatch.handler(pending.api_key)
        reply = handle(self, broker, pending.request, Context(pending, now, self.wall_ms(broker)))
        match reply:
            case Now(response, close):
                self._answer(now, pending, response)
                if close:
                    self._break(pending.connection)
            case Later(delayed):
                self._park(pending, delayed)
            case Never(close):
                self._unanswered(now, pending)
                if close:
                    self._break(pending.connection)
            case Promised():
                reply.when_kept(lambda response: self._keep(pending, response))

    def _keep(self, pending: Pending, response: Entity) -> None:
        if not pending.connection.doomed:
            self._answer(self._now, pending, response)

    def _park(self, pending: Pending, delayed: Delayed) -> None:
        delayed.pending = pending
        for partition in delayed.partitions:
            partition.waiting.append(delayed)
        self._schedule(delayed.deadline, self._give_up, delayed)

    def _retry(self, now: float, delayed: Delayed) -> None:
        if delayed.pending is not None:
            response = delayed.attempt(self)
            if response is not None:
                self._unpark(now, delayed, response)

    def _give_up(self, now: float, delayed: Delayed) -> None:
        if delayed.pending is not None:
            self._unpark(now, delayed, delayed.expire(self))

    def _unpark(self, now: float, delayed: Delayed, response: Entity) -> None:
        pending = delayed.pending
        delayed.pending = None
        for partition in delayed.partitions:
            partition.waiting.remove(delayed)
        if pending is not None:
            self._answer(now, pending, response)

    def _answer(self, now: float, pending: Pending, response: Entity) -> None:
        if pending.rewrite is not None:
            response = pending.rewrite(response)
        if response is None:
            self._unanswered(now, pending)
            return
        frame = None
        if self._encode or pending.connection.link.down.bandwidth is not None:
            frame = encode_response(response, pending.correlation_id)
        self._send(now, pending, response, frame)

    def _send(
        self, now: float, pending: Pending, response: Entity | None, frame: bytes | None
    ) -> None:
        connection = pending.connection
        size = 0 if frame is None else len(frame)
        due = connection.link.down.due(now, size)
        delivery = Delivery(connection, due, pending=pending, response=response, frame=frame)
        self._schedule(due, self._deliver, delivery)
        self._served(now, pending)

    def _served(self, now: float, pending: Pending) -> None:
        connection = pending.connection
        mute = self.brokers[connection.broker_id].throttle if pending.api_key == _PRODUCE else 0.0
        # ``serving`` stays set until that event: whatever arrives meanwhile queues behind.
        self._schedule(now + mute, self._serve_next, connection)

    def _unanswered(self, now: float, pending: Pending) -> None:
        _note_unanswered(pending)
        self._served(now, pending)

    def _deliver(self, _now: float, delivery: Delivery) -> None:
        connection, pending = delivery.connection, delivery.pending
        if connection.closed or (connection.silent and not delivery.close):
            if pending is not None:
                _note_unanswered(pending)
            return
        if pending is not None and pending.items and delivery.response is not None:
            for item, verdict in verdicts(pending.items, delivery.response):
                _note_answer(item, verdict)
        self._deliveries.append(delivery)

    def _break(self, connection: Connection) -> None:
        """End a connection from the broker's side: what it has not served is lost."""
        connection.doomed = True
        self._discard_queue(connection)
        due = connection.link.down.due(self._now, 0)
        self._schedule(due, self._deliver, Delivery(connection, due, close=True))
        for partition in self.partitions():
            for delayed in list(partition.waiting):
                if delayed.pending is not None and delayed.pending.connection is connection:
                    _note_unanswered(delayed.pending)
                    delayed.pending = None
            partition.waiting = [d for d in partition.waiting if d.pending is not None]
        self._connections.pop(connection.id, None)

    @staticmethod
    def _discard_queue(connection: Connection) -> None:
        while connection.inbox:
            _note_unanswered(connection.inbox.popleft())

    def _forget_if_done(self, connection: Connection) -> None:
        if connection.closed and not connection.serving and not connection.inbox:
            self._connections.pop(connection.id, None)

    # -- helpers ----------------------------------------------------------------------------------

    def _schedule(self, due: float, act: Callable[[float, Any], None], argument: Any) -> None:
        heapq.heappush(self._events, (due, next(self._order), act, argument))

    def _set_clock(self, now: float, wall_ms: int) -> None:
        self._wall_offset_ms = wall_ms - now * 1000
        if self._next_check is None:
            self._next_check = now + self._check_interval()

    def _check_interval(self) -> float:
        return int(self.broker_config(None, "producer.id.expiration.check.interval.ms")) / 1000

    def _expiration_ms(self, broker: Broker) -> int:
        return int(self.broker_config(broker, "producer.id.expiration.ms"))

    def _expire_producers(self, now: float) -> None:
        if self._next_check is None or now < self._next_check:
            return
        interval = self._check_interval()
        missed = int((now - self._next_check) / interval)
        at = self._next_check + missed * interval
        self._next_check = at + interval
        at_ms = int(at * 1000 + self._wall_offset_ms)
        for partition in self.partitions():
            for broker_id, replica in partition.replicas.items():
                broker = self.brokers[broker_id]
                if broker.online:
                    clock = at_ms + broker.clock_offset_ms
                    replica.producers.expire(clock, self._expiration_ms(broker))

    def _connections_of(self, broker_id: int) -> list[Connection]:
        return [c for c in self._connections.values() if c.broker_id == broker_id]

    def _produce_items(self, request: Entity, version: int) -> tuple[ProduceItem, ...]:
        items = []
        for wanted in request.topic_data:
            if version >= 13:
                name, topic_id = None, wanted.topic_id
                topic = self.topics_by_id.get(topic_id)
                name = topic.name if topic is not None else None
            else:
                name, topic_id = wanted.name, None
                topic = self.topics.get(name)
            for part in wanted.partition_data:
                partition = topic.partition(part.index) if topic is not None else None
                items.append(ProduceItem(name, topic_id, part.index, part.records, partition))
        return tuple(items)


def _no_answer(_response: Entity) -> Entity:
    return None


def _note_read(items: tuple[ProduceItem, ...]) -> None:
    for item in items:
        identity = item.identity
        if item.partition is not None and identity is not None:
            item.partition.spans.read(*identity)


def _note_answer(item: ProduceItem, verdict: Verdict) -> None:
    identity = item.identity
    if item.partition is not None and identity is not None:
        item.partition.spans.answered(*identity, verdict)


def _note_unanswered(pending: Pending) -> None:
    for item in pending.items:
        _note_answer(item, Verdict.UNSURE)


def _seen(now: float, pending: Pending) -> RequestSeen:
    return RequestSeen(
        broker_id=pending.connection.broker_id,
        connection_id=pending.connection.id,
        api_key=pending.api_key,
        api_version=pending.api_version,
        correlation_id=pending.correlation_id,
        client_id=pending.client_id,
        request=pending.request,
        now=now,
        batches=tuple(_batch_seen(item) for item in pending.items),
    )


def _batch_seen(item: ProduceItem) -> BatchSeen:
    header = item.header
    return BatchSeen(
        topic=item.topic,
        topic_id=item.topic_id,
        partition=item.index,
        producer_id=header.producer_id if header else -1,
        producer_epoch=header.producer_epoch if header else -1,
        base_sequence=header.base_sequence if header else -1,
        count=header.record_count if header else 0,
        size=len(item.data) if item.data is not None else 0,
    )
