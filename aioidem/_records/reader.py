"""Reads record batches of magic 2 from bytes that may be hostile.

Invariants: only `ProtocolError` (and `UnsupportedCodecError` for a codec without its library)
escapes; memory is bounded by the bytes given, ``max_decompressed_bytes`` and ``max_items``; headers
are checked when a batch is cut out, records when they are asked for; a batch without records is
legal (compaction leaves such, KIP-98), and so are gaps between offsets. The CRC is checked by who
asks: a broker wants to answer CORRUPT_MESSAGE, not to fail reading.
Rejected: magic 0 and 1 (gone with Kafka 4.0, KIP-896), decoding records eagerly (a broker reads
headers only).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from crc32c import crc32c

from aioidem._records import layout
from aioidem._records._select import ReadRecord, iter_records
from aioidem._records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, decompress
from aioidem.errors import ProtocolError

# Records and headers of one batch: as objects they weigh far more than their 7 or 2 bytes.
DEFAULT_MAX_ITEMS: Final = 4_000_000
_SEQUENCES: Final = 2**31


@final
class RecordBatch:
    """One batch as read: the header decoded, the records on demand.

    Do not change it; batches are equal when their bytes are. Times are milliseconds since the
    epoch; ``batch_length`` counts from the byte after itself, as on the wire.
    """

    __slots__ = (
        "_max_decompressed_bytes",
        "_max_items",
        "attributes",
        "base_offset",
        "base_sequence",
        "batch_length",
        "codec",
        "count",
        "crc",
        "first_timestamp_ms",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp_ms",
        "producer_epoch",
        "producer_id",
        "raw",
    )

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    def __init__(
        self,
        raw: bytes,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        max_items: int = DEFAULT_MAX_ITEMS,
    ) -> None:
        """Decode the header of exactly one batch. Raises ProtocolError when it cannot be right."""
        size = len(raw)
        if size < layout.BATCH_OVERHEAD:
            raise ProtocolError(f"a batch of {size} bytes has no room for its header")
        self.raw: Final = raw
        self._max_decompressed_bytes: Final = max_decompressed_bytes
        self._max_items: Final = max_items
        (
            self.base_offset,
            self.batch_length,
            self.leader_epoch,
            self.magic,
            self.crc,
        ) = layout.LEAD.unpack_from(raw)
        (
            self.attributes,
            self.last_offset_delta,
            self.first_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = layout.TAIL.unpack_from(raw, layout.ATTRIBUTES_AT)
        if self.batch_length != size - layout.PREAMBLE.size:
            raise ProtocolError(f"a batch of {size} bytes has the length {self.batch_length}")
        if self.magic != layout.MAGIC:
            raise ProtocolError(f"a batch has magic {self.magic}; only 2 is supported")
        if self.count < 0 or self.last_offset_delta < 0:
            raise ProtocolError(
                f"a batch has {self.count} records, the last at delta {self.last_offset_delta}"
            )
        codec = self.attributes & layout.CODEC_MASK
        if codec > Codec.ZSTD:
            raise ProtocolError(f"a batch has the unknown codec {codec}")
        self.codec: Final = Codec(codec)

    @property
    def transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & layout.TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether the batch holds control records (markers), not data."""
        return bool(self.attributes & layout.CONTROL)

    @property
    def log_append(self) -> bool:
        """Whether the maximum timestamp, set by the broker, stands for every record's."""
        return bool(self.attributes & layout.LOG_APPEND_TIME)

    @property
    def last_offset(self) -> int:
        """Offset of the last record the batch had when it was written."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, modulo 2^31; -1 without a sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES

    def crc_ok(self) -> bool:
        """Whether the CRC-32C in the header is that of the bytes it covers."""
        with memoryview(self.raw) as view, view[layout.ATTRIBUTES_AT :] as covered:
            return bool(crc32c(covered) == self.crc)

    def iter_records(self) -> Iterator[ReadRecord]:
        """The records one by one; the decompressed batch is the only thing held.

        Raises ProtocolError at what is malformed or beyond the limits, UnsupportedCodecError
        without the library.
        """
        body = self.raw[layout.BATCH_OVERHEAD :]
        if self.count or body:
            body = decompress(self.codec, body, self._max_decompressed_bytes)
        try:
            yield from iter_records(
                body,
                self.count,
                self.base_offset,
                self.last_offset_delta,
                self.first_timestamp_ms,
                self.max_timestamp_ms if self.log_append else None,
                self._max_items,
            )
        except (ValueError, IndexError) as error:
            raise ProtocolError(f"a batch's records are malformed: {error}") from error

    def records(self) -> list[ReadRecord]:
        """All records; raises as `iter_records` does."""
        return list(self.iter_records())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordBatch) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return (
            f"<RecordBatch offsets {self.base_offset}..{self.last_offset}, {self.count} records,"
            f" {self.codec.name.lower()}, {len(self.raw)} bytes, producer {self.producer_id}"
            f" epoch {self.producer_epoch} sequence {self.base_sequence}>"
        )


def read_batches(
    data: bytes | bytearray | memoryview,
    *,
    partial: bool = False,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    max_items: int = DEFAULT_MAX_ITEMS,
) -> list[RecordBatch]:
    """The batches that ``data`` is made of.

    ``partial`` ignores a last batch that is cut short, as a Fetch response may have it (KIP-74).
    The limits apply to each batch's records: bytes after decompression, records and headers
    together. Raises ProtocolError.
    """
    batches: list[RecordBatch] = []
    total = len(data)
    pos = 0
    while pos < total:
        if total - pos < layout.PREAMBLE.size:
            if partial:
                break
            raise ProtocolError(f"{total - pos} bytes are no batch")
        _, length = layout.PREAMBLE.unpack_from(data, pos)
        end = pos + layout.PREAMBLE.size + length
        if length < layout.BATCH_OVERHEAD - layout.PREAMBLE.size:
            raise ProtocolError(f"a batch has the length {length}")
        if end > total:
            if partial:
                break
            raise ProtocolError(f"a batch of length {length} is cut short")
        raw = bytes(data[pos:end])
        batches.append(
            RecordBatch(raw, max_decompressed_bytes=max_decompressed_bytes, max_items=max_items)
        )
        pos = end
    return batches
