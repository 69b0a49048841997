"""InitProducerId (v0 to v5): a new producer id, or a transactional id's own with the next epoch.

Without a transactional id the answer is always a new id at epoch 0, whatever the request says it
has: an idempotent producer raises its epoch by itself (KIP-360).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from aioidem.broker.batch import RefusedError
from aioidem.broker.entities import ZERO_MS, Entity, respond
from aioidem.broker.requests import Context, Now, Reply

if TYPE_CHECKING:
    from aioidem.broker.state import ClusterState
    from aioidem.broker.topology import Broker

__all__ = ["handle"]

_API: Final = 22
_LAST_EPOCH: Final = 32766
_FIRST_WITH_FENCED: Final = 4


def handle(cluster: ClusterState, broker: Broker, request: Entity, context: Context) -> Reply:
    """(id, epoch), or the reason why not."""
    code, producer_id, epoch = ErrorCode.none, -1, -1
    claimed = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    try:
        _check_claim(*claimed)
        if request.transactional_id is None:
            producer_id, epoch = cluster.allocate_producer_id(broker), 0
        else:
            producer_id, epoch = _transactional(cluster, broker, request, context.api_version)
    except RefusedError as refusal:
        code = refusal.code
    values = {
        "throttle_time": ZERO_MS,
        "error_code": code,
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }
    return Now(respond(_API, context.api_version, values))


def _check_claim(producer_id: int, epoch: int) -> None:
    if (producer_id < 0) != (epoch < 0):
        raise RefusedError(ErrorCode.invalid_request, "an id without an epoch, or the reverse")


def _transactional(
    cluster: ClusterState, broker: Broker, request: Entity, version: int
) -> tuple[int, int]:
    name = request.transactional_id
    if not name:
        raise RefusedError(ErrorCode.invalid_request, "empty transactional id")
    if cluster.coordinator_of(name) is not broker:
        raise RefusedError(ErrorCode.not_coordinator, f"broker {broker.id} does not coordinate it")
    longest = int(cluster.broker_config(broker, "transaction.max.timeout.ms"))
    if not 0 < request.transaction_timeout.total_seconds() * 1000 <= longest:
        raise RefusedError(ErrorCode.invalid_transaction_timeout, f"at most {longest} ms")
    known = cluster.transactional_ids.get(name)
    claimed = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    if known is not None and claimed[0] >= 0 and claimed != known:
        fenced = (
            ErrorCode.producer_fenced
            if version >= _FIRST_WITH_FENCED
            else ErrorCode.invalid_producer_epoch
        )
        raise RefusedError(fenced, f"{claimed} is not the current one")
    if known is None or known[1] >= _LAST_EPOCH:
        given = cluster.allocate_producer_id(broker), 0
    else:
        given = known[0], known[1] + 1
    cluster.transactional_ids[name] = given
    return given
