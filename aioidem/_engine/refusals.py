"""The errors for a refused batch, which name its size and limit, or the records at fault.

`with_advice` makes the error of any refusal; those of coordinators are in `coordinator_refusals`.

A broker may name the records for which it refused a batch (KIP-467). `culprits` ignores an index
that the batch does not have. If no valid index is left, the batch fails as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._protocol.messages import printable
from aioidem._protocol.produce import PartitionAnswer
from aioidem._protocol.topic_limit import MESSAGE_BYTES

__all__ = ["GRANTS", "culprits", "refusal_error", "too_large", "with_advice"]

_NAMES_RECORDS = frozenset({ErrorCode.invalid_timestamp, ErrorCode.invalid_record})
"""Error codes that refuse a batch for single records; the answer may name these records."""


GRANTS: Final[Mapping[int, str]] = {
    ErrorCode.topic_authorization_failed: "Grant this client's principal WRITE on the topic",
    ErrorCode.cluster_authorization_failed: (
        "Grant this client's principal IDEMPOTENT_WRITE on the cluster"
    ),
}
"""What to do where rights are missing that every request of a producer may need."""

_ADVICE: Final[Mapping[int, str]] = {
    **GRANTS,
    ErrorCode.transactional_id_authorization_failed: (
        "Grant this client's principal WRITE on the transactional id"
    ),
    ErrorCode.invalid_timestamp: (
        "Check the records' timestamps, this machine's clock, and the topic's "
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
    ErrorCode.invalid_record: (
        "Check that every record has a key if the topic is compacted, and look in the broker's log"
    ),
    ErrorCode.unsupported_compression_type: "Choose another compression_type",
    ErrorCode.unsupported_for_message_format: (
        "Check the topic's message.format.version: records need version 2"
    ),
    ErrorCode.not_enough_replicas: "Check the topic's min.insync.replicas, and which replicas run",
    ErrorCode.not_enough_replicas_after_append: (
        "Check the topic's min.insync.replicas, and which replicas run"
    ),
    ErrorCode.kafka_storage_error: "Check the disks of that broker",
    ErrorCode.policy_violation: "Ask whoever runs the cluster what its policy demands",
    ErrorCode.invalid_required_acks: "Set acks to 0, 1 or all",
    ErrorCode.invalid_topic_exception: "Choose another topic: this one is internal to Kafka",
    ErrorCode.corrupt_message: "Check the network and the memory of both machines",
    ErrorCode.invalid_producer_epoch: (
        "The producer's epoch is no longer the newest: with a transactional id, another producer "
        "has begun with that id, or the transaction took longer than transaction_timeout; abort, "
        "and the next begin tells. Without one, another client writes under this producer id"
    ),
}
"""What to do about an error code of Produce."""

_OTHER_ADVICE: Final = "The log of that broker may say more"


def refusal_error(
    where: str, answer: PartitionAnswer, count: int, attempts: int, broker: str
) -> errors.KafkaError:
    """Return the error of a refused batch, with the broker's own message if there is one.

    Args:
        where: the topic and partition.
        answer: the broker's answer for the partition.
        count: the number of records in the batch.
        attempts: how often the batch was sent.
        broker: the broker's id and address.
    """
    detail = answer.error_message or ""
    if answer.record_errors:
        first = answer.record_errors[:10]
        named = ", ".join(f"record {i}: {text or 'refused'}" for i, text in first)
        detail = f"{detail} ({named})" if detail else named
    records = "1 record" if count == 1 else f"{count} records"
    text = f"{where}: {broker} refused a batch of {records} in attempt {attempts}"
    return with_advice(
        answer.error_code, f"{text}: {printable(detail)}" if detail else text, _ADVICE
    )


def with_advice(code: int, text: str, advice: Mapping[int, str]) -> errors.KafkaError:
    """Return the error of a refusal, whose text ends with what to do about it.

    Args:
        code: the broker's error code.
        text: what was refused, and by whom.
        advice: what to do, by error code.
    """
    return errors.broker_error(code, f"{text.rstrip('.')}. {advice.get(code, _OTHER_ADVICE)}")


def culprits(
    where: str, answer: PartitionAnswer, count: int, attempts: int, broker: str
) -> dict[int, errors.KafkaError]:
    """Return, by index, an error for each record that made the broker refuse the batch.

    The result is empty if the broker names no record.

    Args:
        where: the topic and partition, for the message.
        answer: the broker's answer for the partition.
        count: the number of records in the batch.
        attempts: how often the batch was sent.
        broker: the broker's id and address.
    """
    if answer.error_code not in _NAMES_RECORDS:
        return {}
    # An answer may name any number of indexes that the batch does not have. They are dropped here,
    # before an error object is made for each.
    named = {index: text for index, text in answer.record_errors if 0 <= index < count}
    return {
        index: with_advice(
            answer.error_code,
            f"{where}: {broker} refused record {index} of its batch of {count} in attempt "
            f"{attempts}: {text or answer.error_message or 'it does not say why'}",
            _ADVICE,
        )
        for index, text in sorted(named.items(), key=lambda each: each[0])
    }


def too_large(
    where: str,
    answer: PartitionAnswer,
    nbytes: int,
    count: int,
    told: int | None,
    broker: str,
) -> errors.KafkaError:
    """Return the error for a batch that is larger than its topic accepts.

    Args:
        where: the topic and partition, for the message.
        answer: the broker's answer for the partition.
        nbytes: the size of the batch.
        count: the number of records in the batch.
        told: the topic's limit in bytes; None if it is not known.
        broker: the broker's id and address.
    """
    # If the known limit is not below the batch's size, it is out of date and does not explain the
    # refusal. So the message does not name it.
    limit = f"{told} bytes" if told is not None and told < nbytes else "the value is not known"
    records = "one record" if count == 1 else f"{count} records"
    return errors.broker_error(
        answer.error_code,
        f"{where}: {broker} refused a batch of {nbytes} bytes with {records} as larger than "
        f"{MESSAGE_BYTES} of the topic ({limit}). Send smaller records, or raise {MESSAGE_BYTES}",
    )
