"""Heartbeat (v0 to v4): restarts a member's session; the answer says whether it must join again."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 12


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Restart the member's session; as in Kafka, answer no error while the coordinator loads."""
    code = cluster.topology.group_error(request.group_id, broker)
    if code is ErrorCode.coordinator_load_in_progress:
        code = ErrorCode.none
    elif code is ErrorCode.none:
        code = _refused(cluster, request)
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "error_code": code}))


def _refused(cluster: Cluster, request: Entity) -> ErrorCode:
    try:
        cluster.rebalances.heartbeat(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
        )
    except RefusedError as refusal:
        return refusal.code
    return ErrorCode.none
