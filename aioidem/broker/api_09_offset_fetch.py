"""OffsetFetch (v1 to v10): what a group committed; several groups from v8 on, topic ids in v10."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from aioidem.broker.entities import ZERO_MS, Entity, respond
from aioidem.broker.requests import Context, Now, Reply

if TYPE_CHECKING:
    from aioidem.broker.state import ClusterState
    from aioidem.broker.topology import Broker

__all__ = ["handle"]

_API: Final = 9
_FIRST_WITH_GROUPS: Final = 8


def handle(cluster: ClusterState, _broker: Broker, request: Entity, context: Context) -> Reply:
    """A partition nobody committed has offset -1, which is not an error."""
    if context.api_version < _FIRST_WITH_GROUPS:
        values = _group(cluster, request)
    else:
        values = {"groups": [_group(cluster, group) for group in request.groups]}
    values |= {"throttle_time": ZERO_MS, "error_code": ErrorCode.none}
    return Now(respond(_API, context.api_version, values))


def _group(cluster: ClusterState, group: Entity) -> dict[str, Any]:
    offsets = cluster.group_offsets.get(group.group_id, {})
    if group.topics is None:
        names = dict.fromkeys(name for name, _ in offsets)
        topics = [
            _topic(cluster, offsets, name, None, [p for n, p in offsets if n == name])
            for name in names
        ]
    else:
        topics = [
            _topic(
                cluster,
                offsets,
                getattr(wanted, "name", None),
                getattr(wanted, "topic_id", None),
                wanted.partition_indexes,
            )
            for wanted in group.topics
        ]
    return {"group_id": group.group_id, "topics": topics, "error_code": ErrorCode.none}


def _topic(
    cluster: ClusterState,
    offsets: dict[tuple[str, int], tuple[int, int, str | None]],
    name: str | None,
    topic_id: Any,
    indexes: Any,
) -> dict[str, Any]:
    code = ErrorCode.none
    if topic_id is not None:
        topic = cluster.topics_by_id.get(topic_id)
        name = topic.name if topic is not None else None
        code = ErrorCode.unknown_topic_id if topic is None else code
    elif name in cluster.topics:
        topic_id = cluster.topics[name].id
    parts = []
    for index in indexes:
        offset, epoch, metadata = offsets.get((name or "", index), (-1, -1, ""))
        parts.append(
            {
                "partition_index": index,
                "committed_offset": offset,
                "committed_leader_epoch": epoch,
                "metadata": metadata or "",
                "error_code": code,
            }
        )
    return {"name": name, "topic_id": topic_id, "partitions": parts}
