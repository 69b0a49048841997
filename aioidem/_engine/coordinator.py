"""Coordinator: the broker that coordinates a transactional id or group; what its error codes mean.

`classify_call` looks an error code up in the tables below, as `classify` does for Produce. For a
code without a row the kind of request (call) decides. A call that adds partitions or offsets to a
transaction makes the transaction abortable. InitProducerId raises an error to the caller.
FindCoordinator and EndTxn are sent again if the code may be temporary (`unlisted.py`). If it is
not, FindCoordinator raises an error to the caller, and EndTxn ends the producer with the outcome
UNKNOWN: the outcome of a transaction is never guessed.
"""

from __future__ import annotations

import enum

from kio.schema.errors import ErrorCode

from aioidem._engine.unlisted import may_pass
from aioidem._protocol.find_coordinator import CoordinatorKey

__all__ = ["CallKind", "Coordinator", "Verdict", "classify_call", "is_listed"]


class CallKind(enum.Enum):
    """The kinds of request to a coordinator; FIND is the request that finds the coordinator."""

    FIND = "FindCoordinator"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"


class Verdict(enum.Enum):
    """What a coordinator's error code means for the transaction."""

    RETRY = "retry"
    MOVED = "moved"
    """Find the coordinator again, then repeat the call."""
    ABORTABLE = "abortable"
    REFUSED = "refused"
    """FindCoordinator and InitProducerId only: the caller gets the error, and may try again later.
    """
    WRONG_STATE = "wrong state"
    FATAL = "fatal"


_COMMON: dict[int, Verdict] = {
    ErrorCode.unknown_server_error: Verdict.RETRY,
    ErrorCode.request_timed_out: Verdict.RETRY,
    ErrorCode.network_exception: Verdict.RETRY,
    ErrorCode.coordinator_load_in_progress: Verdict.RETRY,
    ErrorCode.coordinator_not_available: Verdict.MOVED,
    ErrorCode.not_coordinator: Verdict.MOVED,
    # A request of transactions v2 (KIP-890) to a cluster that has finalised an older version.
    ErrorCode.unsupported_version: Verdict.FATAL,
    # The coordinator dropped the producer id after its expiration, its epochs are used up, or
    # another producer has it.
    ErrorCode.invalid_producer_id_mapping: Verdict.ABORTABLE,
    ErrorCode.concurrent_transactions: Verdict.RETRY,  # the previous transaction is ending
    ErrorCode.transactional_id_authorization_failed: Verdict.FATAL,
    ErrorCode.producer_fenced: Verdict.FATAL,
}

_BY_KIND: dict[tuple[CallKind, int], Verdict] = {
    (CallKind.FIND, ErrorCode.transactional_id_authorization_failed): Verdict.REFUSED,
    (CallKind.FIND, ErrorCode.group_authorization_failed): Verdict.ABORTABLE,
    (
        CallKind.INIT,
        ErrorCode.invalid_producer_epoch,
    ): Verdict.FATAL,  # old brokers send it for PRODUCER_FENCED
    (CallKind.INIT, ErrorCode.transactional_id_authorization_failed): Verdict.REFUSED,
    # Within a transaction INVALID_PRODUCER_EPOCH is fatal for EndTxn only. In answers to earlier
    # calls it makes the transaction abortable, because it can also mean that the transaction timed
    # out (KIP-588). The answer to the EndTxn that then aborts the transaction shows whether another
    # producer has the transactional id.
    (CallKind.END, ErrorCode.invalid_producer_epoch): Verdict.FATAL,
    (CallKind.END, ErrorCode.invalid_txn_state): Verdict.WRONG_STATE,
    (CallKind.END, ErrorCode.invalid_producer_id_mapping): Verdict.FATAL,
    (CallKind.END, ErrorCode.transaction_abortable): Verdict.ABORTABLE,
    (CallKind.END, ErrorCode.invalid_request): Verdict.FATAL,
    (CallKind.ADD_PARTITIONS, ErrorCode.invalid_txn_state): Verdict.FATAL,
    (CallKind.ADD_OFFSETS, ErrorCode.invalid_txn_state): Verdict.FATAL,
    # The broker that checks the topic may not have learned of it yet.
    (CallKind.ADD_PARTITIONS, ErrorCode.unknown_topic_or_partition): Verdict.RETRY,
    (CallKind.COMMIT_OFFSETS, ErrorCode.unknown_topic_or_partition): Verdict.RETRY,
    # This partition was not added because another partition was refused, whose code decides.
    (CallKind.ADD_PARTITIONS, ErrorCode.operation_not_attempted): Verdict.RETRY,
}

_ANYTHING_ELSE: dict[CallKind, Verdict] = {
    CallKind.FIND: Verdict.REFUSED,
    CallKind.INIT: Verdict.REFUSED,
    CallKind.ADD_PARTITIONS: Verdict.ABORTABLE,
    CallKind.ADD_OFFSETS: Verdict.ABORTABLE,
    CallKind.COMMIT_OFFSETS: Verdict.ABORTABLE,
    CallKind.END: Verdict.FATAL,
}
# The calls that are sent again after an error code that no table above lists, if the code may be
# temporary. Only the caller's deadline ends the retries.
_ASKED_AGAIN = frozenset({CallKind.FIND, CallKind.END})


def is_listed(kind: CallKind, error_code: int) -> bool:
    """Return whether the tables have a row for this error code."""
    return (kind, error_code) in _BY_KIND or error_code in _COMMON


def classify_call(kind: CallKind, error_code: int) -> Verdict:
    """Return what a coordinator's error code means in the answer to a call of this kind."""
    verdict = _BY_KIND.get((kind, error_code)) or _COMMON.get(error_code)
    if verdict is None and kind in _ASKED_AGAIN and may_pass(error_code):
        verdict = Verdict.RETRY
    return verdict or _ANYTHING_ELSE[kind]


class Coordinator:
    """The broker that coordinates one transactional id or group, as far as it is known."""

    __slots__ = ("key", "kind", "node_id")

    def __init__(self, kind: CoordinatorKey, key: str) -> None:
        self.kind = kind
        self.key = key
        self.node_id: int | None = None

    @property
    def in_words(self) -> str:
        """The transactional id or the group, for messages."""
        kind = "group" if self.kind is CoordinatorKey.GROUP else "transactional id"
        return f"{kind} {self.key!r}"

    def forget(self) -> None:
        """Forget the broker, so that FindCoordinator is sent before the next call."""
        self.node_id = None

    def __repr__(self) -> str:
        return f"<Coordinator of {self.kind.name.lower()} {self.key!r} at {self.node_id}>"
