"""OffsetFetch (v1 to v10): the committed offsets of a group.

From v8 on a request may name several groups. From v10 on it names topics by id.

With ``require_stable`` (v7 and up) a partition whose offset an open transaction may change is
answered UNSTABLE_OFFSET_COMMIT (KIP-447).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.group_coordinator import Committed
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 9
_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_ERROR: Final = 2
_NOTHING: Final = Committed(-1, -1, "")


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Return the offsets of each group; -1 without an error stands for no committed offset."""
    stable = getattr(request, "require_stable", False)
    version = context.api_version
    if version < _FIRST_WITH_GROUPS:
        values = _group(cluster, broker, request, version, stable=stable)
    else:
        groups = [_group(cluster, broker, g, version, stable=stable) for g in request.groups]
        values = {"groups": groups, "error_code": ErrorCode.none}
    return Now(respond(_API, version, values | {"throttle_time": ZERO_MS}))


def _group(
    cluster: Cluster, broker: Broker, group: Entity, version: int, *, stable: bool
) -> dict[str, Any]:
    code = cluster.topology.coordinator_error(group.group_id, broker)
    offsets = cluster.groups.committed(group.group_id)
    topics: list[dict[str, Any]] = []
    if code is not ErrorCode.none:
        # v1 has no error code for the group, only one per partition.
        if version < _FIRST_WITH_ERROR:
            topics = [_refused(wanted, code) for wanted in group.topics]
    elif group.topics is None:
        names = dict.fromkeys(name for name, _ in offsets)
        topics = [
            _topic(cluster, group, name, None, [p for n, p in offsets if n == name], stable=stable)
            for name in names
        ]
    else:
        topics = [
            _topic(
                cluster,
                group,
                getattr(wanted, "name", None),
                getattr(wanted, "topic_id", None),
                wanted.partition_indexes,
                stable=stable,
            )
            for wanted in group.topics
        ]
    return {"group_id": group.group_id, "topics": topics, "error_code": code}


def _refused(wanted: Entity, code: ErrorCode) -> dict[str, Any]:
    parts = [_partition(index, _NOTHING, code) for index in wanted.partition_indexes]
    return {"name": wanted.name, "partitions": parts}


def _topic(
    cluster: Cluster,
    group: Entity,
    name: str | None,
    topic_id: Any,
    indexes: Any,
    *,
    stable: bool,
) -> dict[str, Any]:
    code = ErrorCode.none
    if topic_id is not None:
        topic = cluster.topology.topics_by_id.get(topic_id)
        name = topic.name if topic is not None else None
        code = ErrorCode.unknown_topic_id if topic is None else code
    elif name in cluster.topics:
        topic_id = cluster.topics[name].id
    offsets = cluster.groups.committed(group.group_id)
    parts = []
    for index in indexes:
        where = name or "", index
        if stable and cluster.groups.unstable(group.group_id, where):
            parts.append(_partition(index, _NOTHING, ErrorCode.unstable_offset_commit))
        else:
            parts.append(_partition(index, offsets.get(where, _NOTHING), code))
    return {"name": name, "topic_id": topic_id, "partitions": parts}


def _partition(index: int, offset: Committed, code: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata or "",
        "error_code": code,
    }
