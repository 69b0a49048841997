"""Make the incident of a batch that ends UNKNOWN: what identifies the batch in the log."""

from __future__ import annotations

from uuid import UUID

from aioidem._engine.batch import Batch, LogEnd
from aioidem._records import checksum_and_codec
from aioidem.incident import Acknowledged, Incident
from aioidem.structs import TopicPartition

__all__ = ["incident_of"]


def incident_of(
    batch: Batch, topic_partition: TopicPartition, topic_id: UUID | None
) -> Incident | None:
    """Return the incident of a batch; None if the producer is not idempotent.

    Args:
        batch: the batch, of which an attempt may have been appended.
        topic_partition: its topic and partition.
        topic_id: the id of the topic to which it was sent.
    """
    identity, first = batch.identity, batch.first_attempt
    if identity is None:
        return None
    crc, codec = checksum_and_codec(batch.data)
    return Incident(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        topic_id=topic_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=batch.wire_base,
        count=batch.count,
        timestamp_ms=batch.max_timestamp_ms,
        after=None if first is None else _acknowledged(first.after),
        crc=crc,
        codec=codec,
        renumbered=batch.renamed,
    )


def _acknowledged(end: LogEnd | None) -> Acknowledged | None:
    if end is None:
        return None
    offset, identity, last_sequence = end
    if identity is None:
        return None
    return Acknowledged(
        offset=offset,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        last_sequence=last_sequence,
    )
