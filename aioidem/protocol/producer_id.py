"""InitProducerId for a plain idempotent producer (KIP-98), as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.static.protocol import RequestPayload

from aioidem.errors import InternalError
from aioidem.protocol.messages import request_type, throttle_ms

__all__ = ["ProducerIdAnswer", "producer_id_answer", "producer_id_request"]

API_KEY = 22
_NO_TIMEOUT_MS = 2**31 - 1


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
    schema = request_type(API_KEY, version)
    if schema is None:
        raise InternalError(f"no InitProducerId version {version}")
    values: dict[str, Any] = {
        "transactional_id": None,
        "transaction_timeout": timedelta(milliseconds=_NO_TIMEOUT_MS),
    }
    known = {field.name for field in dataclasses.fields(schema)}
    values |= {name: -1 for name in ("producer_id", "producer_epoch") if name in known}
    return schema(**values)


def producer_id_answer(response: Any) -> ProducerIdAnswer:
    """The answer of any version."""
    return ProducerIdAnswer(
        int(response.error_code),
        int(response.producer_id),
        int(response.producer_epoch),
        throttle_ms(response.throttle_time),
    )
