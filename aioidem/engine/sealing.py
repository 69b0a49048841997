"""Sealing: cutting a batch from what waits, numbering it, building its bytes; and splitting one
that was too large.

Late sealing decides how much a batch may take. While a window is open a batch is `batch.size`, as
in Java. What piled up while the window was full may leave as one larger batch, up to what a request
and the topic allow, as long as the measured goodput moves all bytes in flight within a quarter of
the request timeout: five in flight then fill a long link without tuning, and a thin link is not
choked by its own batches.

Invariant: a sealed batch is sent in the same poll, so numbers are taken for what goes on the wire
and for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem.config import ProducerConfig
from aioidem.engine.accumulator import PendingRecord
from aioidem.engine.batch import Batch
from aioidem.engine.idempotence import ProducerIdentity, wire_sequence
from aioidem.engine.links import Link
from aioidem.engine.partition import SEQUENCE_CAP, PartitionState
from aioidem.engine.topics import TopicState
from aioidem.partitioner import DefaultPartitioner, Partitioner
from aioidem.records import (
    BATCH_OVERHEAD,
    ESTIMATION_FACTOR,
    BuiltBatch,
    Codec,
    CompressionRatioEstimator,
    build_batch,
)

__all__ = ["Sealer"]

_GOODPUT_SHARE = 0.25
_MAX_RECORDS = SEQUENCE_CAP // 4


class Sealer:
    """Builds batches as the configuration wants them."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._codec = Codec.from_name(config.compression_type)
        self._estimator = CompressionRatioEstimator()
        self.partitioner: Partitioner = config.partitioner or DefaultPartitioner()

    def limit(self, state: PartitionState, topic: TopicState, link: Link, now: float) -> int:
        """The most bytes, header included, that the next batch of a partition may have on the
        wire.
        """
        config = self._config
        ceiling = topic.ceiling(config.max_request_size, now)
        base = min(config.batch_size, ceiling)
        rate = link.goodput.rate
        if not config.late_sealing or not state.queue.blocked or rate is None:
            return base
        room = rate * config.request_timeout * _GOODPUT_SHARE - link.bytes_in_flight
        return max(base, min(ceiling, int(room)))

    def seal(
        self, state: PartitionState, topic: TopicState, link: Link, now: float, room: int
    ) -> Batch:
        """Cut, number and build the next batch of a partition that has records waiting; of at most
        `room` bytes, if it has more than one record.
        """
        limit = min(self.limit(state, topic, link, now), room)
        if self._codec is not Codec.NONE:
            ratio = self._estimator.estimate(topic.name, self._codec) * ESTIMATION_FACTOR
            limit = int(limit / ratio)
        records = state.queue.cut(limit, min(_MAX_RECORDS, state.sequence_room))
        identity = state.ledger.identity
        base = state.ledger.take(len(records)) if identity is not None else 0
        built = self._build(records, identity, base)
        self._observe(topic.name, built)
        return Batch(
            ordinal=state.next_ordinal,
            records=records,
            data=built.data,
            identity=identity,
            base=base,
            deadline=records[0].deadline,
            max_timestamp_ms=built.max_timestamp_ms,
        )

    def split(self, state: PartitionState, batch: Batch) -> list[Batch]:
        """Halve a batch that was too large. Its parts carry its numbers between them; none when it
        is one record.
        """
        records = list(batch.records)
        if len(records) < 2:
            return []
        if self._codec is not Codec.NONE:
            plain = sum(record.size for record in records) + BATCH_OVERHEAD
            self._estimator.reset_after_split(state.topic, self._codec, len(batch.data) / plain)
        parts: list[Batch] = []
        base, ordinal = batch.base, batch.ordinal
        for chunk in _chunks(records, max(self._config.batch_size, 1), len(batch.data)):
            built = self._build(chunk, batch.identity, base)
            parts.append(
                Batch(
                    ordinal=ordinal,
                    records=chunk,
                    data=built.data,
                    identity=batch.identity,
                    base=base,
                    deadline=chunk[0].deadline,
                    max_timestamp_ms=built.max_timestamp_ms,
                )
            )
            base += len(chunk)
            ordinal += 1
        return parts

    def _build(
        self, records: Sequence[PendingRecord], identity: ProducerIdentity | None, base: int
    ) -> BuiltBatch:
        return build_batch(
            records,
            codec=self._codec,
            level=self._config.compression_level,
            producer_id=-1 if identity is None else identity.producer_id,
            producer_epoch=-1 if identity is None else identity.epoch,
            base_sequence=-1 if identity is None else wire_sequence(base),
            transactional=self._config.transactional_id is not None,
        )

    def _observe(self, topic: str, built: BuiltBatch) -> None:
        if self._codec is not Codec.NONE:
            ratio = len(built.data) / max(1, built.uncompressed_size)
            self._estimator.observe(topic, self._codec, ratio)


def _chunks(
    records: list[PendingRecord], batch_size: int, refused: int
) -> list[list[PendingRecord]]:
    """Pieces of at most `batch_size`, or halves when the refused batch was no larger than that
    already.
    """
    target = batch_size if refused > batch_size else max(1, refused // 2)
    chunks: list[list[PendingRecord]] = [[]]
    size = BATCH_OVERHEAD
    for record in records:
        if chunks[-1] and size + record.size > target:
            chunks.append([])
            size = BATCH_OVERHEAD
        chunks[-1].append(record)
        size += record.size
    if len(chunks) == 1:
        middle = len(records) // 2
        return [records[:middle], records[middle:]]
    return chunks
