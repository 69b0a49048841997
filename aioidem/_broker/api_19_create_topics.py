"""CreateTopics (v2 to v7): create topics, each with its partitions, replicas and configs."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.api_32_describe_configs import topic_configs
from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 19


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Create each topic independently of the others.

    A name that occurs twice in the request is answered once, with INVALID_REQUEST.
    """
    names = [wanted.name for wanted in request.topics]
    topics = [
        _refused(name, ErrorCode.invalid_request, "Duplicate topic name.")
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    for wanted in request.topics:
        if names.count(wanted.name) > 1:
            continue
        try:
            topics.append(_create(cluster, broker, wanted, validate_only=request.validate_only))
        except RefusedError as refusal:
            topics.append(_refused(wanted.name, refusal.code, refusal.message))
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "topics": topics}))


def _create(
    cluster: Cluster, broker: Broker, wanted: Entity, *, validate_only: bool
) -> dict[str, Any]:
    if wanted.assignments and (wanted.num_partitions != -1 or wanted.replication_factor != -1):
        raise RefusedError(
            ErrorCode.invalid_request,
            "A manual assignment was specified, but numPartitions or replicationFactor too.",
        )
    topic = cluster.topology.create_topic(
        wanted.name,
        partitions=wanted.num_partitions,
        replication=wanted.replication_factor,
        configs={config.name: config.value for config in wanted.configs},
        assignments={a.partition_index: list(a.broker_ids) for a in wanted.assignments},
        validate_only=validate_only,
        retains=broker.retains,
    )
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": topic_configs(cluster, broker, topic, None),
    }


def _refused(name: str, code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": code,
        "error_message": message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }
