"""DeleteGroups (v0 to v2): delete groups without members, and their offsets."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 42


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Delete each group; one that cannot be deleted is answered with an error of its own."""
    results = [
        {"group_id": name, "error_code": _deleted(cluster, broker, name)}
        for name in request.groups_names
    ]
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "results": results}))


def _deleted(cluster: Cluster, broker: Broker, name: str) -> ErrorCode:
    code = cluster.topology.coordinator_error(name, broker)
    if code is ErrorCode.none:
        try:
            cluster.groups.delete(name)
        except RefusedError as refusal:
            return refusal.code
    return code
