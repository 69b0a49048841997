"""Metadata (v0 to v13): the running brokers, the topics, and the leaders of their partitions.

If topics are created automatically, an unknown topic is created, but this answer still says
UNKNOWN_TOPIC_OR_PARTITION, as from a KRaft broker; the next request finds the topic.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.authorized import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.partition import NO_LEADER, Partition, Topic
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 3


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Describe the requested topics; every broker gives the same answer."""
    if request.topics is None or (context.api_version == 0 and not request.topics):
        topics = [_topic(cluster, topic) for topic in cluster.topics.values()]
    else:
        create = getattr(request, "allow_auto_topic_creation", True)
        topics = [
            _asked(cluster, broker, wanted, create=create) for wanted in _distinct(request.topics)
        ]
    if getattr(request, "include_topic_authorized_operations", False):
        # Kafka adds the authorized operations for unknown names too, but not for unknown ids.
        for each in topics:
            if each["error_code"] is not ErrorCode.unknown_topic_id:
                each["topic_authorized_operations"] = TOPIC_OPERATIONS
    asked = getattr(request, "include_cluster_authorized_operations", False)
    running = cluster.running
    values = {
        "throttle_time": ZERO_MS,
        "brokers": [
            {"node_id": b.id, "host": b.host, "port": b.port, "rack": None} for b in running
        ],
        "cluster_id": cluster.cluster_id,
        "controller_id": running[0].id if running else -1,
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else NOT_ASKED,
        "error_code": ErrorCode.none,
    }
    return Now(respond(_API, context.api_version, values))


def _distinct(topics: tuple[Entity, ...]) -> list[Entity]:
    """Return each topic once; if any has an id, ignore those without one, as Kafka does."""
    by_id = any(getattr(each, "topic_id", None) is not None for each in topics)
    wanted = {}
    for each in topics:
        topic_id = getattr(each, "topic_id", None)
        if topic_id is not None or not by_id:
            wanted[topic_id or each.name] = each
    return list(wanted.values())


def _asked(cluster: Cluster, broker: Broker, wanted: Entity, *, create: bool) -> dict[str, Any]:
    topic_id = getattr(wanted, "topic_id", None)
    if topic_id is not None:
        by_id = cluster.topology.topics_by_id.get(topic_id)
        if by_id is None:
            return _missing(None, ErrorCode.unknown_topic_id) | {"topic_id": topic_id}
        return _topic(cluster, by_id)
    name = wanted.name or ""
    topic = cluster.topics.get(name)
    if topic is not None:
        return _topic(cluster, topic)
    return _missing(name, _create(cluster, broker, name, create=create))


def _create(cluster: Cluster, broker: Broker, name: str, *, create: bool) -> ErrorCode:
    try:
        cluster.topology.check_topic_name(name)
        if create and cluster.topology.broker_config(broker, "auto.create.topics.enable") == "true":
            cluster.topology.create_topic(name)
    except RefusedError as refusal:
        return refusal.code
    return ErrorCode.unknown_topic_or_partition


def _missing(name: str | None, code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": None,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": NOT_ASKED,
    }


def _topic(cluster: Cluster, topic: Topic) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": False,
        "partitions": [_partition(cluster, p) for p in topic.partitions],
        "topic_authorized_operations": NOT_ASKED,
    }


def _partition(cluster: Cluster, partition: Partition) -> dict[str, Any]:
    led = partition.leader != NO_LEADER
    return {
        "error_code": ErrorCode.none if led else ErrorCode.leader_not_available,
        "partition_index": partition.index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": list(partition.replicas),
        "isr_nodes": list(partition.isr),
        "offline_replicas": [b for b in partition.replicas if not cluster.brokers[b].online],
    }
