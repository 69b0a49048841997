"""OffsetCommit (v2 to v10): remember a group's offsets, by name or (v10) by topic id.

For readers with a manual assignment: there are no members and no generations, so anyone may commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from aioidem.broker.entities import ZERO_MS, Entity, respond
from aioidem.broker.requests import Context, Now, Reply

if TYPE_CHECKING:
    from aioidem.broker.state import ClusterState
    from aioidem.broker.topology import Broker

__all__ = ["handle"]

_API: Final = 8


def handle(cluster: ClusterState, _broker: Broker, request: Entity, context: Context) -> Reply:
    """Known partitions are stored, unknown ones refused one by one."""
    offsets = cluster.group_offsets.setdefault(request.group_id, {})
    topics = []
    for wanted_topic in request.topics:
        topic_id = getattr(wanted_topic, "topic_id", None)
        if topic_id is not None:
            topic = cluster.topics_by_id.get(topic_id)
            unknown = ErrorCode.unknown_topic_id
        else:
            topic = cluster.topics.get(wanted_topic.name)
            unknown = ErrorCode.unknown_topic_or_partition
        parts = []
        for part in wanted_topic.partitions:
            known = topic is not None and topic.partition(part.partition_index) is not None
            if topic is not None and known:
                offsets[topic.name, part.partition_index] = (
                    part.committed_offset,
                    getattr(part, "committed_leader_epoch", -1),
                    part.committed_metadata,
                )
            code = ErrorCode.none if known else unknown
            parts.append({"partition_index": part.partition_index, "error_code": code})
        name = getattr(wanted_topic, "name", None)
        topics.append({"name": name, "topic_id": topic_id, "partitions": parts})
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "topics": topics}))
