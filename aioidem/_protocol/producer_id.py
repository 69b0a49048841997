"""InitProducerId (KIP-98), for idempotent and for transactional producers.

An idempotent producer sends the request to any broker, a transactional producer to its coordinator.
A transactional producer that already has a producer id and epoch puts them into the request to get
the next epoch, so that the coordinator does not treat it as another instance (KIP-360, from v3 on).
Below v3 the request has no field for them, and the coordinator fences the producer's earlier epoch.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = [
    "FIRST_WITH_IDENTITY",
    "ProducerIdAnswer",
    "TransactionalIdentity",
    "producer_id_answer",
    "producer_id_request",
    "transactional_producer_id_request",
]

API_KEY = 22
FIRST_WITH_IDENTITY = 3
"""The lowest version in which a producer can name its current identity."""
_NO_TIMEOUT_MS = 2**31 - 1


class TransactionalIdentity(NamedTuple):
    """The producer on whose behalf a transactional request is sent."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ProducerIdAnswer(NamedTuple):
    """The answer to InitProducerId; id and epoch are -1 if the broker assigned none."""

    error_code: int
    producer_id: int
    producer_epoch: int
    throttle_ms: int = 0


def producer_id_request(version: int) -> RequestPayload:
    """Make the request for a new producer id without a transactional id.

    Raises:
        InternalError: The library kio has no such version.
    """
    return _request(version, None, _NO_TIMEOUT_MS, -1, -1)


def transactional_producer_id_request(
    version: int,
    transactional_id: str,
    timeout_ms: int,
    existing: TransactionalIdentity | None = None,
) -> RequestPayload:
    """Make the request for the producer id and next epoch of a transactional id.

    Args:
        version: The version to send.
        transactional_id: The transactional id.
        timeout_ms: The time after which the coordinator aborts an open transaction by itself.
        existing: The producer's current identity; left out below `FIRST_WITH_IDENTITY`.

    Raises:
        InternalError: The library kio has no such version.
    """
    if existing is None:
        return _request(version, transactional_id, timeout_ms, -1, -1)
    return _request(
        version, transactional_id, timeout_ms, existing.producer_id, existing.producer_epoch
    )


def _request(
    version: int, transactional_id: str | None, timeout_ms: int, producer_id: int, epoch: int
) -> RequestPayload:
    schema = request_type(API_KEY, version)
    if schema is None:
        raise InternalError(f"no InitProducerId version {version}")
    values: dict[str, Any] = {
        "transactional_id": transactional_id,
        "transaction_timeout": timedelta(milliseconds=timeout_ms),
    }
    if version >= FIRST_WITH_IDENTITY:
        values |= {"producer_id": producer_id, "producer_epoch": epoch}
    return schema(**values)


def producer_id_answer(response: Any) -> ProducerIdAnswer:
    """Convert a decoded answer, of any version, to plain data."""
    return ProducerIdAnswer(
        int(response.error_code),
        int(response.producer_id),
        int(response.producer_epoch),
        throttle_ms(response.throttle_time),
    )
