"""DescribeCluster (v0 to v2): the cluster id, the controller and the running brokers."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.authorized import CLUSTER_OPERATIONS, NOT_ASKED
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 60
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_NOTHING: Final = {
    "throttle_time": ZERO_MS,
    "error_code": ErrorCode.none,
    "error_message": None,
    "endpoint_type": _BROKERS,
    "cluster_id": "",
    "controller_id": -1,
    "brokers": [],
    "cluster_authorized_operations": NOT_ASKED,
}


def handle(cluster: Cluster, _broker: Broker, request: Entity, context: Context) -> Reply:
    """Describe the brokers; a request for the controllers is refused, as by a Kafka broker."""
    asked_for = getattr(request, "endpoint_type", _BROKERS)
    values = _brokers(cluster, request) if asked_for == _BROKERS else _refusal(asked_for)
    return Now(respond(_API, context.api_version, _NOTHING | values))


def _brokers(cluster: Cluster, request: Entity) -> dict[str, Any]:
    running = cluster.running
    values: dict[str, Any] = {
        "cluster_id": cluster.cluster_id,
        "controller_id": running[0].id if running else -1,
        "brokers": [
            {"broker_id": b.id, "host": b.host, "port": b.port, "rack": None, "is_fenced": False}
            for b in running
        ],
    }
    if request.include_cluster_authorized_operations:
        values["cluster_authorized_operations"] = CLUSTER_OPERATIONS
    return values


def _refusal(asked_for: int) -> dict[str, Any]:
    if asked_for == _CONTROLLERS:
        code, message = ErrorCode.mismatched_endpoint_type, "This is a broker's endpoint."
    else:
        code, message = ErrorCode.unsupported_endpoint_type, "There is no such type of endpoint."
    return {"error_code": code, "error_message": message}
