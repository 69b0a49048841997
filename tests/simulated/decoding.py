"""The records in a batch that a producer sends. Several judges ask for those of the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from aioidem._engine.steps import SendProduce
from aioidem._protocol.produce import PartitionAnswer, ProduceAnswer
from aioidem._testing.wire_frames import Record, batch_values
from aioidem.testing import ValueId, parse_value

__all__ = ["all_records", "answered_batches", "records_in"]


@lru_cache(maxsize=128)
def all_records(data: bytes) -> tuple[Record, ...]:
    """Return the records of a batch."""
    return tuple(batch_values(data))


@lru_cache(maxsize=128)
def records_in(data: bytes) -> tuple[tuple[ValueId, Record], ...]:
    """Return the records of a batch that have values of a schedule, with these values."""
    records = [(parse_value(record.value), record) for record in all_records(data)]
    return tuple((value, record) for value, record in records if value is not None)


def answered_batches(
    step: SendProduce, answer: ProduceAnswer
) -> Iterator[tuple[tuple[str, int], bytes, PartitionAnswer]]:
    """Yield the topic and partition, the batch and the answer of each batch that was answered."""
    sent = {
        (name, index): ((topic.name, index), data)
        for topic in step.topics
        for index, data in topic.partitions
        for name in (topic.name, topic.topic_id)
    }
    for part in answer.partitions:
        found = sent.get((part.topic or part.topic_id, part.partition))
        if found is not None:
            yield *found, part
