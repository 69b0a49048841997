"""SyncGroup (v0 to v5): a member's assignment; answered when the group's leader has sent it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Promised, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 14
_FIRST_NAMING_THE_PROTOCOL: Final = 5


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Return the member's assignment; from v5 on the request must name the group's protocol."""
    version = context.api_version

    def answer(values: Mapping[str, Any]) -> Entity:
        nothing = {"throttle_time": ZERO_MS, "assignment": b""}
        return respond(_API, version, {**nothing, **values})

    promised = Promised(answer)
    protocol = getattr(request, "protocol_type", None), getattr(request, "protocol_name", None)
    code = cluster.topology.group_error(request.group_id, broker)
    if version >= _FIRST_NAMING_THE_PROTOCOL and None in protocol:
        code = ErrorCode.inconsistent_group_protocol
    if code is not ErrorCode.none:
        promised.keep({"error_code": code})
        return promised
    try:
        cluster.rebalances.sync(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            protocol,
            {each.member_id: bytes(each.assignment) for each in request.assignments},
            promised,
        )
    except RefusedError as refusal:
        promised.keep({"error_code": refusal.code})
    return promised
