"""LeaveGroup (v0 to v5): one member leaves, or (v3, KIP-345) an operator removes several."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 13
_FIRST_WITH_MEMBERS: Final = 3


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Remove the members that the request names; the answer has an error code for each.

    Up to v2 a request names one member, and the answer has only that member's error code.
    """
    version = context.api_version
    leaving: list[tuple[str, str | None]] = (
        [(each.member_id, each.group_instance_id) for each in request.members]
        if version >= _FIRST_WITH_MEMBERS
        else [(request.member_id, None)]
    )
    code = cluster.topology.group_error(request.group_id, broker)
    said: list[ErrorCode] = []
    if code is ErrorCode.none:
        said = cluster.rebalances.leave(request.group_id, leaving)
        code = said[0] if version < _FIRST_WITH_MEMBERS else code
    members = [
        {"member_id": member_id, "group_instance_id": instance_id, "error_code": told}
        for (member_id, instance_id), told in zip(leaving, said, strict=False)
    ]
    answer = {"throttle_time": ZERO_MS, "error_code": code, "members": members}
    return Now(respond(_API, version, answer))
