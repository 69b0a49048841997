"""AddOffsetsToTxn (v0 to v4): announce that a transaction will commit offsets of a group."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker
from aioidem._broker.transaction import Identity
from aioidem._broker.transaction_support import as_known_to

__all__ = ["handle"]

_API: Final = 25


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Add the group to the transaction; the group need not exist."""
    code = as_known_to(_API, context.api_version, _add(cluster, broker, request))
    return Now(respond(_API, context.api_version, {"throttle_time": ZERO_MS, "error_code": code}))


def _add(cluster: Cluster, broker: Broker, request: Entity) -> ErrorCode:
    name = request.transactional_id
    if not name:
        return ErrorCode.invalid_request
    code = cluster.topology.coordinator_error(name, broker)
    if code is not ErrorCode.none:
        return code
    identity = Identity(request.producer_id, request.producer_epoch)
    try:
        cluster.transactions.add(name, identity, {request.group_id})
    except RefusedError as refusal:
        return refusal.code
    return ErrorCode.none
