"""EndTxn (KIP-98): commit or abort, as plain data.

The version is part of the meaning: v5 says that the client speaks transactions v2 (KIP-890), where
each end raises the epoch. A client of v1 sends v4 at most, whatever the broker offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kio.static.protocol import RequestPayload

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem._protocol.producer_id import TransactionalIdentity
from aioidem.errors import InternalError

__all__ = ["FIRST_V2", "LAST_V1", "EndTxnAnswer", "end_txn_answer", "end_txn_request"]

API_KEY: Final = 26
LAST_V1: Final = 4
"""The highest version of a client that speaks transactions v1."""
FIRST_V2: Final = 5
"""The lowest version of a client that speaks transactions v2."""


@dataclass(frozen=True, slots=True)
class EndTxnAnswer:
    """``producer_id`` and ``producer_epoch`` are what to go on with; -1 before v5, and on error."""

    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_ms: int = 0


def end_txn_request(version: int, who: TransactionalIdentity, *, commit: bool) -> RequestPayload:
    """Commit the transaction of ``who``, or abort it.

    Raises:
        InternalError: the version is not one that kio has.
    """
    schema: Any = request_type(API_KEY, version)
    if schema is None:
        raise InternalError(f"no EndTxn version {version}")
    request: RequestPayload = schema(
        transactional_id=who.transactional_id,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        committed=commit,
    )
    return request


def end_txn_answer(response: Any) -> EndTxnAnswer:
    """The answer of any version."""
    return EndTxnAnswer(
        int(response.error_code),
        int(getattr(response, "producer_id", -1)),
        int(getattr(response, "producer_epoch", -1)),
        throttle_ms(response.throttle_time),
    )
