"""ListTransactions (v0 to v2, KIP-664, KIP-994): the transactional ids that a broker coordinates.

v1 adds the filter by age, v2 the filter by name.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker
from aioidem._broker.transaction import Transaction, TransactionState

__all__ = ["handle"]

_API: Final = 66
# The names that Kafka accepts in a filter by state. No transaction here is ever in the last two.
_STATES: Final = frozenset(
    {*(state.value for state in TransactionState), "Dead", "PrepareEpochFence"}
)


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Return the transactional ids that match all filters of the request.

    The answer is COORDINATOR_LOAD_IN_PROGRESS while this broker is loading the state of any
    transactional id or group that it coordinates.
    """
    unknown = [each for each in request.state_filters if each not in _STATES]
    code, listed = ErrorCode.none, []
    if _loading(cluster, broker):
        code = ErrorCode.coordinator_load_in_progress
    else:
        try:
            listed = _listed(cluster, broker, request)
        except re.error:
            code = ErrorCode.invalid_regular_expression
    values = {
        "throttle_time": ZERO_MS,
        "error_code": code,
        "unknown_state_filters": unknown,
        "transaction_states": listed,
    }
    return Now(respond(_API, context.api_version, values))


def _listed(cluster: Cluster, broker: Broker, request: Entity) -> list[dict[str, Any]]:
    pattern = getattr(request, "transactional_id_pattern", None)
    name = re.compile(pattern) if pattern else None
    longer_than = getattr(request, "duration_filter", -1)
    now_ms = cluster.wall_ms(broker)

    def wanted(each: Transaction) -> bool:
        return (
            cluster.coordinator_of(each.name) is broker
            and (not request.state_filters or each.state.value in request.state_filters)
            and (not request.producer_id_filters or each.producer_id in request.producer_id_filters)
            and (longer_than < 0 or now_ms - each.started_ms > longer_than)
            and (name is None or name.fullmatch(each.name) is not None)
        )

    return [
        {
            "transactional_id": each.name,
            "producer_id": each.producer_id,
            "transaction_state": each.state.value,
        }
        for each in cluster.transactions.transactions()
        if wanted(each)
    ]


def _loading(cluster: Cluster, broker: Broker) -> bool:
    return any(
        fault is ErrorCode.coordinator_load_in_progress and cluster.coordinator_of(key) is broker
        for key, fault in cluster.coordinator_faults.items()
    )
