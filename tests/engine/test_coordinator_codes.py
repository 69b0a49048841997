"""What each error code of a coordinator means, by the kind of the call that it answers.

Java's `TransactionManager` has the same for each request, as conditions of its handlers; where
aioidem differs, `coordinator.py` says why.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine.coordinator import CallKind, Verdict, classify_call, is_listed
from aioidem._engine.unlisted import may_pass

FIND, INIT, END = CallKind.FIND, CallKind.INIT, CallKind.END
ADDS = (CallKind.ADD_PARTITIONS, CallKind.ADD_OFFSETS)
OFFSETS = CallKind.COMMIT_OFFSETS
REPEATED = {
    ErrorCode.unknown_server_error,
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,
}
FOUND_AGAIN = {ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}


def listed(kind: CallKind) -> dict[ErrorCode, Verdict]:
    """Return the codes that the answers to calls of a kind are expected to have."""
    codes = dict.fromkeys(REPEATED, Verdict.RETRY) | dict.fromkeys(FOUND_AGAIN, Verdict.MOVED)
    codes[ErrorCode.producer_fenced] = codes[ErrorCode.unsupported_version] = Verdict.FATAL
    refused = Verdict.REFUSED if kind in (FIND, INIT) else Verdict.FATAL
    codes[ErrorCode.transactional_id_authorization_failed] = refused
    gone = Verdict.FATAL if kind is END else Verdict.ABORTABLE
    codes[ErrorCode.invalid_producer_id_mapping] = gone
    if kind is FIND:
        codes[ErrorCode.group_authorization_failed] = Verdict.ABORTABLE
    if kind in (INIT, END):
        codes[ErrorCode.invalid_producer_epoch] = Verdict.FATAL
    if kind in ADDS:
        codes[ErrorCode.invalid_txn_state] = Verdict.FATAL
    if kind in (CallKind.ADD_PARTITIONS, OFFSETS):
        codes[ErrorCode.unknown_topic_or_partition] = Verdict.RETRY
    if kind is CallKind.ADD_PARTITIONS:
        codes[ErrorCode.operation_not_attempted] = Verdict.RETRY
    if kind is END:
        codes[ErrorCode.invalid_txn_state] = Verdict.WRONG_STATE
        codes[ErrorCode.transaction_abortable] = Verdict.ABORTABLE
        codes[ErrorCode.invalid_request] = Verdict.FATAL
    return codes


@pytest.mark.parametrize("kind", CallKind)
def test_each_code_has_its_verdict_in_the_answer_to_each_call(kind: CallKind) -> None:
    """A code that is not expected ends what the call asks for, unless it may be temporary."""
    expected = listed(kind)
    otherwise = {FIND: Verdict.REFUSED, INIT: Verdict.REFUSED, END: Verdict.FATAL}
    for code in ErrorCode:
        if code is ErrorCode.none:
            continue
        unexpected = otherwise.get(kind, Verdict.ABORTABLE)
        if kind in (FIND, END) and may_pass(code):
            unexpected = Verdict.RETRY
        assert is_listed(kind, code) == (code in expected), code
        assert classify_call(kind, code) is expected.get(code, unexpected), code


def test_a_code_that_nobody_knows_is_unexpected() -> None:
    assert not any(is_listed(kind, 12345) for kind in CallKind)
    assert classify_call(CallKind.ADD_OFFSETS, 12345) is Verdict.ABORTABLE
