"""ListOffsets (v1 to v11): a partition's first or last offset, or the first at or after a time.

A negative timestamp stands for a position: -1 is the end of the log, -2 its beginning. A position
that the request's version does not define is answered UNSUPPORTED_VERSION for its partition.
Positions in remote storage are answered as by a Kafka broker without remote storage.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import StoredBatch
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.partition import Partition
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker
from aioidem._records import read_batches
from aioidem.errors import ProtocolError, UnsupportedCodecError

__all__ = ["handle"]

_API: Final = 2
_READ_COMMITTED: Final = 1
_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
_KNOWN_SINCE: Final = {
    _LATEST: 0,
    _EARLIEST: 0,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Return the wanted offset of each partition.

    No offset is above the high watermark or, with isolation level 1, the last stable offset.
    """
    topics = []
    for wanted_topic in request.topics:
        topic = cluster.topics.get(wanted_topic.name)
        parts = []
        for wanted in wanted_topic.partitions:
            partition = topic.partition(wanted.partition_index) if topic is not None else None
            stable = getattr(request, "isolation_level", 0) == _READ_COMMITTED
            parts.append(_answer(partition, wanted, broker, context.api_version, stable=stable))
        topics.append({"name": wanted_topic.name, "partitions": parts})
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "topics": topics}))


def _answer(
    partition: Partition | None, wanted: Entity, broker: Broker, version: int, *, stable: bool
) -> dict[str, Any]:
    values = {
        "partition_index": wanted.partition_index,
        "error_code": ErrorCode.none,
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }
    if partition is None:
        return values | {"error_code": ErrorCode.unknown_topic_or_partition}
    if partition.led_by(broker.id) is None:
        return values | {"error_code": ErrorCode.not_leader_or_follower}
    believed = getattr(wanted, "current_leader_epoch", -1)
    if believed not in (-1, partition.leader_epoch):
        older = believed < partition.leader_epoch
        code = ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        return values | {"error_code": code}
    if wanted.timestamp < 0 and version < _KNOWN_SINCE.get(wanted.timestamp, version + 1):
        return values | {"error_code": ErrorCode.unsupported_version}
    timestamp, offset, epoch = _find(partition, wanted.timestamp, stable=stable)
    return values | {"timestamp": timestamp, "offset": offset, "leader_epoch": epoch}


def _find(partition: Partition, timestamp: int, *, stable: bool) -> tuple[int, int, int]:
    """Return (timestamp, offset, leader epoch) for a time or position; -1 for an unknown number."""
    log = partition.replicas[partition.leader].log
    end = partition.last_stable_offset if stable else partition.high_watermark
    if timestamp == _LATEST:
        return -1, end, partition.leader_epoch
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return -1, log.start_offset, log.epoch_of(log.start_offset, partition.leader_epoch)
    if timestamp == _MAX_TIMESTAMP:
        newest = log.newest_by_timestamp(end)
        return (-1, -1, -1) if newest is None else _in_batch(newest, newest.max_timestamp_ms, 0)
    if timestamp < 0:
        return -1, -1, -1
    batch = log.first_batch_reaching(timestamp, end)
    return (-1, -1, -1) if batch is None else _in_batch(batch, timestamp, log.start_offset)


def _in_batch(batch: StoredBatch, timestamp: int, start: int) -> tuple[int, int, int]:
    try:
        for record in read_batches(batch.wire())[0].records():
            if record.timestamp_ms >= timestamp and record.offset >= start:
                return record.timestamp_ms, record.offset, batch.leader_epoch
    except (ProtocolError, UnsupportedCodecError):
        pass  # the codec is not installed here, or the records are not what their header says
    return batch.max_timestamp_ms, batch.last_offset, batch.leader_epoch
