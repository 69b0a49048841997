"""What a refused batch is refused for, in words: its size beside the limit, or single records.

`culprits` believes a broker only as far as it names records that the batch has: an index beyond
it is ignored, and where none is left the batch fails as a whole (KIP-467).
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._protocol.messages import printable
from aioidem._protocol.produce import PartitionAnswer
from aioidem._protocol.topic_limit import MESSAGE_BYTES

__all__ = ["culprits", "refusal_error", "too_large"]

_NAMES_RECORDS = frozenset({ErrorCode.invalid_timestamp, ErrorCode.invalid_record})
"""A broker looks at each record, and names those it refuses."""


def refusal_error(where: str, answer: PartitionAnswer) -> errors.KafkaError:
    """Make the error that a refused batch ends with, in the broker's own words if it has any."""
    detail = answer.error_message or ""
    if answer.record_errors:
        first = answer.record_errors[:10]
        named = ", ".join(f"record {i}: {text or 'refused'}" for i, text in first)
        detail = f"{detail} ({named})" if detail else named
    text = printable(detail)
    return errors.broker_error(answer.error_code, f"{where}: {text}" if text else where)


def culprits(where: str, answer: PartitionAnswer, count: int) -> dict[int, errors.KafkaError]:
    """Return the records of a batch of `count` that the broker refused it for: place and reason.

    Empty when the broker names none.
    """
    if answer.error_code not in _NAMES_RECORDS:
        return {}
    # An answer may name any number of records; what the batch does not have costs one look each.
    named = {index: text for index, text in answer.record_errors if 0 <= index < count}
    return {
        index: errors.broker_error(
            answer.error_code,
            f"{where}: the broker refused record {index} of its batch of {count}: "
            f"{text or answer.error_message or 'it does not say why'}",
        )
        for index, text in sorted(named.items(), key=lambda each: each[0])
    }


def too_large(
    where: str, answer: PartitionAnswer, nbytes: int, count: int, told: int | None
) -> errors.KafkaError:
    """Make the error for a batch that is larger than its topic takes.

    Args:
        where: the topic and partition, for the message.
        answer: the broker's answer for the partition.
        nbytes: size of the batch.
        count: how many records it has.
        told: the topic's limit in bytes; None when it is not known.
    """
    # A limit that was named before may be out of date: then it does not explain the refusal.
    limit = f"{told} bytes" if told is not None and told < nbytes else "which is not known"
    records = "one record" if count == 1 else f"{count} records"
    return errors.broker_error(
        answer.error_code,
        f"{where}: a batch of {nbytes} bytes with {records} is larger than {MESSAGE_BYTES} of the "
        f"topic, {limit}. Send smaller records, or raise {MESSAGE_BYTES}",
    )
