"""InitProducerId (v0 to v5): a new producer id, or the next epoch for a transactional id.

Without a transactional id the answer is always a new id at epoch 0, whatever id the request names:
a producer without a transactional id raises its epoch without asking a broker (KIP-360).
"""

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

_API: Final = 22


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Answer with a producer id and an epoch, or an error."""
    code, given = ErrorCode.none, Identity(-1, -1)
    try:
        claimed = _claimed(request)
        if request.transactional_id is None:
            given = Identity(cluster.topology.allocate_producer_id(broker), 0)
        else:
            given = _transactional(cluster, broker, request, claimed)
    except RefusedError as refusal:
        code = as_known_to(_API, context.api_version, refusal.code)
    values = {
        "throttle_time": ZERO_MS,
        "error_code": code,
        "producer_id": given.producer_id,
        "producer_epoch": given.epoch,
    }
    return Now(respond(_API, context.api_version, values))


def _claimed(request: Entity) -> Identity | None:
    claimed = Identity(getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))
    if (claimed.producer_id == -1) != (claimed.epoch == -1):
        raise RefusedError(ErrorCode.invalid_request, "an id without an epoch, or the reverse")
    return None if claimed.producer_id == -1 else claimed


def _transactional(
    cluster: Cluster, broker: Broker, request: Entity, claimed: Identity | None
) -> Identity:
    name = request.transactional_id
    if not name:
        raise RefusedError(ErrorCode.invalid_request, "empty transactional id")
    timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
    cluster.transactions.check_timeout(broker, timeout_ms)
    code = cluster.topology.coordinator_error(name, broker)
    if code is not ErrorCode.none:
        raise RefusedError(code, f"broker {broker.id} does not coordinate {name!r}")
    return cluster.transactions.init(broker, name, timeout_ms, claimed)
