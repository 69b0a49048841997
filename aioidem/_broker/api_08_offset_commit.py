"""OffsetCommit (v2 to v10): store a group's offsets, by topic name or (v10) by topic id.

A client that names neither a member nor a generation may commit for a group without members. A
member must name the group's present generation, and its commit counts as a heartbeat.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.group_coordinator import Committed
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 8


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Store the offsets of known partitions, and refuse unknown partitions one by one."""
    refused = _refused(cluster, broker, request, context.api_version)
    topics = []
    for wanted_topic in request.topics:
        topic_id = getattr(wanted_topic, "topic_id", None)
        if topic_id is not None:
            topic = cluster.topology.topics_by_id.get(topic_id)
            unknown = ErrorCode.unknown_topic_id
        else:
            topic = cluster.topics.get(wanted_topic.name)
            unknown = ErrorCode.unknown_topic_or_partition
        parts = []
        for part in wanted_topic.partitions:
            known = topic is not None and topic.partition(part.partition_index) is not None
            code = refused if known else unknown
            if code is ErrorCode.none and _offset(part).too_large:
                code = ErrorCode.offset_metadata_too_large
            if topic is not None and code is ErrorCode.none:
                where = topic.name, part.partition_index
                cluster.groups.commit(request.group_id, where, _offset(part))
            parts.append({"partition_index": part.partition_index, "error_code": code})
        name = getattr(wanted_topic, "name", None)
        topics.append({"name": name, "topic_id": topic_id, "partitions": parts})
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "topics": topics}))


def _refused(cluster: Cluster, broker: Broker, request: Entity, version: int) -> ErrorCode:
    code = cluster.topology.coordinator_error(request.group_id, broker)
    if code is not ErrorCode.none:
        return code
    try:
        group = cluster.groups.admit(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            getattr(request, "group_instance_id", None),
            offset_commit_version=version,
        )
    except RefusedError as refusal:
        return refusal.code
    cluster.rebalances.committed(group, request.member_id)
    return ErrorCode.none


def _offset(part: Entity) -> Committed:
    epoch = getattr(part, "committed_leader_epoch", -1)
    return Committed(part.committed_offset, epoch, part.committed_metadata)
