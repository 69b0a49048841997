"""JoinGroup (v0 to v9): become a member of a group; answered when all members have joined.

From v4 on a new member first gets MEMBER_ID_REQUIRED with an id, and joins again with it (KIP-394).
v5 adds instance ids of static members (KIP-345). In v9 the answer to a static leader that was
restarted can say that it must not compute the assignment again (KIP-814).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.group_member import Joining
from aioidem._broker.requests import Context, Promised, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 11
_FIRST_ASKED_TWICE: Final = 4
_FIRST_WITHOUT_PROTOCOL: Final = 7
_FIRST_SKIPPING: Final = 9


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Join the group: the answer waits until all members have joined.

    A refusal is answered at once, with the member id of the request.
    """
    version = context.api_version
    promised = Promised(lambda values: _answer(version, values))
    code = cluster.topology.coordinator_error(request.group_id, broker)
    try:
        asked = _asked(request, context)
        cluster.rebalances.check_session(broker, asked.session)
        if code is ErrorCode.none:
            cluster.rebalances.join(broker, request.group_id, asked, promised)
        else:
            promised.keep({"error_code": code})
    except RefusedError as refusal:
        promised.keep({"error_code": refusal.code, "member_id": request.member_id})
    return promised


def _asked(request: Entity, context: Context) -> Joining:
    if not request.group_id:
        raise RefusedError(ErrorCode.invalid_group_id, "a group must have a name")
    session = request.session_timeout
    return Joining(
        request.member_id,
        getattr(request, "group_instance_id", None),
        context.pending.client_id or "",
        request.protocol_type,
        tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        session.total_seconds(),
        # v0 has no rebalance timeout: the session timeout stands for it.
        getattr(request, "rebalance_timeout", session).total_seconds(),
        needs_known_id=context.api_version >= _FIRST_ASKED_TWICE,
        may_skip=context.api_version >= _FIRST_SKIPPING,
    )


def _answer(version: int, values: Mapping[str, Any]) -> Entity:
    nothing = None if version >= _FIRST_WITHOUT_PROTOCOL else ""
    answer = {
        "throttle_time": ZERO_MS,
        "generation_id": -1,
        "protocol_name": nothing,
        "leader": "",
        "member_id": "",
        "members": (),
        **values,
    }
    return respond(_API, version, answer)
