"""AddOffsetsToTxn (KIP-98): add a consumer group to a transaction.

The request is needed in transactions v1 only: in v2 TxnOffsetCommit v5 adds the group (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aioidem._protocol.messages import request_type, throttle_ms
from aioidem._protocol.producer_id import TransactionalIdentity
from aioidem.errors import InternalError

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["AddOffsetsAnswer", "add_offsets_answer", "add_offsets_request"]

API_KEY: Final = 25


class AddOffsetsAnswer(NamedTuple):
    """The coordinator's answer, with the throttle time in milliseconds."""

    error_code: int
    throttle_ms: int = 0


def add_offsets_request(version: int, who: TransactionalIdentity, group_id: str) -> RequestPayload:
    """Make the request that adds a consumer group to the transaction of ``who``.

    Raises:
        InternalError: The library kio has no such version.
    """
    schema: Any = request_type(API_KEY, version)
    if schema is None:
        raise InternalError(f"no AddOffsetsToTxn version {version}")
    request: RequestPayload = schema(
        transactional_id=who.transactional_id,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        group_id=group_id,
    )
    return request


def add_offsets_answer(response: Any) -> AddOffsetsAnswer:
    """Convert a decoded answer, of any version, to plain data."""
    return AddOffsetsAnswer(int(response.error_code), throttle_ms(response.throttle_time))
