"""What an answer to Produce proves about each batch: stored, not stored, or neither.

`spans` counts how far a producer is ahead of its oldest unresolved batch. A batch that is proved
neither stored nor not stored stays unresolved in that count.

A refusal proves that a batch is not stored only if its code is sent before the append and the
answer has no base offset. NOT_LEADER_OR_FOLLOWER, for example, may come before the append; but a
request that waits in purgatory for followers gets the same code after its append. The table below
is written from the broker's side and shares no code with the producer's table
(`aioidem._engine.classify`), so that tests notice a mistake in either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity
from aioidem._broker.requests import ProduceItem
from aioidem._broker.spans import Verdict

__all__ = ["note_read", "note_response", "note_unanswered"]

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


def note_read(items: Iterable[ProduceItem]) -> None:
    """Note that the bytes of these batches were read from a socket."""
    for item in items:
        identity = item.identity
        if item.partition is not None and identity is not None:
            item.partition.spans.read(*identity)


def note_response(items: Sequence[ProduceItem], response: Entity) -> None:
    """Note what a response that was sent to the client proves about each batch."""
    for item, verdict in _verdicts(items, response):
        _note(item, verdict)


def note_unanswered(items: Iterable[ProduceItem]) -> None:
    """Note that the client will get no response about these batches."""
    for item in items:
        _note(item, Verdict.UNSURE)


def _note(item: ProduceItem, verdict: Verdict) -> None:
    identity = item.identity
    if item.partition is not None and identity is not None:
        item.partition.spans.answered(*identity, verdict)


def _verdicts(
    items: Sequence[ProduceItem], response: Entity
) -> Iterator[tuple[ProduceItem, Verdict]]:
    """Yield the verdict on each batch; a batch that the response leaves out is unsure."""
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
