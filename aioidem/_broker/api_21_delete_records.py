"""DeleteRecords (v0 to v2): move the start of a partition's log up.

The producer state stays as it is: since KIP-360 a broker remembers producers whose records were
deleted. A restart may make it forget them (see `ClusterState.start_broker`).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.partition import Partition
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 21
_ALL_COMMITTED: Final = -1


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Raise the log start offset of each partition, without waiting for the followers."""
    topics = []
    for wanted_topic in request.topics:
        topic = cluster.topics.get(wanted_topic.name)
        parts = []
        for wanted in wanted_topic.partitions:
            partition = topic.partition(wanted.partition_index) if topic is not None else None
            code, low = _delete(partition, broker, wanted.offset)
            if partition is not None and code is ErrorCode.none:
                cluster.wake(partition)
            parts.append(
                {
                    "partition_index": wanted.partition_index,
                    "low_watermark": low,
                    "error_code": code,
                }
            )
        topics.append({"name": wanted_topic.name, "partitions": parts})
    values: dict[str, Any] = {"throttle_time": ZERO_MS, "topics": topics}
    return Now(respond(_API, context.api_version, values))


def _delete(partition: Partition | None, broker: Broker, offset: int) -> tuple[ErrorCode, int]:
    """Delete the records below ``offset``; return an error code and the log's start (-1: error)."""
    if partition is None:
        return ErrorCode.unknown_topic_or_partition, -1
    leader = partition.led_by(broker.id)
    if leader is None:
        return ErrorCode.not_leader_or_follower, -1
    if not partition.topic.settings.deletes:
        return ErrorCode.policy_violation, -1
    if offset == _ALL_COMMITTED:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        return ErrorCode.offset_out_of_range, -1
    partition.delete_before(offset)
    return ErrorCode.none, leader.log.start_offset
