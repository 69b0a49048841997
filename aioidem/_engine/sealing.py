"""Sealer: cuts batches from the queue, numbers and builds them, and splits those too large.

Late sealing: a batch is cut from the queue only when it can be sent, and its size is decided then.
A batch has at most `batch_size` bytes, as in Java, as long as the window (the most batches in
flight per partition) leaves room for another batch. A batch may be larger if records piled up while
the window was full, or if the queue has more bytes than a window of such batches can carry. The
size of a larger batch is limited by what a request may carry, by what the topic is known to accept,
and by the measured goodput (bytes per second): at that rate all bytes in flight must be transferred
within a quarter of the request timeout. So five batches in flight use a connection with a long
round trip fully without tuning, and a slow connection is not blocked by its own batches.

Invariants: a batch is sent as soon as it is sealed, so sequence numbers are taken only for batches
that are sent. On the wire a batch of more than one record is never larger than `Sealer.most`, and
no batch is larger than the room left in a request that has another batch already. To keep these
limits, the compression ratio is estimated before a batch is built, and its size is checked after.
The records of a batch that takes long to compress are compressed before the batch is sealed, and
outside of the engine (`Draft`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from aioidem._config import ProducerConfig
from aioidem._engine.batch import Batch
from aioidem._engine.draft import Draft
from aioidem._engine.drafts import Drafts
from aioidem._engine.idempotence import ProducerIdentity, wire_sequence
from aioidem._engine.links import Link
from aioidem._engine.partition import SEQUENCE_CAP, PartitionState
from aioidem._engine.record import PendingRecord
from aioidem._engine.topics import TopicState
from aioidem._protocol.topic_limit import IF_COMPRESSED
from aioidem._records import (
    BATCH_OVERHEAD,
    ESTIMATION_FACTOR,
    BatchBody,
    Codec,
    CompressionRatioEstimator,
    add_header,
    build_body,
)
from aioidem.partitioner import DefaultPartitioner, Partitioner

__all__ = ["Sealer"]

_GOODPUT_SHARE = 0.25
_MAX_RECORDS = SEQUENCE_CAP // 4


class Sealer:
    """The builder of one producer's batches, which applies its size and compression options.

    To seal a batch is to take its records from the queue, number them and build the batch. A
    `Draft` holds records that are compressed before they are sealed, because compressing them takes
    long.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._codec = Codec.from_name(config.compression_type)
        self._compresses = self._codec is not Codec.NONE
        self._estimator = CompressionRatioEstimator()
        self.drafts = Drafts(config)
        # Encodes records. A replay, whose records have no contents, sets another function.
        self.encode: Callable[[Sequence[PendingRecord], Codec, int | None], BatchBody] = build_body
        self.partitioner: Partitioner = config.partitioner or DefaultPartitioner()

    def most(self, topic: TopicState, link: Link, now: float) -> int:
        """Return the largest batch size that the leader is known to accept, in bytes.

        The size includes the header of the batch.
        """
        limit = link.limits.of(topic.name)
        known = min(limit.known(self._config.batch_size), self._config.max_request_size)
        return topic.ceiling(known, now, limit.told)

    def limit(self, state: PartitionState, link: Link, most: int) -> int:
        """Return the largest size of a partition's next batch on the wire, in bytes with header.

        Args:
            state: the partition.
            link: the connection to its leader.
            most: the result of the method `most`, in bytes.
        """
        config = self._config
        base = min(config.batch_size, most)
        if not config.late_sealing or not state.may_outgrow(config.batch_size):
            return base
        rate = link.goodput.rate
        if rate is None:
            return base
        room = rate * config.request_timeout * _GOODPUT_SHARE - link.bytes_in_flight
        return max(base, min(most, int(room)))

    def seal(
        self,
        state: PartitionState,
        topic: TopicState,
        link: Link,
        now: float,
        room: int,
        *,
        alone: bool,
    ) -> Batch | None:
        """Cut, number and build the next batch of a partition that has records waiting.

        If its compression would take long, this method begins a `Draft` instead: the records are
        compressed outside of the event loop. A later call seals the draft's batch.

        If the batch has more than one record, it has at most `room` bytes, and no more than the
        leader is known to accept.

        Args:
            state: the partition.
            topic: its topic.
            link: the connection to its leader.
            now: seconds.
            room: the bytes left in the request.
            alone: whether the request is empty so far; a single record may then exceed `room`.

        Returns:
            The batch; None if its records are being compressed or wait for that, or if it does not
            fit into the room that the request's other batches leave. If the result is None, the
            records stay in the queue.
        """
        most = self.most(topic, link, now)
        if state.queue.draft is not None:
            return self._seal_draft(state, state.queue.draft, most, room, alone=alone)
        limit = whole_up_to = self.limit(state, link, most)
        if self._compresses:
            ratio = self._ratio(topic)
            if self._begin_draft(state, limit, ratio):
                return None
            limit = int(min(limit, room) / ratio)
        else:
            limit = min(limit, room)
        flushing = state.queue.flushing
        records = state.queue.cut(limit, min(_MAX_RECORDS, state.sequence_room()), whole_up_to)
        body = self._build(topic.name, records)
        size, bound = body.batch_size, min(most, room)
        while size > bound and body.count > 1:
            if size <= most and records[0].group is not None:
                break  # a group that fits into a request of its own is not divided
            keep = min(int(body.count * bound / size), body.count - 1) or 1
            state.queue.put_back(records[keep:], flushing=flushing)
            records = records[:keep]
            body = self._build(topic.name, records)
            size = body.batch_size
        if size > room and not alone:
            state.queue.put_back(records, flushing=flushing)
            return None
        return self._number(state, body, records)

    def prepare(self, state: PartitionState, topic: TopicState, link: Link, now: float) -> None:
        """Begin a `Draft` of a partition's next batch, if the batch takes long to compress.

        A thread compresses the draft before the batch can be sent.
        """
        limit = self.limit(state, link, self.most(topic, link, now))
        self._begin_draft(state, limit, self._ratio(topic))

    def _ratio(self, topic: TopicState) -> float:
        return self._estimator.estimate(topic.name, self._codec) * ESTIMATION_FACTOR

    def _begin_draft(self, state: PartitionState, limit: int, ratio: float) -> bool:
        """Return whether the next batch takes long to compress; if so, begin a draft of it.

        No draft is begun while the largest permitted number of drafts is being compressed.

        Args:
            state: the partition.
            limit: the largest size of the batch on the wire, in bytes with header.
            ratio: the share of its size that compression is expected to leave.
        """
        queue, drafts = state.queue, self.drafts
        plain = int(limit / ratio)
        if max(min(plain, queue.bytes), queue.first_size) <= drafts.quick:
            return False
        if not drafts.full:
            most = min(_MAX_RECORDS, state.sequence_room())
            drafts.begin(state, queue, queue.head(plain, most, whole_up_to=limit))
        return True

    def _seal_draft(
        self, state: PartitionState, draft: Draft, most: int, room: int, *, alone: bool
    ) -> Batch | None:
        """Build the batch of a draft, and number it; return None if it cannot be sent now.

        A draft that became too large is replaced by one of fewer records.
        """
        body = draft.body
        if body is None:
            return None
        count, size = body.count, body.batch_size
        if (size > most and count > 1) or count > state.sequence_room():
            keep = min(int(count * most / size), count - 1, state.sequence_room()) or 1
            self.drafts.begin(state, state.queue, state.queue.shorten_draft(draft, keep))
            return None
        if size > room and not alone:
            return None
        return self._number(state, body, state.queue.cut_draft(draft))

    def _number(
        self, state: PartitionState, body: BatchBody, records: Sequence[PendingRecord]
    ) -> Batch:
        """Give encoded records the partition's next sequence numbers, and return their batch."""
        identity = state.ledger.identity
        base = 0 if identity is None else state.ledger.take(body.count)
        return Batch(
            ordinal=state.batches.next_ordinal,
            records=records,
            data=self._add_header(body, identity, base),
            identity=identity,
            base=base,
            deadline=records[0].deadline,
            max_timestamp_ms=body.max_timestamp_ms,
            compression=body.compression if self._compresses else 1.0,
        )

    def split(self, state: PartitionState, batch: Batch, most: int) -> list[Batch]:
        """Divide a batch of several records that is too large into at least two smaller batches.

        The parts have no bytes yet: each gets its bytes when it is to be sent (`build`).
        A part of more than one record has at most `batch_size` and at most `most` bytes before
        compression. Together the parts carry the sequence numbers of the whole batch.
        """
        # A split is rare, so it may make one object per record of a block.
        records = list(batch.records)
        if self._compresses:
            plain = sum(record.size for record in records) + BATCH_OVERHEAD
            self._estimator.reset_after_split(state.topic, self._codec, len(batch.data) / plain)
        parts: list[Batch] = []
        base, ordinal = batch.base, batch.ordinal
        if self._compresses:
            most = int(most * IF_COMPRESSED)
        for chunk in _chunks(records, min(self._config.batch_size, most)):
            parts.append(_part(batch, chunk, base, ordinal))
            base += len(chunk)
            ordinal += 1
        return parts

    def without(self, batch: Batch, culprits: Collection[int]) -> Batch | None:
        """Return a batch without the records at the indexes `culprits`; None if none is left.

        The new batch has the same base sequence, and a lower last sequence. It has no bytes yet.
        """
        left = [record for place, record in enumerate(batch.records) if place not in culprits]
        return _part(batch, left, batch.base, batch.ordinal) if left else None

    def build(self, state: PartitionState, batch: Batch) -> bool:
        """Build the bytes of a batch that is part of a divided one, when it is about to be sent.

        If its compression takes long, this method begins a draft instead.

        Returns:
            Whether the batch has its bytes now.
        """
        draft = batch.draft
        if draft is None:
            if sum(record.size for record in batch.records) > self.drafts.quick:
                if not self.drafts.full:
                    self.drafts.begin(state, batch, batch.records)
                return False
            body = self._encode(batch.records)
            batch.build(self._add_header(body, batch.identity, batch.base), body.compression)
        elif draft.body is None:
            return False
        else:
            data = self._add_header(draft.body, batch.identity, batch.base)
            batch.build(data, draft.body.compression)
        return True

    def learn(self, topic: str, body: BatchBody) -> None:
        """Adjust the estimate of a topic's compression ratio to records that were compressed."""
        ratio = body.batch_size / max(1, body.uncompressed_size)
        self._estimator.observe(topic, self._codec, ratio)

    def _build(self, topic: str, records: Sequence[PendingRecord]) -> BatchBody:
        """Encode the records of a topic, and learn how well they could be compressed."""
        body = self._encode(records)
        if self._compresses:
            self.learn(topic, body)
        return body

    def _encode(self, records: Sequence[PendingRecord]) -> BatchBody:
        return self.encode(records, self._codec, self._config.compression_level)

    def _add_header(self, body: BatchBody, identity: ProducerIdentity | None, base: int) -> bytes:
        return add_header(
            body,
            producer_id=-1 if identity is None else identity.producer_id,
            producer_epoch=-1 if identity is None else identity.epoch,
            base_sequence=-1 if identity is None else wire_sequence(base),
            transactional=self._config.transactional_id is not None,
        )


def _part(whole: Batch, records: Sequence[PendingRecord], base: int, ordinal: int) -> Batch:
    """Return a batch of some records of a divided batch. It gets its bytes when it is sent."""
    return Batch(
        ordinal=ordinal,
        records=records,
        data=b"",
        identity=whole.identity,
        base=base,
        deadline=records[0].deadline,
        max_timestamp_ms=max(record.timestamp_ms for record in records),
    )


def _chunks(records: list[PendingRecord], target: int) -> list[list[PendingRecord]]:
    """Divide records into pieces of at most `target` bytes before compression.

    A record that is larger than `target` is a piece by itself. If one piece could hold all records,
    they are divided into halves.
    """
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
