"""EndTxn (KIP-98): commit or abort a transaction.

The version of the request selects the protocol: with v5 the client declares that it uses
transactions v2 (KIP-890), in which each EndTxn raises the producer's epoch. A client of
transactions v1 therefore sends at most v4, even to a broker that offers v5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem._protocol.producer_id import TransactionalIdentity
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["FIRST_V2", "LAST_V1", "EndTxnAnswer", "end_txn_answer", "end_txn_request"]

API_KEY: Final = 26
LAST_V1: Final = 4
"""The highest EndTxn version that a client of transactions v1 may send."""
FIRST_V2: Final = 5
"""The lowest EndTxn version that a client of transactions v2 may send."""


class EndTxnAnswer(NamedTuple):
    """The coordinator's answer, with the producer id and epoch to continue with.

    Both are -1 in an answer below v5 and in one with an error.
    """

    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_ms: int = 0


def end_txn_request(version: int, who: TransactionalIdentity, *, commit: bool) -> RequestPayload:
    """Make the request that commits or aborts the transaction of ``who``.

    Raises:
        InternalError: The library kio has no such version.
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
    """Convert a decoded answer, of any version, to plain data."""
    return EndTxnAnswer(
        int(response.error_code),
        int(getattr(response, "producer_id", -1)),
        int(getattr(response, "producer_epoch", -1)),
        throttle_ms(response.throttle_time),
    )
