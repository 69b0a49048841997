"""Decide whether a request is repeated after an error code for which aioidem has no rule.

A broker that is newer than this client may answer with such a code, for example for a read-only
topic (KIP-1279). Java and librdkafka fail the request at once. So does aioidem, unless there is
reason to expect another answer later: Kafka documents the code as retriable, or the broker's error
message says that the request may be retried (KIP-467).

Such a code does not tell whether the broker has carried out the request.
"""

from __future__ import annotations

import re

from kio.schema.errors import ErrorCode

__all__ = ["may_pass"]

_RETRIABLE = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.replica_not_available,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_controller,
        ErrorCode.concurrent_transactions,
        ErrorCode.kafka_storage_error,
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.listener_not_found,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.eligible_leaders_not_available,
        ErrorCode.election_not_needed,
        ErrorCode.unstable_offset_commit,
        ErrorCode.throttling_quota_exceeded,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.fetch_session_topic_id_error,
        ErrorCode.share_session_not_found,
        ErrorCode.invalid_share_session_epoch,
        ErrorCode.share_session_limit_reached,
    }
)
"""The error codes that Kafka 4.3 marks as retriable."""

# Compiled when they are first needed, which is hardly ever.
_SAYS_SO = r"\b(retr(y|ied|iable)|try again|temporar(y|ily))\b"
_DENIES_IT = r"(\b(not|never|no|cannot|non)|n't)\b[\s-]*(\w+ ){0,2}?retr"


def may_pass(error_code: int, message: str | None = None) -> bool:
    """Return whether to repeat the request, because it may get another answer later.

    Args:
        error_code: a code for which the calling module has no rule.
        message: the broker's error message, if there is one.
    """
    if error_code in _RETRIABLE:
        return True
    if not message or re.search(_DENIES_IT, message, re.IGNORECASE):
        return False
    return re.search(_SAYS_SO, message, re.IGNORECASE) is not None
