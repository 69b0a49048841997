"""One table: what a Produce error code says about the batch, and what to do about it.

`precedes_append` is a whitelist: a code is on it only if every path in the broker that returns the
code comes before the append (as read in ReplicaManager.appendRecords and ProducerStateManager of
Kafka 4.3.1). Every other code leaves the batch in doubt; so does a code that has no row.

A code without a row may be temporary (`unlisted.py`): then the batch is resent. Otherwise the code
counts as a permanent refusal, and the next step depends on the leader:

- If the leader is not known to hold the producer's state, the batch ends UNKNOWN.
- If the leader is known to hold that state, the ladder (`recovery`: the steps that resolve doubt)
  resends the batch to find out whether it is stored.

A code without a row may also mean that the leader has lost the producer's state. Therefore, after
such a code, the ladder sends one batch at a time, and takes no success as proof that earlier
batches are stored, until NONE, OUT_OF_ORDER or DUPLICATE shows that the leader holds the state.

Two-faced codes (NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID) may come
before or after the append. If the answer has base offset -1, the leader did not append the batch.
If the answer has an offset, the leader has appended the batch, waited for its followers and then
lost its leadership, which is normal when a leader moves under load.

Rejected: `retriable` flags on exception classes. They say whether a request may be repeated, not
whether its batch may already be in the log.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._engine.unlisted import may_pass

__all__ = ["RETRIABLE_FETCH_ERRORS", "RETRIABLE_TOPIC_ERRORS", "Action", "Disposition", "classify"]

RETRIABLE_TOPIC_ERRORS = frozenset(
    {
        ErrorCode.unknown_server_error,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.replica_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
"""Errors of a topic or partition that may pass by themselves, in answers other than Produce."""

RETRIABLE_FETCH_ERRORS = RETRIABLE_TOPIC_ERRORS | {
    ErrorCode.kafka_storage_error,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.offset_not_available,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
}
"""Errors of a partition that may pass by themselves, in the answer to a Fetch."""


class Action(enum.Enum):
    """What the engine does with a batch that got an answer."""

    RETRY = "retry"
    SPLIT = "split"
    FAIL = "fail"
    """This batch is permanently refused; the producer and its other batches go on."""
    OUT_OF_ORDER = "out of order"
    DUPLICATE = "duplicate"
    NO_STATE = "no state"
    """The leader says that it does not know the producer id."""
    FENCED = "fenced"
    FATAL = "fatal"
    """No later batch of this producer can succeed."""


class Disposition(NamedTuple):
    """What one answer to Produce means for its batch.

    It is the error code's row of `_TABLE`. Only `precedes_append` can differ: it is False if the
    answer has a base offset, which shows an append, or if its base offset cannot be trusted.
    """

    action: Action
    precedes_append: bool
    refresh_metadata: bool


class _Row(NamedTuple):
    action: Action
    precedes_append: bool = True
    refresh: bool = False
    two_faced: bool = False


_TABLE: dict[int, _Row] = {
    # The broker met an exception, perhaps after the append. Java fails the batch; here the batch is
    # resent, which does no harm and shows whether it was appended.
    ErrorCode.unknown_server_error: _Row(Action.RETRY, precedes_append=False, refresh=True),
    ErrorCode.corrupt_message: _Row(Action.RETRY),  # damaged in transit; Java retries it too
    ErrorCode.unknown_topic_or_partition: _Row(Action.RETRY, refresh=True, two_faced=True),
    ErrorCode.leader_not_available: _Row(Action.RETRY, refresh=True),
    ErrorCode.not_leader_or_follower: _Row(Action.RETRY, refresh=True, two_faced=True),
    ErrorCode.request_timed_out: _Row(
        Action.RETRY, precedes_append=False
    ),  # appended, but not replicated in time
    ErrorCode.message_too_large: _Row(Action.SPLIT),  # KIP-126
    # A leader passes the next three codes on from the transaction's coordinator, which it asks
    # before it appends (KIP-890).
    ErrorCode.coordinator_load_in_progress: _Row(Action.RETRY),
    ErrorCode.coordinator_not_available: _Row(Action.RETRY),
    ErrorCode.not_coordinator: _Row(Action.RETRY),
    ErrorCode.invalid_topic_exception: _Row(Action.FAIL),
    ErrorCode.record_list_too_large: _Row(Action.SPLIT),
    ErrorCode.not_enough_replicas: _Row(Action.RETRY),  # checked before the append
    ErrorCode.not_enough_replicas_after_append: _Row(Action.RETRY, precedes_append=False),
    ErrorCode.invalid_required_acks: _Row(Action.FAIL),
    ErrorCode.topic_authorization_failed: _Row(Action.FAIL),
    ErrorCode.cluster_authorization_failed: _Row(Action.FATAL),
    ErrorCode.invalid_timestamp: _Row(Action.FAIL),
    ErrorCode.unsupported_version: _Row(Action.FAIL),
    ErrorCode.invalid_request: _Row(Action.FAIL),
    ErrorCode.unsupported_for_message_format: _Row(Action.FAIL),
    ErrorCode.policy_violation: _Row(Action.FAIL),
    ErrorCode.out_of_order_sequence_number: _Row(Action.OUT_OF_ORDER),
    ErrorCode.duplicate_sequence_number: _Row(Action.DUPLICATE, precedes_append=False),  # KIP-758
    ErrorCode.invalid_producer_epoch: _Row(Action.FENCED),
    ErrorCode.invalid_txn_state: _Row(Action.FAIL),
    # The coordinator has another producer id for the transactional id, or none.
    ErrorCode.invalid_producer_id_mapping: _Row(Action.FENCED),
    ErrorCode.concurrent_transactions: _Row(
        Action.RETRY
    ),  # the previous transaction is still being completed (KIP-890)
    ErrorCode.transactional_id_authorization_failed: _Row(Action.FATAL),
    ErrorCode.kafka_storage_error: _Row(Action.RETRY, precedes_append=False, refresh=True),
    ErrorCode.unknown_producer_id: _Row(Action.NO_STATE),  # only from brokers before 2.5 (KIP-360)
    ErrorCode.fenced_leader_epoch: _Row(Action.RETRY, refresh=True),
    ErrorCode.unknown_leader_epoch: _Row(Action.RETRY, refresh=True),
    ErrorCode.unsupported_compression_type: _Row(Action.FAIL),
    ErrorCode.invalid_record: _Row(Action.FAIL),  # KIP-467
    ErrorCode.throttling_quota_exceeded: _Row(Action.RETRY),
    ErrorCode.producer_fenced: _Row(Action.FATAL),
    ErrorCode.unknown_topic_id: _Row(Action.RETRY, refresh=True, two_faced=True),  # KIP-516
    ErrorCode.inconsistent_topic_id: _Row(Action.RETRY, refresh=True),
    ErrorCode.transaction_abortable: _Row(Action.FAIL),  # KIP-890
    ErrorCode.rebootstrap_required: _Row(Action.RETRY, refresh=True),  # KIP-1102
}

# The rows for codes that `_TABLE` lacks: `_MAY_PASS` if `may_pass` says that a retry may help, else
# `_ANYTHING_ELSE`. Brokers may return such a code before or after the append.
_MAY_PASS = _Row(Action.RETRY, precedes_append=False, refresh=True)
_ANYTHING_ELSE = _Row(Action.FAIL, precedes_append=False, refresh=True)


def classify(
    error_code: int,
    base_offset: int,
    *,
    trust_base_offset: bool = True,
    message: str | None = None,
) -> Disposition:
    """Return what an answer to Produce means for its batch.

    Args:
        error_code: the partition's error code.
        base_offset: the partition's base offset. Some codes are two-faced: brokers send them
        before as well as after the append. If a base offset >= 0 comes with such a code, this
        leader has appended the batch, which may or may not survive the change of leader.
        trust_base_offset: False for brokers that are not Apache Kafka: two-faced codes then always
        leave the batch in doubt.
        message: the broker's error message, used only for a code without a row (KIP-467).
    """
    row = _TABLE.get(error_code)
    if row is None:
        row = _MAY_PASS if may_pass(error_code, message) else _ANYTHING_ELSE
    precedes = row.precedes_append
    if precedes and (base_offset >= 0 or (row.two_faced and not trust_base_offset)):
        precedes = False
    return Disposition(row.action, precedes, row.refresh)
