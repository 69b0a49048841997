"""The stranger: another application's producer that has the same producer id as ours.

Two clusters give out the same ids. So our producer can be moved to a cluster where the id belongs
to the stranger, or the stranger can be moved to our cluster with its id. The stranger behaves as
Java's producer: one request at a time, sequences for each partition, and after
INVALID_PRODUCER_EPOCH the next epoch from sequence 0. `check_history` compares the answers that the
stranger gets with the log, and so finds out if our producer harms it.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._broker.entities import build
from aioidem._broker.partition import NO_LEADER
from aioidem._broker.requests import Connection, Delivery
from aioidem._broker.state import ClusterState
from aioidem._protocol.messages import decode_response, request_type, response_type
from aioidem._protocol.versions import ApiKey
from aioidem._records import build_batch
from aioidem.testing import Outcome, Row, ValueId, make_value

if TYPE_CHECKING:
    from .world import World

__all__ = ["STRANGER", "Stranger"]

STRANGER = "s"
"""A stranger's client id, and the first letter of the producer's name in its values."""

_VERSION = 9
_ATTEMPTS = 4
_FENCED = ErrorCode.invalid_producer_epoch


class _Record(NamedTuple):
    value: bytes
    timestamp_ms: int
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Stranger:
    """A producer that writes to one cluster under one producer id."""

    def __init__(self, world: World, cluster: ClusterState, producer_id: int, epoch: int) -> None:
        self._world = world
        self._cluster = cluster
        self._producer_id = producer_id
        self._epoch = epoch
        self._next: dict[tuple[str, int], int] = {}
        self._name = f"{STRANGER}{next(world.strange_names)}"
        self._queue: deque[Row] = deque()
        self._ended = False

    def write(self, topic: str, index: int) -> None:
        """Write one record, once the records before it are answered."""
        world = self._world
        if self._ended:
            return
        value = ValueId(self._name, topic, index, len(world.strangers))
        row = world.strangers[value] = Row(value, topic, index, world.now, Outcome.UNKNOWN)
        self._queue.append(row)
        if len(self._queue) == 1:
            self._send(row, _ATTEMPTS)

    def _go_on(self) -> None:
        self._queue.popleft()
        if self._queue:
            self._send(self._queue[0], _ATTEMPTS)

    def _send(self, row: Row, attempts: int) -> None:
        world, place = self._world, (row.topic, row.partition)
        topic = self._cluster.topics.get(row.topic)
        leader = NO_LEADER if topic is None else topic.partitions[row.partition].leader
        if leader == NO_LEADER or not self._cluster.brokers[leader].online:
            row.outcome = Outcome.NOT_WRITTEN
            self._go_on()
            return
        batch = build_batch(
            [_Record(make_value(row.value, 60), world.wall_ms)],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._next.get(place, 0),
        )
        peer = self._cluster.connect(leader)

        def hear(delivery: Delivery) -> None:
            self._hear(row, peer, delivery, attempts)

        world.listen(peer, hear)
        schema = request_type(ApiKey.PRODUCE, _VERSION)
        if schema is None:
            raise AssertionError("kio has no schema for this version of Produce")
        part = {"index": row.partition, "records": batch.data}
        request = build(
            schema,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout": timedelta(seconds=30),
                "topic_data": [{"name": row.topic, "partition_data": [part]}],
            },
        )
        self._cluster.submit(
            peer,
            request,
            api_key=ApiKey.PRODUCE,
            api_version=_VERSION,
            correlation_id=1,
            client_id=STRANGER,
            now=world.now,
            wall_ms=world.wall_ms,
        )

    def _hear(self, row: Row, peer: Connection, delivery: Delivery, attempts: int) -> None:
        self._cluster.disconnect(peer)
        schema = response_type(ApiKey.PRODUCE, _VERSION)
        if delivery.frame is None or schema is None:
            self._ended = True
            self._queue.clear()
            return
        answer: Any = decode_response(schema, bytes(delivery.frame[4:]))[1]
        part = answer.responses[0].partition_responses[0]
        code, place = int(part.error_code), (row.topic, row.partition)
        self._world.trace(f"stranger: {row.value} code {code} offset {part.base_offset}")
        if code == 0:
            # `row.settled` stays None, so that the record is not checked for a deadline: only our
            # own producer's records have one (its delivery timeout).
            row.outcome, row.offset = Outcome.ACKED, part.base_offset
            self._next[place] = self._next.get(place, 0) + 1
            self._go_on()
        elif code == _FENCED and attempts:
            self._epoch += 1
            self._next.clear()
            self._send(row, attempts - 1)
        else:
            # The stranger ends, because it cannot know any more what its next sequence is.
            self._ended = True
            self._queue.clear()
