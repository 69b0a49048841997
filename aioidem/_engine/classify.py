"""One table: what a produce error code says of the batch, and what to do about it.

`precedes_append` is a whitelist: a code is on it only if every broker path that returns it comes
before the append (read in ReplicaManager.appendRecords and ProducerStateManager of 4.3.1). Anything
else leaves the batch in doubt, unknown codes included. An unknown code is no reason to send the
batch until its deadline, though: unless it may pass (`unlisted.py`), it is a refusal for good of a
batch in doubt, which the ladder looks for in the leader's log before it ends UNKNOWN. The code may
say that the leader has lost our state: the leader is asked about one batch at a time, and no
success implies another, until NONE or OUT_OF_ORDER shows that state again.

Two-faced codes (NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID) come before
the append with base offset -1, and *after* it with the base offset kept: a leader that appends,
parks the request for its followers and then loses leadership answers so. That is the normal answer
of a leader move under load.

Rejected: `retriable` flags on exception classes. They say what may be tried again, not what may
already be written.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from aioidem._engine.unlisted import may_pass

__all__ = ["Action", "Disposition", "classify"]


class Action(enum.Enum):
    """What the engine does with the batch."""

    ACK = "ack"
    RETRY = "retry"
    SPLIT = "split"
    FAIL = "fail"
    """This batch is refused for good; the producer and the other batches go on."""
    OUT_OF_ORDER = "out of order"
    DUPLICATE = "duplicate"
    NO_STATE = "no state"
    """The leader says that it does not know our producer id."""
    FENCED = "fenced"
    FATAL = "fatal"
    """No later send of this producer can succeed."""


class Disposition(NamedTuple):
    """One row of the table, with the two-faced codes decided."""

    action: Action
    precedes_append: bool
    refresh_metadata: bool


class _Row(NamedTuple):
    action: Action
    precedes_append: bool = True
    refresh: bool = False
    two_faced: bool = False


_TABLE: dict[int, _Row] = {
    # UNKNOWN_SERVER_ERROR: any exception, perhaps after the append. Java fails the batch; here a
    # resend does no harm, and tells whether it was appended.
    -1: _Row(Action.RETRY, precedes_append=False, refresh=True),
    0: _Row(Action.ACK, precedes_append=False),
    2: _Row(Action.RETRY),  # CORRUPT_MESSAGE: damaged on the way; Java retries it too
    3: _Row(Action.RETRY, refresh=True, two_faced=True),  # UNKNOWN_TOPIC_OR_PARTITION
    5: _Row(Action.RETRY, refresh=True),  # LEADER_NOT_AVAILABLE
    6: _Row(Action.RETRY, refresh=True, two_faced=True),  # NOT_LEADER_OR_FOLLOWER
    7: _Row(
        Action.RETRY, precedes_append=False
    ),  # REQUEST_TIMED_OUT: appended, not replicated in time
    10: _Row(Action.SPLIT),  # MESSAGE_TOO_LARGE (KIP-126)
    # COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: the leader asks the
    # transaction's coordinator before it appends (KIP-890).
    14: _Row(Action.RETRY),
    15: _Row(Action.RETRY),
    16: _Row(Action.RETRY),
    17: _Row(Action.FAIL),  # INVALID_TOPIC_EXCEPTION
    18: _Row(Action.SPLIT),  # RECORD_LIST_TOO_LARGE
    19: _Row(Action.RETRY),  # NOT_ENOUGH_REPLICAS: checked before the append
    20: _Row(Action.RETRY, precedes_append=False),  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    21: _Row(Action.FAIL),  # INVALID_REQUIRED_ACKS
    29: _Row(Action.FAIL),  # TOPIC_AUTHORIZATION_FAILED
    31: _Row(Action.FATAL),  # CLUSTER_AUTHORIZATION_FAILED
    32: _Row(Action.FAIL),  # INVALID_TIMESTAMP
    35: _Row(Action.FAIL),  # UNSUPPORTED_VERSION
    42: _Row(Action.FAIL),  # INVALID_REQUEST
    43: _Row(Action.FAIL),  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    44: _Row(Action.FAIL),  # POLICY_VIOLATION
    45: _Row(Action.OUT_OF_ORDER),  # OUT_OF_ORDER_SEQUENCE_NUMBER
    46: _Row(Action.DUPLICATE, precedes_append=False),  # DUPLICATE_SEQUENCE_NUMBER (KIP-758)
    47: _Row(Action.FENCED),  # INVALID_PRODUCER_EPOCH
    48: _Row(Action.FAIL),  # INVALID_TXN_STATE
    49: _Row(Action.FENCED),  # INVALID_PRODUCER_ID_MAPPING: see `classify_call`
    51: _Row(
        Action.RETRY
    ),  # CONCURRENT_TRANSACTIONS: the last one is still being finished (KIP-890)
    53: _Row(Action.FATAL),  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    56: _Row(Action.RETRY, precedes_append=False, refresh=True),  # KAFKA_STORAGE_ERROR
    59: _Row(Action.NO_STATE),  # UNKNOWN_PRODUCER_ID: brokers before 2.5 (KIP-360)
    74: _Row(Action.RETRY, refresh=True),  # FENCED_LEADER_EPOCH
    75: _Row(Action.RETRY, refresh=True),  # UNKNOWN_LEADER_EPOCH
    76: _Row(Action.FAIL),  # UNSUPPORTED_COMPRESSION_TYPE
    87: _Row(Action.FAIL),  # INVALID_RECORD (KIP-467)
    89: _Row(Action.RETRY),  # THROTTLING_QUOTA_EXCEEDED
    90: _Row(Action.FATAL),  # PRODUCER_FENCED
    100: _Row(Action.RETRY, refresh=True, two_faced=True),  # UNKNOWN_TOPIC_ID (KIP-516)
    103: _Row(Action.RETRY, refresh=True),  # INCONSISTENT_TOPIC_ID
    120: _Row(Action.FAIL),  # TRANSACTION_ABORTABLE (KIP-890)
    129: _Row(Action.RETRY, refresh=True),  # REBOOTSTRAP_REQUIRED (KIP-1102)
}

# Of a code that no row names it is not known whether it comes before the append.
_MAY_PASS = _Row(Action.RETRY, precedes_append=False, refresh=True)
_ANYTHING_ELSE = _Row(Action.FAIL, precedes_append=False, refresh=True)


def classify(
    error_code: int,
    base_offset: int,
    *,
    trust_base_offset: bool = True,
    message: str | None = None,
) -> Disposition:
    """Decide what an answer means.

    Args:
        error_code: the partition's error code.
        base_offset: its base offset; >= 0 beside a two-faced code means "appended here, fate
        unknown".
        trust_base_offset: False for brokers that are not Apache Kafka: two-faced codes are then
        always ambiguous.
        message: what the broker wrote beside a code that no row names (KIP-467).
    """
    row = _TABLE.get(error_code)
    if row is None:
        row = _MAY_PASS if may_pass(error_code, message) else _ANYTHING_ELSE
    precedes = row.precedes_append
    if precedes and (base_offset >= 0 or (row.two_faced and not trust_base_offset)):
        precedes = False
    return Disposition(row.action, precedes, row.refresh)
