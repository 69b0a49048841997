"""Build record batches, and change those fields of a built batch that may change.

Invariants: the same arguments give the same bytes, so a retry is byte-identical. A batch's records
never depend on its producer id, epoch and sequence: ``restamp(build_batch(x, id1), id2) ==
build_batch(x, id2)``. A batch has the requested codec even if that makes it larger.

Rejected: an incremental builder with ``append`` (the engine keeps records as objects until it seals
a batch, because more records may join it until then, and a batch may have to be split); batches as
mutable buffers (a batch could be changed while it is being written).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from aioidem._hot import MAX_RECORD_OVERHEAD, NewRecord, encode_records, payload_size
from aioidem._records import layout
from aioidem._records.checksum import crc32c
from aioidem._records.compression import Codec, compress
from aioidem._records.section import RecordSection
from aioidem.errors import InternalError, ProtocolError, RecordError


class BatchBody:
    """The encoded and compressed records of a batch, which follow its header on the wire.

    Times are in milliseconds since the epoch, sizes in bytes. ``uncompressed_size`` is what the
    whole batch would take with ``Codec.NONE``, header included.
    """

    __slots__ = (
        "codec",
        "count",
        "data",
        "first_timestamp_ms",
        "max_timestamp_ms",
        "uncompressed_size",
    )

    # A dataclass that is frozen would take three times as long to create.
    def __init__(
        self,
        data: bytes,
        codec: Codec,
        count: int,
        first_timestamp_ms: int,
        max_timestamp_ms: int,
        uncompressed_size: int,
    ) -> None:
        self.data = data
        self.codec = codec
        self.count = count
        self.first_timestamp_ms = first_timestamp_ms
        self.max_timestamp_ms = max_timestamp_ms
        self.uncompressed_size = uncompressed_size

    @property
    def batch_size(self) -> int:
        """The size of the batch on the wire, header included."""
        return layout.BATCH_OVERHEAD + len(self.data)

    @property
    def compression(self) -> float:
        """The bytes of the compressed records per byte that they had before."""
        return len(self.data) / (self.uncompressed_size - layout.BATCH_OVERHEAD)


class BuiltBatch:
    """A sealed batch, with times in milliseconds since the epoch and sizes in bytes.

    ``uncompressed_size`` is what ``len(data)`` would be with ``Codec.NONE``.
    """

    __slots__ = ("count", "data", "first_timestamp_ms", "max_timestamp_ms", "uncompressed_size")

    def __init__(
        self,
        data: bytes,
        count: int,
        first_timestamp_ms: int,
        max_timestamp_ms: int,
        uncompressed_size: int,
    ) -> None:
        self.data = data
        self.count = count
        self.first_timestamp_ms = first_timestamp_ms
        self.max_timestamp_ms = max_timestamp_ms
        self.uncompressed_size = uncompressed_size

    @property
    def compression_ratio(self) -> float:
        """The compressed size of the records divided by their uncompressed size."""
        records = self.uncompressed_size - layout.BATCH_OVERHEAD
        return (len(self.data) - layout.BATCH_OVERHEAD) / records


def record_size_bound(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Return the most bytes that this record can take, uncompressed and without the batch's header.

    Raises:
        RecordError: Key, value or headers have wrong types, or a header key cannot be encoded in
            UTF-8.
    """
    try:
        return MAX_RECORD_OVERHEAD + payload_size(key, value, headers)
    except (TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"a record cannot be encoded: {error}") from error


def build_body(
    records: Iterable[NewRecord] | RecordSection,
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> BatchBody:
    """Encode and compress the records of a batch.

    The result does not depend on who sends the batch, so it may be made in a thread before the
    batch has a producer id and a sequence.

    Args:
        records: The records, at least one.
        codec: The compression.
        level: The compression level; None is the codec's default.

    Raises:
        RecordError: There is no record, or a record cannot be encoded.
        UnsupportedCodecError: The codec's library is not installed.
        ConfigError: The codec does not have this level.
    """
    try:
        plain, count, first, maximum = (
            records.encode() if isinstance(records, RecordSection) else encode_records(records)
        )
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RecordError(f"a record cannot be encoded: {error}") from error
    if count == 0:
        raise RecordError("a batch needs at least one record")
    body = plain if codec == 0 else compress(codec, plain, level)
    return BatchBody(body, codec, count, first, maximum, layout.BATCH_OVERHEAD + len(plain))


def build_batch(
    records: Iterable[NewRecord] | RecordSection,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
) -> BuiltBatch:
    """Build a batch of these records, with base offset 0 and no leader epoch.

    Args:
        records: The records, at least one.
        codec: The compression.
        level: The compression level; None is the codec's default.
        producer_id: The producer's id, or -1.
        producer_epoch: The producer's epoch, or -1.
        base_sequence: The sequence of the first record, or -1.
        transactional: Whether the batch belongs to a transaction.
        control: Whether the batch has control records.
        log_append_time_ms: The broker's append time, for a batch as a broker stores it.

    Raises:
        RecordError: There is no record, or a record cannot be encoded.
        UnsupportedCodecError: The codec's library is not installed.
        ConfigError: The codec does not have this level.
        InternalError: Producer id, epoch, sequence or append time does not fit its field.
    """
    body = build_body(records, codec, level)
    data = add_header(
        body,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        log_append_time_ms=log_append_time_ms,
    )
    stamp = body.max_timestamp_ms if log_append_time_ms is None else log_append_time_ms
    return BuiltBatch(data, body.count, body.first_timestamp_ms, stamp, body.uncompressed_size)


def add_header(
    body: BatchBody,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
) -> bytes:
    """Return the bytes of the batch of encoded records.

    The other arguments are those of `build_batch`.

    Raises:
        InternalError: Producer id, epoch, sequence or append time does not fit its field.
    """
    attributes = int(body.codec)
    if transactional:
        attributes |= layout.TRANSACTIONAL
    if control:
        attributes |= layout.CONTROL
    stamp = body.max_timestamp_ms
    if log_append_time_ms is not None:
        attributes |= layout.LOG_APPEND_TIME
        stamp = log_append_time_ms
    data, count = body.data, body.count
    try:
        tail = layout.TAIL.pack(
            attributes,
            count - 1,
            body.first_timestamp_ms,
            stamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
    except struct.error as error:
        raise InternalError(f"a batch's header cannot be encoded: {error}") from error
    lead = layout.LEAD.pack(
        0,
        layout.BATCH_OVERHEAD - layout.PREAMBLE.size + len(data),
        layout.NO_LEADER_EPOCH,
        layout.MAGIC,
        crc32c(data, crc32c(tail)),
    )
    return b"".join((lead, tail, data))


def restamp(data: bytes, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """Return the same batch under another producer id, epoch and sequence.

    Raises:
        InternalError: ``data`` is not one batch of `build_batch`, or a number does not fit its
            field.
    """
    if len(data) < layout.BATCH_OVERHEAD or data[layout.MAGIC_AT] != layout.MAGIC:
        raise InternalError("restamp needs one whole batch of magic 2")
    batch = bytearray(data)
    try:
        layout.IDENTITY.pack_into(
            batch, layout.IDENTITY_AT, producer_id, producer_epoch, base_sequence
        )
    except struct.error as error:
        raise InternalError(f"a batch's identity cannot be encoded: {error}") from error
    return _sealed(batch)


def checksum_and_codec(data: bytes) -> tuple[int, int]:
    """Return the CRC-32C in a batch's header, and the number of its compression codec.

    Raises:
        InternalError: ``data`` is not one batch of `build_batch`.
    """
    if len(data) < layout.BATCH_OVERHEAD or data[layout.MAGIC_AT] != layout.MAGIC:
        raise InternalError("a whole batch of magic 2 is needed")
    (crc,) = layout.CRC.unpack_from(data, layout.CRC_AT)
    attributes = layout.TAIL.unpack_from(data, layout.ATTRIBUTES_AT)[0]
    return crc, attributes & layout.CODEC_MASK


def assign_offsets(
    data: bytes, *, base_offset: int, leader_epoch: int, log_append_time_ms: int | None = None
) -> bytes:
    """Return a batch as a broker appends it: with offset, leader epoch and possibly an append time.

    The CRC covers the append time, but neither offset nor leader epoch. So without an append time
    the CRC of the given batch is kept, even if it is wrong: check it before.

    Raises:
        ProtocolError: ``data`` is not exactly one batch of magic 2.
        InternalError: A number does not fit its field.
    """
    if len(data) < layout.BATCH_OVERHEAD or data[layout.MAGIC_AT] != layout.MAGIC:
        raise ProtocolError("not a record batch of magic 2")
    batch = bytearray(data)
    _, length = layout.PREAMBLE.unpack_from(batch)
    if length != len(batch) - layout.PREAMBLE.size:
        raise ProtocolError(f"a batch of {len(batch)} bytes has the length {length}")
    try:
        layout.BASE_OFFSET.pack_into(batch, 0, base_offset)
        layout.LEADER_EPOCH.pack_into(batch, layout.LEADER_EPOCH_AT, leader_epoch)
        if log_append_time_ms is None:
            return bytes(batch)
        layout.TIMESTAMP.pack_into(batch, layout.MAX_TIMESTAMP_AT, log_append_time_ms)
    except struct.error as error:
        raise InternalError(f"a batch's place cannot be encoded: {error}") from error
    batch[layout.ATTRIBUTES_AT + 1] |= layout.LOG_APPEND_TIME
    return _sealed(batch)


def _sealed(batch: bytearray) -> bytes:
    with memoryview(batch) as view, view[layout.ATTRIBUTES_AT :] as covered:
        layout.CRC.pack_into(batch, layout.CRC_AT, crc32c(covered))
    return bytes(batch)
