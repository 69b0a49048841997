"""EndTxn (v0 to v5): commit or abort a transaction.

A client that sends v5 speaks transactions v2 (KIP-890): the end raises the producer's epoch, and
the answer contains the producer id and epoch that the producer must use from then on. The id is new
if the old one has no further epoch. A repeated request gets the same answer.
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

_API: Final = 26
_FIRST_RAISING: Final = 5


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Decide the outcome, and answer before the transaction's markers are written."""
    version = context.api_version
    code, given = ErrorCode.none, Identity(-1, -1)
    try:
        given = _end(cluster, broker, request, version)
    except RefusedError as refusal:
        code = as_known_to(_API, version, refusal.code)
    values = {
        "throttle_time": ZERO_MS,
        "error_code": code,
        "producer_id": given.producer_id,
        "producer_epoch": given.epoch,
    }
    return Now(respond(_API, version, values))


def _end(cluster: Cluster, broker: Broker, request: Entity, version: int) -> Identity:
    name = request.transactional_id
    if not name:
        raise RefusedError(ErrorCode.invalid_request, "empty transactional id")
    code = cluster.topology.coordinator_error(name, broker)
    if code is not ErrorCode.none:
        raise RefusedError(code, f"broker {broker.id} does not coordinate {name!r}")
    return cluster.transactions.end(
        broker,
        name,
        Identity(request.producer_id, request.producer_epoch),
        commit=request.committed,
        raises=version >= _FIRST_RAISING,
    )
