"""The errors for what a coordinator refuses, with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine.refusals import GRANTS, with_advice

__all__ = ["coordinator_error"]

_FENCED: Final = (
    "Another producer with this transactional id has begun: find out which, and give each producer "
    "a transactional id of its own"
)
_REJOINED: Final = (
    "The consumer has left its group or rejoined it: abort, and consume again from the committed "
    "offsets"
)
_ADVICE: Final[Mapping[int, str]] = {
    **GRANTS,
    ErrorCode.transactional_id_authorization_failed: (
        "Grant this client's principal WRITE and DESCRIBE on the transactional id"
    ),
    ErrorCode.group_authorization_failed: "Grant this client's principal READ on the group",
    ErrorCode.invalid_transaction_timeout: (
        "Lower transaction_timeout, or raise the brokers' transaction.max.timeout.ms"
    ),
    ErrorCode.invalid_producer_epoch: _FENCED,
    ErrorCode.producer_fenced: _FENCED,
    ErrorCode.invalid_txn_state: (
        "The coordinator may have aborted the transaction after transaction_timeout: abort, and "
        "write again"
    ),
    ErrorCode.invalid_producer_id_mapping: (
        "The coordinator has forgotten this transactional id (transactional.id.expiration.ms)"
    ),
    ErrorCode.illegal_generation: _REJOINED,
    ErrorCode.unknown_member_id: _REJOINED,
    ErrorCode.fenced_instance_id: _REJOINED,
    ErrorCode.unknown_topic_or_partition: "Create the topic, or abort",
    ErrorCode.unsupported_version: "Upgrade the brokers: they are too old for transactions",
}
"""What to do about an error code of a coordinator."""


def coordinator_error(code: int, about: str, node_id: int | None) -> errors.KafkaError:
    """Return the error of a refused request.

    Args:
        code: the broker's error code.
        about: what was requested, and for which transactional id or group.
        node_id: the broker that refused it; None if that is not known.
    """
    by = "a broker" if node_id is None else f"broker {node_id}"
    return with_advice(code, f"{about}, refused by {by}", _ADVICE)
