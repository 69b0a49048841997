"""FindCoordinator (v0 to v6): the broker that coordinates a group or a transactional id."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 10
_FIRST_WITH_KEYS: Final = 4
_KEY_TYPES: Final = (0, 1)
# Kafka's answer has an error message even if there is no error: "NONE".
_MESSAGES: Final = {
    ErrorCode.none: "NONE",
    ErrorCode.invalid_request: "There is no coordinator for this type of key.",
    ErrorCode.coordinator_not_available: "The coordinator is not available.",
}


def handle(cluster: Cluster, _broker: Broker, request: Entity, context: Context) -> Reply:
    """Return each key's coordinator; a key is a group or transactional id (one key up to v3)."""
    key_type = getattr(request, "key_type", 0)
    if context.api_version < _FIRST_WITH_KEYS:
        values = _coordinator(cluster, request.key, key_type)
    else:
        values = {
            "coordinators": [_coordinator(cluster, k, key_type) for k in request.coordinator_keys]
        }
    return Now(respond(_API, context.api_version, values | {"throttle_time": ZERO_MS}))


def _coordinator(cluster: Cluster, key: str, key_type: int) -> dict[str, Any]:
    broker = cluster.coordinator_of(key)
    code = ErrorCode.none
    if key_type not in _KEY_TYPES:
        code, broker = ErrorCode.invalid_request, None
    # A coordinator that is still loading its state is returned as usual. The coordinator itself
    # then answers the client's requests with COORDINATOR_LOAD_IN_PROGRESS.
    elif cluster.coordinator_faults.get(key) is ErrorCode.coordinator_not_available:
        code, broker = ErrorCode.coordinator_not_available, None
    elif broker is None:
        code = ErrorCode.coordinator_not_available
    return {
        "key": key,
        "error_code": code,
        "error_message": _MESSAGES[code],
        "node_id": -1 if broker is None else broker.id,
        "host": "" if broker is None else broker.host,
        "port": -1 if broker is None else broker.port,
    }
