"""Coordinators: which broker keeps a transactional id or a group, and what its answers mean.

`classify_call` is the table for what coordinators refuse, as `classify` is for what leaders refuse.
A code that no row names is abortable where a transaction can be aborted. Elsewhere it is asked
again if it may pass (`unlisted.py`), and otherwise told to the caller; for the end of a transaction
that is fatal, and UNKNOWN: it is never guessed.
"""

from __future__ import annotations

import enum

from kio.schema.errors import ErrorCode

from aioidem._engine.unlisted import may_pass
from aioidem._protocol.find_coordinator import CoordinatorKey

__all__ = ["CallKind", "Coordinator", "Verdict", "classify_call", "is_listed"]


class CallKind(enum.Enum):
    """What is asked of a coordinator, or about one."""

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
    """Ask for the coordinator anew, then again."""
    ABORTABLE = "abortable"
    REFUSED = "refused"
    """FindCoordinator and InitProducerId: the caller is told, and may try again later."""
    WRONG_STATE = "wrong state"
    FATAL = "fatal"


_COMMON: dict[int, Verdict] = {
    ErrorCode.unknown_server_error: Verdict.RETRY,
    ErrorCode.request_timed_out: Verdict.RETRY,
    ErrorCode.network_exception: Verdict.RETRY,
    ErrorCode.coordinator_load_in_progress: Verdict.RETRY,
    ErrorCode.coordinator_not_available: Verdict.MOVED,
    ErrorCode.not_coordinator: Verdict.MOVED,
    ErrorCode.unsupported_version: Verdict.FATAL,  # v2 spoken to a cluster of v1
    # The id expired, is out of epochs, or somebody else has it.
    ErrorCode.invalid_producer_id_mapping: Verdict.ABORTABLE,
    ErrorCode.concurrent_transactions: Verdict.RETRY,  # the last one is still being finished
    ErrorCode.transactional_id_authorization_failed: Verdict.FATAL,
    ErrorCode.producer_fenced: Verdict.FATAL,
}

_BY_KIND: dict[tuple[CallKind, int], Verdict] = {
    (CallKind.FIND, ErrorCode.transactional_id_authorization_failed): Verdict.REFUSED,
    (CallKind.FIND, ErrorCode.group_authorization_failed): Verdict.ABORTABLE,
    (
        CallKind.INIT,
        ErrorCode.invalid_producer_epoch,
    ): Verdict.FATAL,  # PRODUCER_FENCED, of old brokers
    (CallKind.INIT, ErrorCode.transactional_id_authorization_failed): Verdict.REFUSED,
    # Within a transaction an old epoch may be a transaction that timed out (KIP-588): whether it
    # was that or a twin, EndTxn tells.
    (CallKind.END, ErrorCode.invalid_producer_epoch): Verdict.FATAL,
    (CallKind.END, ErrorCode.invalid_txn_state): Verdict.WRONG_STATE,
    (CallKind.END, ErrorCode.invalid_producer_id_mapping): Verdict.FATAL,
    (CallKind.END, ErrorCode.transaction_abortable): Verdict.ABORTABLE,
    (CallKind.END, ErrorCode.invalid_request): Verdict.FATAL,
    (CallKind.ADD_PARTITIONS, ErrorCode.invalid_txn_state): Verdict.FATAL,
    (CallKind.ADD_OFFSETS, ErrorCode.invalid_txn_state): Verdict.FATAL,
    # The broker that checks may not have heard of the topic yet.
    (CallKind.ADD_PARTITIONS, ErrorCode.unknown_topic_or_partition): Verdict.RETRY,
    (CallKind.COMMIT_OFFSETS, ErrorCode.unknown_topic_or_partition): Verdict.RETRY,
    # For the sake of another partition, whose code decides.
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
# Where nothing but the caller's deadline ends the asking.
_ASKED_AGAIN = frozenset({CallKind.FIND, CallKind.END})


def is_listed(kind: CallKind, error_code: int) -> bool:
    """Say whether it is known what a coordinator means by this code."""
    return (kind, error_code) in _BY_KIND or error_code in _COMMON


def classify_call(kind: CallKind, error_code: int) -> Verdict:
    """Decide what a coordinator's error code means."""
    verdict = _BY_KIND.get((kind, error_code)) or _COMMON.get(error_code)
    if verdict is None and kind in _ASKED_AGAIN and may_pass(error_code):
        verdict = Verdict.RETRY
    return verdict or _ANYTHING_ELSE[kind]


class Coordinator:
    """Where one key is kept, as far as we know."""

    __slots__ = ("key", "kind", "node_id")

    def __init__(self, kind: CoordinatorKey, key: str) -> None:
        self.kind = kind
        self.key = key
        self.node_id: int | None = None

    def forget(self) -> None:
        """Let it be sought anew."""
        self.node_id = None

    def __repr__(self) -> str:
        return f"<Coordinator of {self.kind.name.lower()} {self.key!r} at {self.node_id}>"
