"""InitProducerId (KIP-98), as plain data: for a plain idempotent producer, and for a transactional
one, whose coordinator is asked.

A transactional producer that has an identity already names it, to get the next epoch and not be
taken for somebody else (KIP-360; v3 and up). Below v3 it cannot: it then fences itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.static.protocol import RequestPayload

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem.errors import InternalError

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
"""The lowest version in which a producer can name the identity it has."""
_NO_TIMEOUT_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TransactionalIdentity:
    """Who a request of a transaction is from."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerIdAnswer:
    """What the broker said; -1 where it gave nothing."""

    error_code: int
    producer_id: int
    producer_epoch: int
    throttle_ms: int = 0


def producer_id_request(version: int) -> RequestPayload:
    """Ask for a new producer id, outside of any transaction.

    Raises:
        InternalError: the version is not one that kio has.
    """
    return _request(version, None, _NO_TIMEOUT_MS, -1, -1)


def transactional_producer_id_request(
    version: int,
    transactional_id: str,
    timeout_ms: int,
    existing: TransactionalIdentity | None = None,
) -> RequestPayload:
    """Ask the coordinator for the transactional id's producer id and its next epoch.

    :param timeout_ms: after which the coordinator aborts a transaction by itself.
    :param existing: what this producer has; left out below `FIRST_WITH_IDENTITY`.

    Raises:
        InternalError: the version is not one that kio has.
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
    """The answer of any version."""
    return ProducerIdAnswer(
        int(response.error_code),
        int(response.producer_id),
        int(response.producer_epoch),
        throttle_ms(response.throttle_time),
    )
