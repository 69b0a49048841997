"""Read record batches of magic 2 from untrusted bytes.

Invariants: only `ProtocolError` is raised, and `UnsupportedCodecError` for a codec whose library is
missing. Memory is limited by the size of the data, ``max_decompressed_bytes`` and ``max_items``. A
header is checked when its batch is cut out of the data, records when they are read. A batch without
records is legal (compaction leaves such batches, KIP-98), and so are gaps between offsets. A batch
with a wrong CRC can be read, because a broker must answer it with CORRUPT_MESSAGE; callers check
the CRC themselves (`RecordBatch.crc_ok`).

Rejected: magic 0 and 1 (removed in Kafka 4.0, KIP-896); decoding a batch's records together with
its header (a broker needs only headers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from aioidem._records import layout
from aioidem._records._decode import ReadRecord, iter_records
from aioidem._records.checksum import crc32c
from aioidem._records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, decompress
from aioidem.errors import ProtocolError

# The most records and headers of one batch. A record takes at least 7 bytes on the wire, and a
# header 2; as objects both take far more memory.
DEFAULT_MAX_ITEMS: Final = 4_000_000
# The most bytes that are decompressed to look at the key of a control record. A transaction marker
# has about 20, and brokers write it uncompressed, whatever the topic's ``compression.type`` is.
_MAX_CONTROL_BYTES: Final = 4096
_SEQUENCES: Final = 2**31
_OLDER_MAGICS: Final = (0, 1)


@final
class RecordBatch:
    """A batch whose header is decoded at once and whose records are decoded on demand.

    A batch is immutable, and batches are equal if their bytes are. Times are milliseconds since the
    epoch. ``batch_length`` counts neither itself nor the base offset, as on the wire.
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
        """Decode the header of exactly one batch, or raise ProtocolError."""
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
            raise _of_magic(self.magic)
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
        """Whether the batch holds control records (transaction markers) instead of data."""
        return bool(self.attributes & layout.CONTROL)

    @property
    def log_append(self) -> bool:
        """Whether all records have the broker's append time, which is the maximum timestamp."""
        return bool(self.attributes & layout.LOG_APPEND_TIME)

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch had when it was written."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, modulo 2^31; -1 if the batch has no sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES

    def crc_ok(self) -> bool:
        """Return whether the CRC-32C in the header matches the bytes it covers."""
        with memoryview(self.raw) as view, view[layout.ATTRIBUTES_AT :] as covered:
            return bool(crc32c(covered) == self.crc)

    def iter_records(self) -> Iterator[ReadRecord]:
        """Yield the records, keeping only the decompressed batch in memory.

        Raises:
            ProtocolError: The data is malformed or exceeds a limit; the error comes after the good
                records.
            UnsupportedCodecError: The codec's library is not installed.
        """
        return self._iter_records(self._max_decompressed_bytes)

    def control_key(self) -> bytes:
        """Return the key of the first control record, which tells its type; b"" if it has none.

        A page of a hostile log may have thousands of control batches, so no more than 4 KiB of each
        is decompressed.

        Raises:
            ProtocolError: The batch is malformed or decompresses to more than that.
            UnsupportedCodecError: The codec's library is not installed.
        """
        limit = min(self._max_decompressed_bytes, _MAX_CONTROL_BYTES)
        record = next(self._iter_records(limit), None)
        return b"" if record is None else record.key or b""

    def _iter_records(self, limit: int) -> Iterator[ReadRecord]:
        body = self.raw[layout.BATCH_OVERHEAD :]
        if self.count or body:
            body = decompress(self.codec, body, limit)
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
        """Return all records, or raise what `iter_records` raises."""
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
    """Cut ``data`` into its batches.

    Args:
        data: Whole batches, one after the other.
        partial: Whether to ignore a last batch that is cut short, as at the end of a Fetch response
            (KIP-74).
        max_decompressed_bytes: The limit on a batch's records after decompression.
        max_items: The limit on a batch's records and headers together.

    Raises:
        ProtocolError: A batch's header is malformed, or, unless `partial`, the last one is cut
            short.
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
            raise _too_short(data, pos, length)
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


def _too_short(data: bytes | bytearray | memoryview, pos: int, length: int) -> ProtocolError:
    """Return the error for a batch whose length has no room for a header of magic 2.

    A message of magic 0 or 1 has a shorter header, with the magic at the same place.
    """
    magic_at = pos + layout.MAGIC_AT
    reaches_magic = length > layout.MAGIC_AT - layout.PREAMBLE.size and magic_at < len(data)
    if reaches_magic and data[magic_at] in _OLDER_MAGICS:
        return _of_magic(data[magic_at])
    return ProtocolError(f"the length field of a batch is {length}")


def _of_magic(magic: int) -> ProtocolError:
    return ProtocolError(f"a batch has magic {magic}; only 2 is supported")
