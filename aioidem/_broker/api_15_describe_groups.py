"""DescribeGroups (v0 to v6): state and members of groups, and (v3) the authorized operations.

A group that does not exist is described as Dead; from v6 on it is answered GROUP_ID_NOT_FOUND
(KIP-1043).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.authorized import GROUP_OPERATIONS, NOT_ASKED
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.group import Group, GroupState
from aioidem._broker.group_member import CLIENT_HOST
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 15
_FIRST_WITH_NOT_FOUND: Final = 6


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Describe each group; the answer has an error code for a group that cannot be described."""
    asked = getattr(request, "include_authorized_operations", False)
    groups = [_group(cluster, broker, each, context.api_version) for each in request.groups]
    for each in groups:
        if asked and each["error_code"] is ErrorCode.none:
            each["authorized_operations"] = GROUP_OPERATIONS
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "groups": groups}))


def _group(cluster: Cluster, broker: Broker, name: str, version: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "error_code": cluster.topology.coordinator_error(name, broker),
        "group_id": name,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": NOT_ASKED,
    }
    if told["error_code"] is not ErrorCode.none:
        return told
    group = cluster.groups.find(name)
    if group is not None:
        return told | _described(group)
    told["group_state"] = GroupState.DEAD.value
    if version >= _FIRST_WITH_NOT_FOUND:
        told["error_code"] = ErrorCode.group_id_not_found
        told["error_message"] = f"Group {name} not found."
    return told


def _described(group: Group) -> dict[str, Any]:
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return {
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol or "",
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": CLIENT_HOST,
                "member_metadata": member.metadata(protocol),
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }
