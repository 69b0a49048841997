"""DescribeCluster (v0 to v2): describe the cluster and the brokers that run."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.authorized import CLUSTER_OPERATIONS, NOT_ASKED
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 60
_ENDPOINT_BROKERS: Final = 1


def handle(cluster: Cluster, _broker: Broker, request: Entity, context: Context) -> Reply:
    """Describe the brokers; a request for the controllers is refused, as by a Kafka broker."""
    asked_for = getattr(request, "endpoint_type", _ENDPOINT_BROKERS)
    code, message = ErrorCode.none, None
    if asked_for != _ENDPOINT_BROKERS:
        code, message = ErrorCode.mismatched_endpoint_type, "This is a broker's endpoint."
    running = cluster.running
    values = {
        "throttle_time": ZERO_MS,
        "error_code": code,
        "error_message": message,
        "endpoint_type": _ENDPOINT_BROKERS,
        "cluster_id": cluster.cluster_id,
        "controller_id": running[0].id if running else -1,
        "brokers": [
            {"broker_id": b.id, "host": b.host, "port": b.port, "rack": None, "is_fenced": False}
            for b in running
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    }
    return Now(respond(_API, context.api_version, values))
