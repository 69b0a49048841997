"""The path of a request through its broker: from the socket to a handler, and the answer back.

Invariants
    One request of a connection is served at a time, and answers are sent in the order of requests.
    A request that was read is served even if the client has closed the connection, unless the
    broker has ended the connection too.
    If a handler raises, its request's connection ends, and no other: `Cluster.on_failure` is told.
    Kafka answers UNKNOWN_SERVER_ERROR then; here it is a defect of this package.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.dispatch import HANDLERS
from aioidem._broker.entities import Entity
from aioidem._broker.intercept import (
    Action,
    AfterAppend,
    BatchSeen,
    CloseConnection,
    Delay,
    Drop,
    Refuse,
    RequestSeen,
    Respond,
    RespondRaw,
    Rewrite,
)
from aioidem._broker.link import Link
from aioidem._broker.requests import (
    Connection,
    Context,
    Delivery,
    Later,
    Never,
    Now,
    Override,
    Pending,
    ProduceItem,
    Promised,
)
from aioidem._broker.security import SaslSession
from aioidem._broker.topology import Topology
from aioidem._broker.verdicts import note_read, note_response, note_unanswered
from aioidem._protocol.frames import frame as framed
from aioidem._protocol.messages import encode_response

__all__ = ["RequestChannel"]

_PRODUCE: Final = 0
_FIRST_PRODUCE_WITH_TOPIC_IDS: Final = 13


class RequestChannel:
    """The connections of one cluster, and the requests on them.

    Args:
        cluster: The brokers, topics and groups that handlers of requests use; also the interceptor
            (a test's hook), and the round-trip time, bandwidth and security of new connections.
        encode: Encode each answer when it is made; False: only when it is due to the client. On a
            connection with a limited bandwidth every answer is encoded when it is made, because the
            simulated delay depends on the answer's size.
        first_id: Id of the first connection.
    """

    def __init__(self, cluster: Cluster, *, encode: bool, first_id: int) -> None:
        self._cluster = cluster
        self._schedule = cluster.schedule
        self._encode = encode
        self._connections: dict[int, Connection] = {}
        self._connection_ids = count(first_id)
        self._deliveries: list[Delivery] = []

    # -- connections ------------------------------------------------------------------------------

    @property
    def connections(self) -> list[Connection]:
        """Return the open connections, and the closed ones with requests still to be served."""
        return list(self._connections.values())

    def connect(self, broker_id: int) -> Connection:
        """Open a connection to a broker that runs."""
        link, security = Link(self._cluster.rtt, self._cluster.bandwidth), self._cluster.security
        sasl = SaslSession(security) if security is not None and security.mechanisms else None
        connection = Connection(next(self._connection_ids), broker_id, link, sasl)
        self._connections[connection.id] = connection
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Note that the client has closed a connection: answers on it are discarded."""
        connection.closed = True
        self._forget_if_done(connection)

    def end(self, connection: Connection) -> None:
        """Close a connection from the broker's side, and discard the requests not served yet."""
        connection.ended_by_broker = True
        _discard_queue(connection)
        due = connection.link.down.due(self._schedule.now, 0)
        self._schedule.push(due, self._deliver, Delivery(connection, due, close=True))
        self._cluster.purgatory.forget(connection)
        self._connections.pop(connection.id, None)

    def _forget_if_done(self, connection: Connection) -> None:
        if connection.closed and not connection.serving and not connection.inbox:
            self._connections.pop(connection.id, None)

    # -- requests in ------------------------------------------------------------------------------

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
        size: int,
    ) -> None:
        """Take a request that was read at ``now`` (seconds); serve it after the simulated delay."""
        items: tuple[ProduceItem, ...] = ()
        if api_key == _PRODUCE:
            items = _produce_items(self._cluster.topology, request, api_version)
            if request.acks != 0:
                note_read(items)
        pending = Pending(
            connection, api_key, api_version, correlation_id, client_id, request, items
        )
        self._schedule.push(connection.link.up.due(now, size), self._arrive, pending)

    def _arrive(self, now: float, pending: Pending) -> None:
        connection = pending.connection
        if connection.ended_by_broker:
            note_unanswered(pending.items)
            return
        connection.inbox.append(pending)
        if not connection.serving:
            self._serve_next(now, connection)

    def _serve_next(self, now: float, connection: Connection) -> None:
        connection.serving = False
        if connection.ended_by_broker:
            _discard_queue(connection)
        if not connection.inbox:
            self._forget_if_done(connection)
            return
        connection.serving = True
        pending = connection.inbox.popleft()
        action = self._intercepted(now, pending)
        if action is None:
            self._serve(now, pending)
        else:
            self._apply(now, pending, action)

    def _serve(self, now: float, pending: Pending) -> None:
        sasl = pending.connection.sasl
        if sasl is not None and not sasl.admits(pending.api_key, now):
            note_unanswered(pending.items)
            self.end(pending.connection)
            return
        cluster = self._cluster
        broker = cluster.brokers[pending.connection.broker_id]
        handle = HANDLERS[pending.api_key]
        context = Context(pending, now, cluster.wall_ms(broker))
        try:
            reply = handle(cluster, broker, pending.request, context)
        except Exception as error:  # noqa: BLE001 - raised again if nobody else is to be told
            self._fail(pending, error)
            return
        match reply:
            case Now(response, close):
                self._answer(now, pending, response)
                if close:
                    self.end(pending.connection)
            case Later(delayed):
                cluster.purgatory.park(pending, delayed, self._answer)
            case Never(close):
                self._answer_nothing(now, pending)
                if close:
                    self.end(pending.connection)
            case Promised():
                reply.when_kept(lambda response: self._keep(pending, response))

    def _fail(self, pending: Pending, error: Exception) -> None:
        """End the connection of a request that cannot be served, and tell of it."""
        if self._cluster.on_failure is None:
            raise error
        note_unanswered(pending.items)
        self.end(pending.connection)
        self._cluster.on_failure(pending, error)

    def _keep(self, pending: Pending, response: Entity) -> None:
        if not pending.connection.ended_by_broker:
            self._answer(self._schedule.now, pending, response)

    # -- interception -----------------------------------------------------------------------------

    def _intercepted(self, now: float, pending: Pending) -> Action | None:
        interceptor = self._cluster.interceptor
        if interceptor is None or pending.intercepted:
            return None
        pending.intercepted = True
        return interceptor(_seen(now, pending))

    def _apply(self, now: float, pending: Pending, action: Action) -> None:
        connection = pending.connection
        match action:
            case Delay(seconds, then):
                self._schedule.push(now + seconds, self._resume, (pending, then))
            case Drop(processed, silent):
                connection.silent = connection.silent or silent
                if processed:
                    pending.rewrite = _no_answer
                    self._serve(now, pending)
                    return
                if silent:
                    connection.ended_by_broker = True
                self._answer_nothing(now, pending)
            case CloseConnection(processed):
                if processed:
                    pending.rewrite = _no_answer
                    self._serve(now, pending)
                else:
                    note_unanswered(pending.items)
                self.end(connection)
            case Respond(response):
                self._answer(now, pending, response)
            case RespondRaw(payload):
                self._send(now, pending, None, framed(payload))
            case Rewrite(change):
                pending.rewrite = change
                self._serve(now, pending)
            case Refuse(code, only):
                pending.forced = Override(ErrorCode(code), only)
                self._serve(now, pending)
            case AfterAppend(code, only):
                pending.afterwards = Override(ErrorCode(code), only)
                self._serve(now, pending)

    def _resume(self, now: float, held: tuple[Pending, Action | None]) -> None:
        pending, action = held
        if pending.connection.ended_by_broker:
            note_unanswered(pending.items)
        elif action is None:
            self._serve(now, pending)
        else:
            self._apply(now, pending, action)

    # -- answers out ------------------------------------------------------------------------------

    def take_deliveries(self) -> list[Delivery]:
        """Return the answers, and ends of connections, due since the last call, in order."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def _answer(self, now: float, pending: Pending, response: Entity) -> None:
        if pending.rewrite is not None:
            response = pending.rewrite(response)
        if response is None:
            self._answer_nothing(now, pending)
            return
        frame = None
        if self._encode or pending.connection.link.down.bandwidth is not None:
            try:
                frame = encode_response(response, pending.correlation_id)
            except Exception as error:  # noqa: BLE001 - as in `_serve`
                self._fail(pending, error)
                return
        self._send(now, pending, response, frame)

    def _answer_nothing(self, now: float, pending: Pending) -> None:
        note_unanswered(pending.items)
        self._served(now, pending)

    def _send(
        self, now: float, pending: Pending, response: Entity | None, frame: bytes | None
    ) -> None:
        connection = pending.connection
        size = 0 if frame is None else len(frame)
        due = connection.link.down.due(now, size)
        delivery = Delivery(connection, due, pending=pending, response=response, frame=frame)
        self._schedule.push(due, self._deliver, delivery)
        self._served(now, pending)

    def _served(self, now: float, pending: Pending) -> None:
        connection = pending.connection
        broker = self._cluster.brokers[connection.broker_id]
        mute = broker.throttle if pending.api_key == _PRODUCE else 0.0
        # ``serving`` stays set until `_serve_next` is called, so that requests which arrive during
        # the throttle time (``mute``) are queued.
        self._schedule.push(now + mute, self._serve_next, connection)

    def _deliver(self, _now: float, delivery: Delivery) -> None:
        connection, pending = delivery.connection, delivery.pending
        if connection.closed or (connection.silent and not delivery.close):
            if pending is not None:
                note_unanswered(pending.items)
            return
        if pending is not None and pending.items and delivery.response is not None:
            note_response(pending.items, delivery.response)
        self._deliveries.append(delivery)


def _discard_queue(connection: Connection) -> None:
    while connection.inbox:
        note_unanswered(connection.inbox.popleft().items)


def _no_answer(_response: Entity) -> Entity:
    return None


def _produce_items(topology: Topology, request: Entity, version: int) -> tuple[ProduceItem, ...]:
    items = []
    for wanted in request.topic_data:
        if version >= _FIRST_PRODUCE_WITH_TOPIC_IDS:
            topic_id = wanted.topic_id
            topic = topology.topics_by_id.get(topic_id)
            name = topic.name if topic is not None else None
        else:
            name, topic_id = wanted.name, None
            topic = topology.topics.get(name)
        for part in wanted.partition_data:
            partition = topic.partition(part.index) if topic is not None else None
            items.append(ProduceItem(name, topic_id, part.index, part.records, partition))
    return tuple(items)


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
