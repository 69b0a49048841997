"""What a Produce answer says of each batch, by the words of Apache Kafka's broker.

A refusal is definite only if its code precedes the append and no base offset comes with it: the
same NOT_LEADER_OR_FOLLOWER is sent before an append and, from purgatory, after it. Written from the
broker's side and apart from the client's own table, so that the two can disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity
from aioidem._broker.requests import ProduceItem
from aioidem._broker.spans import Verdict

__all__ = ["verdicts"]

_BEFORE_APPEND: Final = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.message_too_large,
        ErrorCode.invalid_topic_exception,
        ErrorCode.record_list_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.invalid_required_acks,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_timestamp,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.policy_violation,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_txn_state,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unsupported_compression_type,
        ErrorCode.invalid_record,
        ErrorCode.throttling_quota_exceeded,
        ErrorCode.unknown_topic_id,
    }
)


def verdicts(
    items: Sequence[ProduceItem], response: Entity
) -> Iterator[tuple[ProduceItem, Verdict]]:
    """(item, verdict) for each item of the request; one that the answer leaves out is unsure."""
    if not hasattr(response, "responses"):
        yield from ((item, Verdict.UNSURE) for item in items)
        return
    answers = {
        (getattr(topic, "name", None) or getattr(topic, "topic_id", None), part.index): part
        for topic in response.responses
        for part in topic.partition_responses
    }
    for item in items:
        key = item.topic_id if item.topic_id is not None else item.topic
        part = answers.get((key, item.index))
        yield item, Verdict.UNSURE if part is None else _verdict(part)


def _verdict(part: Entity) -> Verdict:
    if part.error_code == ErrorCode.none:
        return Verdict.STORED
    if part.error_code in _BEFORE_APPEND and part.base_offset == -1:
        return Verdict.REFUSED
    return Verdict.UNSURE
