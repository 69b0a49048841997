"""The drill of error codes: what each one means, derived from what brokers and Java's client do.

The engine's tables have a row for each code. Here a code belongs to groups instead: those that
Kafka documents as retriable, those that a broker answers in a certain step of its work, those that
are about the producer's identity. What the engine decides about a code, in answer to Produce or to
a coordinator's request, has to follow from its groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode as Code

from aioidem._engine.classify import (
    RETRIABLE_FETCH_ERRORS,
    RETRIABLE_TOPIC_ERRORS,
    Action,
    Disposition,
    classify,
)
from aioidem._engine.coordinator import CallKind, Verdict, classify_call, is_listed

from .comparing import differences, differs
from .coordinated_codes import VERDICTS, meaning

__all__ = ["drill_codes"]

_UNLISTED: Final = (-7, 134, 999)
"""Codes that no Kafka release defines."""
_MESSAGES: Final[tuple[tuple[str | None, bool], ...]] = (
    (None, False),
    ("", False),
    ("The topic is read-only", False),
    ("Please retry in a minute", True),
    ("TRY AGAIN later", True),
    ("Temporarily out of space", True),
    ("A temporary failure", True),
    ("The request can be retried", True),
    ("This is not a retriable error", False),
    ("It must never be retried", False),
    ("You can't retry that", False),
)
"""Texts beside a code that no release defines, and whether each says that a retry may succeed."""

# -- the steps of a broker that is given batches ---------------------------------------------------

_REQUEST: Final = {
    *(Code.invalid_required_acks, Code.unsupported_version, Code.invalid_request),
    *(Code.unsupported_for_message_format, Code.unsupported_compression_type),
    *(Code.topic_authorization_failed, Code.cluster_authorization_failed),
    *(Code.transactional_id_authorization_failed, Code.throttling_quota_exceeded),
    *(Code.rebootstrap_required, Code.invalid_topic_exception),
}
"""Codes of the first step: the request is looked at."""
_LEADERSHIP: Final = {
    *(Code.leader_not_available, Code.not_leader_or_follower, Code.unknown_topic_or_partition),
    *(Code.unknown_topic_id, Code.inconsistent_topic_id),
    *(Code.fenced_leader_epoch, Code.unknown_leader_epoch),
}
"""The partition, its topic and its leader are looked up."""
_TRANSACTION: Final = {
    *(Code.coordinator_load_in_progress, Code.coordinator_not_available, Code.not_coordinator),
    *(Code.invalid_producer_id_mapping, Code.concurrent_transactions, Code.producer_fenced),
    *(Code.transaction_abortable, Code.invalid_txn_state),
}
"""The transaction's coordinator is asked (KIP-890)."""
_BATCH: Final = {
    *(Code.corrupt_message, Code.message_too_large, Code.record_list_too_large),
    *(Code.invalid_timestamp, Code.invalid_record, Code.policy_violation),
}
"""The batch is validated."""
_IDENTITY: Final = {
    Code.out_of_order_sequence_number,
    Code.invalid_producer_epoch,
    Code.unknown_producer_id,
}
"""The producer's epoch and sequence are compared with what the leader remembers."""
_BEFORE: Final = (
    _REQUEST | _LEADERSHIP | _TRANSACTION | _BATCH | _IDENTITY | {Code.not_enough_replicas}
)
_LATER: Final = {
    *(Code.request_timed_out, Code.not_enough_replicas_after_append),
    *(Code.duplicate_sequence_number, Code.kafka_storage_error, Code.unknown_server_error),
}
"""The batch may have been appended, or was."""
_WHILE_WAITING: Final = {
    *(Code.not_leader_or_follower, Code.unknown_topic_or_partition, Code.unknown_topic_id)
}
"""A leader may also answer these while an appended batch waits for its followers."""
_METADATA: Final = _LEADERSHIP | {
    *(Code.kafka_storage_error, Code.unknown_server_error, Code.rebootstrap_required)
}
"""Another broker may lead by now, or the cluster is another one."""

_ACTIONS: Final = {
    Action.SPLIT: {Code.message_too_large, Code.record_list_too_large},
    Action.OUT_OF_ORDER: {Code.out_of_order_sequence_number},
    Action.DUPLICATE: {Code.duplicate_sequence_number},
    Action.NO_STATE: {Code.unknown_producer_id},
    Action.FENCED: {Code.invalid_producer_epoch, Code.invalid_producer_id_mapping},
    Action.FATAL: {
        *(Code.cluster_authorization_failed, Code.transactional_id_authorization_failed),
        Code.producer_fenced,
    },
}
_REPEATED_ANYWAY: Final = {Code.unknown_server_error, Code.rebootstrap_required}
"""Codes that Kafka does not document as retriable, but after which a batch is sent again."""


def drill_codes(dice: Random) -> Iterator[str]:
    """Yield what the engine decides about some codes that does not follow from their groups."""
    for code in (*dice.sample(list(Code), 40), dice.choice(_UNLISTED)):
        offset, trusted = dice.choice((-1, -1, 0, 9)), dice.random() < 0.7
        message, passes = dice.choice(_MESSAGES)
        told = classify(code, offset, trust_base_offset=trusted, message=message)
        due = _of_produce(code, offset, trusted=trusted, passes=passes)
        if told != due:
            what = f"{code!r} in answer to Produce with offset {offset} and message {message!r}"
            yield f"code: {differs(what, told, due)}"
            return
        for kind in CallKind:
            verdict = classify_call(kind, code), is_listed(kind, code)
            expected = _of_call(kind, code)
            if verdict != expected:
                what = f"verdict on {code!r} in answer to {kind.value}, and whether it is listed"
                yield f"code: {differs(what, verdict, expected)}"
                return
        yield from _of_partitions(code)


def _is_retriable(code: int) -> bool:
    return isinstance(code, Code) and bool(code.retriable)


def _of_produce(code: int, offset: int, *, trusted: bool, passes: bool) -> Disposition:
    """Return what the answer to Produce means."""
    listed = code in _BEFORE | _LATER
    action = next((action for action, codes in _ACTIONS.items() if code in codes), Action.FAIL)
    if action is Action.FAIL and (_is_retriable(code) or code in _REPEATED_ANYWAY):
        action = Action.RETRY
    if not listed and passes:
        action = Action.RETRY
    before = code in _BEFORE and offset < 0 and (trusted or code not in _WHILE_WAITING)
    return Disposition(action, before, code in _METADATA or not listed)


# -- other answers ---------------------------------------------------------------------------------

_OF_FETCH: Final = {Code.kafka_storage_error, Code.offset_not_available, Code.replica_not_available}
"""Codes of Fetch that may pass: the leader is not ready to be read from."""


def _of_partitions(code: int) -> Iterator[str]:
    """Yield what is wrong with the codes after which a partition is asked about again."""
    coordinator = {Code.coordinator_load_in_progress, Code.coordinator_not_available}
    coordinator |= {Code.not_coordinator}
    anywhere = {Code.leader_not_available, Code.not_leader_or_follower, Code.replica_not_available}
    anywhere |= {Code.unknown_topic_or_partition, Code.unknown_server_error} | coordinator
    anywhere |= {Code.request_timed_out}
    in_fetch = anywhere | _LEADERSHIP | _OF_FETCH
    pairs: dict[str, tuple[object, object]] = {
        f"code: {code!r} of a topic is retriable": (
            code in RETRIABLE_TOPIC_ERRORS,
            code in anywhere,
        ),
        f"code: {code!r} in answer to Fetch is retriable": (
            code in RETRIABLE_FETCH_ERRORS,
            code in in_fetch,
        ),
    }
    yield from differences(pairs)


_LISTED: Final = {
    *(Code.coordinator_not_available, Code.not_coordinator, Code.coordinator_load_in_progress),
    *(Code.unknown_server_error, Code.request_timed_out, Code.network_exception),
    *(Code.concurrent_transactions, Code.unsupported_version, Code.producer_fenced),
    *(Code.transactional_id_authorization_failed, Code.invalid_producer_id_mapping),
}
"""The codes for which there is a rule, whatever the call is."""
_LISTED_FOR_ONE: Final = {
    (CallKind.FIND, Code.group_authorization_failed),
    (CallKind.INIT, Code.invalid_producer_epoch),
    (CallKind.END, Code.invalid_producer_epoch),
    (CallKind.END, Code.invalid_txn_state),
    (CallKind.END, Code.transaction_abortable),
    (CallKind.END, Code.invalid_request),
    (CallKind.ADD_PARTITIONS, Code.invalid_txn_state),
    (CallKind.ADD_PARTITIONS, Code.unknown_topic_or_partition),
    (CallKind.ADD_PARTITIONS, Code.operation_not_attempted),
    (CallKind.ADD_OFFSETS, Code.invalid_txn_state),
    (CallKind.COMMIT_OFFSETS, Code.unknown_topic_or_partition),
}
"""Those for which there is a rule in answer to one call."""


def _of_call(kind: CallKind, code: int) -> tuple[Verdict, bool]:
    """Return what a coordinator's answer means, and whether there is a rule for its code."""
    listed = code in _LISTED or (kind, code) in _LISTED_FOR_ONE
    return next(v for v, m in VERDICTS.items() if m is meaning(kind, code)), listed
