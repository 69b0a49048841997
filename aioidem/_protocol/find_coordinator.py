"""FindCoordinator: find the broker that coordinates a transactional id or a consumer group.

Each request asks for one key (a transactional id or a group's id). From v4 on a request can have
several keys (KIP-699), but a producer has a single transactional id, and asks for a group's
coordinator at another time.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem._protocol.metadata import BrokerAddress
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["CoordinatorAnswer", "CoordinatorKey", "coordinator_answer", "coordinator_request"]

API_KEY: Final = 10
_FIRST_WITH_TYPES: Final = 1
_FIRST_WITH_KEYS: Final = 4


class CoordinatorKey(IntEnum):
    """What the key of a request is: a group's id or a transactional id."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorAnswer(NamedTuple):
    """The coordinator's node id and address, or an error code.

    With an error, ``node_id`` and ``port`` are -1 and ``host`` is empty.
    """

    error_code: int
    node_id: int
    host: str
    port: int
    throttle_ms: int = 0


def coordinator_request(version: int, key: str, kind: CoordinatorKey) -> RequestPayload:
    """Make the request for the coordinator of one key.

    Raises:
        InternalError: The library kio has no such version, or v0 was given for a transactional id.
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
    """Convert a decoded answer, of any version, to plain data.

    An answer without the key counts as UNKNOWN_SERVER_ERROR, and an answer with an address that no
    broker can have as COORDINATOR_NOT_AVAILABLE.
    """
    throttle = throttle_ms(getattr(response, "throttle_time", 0))
    found: Any = response
    if hasattr(response, "coordinators"):
        found = next((each for each in response.coordinators if each.key == key), None)
    if found is None:
        return CoordinatorAnswer(ErrorCode.unknown_server_error, -1, "", -1, throttle)
    code = int(found.error_code)
    address = BrokerAddress(int(found.node_id), found.host, int(found.port))
    if not code and not address.possible:
        code = int(ErrorCode.coordinator_not_available)
    if code:
        return CoordinatorAnswer(code, -1, "", -1, throttle)
    return CoordinatorAnswer(code, address.node_id, address.host, address.port, throttle)
