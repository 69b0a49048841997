"""OffsetForLeaderEpoch (v2 to v4): the end offset of a leader epoch (KIP-101, KIP-320).

A reader compares the end offset with its position: a position above the end offset shows that the
log was truncated.
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

_API: Final = 23
_NO_EPOCH: Final = -1


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Return the end offset of each requested epoch; only the leader of a partition knows it."""
    topics = []
    for wanted_topic in request.topics:
        topic = cluster.topics.get(wanted_topic.topic)
        parts = []
        for wanted in wanted_topic.partitions:
            partition = topic.partition(wanted.partition) if topic is not None else None
            parts.append(_answer(partition, wanted, broker))
        topics.append({"topic": wanted_topic.topic, "partitions": parts})
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "topics": topics}))


def _answer(partition: Partition | None, wanted: Entity, broker: Broker) -> dict[str, Any]:
    values = {
        "partition": wanted.partition,
        "error_code": ErrorCode.none,
        "leader_epoch": _NO_EPOCH,
        "end_offset": -1,
    }
    if partition is None:
        return values | {"error_code": ErrorCode.unknown_topic_or_partition}
    leader = partition.led_by(broker.id)
    if leader is None:
        return values | {"error_code": ErrorCode.not_leader_or_follower}
    if wanted.current_leader_epoch not in (-1, partition.leader_epoch):
        older = wanted.current_leader_epoch < partition.leader_epoch
        code = ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        return values | {"error_code": code}
    if wanted.leader_epoch == _NO_EPOCH or wanted.leader_epoch > partition.leader_epoch:
        return values
    if wanted.leader_epoch == partition.leader_epoch:
        return values | {
            "leader_epoch": partition.leader_epoch,
            "end_offset": leader.log.end_offset,
        }
    epoch, end = leader.log.end_of_epoch(wanted.leader_epoch)
    return values | {"leader_epoch": epoch, "end_offset": end}
