"""Fetch (v4 to v18): return records up to the high watermark, once there are ``min_bytes`` of them.

Fetch sessions are not implemented: every answer has session id 0, so that clients name all their
partitions in every request. A request with another session id is answered
FETCH_SESSION_ID_NOT_FOUND, as by a broker that lost the session.

With isolation level 1 (read_committed) the answer ends at the last stable offset. It contains the
records of aborted transactions, and a list of these transactions, so that the client can leave the
records out (KIP-98).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import StoredBatch
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.partition import Partition, Topic
from aioidem._broker.requests import Context, Delayed, Later, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 1
_FIRST_WITH_TOPIC_IDS: Final = 13
_READ_COMMITTED: Final = 1


class _Found:
    """One partition's part of the answer: an error code, or the batches that were found."""

    __slots__ = ("batches", "code", "partition", "wanted")

    def __init__(
        self,
        wanted: Entity,
        partition: Partition | None,
        code: ErrorCode,
        batches: list[StoredBatch],
    ) -> None:
        self.wanted = wanted
        self.partition = partition
        self.code = code
        self.batches = batches

    @property
    def size(self) -> int:
        return sum(len(b.data) for b in self.batches)


class _DelayedFetch(Delayed):
    """A Fetch request that waits until ``min_bytes`` can be read, or until ``max_wait`` is over."""

    __slots__ = ("_broker", "_cluster", "_request", "_version")

    def __init__(self, cluster: Cluster, broker: Broker, request: Entity, context: Context) -> None:
        self._cluster = cluster
        self._broker = broker
        self._request = request
        self._version = context.api_version
        watched = {}
        for wanted_topic in request.topics:
            topic = _find(cluster, wanted_topic, self._version)
            for wanted in wanted_topic.partitions:
                partition = topic.partition(wanted.partition) if topic is not None else None
                if partition is not None:
                    watched[id(partition)] = partition
        deadline = context.now + request.max_wait.total_seconds()
        super().__init__(tuple(watched.values()), deadline)

    def attempt(self) -> Entity | None:
        found = self._read()
        parts = [part for _, parts in found for part in parts]
        size = sum(part.size for part in parts)
        if (
            parts
            and size < self._request.min_bytes
            and all(p.code == ErrorCode.none for p in parts)
        ):
            return None
        return self._response(found)

    def expire(self) -> Entity:
        return self._response(self._read())

    def _read(self) -> list[tuple[Entity, list[_Found]]]:
        taken = 0
        found = []
        for wanted_topic in self._request.topics:
            topic = _find(self._cluster, wanted_topic, self._version)
            parts = []
            for wanted in wanted_topic.partitions:
                room = max(0, self._request.max_bytes - taken)
                part = _read(
                    topic,
                    wanted,
                    self._broker,
                    self._version,
                    room,
                    first=taken == 0,
                    committed=self._request.isolation_level == _READ_COMMITTED,
                )
                taken += part.size
                parts.append(part)
            found.append((wanted_topic, parts))
        return found

    def _response(self, found: list[tuple[Entity, list[_Found]]]) -> Entity:
        return respond(
            _API,
            self._version,
            {
                "throttle_time": ZERO_MS,
                "error_code": ErrorCode.none,
                "session_id": 0,
                "responses": [
                    {
                        "topic": getattr(wanted, "topic", None),
                        "topic_id": getattr(wanted, "topic_id", None),
                        "partitions": [_partition_data(self._request, p) for p in parts],
                    }
                    for wanted, parts in found
                ],
            },
        )


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Answer when there are ``min_bytes``, when there is an error, or after ``max_wait``."""
    if getattr(request, "session_id", 0) != 0:
        return Now(
            respond(
                _API,
                context.api_version,
                {
                    "throttle_time": ZERO_MS,
                    "error_code": ErrorCode.fetch_session_id_not_found,
                    "session_id": 0,
                    "responses": [],
                },
            )
        )
    parked = _DelayedFetch(cluster, broker, request, context)
    if parked.deadline <= context.now:
        return Now(parked.expire())
    response = parked.attempt()
    return Later(parked) if response is None else Now(response)


def _find(cluster: Cluster, wanted: Entity, version: int) -> Topic | None:
    if version >= _FIRST_WITH_TOPIC_IDS:
        return cluster.topology.topics_by_id.get(wanted.topic_id)
    return cluster.topics.get(wanted.topic)


def _read(
    topic: Topic | None,
    wanted: Entity,
    broker: Broker,
    version: int,
    room: int,
    *,
    first: bool,
    committed: bool,
) -> _Found:
    partition = topic.partition(wanted.partition) if topic is not None else None
    if partition is None:
        by_id = topic is None and version >= _FIRST_WITH_TOPIC_IDS
        unknown = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
        return _Found(wanted, None, unknown, [])
    leader = partition.led_by(broker.id)
    code = _epoch_error(getattr(wanted, "current_leader_epoch", -1), partition)
    if leader is None:
        code = ErrorCode.not_leader_or_follower
    if leader is None or code != ErrorCode.none:
        return _Found(wanted, partition, code, [])
    if not leader.log.start_offset <= wanted.fetch_offset <= leader.log.end_offset:
        return _Found(wanted, partition, ErrorCode.offset_out_of_range, [])
    end = partition.last_stable_offset if committed else partition.high_watermark
    if wanted.fetch_offset >= end:
        return _Found(wanted, partition, ErrorCode.none, [])
    batches = leader.log.read(
        wanted.fetch_offset,
        min(wanted.partition_max_bytes, room),
        end,
        at_least_one=first,
    )
    return _Found(wanted, partition, ErrorCode.none, batches)


def _aborted(request: Entity, found: _Found) -> list[dict[str, int]] | None:
    partition = found.partition
    if partition is None:
        return []
    if request.isolation_level != _READ_COMMITTED:
        return None
    leader = partition.leader_replica
    if leader is None or not found.batches:
        return []
    below = found.batches[-1].last_offset + 1
    return [
        {"producer_id": each.producer_id, "first_offset": each.first_offset}
        for each in leader.producers.transactions.aborted(found.wanted.fetch_offset, below)
    ]


def _epoch_error(believed: int, partition: Partition) -> ErrorCode:
    if believed in (-1, partition.leader_epoch):
        return ErrorCode.none
    if believed < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch


def _partition_data(request: Entity, found: _Found) -> dict[str, Any]:
    partition = found.partition
    values: dict[str, Any] = {
        "partition_index": found.wanted.partition,
        "error_code": found.code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": _aborted(request, found),
        "preferred_read_replica": -1,
        "records": b"".join([b.wire() for b in found.batches]),
    }
    if partition is None:
        return values
    leader = partition.leader_replica
    if found.code == ErrorCode.none and leader is not None:
        values["high_watermark"] = partition.high_watermark
        values["last_stable_offset"] = partition.last_stable_offset
        values["log_start_offset"] = leader.log.start_offset
    if found.code in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch):
        values["current_leader"] = {
            "leader_id": partition.leader,
            "leader_epoch": partition.leader_epoch,
        }
    return values
