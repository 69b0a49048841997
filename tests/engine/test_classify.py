"""The table of error codes: what each code makes the engine do, and whether it leaves doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from aioidem._engine.classify import _TABLE, Action, Disposition, classify
from aioidem._engine.unlisted import may_pass

TWO_FACED = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_id,
}
ALWAYS_IN_DOUBT = {
    ErrorCode.unknown_server_error,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.duplicate_sequence_number,
    ErrorCode.kafka_storage_error,
}
RETRIED = {
    ErrorCode.unknown_server_error,
    ErrorCode.corrupt_message,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.concurrent_transactions,
    ErrorCode.kafka_storage_error,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.throttling_quota_exceeded,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.rebootstrap_required,
}
EXPECTED: dict[int, Action] = {
    **dict.fromkeys(RETRIED, Action.RETRY),
    ErrorCode.message_too_large: Action.SPLIT,
    ErrorCode.record_list_too_large: Action.SPLIT,
    ErrorCode.out_of_order_sequence_number: Action.OUT_OF_ORDER,
    ErrorCode.duplicate_sequence_number: Action.DUPLICATE,
    **dict.fromkeys(
        (ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping), Action.FENCED
    ),
    ErrorCode.unknown_producer_id: Action.NO_STATE,
    **dict.fromkeys(
        (
            ErrorCode.cluster_authorization_failed,
            ErrorCode.transactional_id_authorization_failed,
            ErrorCode.producer_fenced,
        ),
        Action.FATAL,
    ),
    **dict.fromkeys(
        (
            ErrorCode.invalid_topic_exception,
            ErrorCode.invalid_required_acks,
            ErrorCode.topic_authorization_failed,
            ErrorCode.invalid_timestamp,
            ErrorCode.unsupported_version,
            ErrorCode.invalid_request,
            ErrorCode.unsupported_for_message_format,
            ErrorCode.policy_violation,
            ErrorCode.invalid_txn_state,
            ErrorCode.unsupported_compression_type,
            ErrorCode.invalid_record,
            ErrorCode.transaction_abortable,
        ),
        Action.FAIL,
    ),
}


def test_the_expectation_here_names_every_row_of_the_table() -> None:
    assert set(EXPECTED) == set(_TABLE)


@pytest.mark.parametrize("code", sorted(_TABLE))
def test_each_code_has_its_action(code: int) -> None:
    assert classify(code, -1).action is EXPECTED[code]


@pytest.mark.parametrize("code", sorted(_TABLE))
def test_each_code_precedes_the_append_or_leaves_doubt(code: int) -> None:
    """Without a base offset, every code but ALWAYS_IN_DOUBT means that nothing was appended."""
    assert classify(code, -1).precedes_append is (code not in ALWAYS_IN_DOUBT)


@pytest.mark.parametrize("code", sorted(_TABLE))
def test_a_base_offset_beside_an_error_always_means_doubt(code: int) -> None:
    assert classify(code, 0).precedes_append is False
    assert classify(code, 2**60).precedes_append is False


@pytest.mark.parametrize("code", sorted(TWO_FACED))
def test_two_faced_codes_are_decided_by_the_base_offset(code: int) -> None:
    """NOT_LEADER and both codes for unknown topics leave doubt only if they have a base offset.

    With `trust_base_offset=False` they leave doubt without a base offset too.
    """
    assert classify(code, -1).precedes_append is True
    assert classify(code, 10).precedes_append is False
    assert classify(code, -1, trust_base_offset=False).precedes_append is False


@pytest.mark.parametrize("code", sorted(set(_TABLE) - TWO_FACED))
def test_distrust_of_base_offsets_touches_only_the_two_faced(code: int) -> None:
    assert classify(code, -1, trust_base_offset=False) == classify(code, -1)


@given(st.integers(-(2**15), 2**15 - 1).filter(lambda code: code not in _TABLE), st.booleans())
def test_an_unknown_code_leaves_doubt_and_is_retried_if_it_may_pass(code: int, trust: bool) -> None:
    """A code that the table lacks leaves doubt; the batch is retried if the error may be transient.

    The error may be transient if its code is documented as retriable or the broker's message calls
    it retriable; see `test_unlisted_codes.py`.
    """
    for message in (None, "retriable"):
        found = classify(code, -1, trust_base_offset=trust, message=message)
        action = Action.RETRY if may_pass(code, message) else Action.FAIL
        assert found == Disposition(action, precedes_append=False, refresh_metadata=True)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    ],
)
def test_a_stale_view_asks_for_metadata(code: int) -> None:
    assert classify(code, -1).refresh_metadata


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.corrupt_message,
        ErrorCode.request_timed_out,
        ErrorCode.message_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_record,
    ],
)
def test_other_errors_leave_metadata_alone(code: int) -> None:
    assert not classify(code, -1).refresh_metadata
