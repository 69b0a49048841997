"""ListGroups (v0 to v5): list a broker's groups, filtered by state (v4) and type (v5)."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 16
_TYPE: Final = "classic"


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """List the groups that this broker coordinates; filters ignore case, empty ones match all."""
    states = {each.strip().lower() for each in getattr(request, "states_filter", ())}
    types = {each.lower() for each in getattr(request, "types_filter", ())}
    groups = [
        {
            "group_id": group.name,
            "protocol_type": group.protocol_type or "",
            "group_state": group.state.value,
            "group_type": _TYPE,
        }
        for group in cluster.groups.all()
        if cluster.coordinator_of(group.name) is broker
        and (not states or group.state.value.lower() in states)
        and (not types or _TYPE in types)
    ]
    answer = {"throttle_time": ZERO_MS, "error_code": ErrorCode.none, "groups": groups}
    return Now(respond(_API, context.api_version, answer))
