"""OffsetDelete (v0): delete a group's offsets of topics that it does not read (KIP-496)."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.group import Group
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 47


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Delete the offset of each partition; for a refused group, answer only the group's error."""
    code = cluster.topology.group_error(request.group_id, broker)
    topics = []
    if code is ErrorCode.none:
        try:
            group = cluster.groups.losing_offsets(request.group_id)
        except RefusedError as refusal:
            code = refusal.code
        else:
            topics = [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": part.partition_index,
                            "error_code": _forgotten(
                                cluster, group, topic.name, part.partition_index
                            ),
                        }
                        for part in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
    answer = {"error_code": code, "throttle_time": ZERO_MS, "topics": topics}
    return Now(respond(_API, context.api_version, answer))


def _forgotten(cluster: Cluster, group: Group, name: str, index: int) -> ErrorCode:
    topic = cluster.topics.get(name)
    if topic is None or topic.partition(index) is None:
        return ErrorCode.unknown_topic_or_partition
    if group.reads(name):
        return ErrorCode.group_subscribed_to_topic
    group.offsets.forget([(name, index)])
    return ErrorCode.none
