"""ApiVersions (v0 to v4): the versions of this broker, and (v3) the features of the cluster.

If a client asks in a version that is too new, kio has no schema for the body, so the handler gets
None as the request. The answer is UNSUPPORTED_VERSION in version 0. Only this API answers a version
that it does not have (KIP-511); for other APIs the broker closes the connection.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.topology import Broker
from aioidem._broker.versions import announced

__all__ = ["handle"]

_API: Final = 18
_TRANSACTIONS: Final = "transaction.version"
_NEWEST_TRANSACTIONS: Final = 2
_FIRST_WITH_SOFTWARE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Return the broker's versions; INVALID_REQUEST for a malformed client software name (v3)."""
    code, version = ErrorCode.none, context.api_version
    if request is None:
        code, version = ErrorCode.unsupported_version, 0
    elif version >= _FIRST_WITH_SOFTWARE:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.match(name) for name in names):
            code = ErrorCode.invalid_request
    # UNSUPPORTED_VERSION is answered with the versions of this API alone, so that the client can
    # repeat its request in one of them; other errors are answered with no versions.
    told = [
        each
        for each in announced(broker)
        if code is ErrorCode.none or (code is ErrorCode.unsupported_version and each[0] == _API)
    ]
    values: dict[str, Any] = {
        "error_code": code,
        "api_keys": [
            {"api_key": key, "min_version": first, "max_version": last} for key, first, last in told
        ],
        "throttle_time": ZERO_MS,
    }
    if code is ErrorCode.none:
        values |= _features(cluster)
    return Now(respond(_API, version, values))


def _features(cluster: Cluster) -> dict[str, Any]:
    level = cluster.transactions.version
    finalized = {
        "name": _TRANSACTIONS,
        "max_version_level": level,
        "min_version_level": level,
    }
    return {
        "supported_features": [
            {"name": _TRANSACTIONS, "min_version": 0, "max_version": _NEWEST_TRANSACTIONS}
        ],
        "finalized_features_epoch": 1,
        # A feature at level 0 is left out, because it counts as not finalised (KIP-1022).
        "finalized_features": [finalized] if level else [],
    }
