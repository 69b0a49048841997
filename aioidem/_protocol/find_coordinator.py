"""FindCoordinator: which broker keeps a transactional id or a consumer group, as plain data.

One key is asked for at a time: from v4 on the API takes several (KIP-699), but a producer has one
transactional id, and a group's coordinator is another question.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem._protocol.metadata import BrokerAddress
from aioidem.errors import InternalError

__all__ = ["CoordinatorAnswer", "CoordinatorKey", "coordinator_answer", "coordinator_request"]

API_KEY: Final = 10
_FIRST_WITH_TYPES: Final = 1
_FIRST_WITH_KEYS: Final = 4
_UNKNOWN: Final = -1
_NOT_AVAILABLE: Final = 15


class CoordinatorKey(IntEnum):
    """What the key names."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class CoordinatorAnswer:
    """Which broker it is.

    With an error ``node_id`` and ``port`` are -1 and ``host`` is empty.
    """

    error_code: int
    node_id: int
    host: str
    port: int
    throttle_ms: int = 0


def coordinator_request(version: int, key: str, kind: CoordinatorKey) -> RequestPayload:
    """Ask for the coordinator of one key.

    Raises:
        InternalError: the version is not one that kio has, or (v0) cannot ask for a transaction's.
    """
    schema: Any = request_type(API_KEY, version)
    if schema is None or (version < _FIRST_WITH_TYPES and kind is not CoordinatorKey.GROUP):
        raise InternalError(f"no FindCoordinator version {version} for a {kind.name}")
    values: dict[str, Any]
    values = {"coordinator_keys": (key,)} if version >= _FIRST_WITH_KEYS else {"key": key}
    if version >= _FIRST_WITH_TYPES:
        values["key_type"] = int(kind)
    request: RequestPayload = schema(**values)
    return request


def coordinator_answer(response: Any, key: str) -> CoordinatorAnswer:
    """Read the answer of any version.

    One without the key counts as UNKNOWN_SERVER_ERROR, and one that names an address which no
    broker can have as COORDINATOR_NOT_AVAILABLE.
    """
    throttle = throttle_ms(getattr(response, "throttle_time", 0))
    found: Any = response
    if hasattr(response, "coordinators"):
        found = next((each for each in response.coordinators if each.key == key), None)
    if found is None:
        return CoordinatorAnswer(_UNKNOWN, -1, "", -1, throttle)
    code = int(found.error_code)
    address = BrokerAddress(int(found.node_id), found.host, int(found.port))
    if not code and not address.possible:
        code = _NOT_AVAILABLE
    if code:
        return CoordinatorAnswer(code, -1, "", -1, throttle)
    return CoordinatorAnswer(code, address.node_id, address.host, address.port, throttle)
