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

import base64
import heapq
import random
import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final
from uuid import UUID
from zlib import crc32

from kio.schema.errors import ErrorCode

from aioidem.broker import dispatch
from aioidem.broker.batch import RefusedError
from aioidem.broker.configs import (
    BROKER_CONFIGS,
    CLUSTER_RETAIN,
    DEFAULT_RETAIN,
    TOPIC_CONFIGS,
    TopicSettings,
    validate,
)
from aioidem.broker.entities import Entity
from aioidem.broker.intercept import (
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
from aioidem.broker.link import Link
from aioidem.broker.partition import Partition, Topic
from aioidem.broker.requests import (
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
)
from aioidem.broker.spans import Verdict
from aioidem.broker.verdicts import verdicts
from aioidem.protocol.frames import frame as framed
from aioidem.protocol.messages import encode_response

__all__ = ["FIRST_RETAINING_VERSION", "Broker", "ClusterState"]

FIRST_RETAINING_VERSION: Final = 14
"""Produce version from which on a broker implements KIP-1269."""

_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_PRODUCE: Final = 0
_PID_BLOCK: Final = 1000
_MAX_PARTITIONS: Final = 10_000


class Broker:
    """One broker: where it listens, what it speaks, whether it runs."""

    __slots__ = (
        "clock_offset_ms",
        "configs",
        "host",
        "id",
        "online",
        "pids",
        "port",
        "produce_version",
        "retain_default",
        "throttle",
    )

    def __init__(self, broker_id: int, produce_version: int) -> None:
        self.id = broker_id
        self.host = "127.0.0.1"
        self.port = 9092
        self.produce_version = produce_version
        self.online = True
        self.configs: dict[str, str] = {}
        self.retain_default = DEFAULT_RETAIN
        self.throttle = 0.0
        self.clock_offset_ms = 0
        self.pids = range(0)

    def __repr__(self) -> str:
        return f"<Broker {self.id} {self.host}:{self.port} produce<=v{self.produce_version}>"

    @property
    def retains(self) -> bool:
        """Whether it implements KIP-1269."""
        return self.produce_version >= FIRST_RETAINING_VERSION


class ClusterState:
    """All brokers of one cluster and everything they remember.

    :param brokers: how many; their ids are 0, 1, ...
    :param retain: ``log.producer.state.batches.to.retain``, of all brokers or by broker id.
    :param produce_versions: highest Produce version, of all brokers or by broker id; 14 and up
        means the broker implements KIP-1269.
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
    ) -> None:
        self._random = random.Random(seed)
        raw_id = self._random.getrandbits(128).to_bytes(16, "big")
        self.cluster_id = base64.urlsafe_b64encode(raw_id).decode().rstrip("=")
        self.brokers = {
            b: Broker(b, _per_broker(produce_versions, b, FIRST_RETAINING_VERSION))
            for b in range(brokers)
        }
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[UUID, Topic] = {}
        self.configs: dict[str, str] = dict(configs or {})
        self.group_offsets: dict[str, dict[tuple[str, int], tuple[int, int, str | None]]] = {}
        self.transactional_ids: dict[str, tuple[int, int]] = {}
        self.rtt = rtt
        self.bandwidth = bandwidth
        self.interceptor: Interceptor | None = None
        self._encode = encode
        self._next_pid_block = 0
        self._connections: dict[int, Connection] = {}
        self._connection_ids = count(1)
        self._events: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._order = count()
        self._deliveries: list[Delivery] = []
        self._now = 0.0
        self._wall_offset_ms = 0.0
        self._next_check: float | None = None
        validate(BROKER_CONFIGS, self.configs.items(), retains=True)
        for broker in self.brokers.values():
            wanted = str(_per_broker(retain, broker.id, DEFAULT_RETAIN))
            validate(BROKER_CONFIGS, [(CLUSTER_RETAIN, wanted)], retains=True)
            if wanted != str(DEFAULT_RETAIN):
                broker.configs[CLUSTER_RETAIN] = wanted
        self._reload_configs()

    # -- time and traffic ------------------------------------------------------------------------

    def connect(self, broker_id: int) -> Connection:
        """A client opened a connection to that broker.

        Raises ConnectionRefusedError while it is stopped.
        """
        if not self.brokers[broker_id].online:
            raise ConnectionRefusedError(f"broker {broker_id} is stopped")
        connection = Connection(
            next(self._connection_ids), broker_id, Link(self.rtt, self.bandwidth)
        )
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
    def connections(self) -> list[Connection]:
        """The open ones, and the closed ones whose requests are not all served."""
        return list(self._connections.values())

    def wall_ms(self, broker: Broker) -> int:
        """That broker's clock at the instant being carried out."""
        return int(self._now * 1000 + self._wall_offset_ms) + broker.clock_offset_ms

    # -- topology (at the instant of the last `advance`) ----------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication: int = -1,
        configs: Mapping[str, str | None] | None = None,
        assignments: Mapping[int, list[int]] | None = None,
        validate_only: bool = False,
        retains: bool = True,
    ) -> Topic:
        """Create a topic; -1 takes the cluster's default.

        Partition p's first replica is on the (p mod brokers)-th broker. ``retains``: whether the
        broker asked knows the configs of KIP-1269. Raises `RefusedError` with CreateTopics' answer.
        """
        self.check_topic_name(name)
        if name in self.topics:
            raise RefusedError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        overrides = dict(configs or {})
        validate(TOPIC_CONFIGS, overrides.items(), retains=retains)
        plan = self._place(partitions, replication, assignments)
        topic_id = UUID(int=self._random.getrandbits(128), version=4)
        values = {k: v for k, v in overrides.items() if v is not None}
        topic = Topic(name, topic_id, TopicSettings.of(values, self.configs))
        topic.overrides = values
        topic.partitions = [Partition(topic, i, b, self._retain) for i, b in enumerate(plan)]
        if not validate_only:
            self.topics[name] = topic
            self.topics_by_id[topic_id] = topic
        return topic

    def delete_topic(self, topic: Topic) -> None:
        """Forget it; parked requests for it are answered UNKNOWN_TOPIC_OR_PARTITION."""
        del self.topics[topic.name]
        del self.topics_by_id[topic.id]
        for partition in topic.partitions:
            partition.deleted = True
            self.wake(partition)

    def set_topic_configs(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Replace all of a topic's configs, which the caller has validated."""
        topic.overrides = dict(overrides)
        topic.settings = TopicSettings.of(topic.overrides, self.configs)

    def set_broker_configs(self, broker: Broker | None, configs: Mapping[str, str]) -> None:
        """Replace the configs of one broker, or (None) of the cluster; validated by the caller."""
        if broker is None:
            self.configs = dict(configs)
        else:
            broker.configs = dict(configs)
        self._reload_configs()

    def broker_config(self, broker: Broker | None, name: str) -> str:
        """What that broker, or one without configs of its own, goes by."""
        own = broker.configs.get(name) if broker is not None else None
        return own or self.configs.get(name) or BROKER_CONFIGS[name].default

    def move_leader(self, partition: Partition, broker_id: int) -> None:
        """Make that broker the leader: an election if it has a replica, else a reassignment.

        Requests parked at the old leader are answered NOT_LEADER_OR_FOLLOWER, base offset kept.
        """
        if broker_id == partition.leader:
            return
        if broker_id in partition.replicas:
            partition.elect(broker_id)
        else:
            partition.reassign(broker_id)
        self.wake(partition)

    def stop_broker(self, broker_id: int, *, clean: bool) -> None:
        """Stop it. Its connections end, queued requests are lost, leadership moves if it can.

        ``clean`` leaves a snapshot: one remembered batch per producer (and hands leadership over
        before the connections go); otherwise the log is replayed at the start and all is back.
        """
        broker = self.brokers[broker_id]
        broker.online = False
        for partition in self._partitions():
            partition.broker_stopped(broker_id)
            for waiting in list(partition.waiting):
                self._retry(self._now, waiting) if clean else None
            replica = partition.replicas.get(broker_id)
            if replica is not None and clean:
                replica.producers.through_snapshot(
                    self.wall_ms(broker), self._expiration_ms(broker)
                )
        for connection in self._connections_of(broker_id):
            self._break(connection)
        for partition in self._partitions():
            self.wake(partition)

    def start_broker(self, broker_id: int, *, clean: bool) -> None:
        """Start it again; ``clean`` is how it was stopped."""
        broker = self.brokers[broker_id]
        broker.online = True
        for partition in self._partitions():
            replica = partition.replicas.get(broker_id)
            if replica is not None and not clean:
                retain = self._retain(broker_id, partition.topic)
                replica.producers.rebuild(replica.log.batches, retain)
            partition.broker_started(broker_id)
            self.wake(partition)

    def allocate_producer_id(self, broker: Broker) -> int:
        """The next one of the broker's block of 1000; the controller hands blocks out in turn."""
        if not broker.pids:
            first = self._next_pid_block * _PID_BLOCK
            broker.pids = range(first, first + _PID_BLOCK)
            self._next_pid_block += 1
        taken = broker.pids[0]
        broker.pids = broker.pids[1:]
        return taken

    def coordinator_of(self, key: str) -> Broker | None:
        """The running broker that coordinates this group or transactional id."""
        running = self.running
        return running[crc32(key.encode()) % len(running)] if running else None

    @staticmethod
    def announced(broker: Broker) -> list[tuple[int, int, int]]:
        """(api key, first version, last version) of all that this broker says it speaks."""
        return dispatch.announced(broker)

    @staticmethod
    def serves(broker: Broker, api_key: int, version: int) -> bool:
        """Whether this broker answers that request; if not, it closes the connection."""
        return dispatch.served(broker, api_key, version)

    @property
    def running(self) -> list[Broker]:
        """Brokers that are up, by id."""
        return [b for b in self.brokers.values() if b.online]

    @staticmethod
    def check_topic_name(name: str) -> None:
        """Raise `RefusedError` INVALID_TOPIC_EXCEPTION for a name no topic may have."""
        if name in (".", "..") or not _TOPIC_NAME.match(name):
            raise RefusedError(
                ErrorCode.invalid_topic_exception, f"Topic name is illegal: {name!r}"
            )

    def wake(self, partition: Partition) -> None:
        """Something about it changed: try what is parked there again."""
        for waiting in partition.waiting:
            self._schedule(self._now, self._retry, waiting)

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
        broker = self.brokers[pending.connection.broker_id]
        handle = dispatch.handler(pending.api_key)
        reply = handle(self, broker, pending.request, Context(pending, now, self.wall_ms(broker)))
        match reply:
            case Now(response):
                self._answer(now, pending, response)
            case Later(delayed):
                self._park(pending, delayed)
            case Never(close):
                self._unanswered(now, pending)
                if close:
                    self._break(pending.connection)

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
        for partition in self._partitions():
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
        for partition in self._partitions():
            for broker_id, replica in partition.replicas.items():
                broker = self.brokers[broker_id]
                if broker.online:
                    clock = at_ms + broker.clock_offset_ms
                    replica.producers.expire(clock, self._expiration_ms(broker))

    def _partitions(self) -> list[Partition]:
        return [p for topic in self.topics.values() for p in topic.partitions]

    def _connections_of(self, broker_id: int) -> list[Connection]:
        return [c for c in self._connections.values() if c.broker_id == broker_id]

    def _retain(self, broker_id: int, topic: Topic) -> int:
        broker = self.brokers[broker_id]
        if not broker.retains:
            return DEFAULT_RETAIN
        return topic.settings.retain or broker.retain_default

    def _reload_configs(self) -> None:
        for broker in self.brokers.values():
            broker.retain_default = int(self.broker_config(broker, CLUSTER_RETAIN))
        for topic in self.topics.values():
            topic.settings = TopicSettings.of(topic.overrides, self.configs)

    def _place(
        self, partitions: int, replication: int, assignments: Mapping[int, list[int]] | None
    ) -> list[list[int]]:
        if assignments:
            return self._placed_by_hand(assignments)
        if partitions == -1:
            partitions = int(self.broker_config(None, "num.partitions"))
        if replication == -1:
            replication = int(self.broker_config(None, "default.replication.factor"))
        if partitions < 1:
            raise RefusedError(
                ErrorCode.invalid_partitions, "Number of partitions must be larger than 0."
            )
        if partitions > _MAX_PARTITIONS:
            raise RefusedError(
                ErrorCode.policy_violation,
                f"At most {_MAX_PARTITIONS} partitions: all is in memory.",
            )
        running = [b.id for b in self.running]
        if not 1 <= replication <= len(running):
            raise RefusedError(
                ErrorCode.invalid_replication_factor,
                f"Replication factor {replication} with {len(running)} brokers available.",
            )
        return [
            [running[(p + r) % len(running)] for r in range(replication)] for p in range(partitions)
        ]

    def _placed_by_hand(self, assignments: Mapping[int, list[int]]) -> list[list[int]]:
        if sorted(assignments) != list(range(len(assignments))):
            raise RefusedError(
                ErrorCode.invalid_replica_assignment, "Partitions must be numbered 0, 1, ..."
            )
        plan = [assignments[p] for p in range(len(assignments))]
        for brokers in plan:
            if not brokers or len(set(brokers)) != len(brokers) or set(brokers) - set(self.brokers):
                raise RefusedError(
                    ErrorCode.invalid_replica_assignment, f"Replicas {brokers} cannot be placed."
                )
        return plan

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


def _per_broker(values: int | Mapping[int, int], broker_id: int, default: int) -> int:
    return values if isinstance(values, int) else values.get(broker_id, default)


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
