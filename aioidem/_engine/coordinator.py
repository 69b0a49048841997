"""Coordinators: which broker keeps a transactional id or a group, and what its answers mean.

`classify_call` is the table for what coordinators refuse, as `classify` is for what leaders refuse.
A code that no row names is abortable where a transaction can be aborted. Elsewhere it is asked
again if it may pass (`unlisted.py`), and otherwise told to the caller; for the end of a transaction
that is fatal, and UNKNOWN: it is never guessed.
"""

from __future__ import annotations

import enum

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
    -1: Verdict.RETRY,  # UNKNOWN_SERVER_ERROR
    7: Verdict.RETRY,  # REQUEST_TIMED_OUT
    13: Verdict.RETRY,  # NETWORK_EXCEPTION
    14: Verdict.RETRY,  # COORDINATOR_LOAD_IN_PROGRESS
    15: Verdict.MOVED,  # COORDINATOR_NOT_AVAILABLE
    16: Verdict.MOVED,  # NOT_COORDINATOR
    35: Verdict.FATAL,  # UNSUPPORTED_VERSION: v2 spoken to a cluster of v1
    # INVALID_PRODUCER_ID_MAPPING: the id expired, is out of epochs, or somebody else has it.
    49: Verdict.ABORTABLE,
    51: Verdict.RETRY,  # CONCURRENT_TRANSACTIONS: the last one is still being finished
    53: Verdict.FATAL,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    90: Verdict.FATAL,  # PRODUCER_FENCED
}

_BY_KIND: dict[tuple[CallKind, int], Verdict] = {
    (CallKind.FIND, 53): Verdict.REFUSED,
    (CallKind.FIND, 30): Verdict.ABORTABLE,  # GROUP_AUTHORIZATION_FAILED
    (CallKind.INIT, 47): Verdict.FATAL,  # INVALID_PRODUCER_EPOCH: PRODUCER_FENCED, of old brokers
    (CallKind.INIT, 53): Verdict.REFUSED,
    # Within a transaction an old epoch may be a transaction that timed out (KIP-588): whether it
    # was that or a twin, EndTxn tells.
    (CallKind.END, 47): Verdict.FATAL,
    (CallKind.END, 48): Verdict.WRONG_STATE,  # INVALID_TXN_STATE
    (CallKind.END, 49): Verdict.FATAL,
    (CallKind.END, 120): Verdict.ABORTABLE,  # TRANSACTION_ABORTABLE
    (CallKind.END, 42): Verdict.FATAL,  # INVALID_REQUEST
    (CallKind.ADD_PARTITIONS, 48): Verdict.FATAL,
    (CallKind.ADD_OFFSETS, 48): Verdict.FATAL,
    # The broker that checks may not have heard of the topic yet.
    (CallKind.ADD_PARTITIONS, 3): Verdict.RETRY,  # UNKNOWN_TOPIC_OR_PARTITION
    (CallKind.COMMIT_OFFSETS, 3): Verdict.RETRY,
    # OPERATION_NOT_ATTEMPTED: for the sake of another partition, whose code decides.
    (CallKind.ADD_PARTITIONS, 55): Verdict.RETRY,
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

    def __repr__(self) -> str:
        return f"<Coordinator of {self.kind.name.lower()} {self.key!r} at {self.node_id}>"
