"""The embedded broker's view of a record batch (format v2): header, checksum, stored form.

Invariants
    Nothing here decodes records, and an append copies no bytes: a Produce request costs one header
    unpack and one CRC32C per batch. A stored batch keeps the producer's buffer; it is a copy only
    if the broker has to change timestamps. The base offset and the leader epoch, which the log
    assigns, are outside of the checksum; `StoredBatch.wire` fills them in when the batch is read.

Rejected
    Sharing the header code of ``aioidem._records``: the embedded broker has to find mistakes in the
    batches of aioidem's producer. With the producer's own code it would make the same mistakes.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import crc32c
from kio.schema.errors import ErrorCode

__all__ = [
    "MAX_SEQUENCE",
    "BatchHeader",
    "RefusedError",
    "StoredBatch",
    "check_crc",
    "parse_single_batch",
    "sequence_after",
]

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = 61
_CRC_OFFSET: Final = 17
_CHECKED_FROM: Final = 21
_MAX_TIMESTAMP_OFFSET: Final = 35
_LENGTH_PREFIX: Final = 12
_UP_TO_MAGIC: Final = 17
_MAGIC_AT: Final = 16
_LEAST_LENGTH: Final = 14
_NEWEST_MAGIC: Final = 2
_NO_TIMESTAMP: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1
_LOG_APPEND_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20


class RefusedError(Exception):
    """The broker refuses a request, or one partition of it, with an error code.

    Attributes:
        code: The error code.
        message: Message for an operator.
        record_errors: (Index in the batch, message) of each record that is at fault (KIP-467).
        spoils: Whether the error fails the whole request and not only its partition.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        record_errors: tuple[tuple[int, str | None], ...] = (),
        *,
        spoils: bool = False,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.record_errors = record_errors
        self.spoils = spoils


class BatchHeader(NamedTuple):
    """The 61 bytes at the beginning of every v2 batch, in wire order (KIP-98)."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Return the size of the whole batch, in bytes."""
        return self.batch_length + _LENGTH_PREFIX

    @property
    def codec(self) -> int:
        """Return the compression codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & 0x07

    @property
    def log_append_time(self) -> bool:
        """Return whether the timestamps are marked as the broker's (LogAppendTime)."""
        return bool(self.attributes & _LOG_APPEND_BIT)

    @property
    def transactional(self) -> bool:
        """Return whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """Return whether the batch is a control batch, which only a broker may write."""
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record; -1 for a batch without sequences."""
        if self.base_sequence < 0:
            return -1
        return sequence_after(self.base_sequence, self.last_offset_delta)


def sequence_after(sequence: int, records: int) -> int:
    """Return the sequence that is ``records`` after ``sequence``; 0 follows 2147483647."""
    distance_to_wrap = MAX_SEQUENCE - sequence
    return sequence + records if records <= distance_to_wrap else records - distance_to_wrap - 1


def parse_single_batch(data: bytes | memoryview | None) -> BatchHeader:
    """Return the header of a partition's batch; Produce v3 and up allows exactly one batch in v2.

    Bytes after the batch are ignored if they are too few for another batch. The checksum is
    verified later, by `check_crc`.

    Raises:
        RefusedError: INVALID_RECORD for no batch, several, or an older format; CORRUPT_MESSAGE for
            bytes that are no batch. If the first batch is corrupt, the whole request fails
            (`RefusedError.spoils`), because Kafka reads the first batch of every partition before
            it serves any partition.
    """
    found = b"" if data is None else data
    size = _next_batch(found, 0, spoils=True)
    if not size:
        raise RefusedError(ErrorCode.invalid_record, "there must be a record batch per partition")
    magic = found[_MAGIC_AT]
    if magic != _NEWEST_MAGIC:
        raise RefusedError(ErrorCode.invalid_record, f"a batch of magic 2, not {magic}")
    if _next_batch(found, size, spoils=False):
        raise RefusedError(ErrorCode.invalid_record, "there must be one batch per partition")
    if size < HEADER_SIZE:
        raise RefusedError(ErrorCode.corrupt_message, f"{size} bytes cannot hold a batch header")
    return BatchHeader._make(_HEADER.unpack_from(found, 0))


def _next_batch(data: bytes | memoryview, at: int, *, spoils: bool) -> int:
    """Return the size in bytes of the batch that begins at ``at``; 0 if there is no whole batch."""
    left = len(data) - at
    if left < _LENGTH_PREFIX:
        return 0
    length = int.from_bytes(data[at + 8 : at + _LENGTH_PREFIX], "big", signed=True)
    if length < _LEAST_LENGTH:
        raise RefusedError(
            ErrorCode.corrupt_message, f"a batch cannot be {length} bytes long", spoils=spoils
        )
    if left < _UP_TO_MAGIC:
        return 0
    magic = data[at + _MAGIC_AT]
    if magic > _NEWEST_MAGIC:
        raise RefusedError(ErrorCode.corrupt_message, f"no format has magic {magic}", spoils=spoils)
    size = length + _LENGTH_PREFIX
    return size if size <= left else 0


def check_crc(data: bytes | memoryview, header: BatchHeader) -> None:
    """Verify the batch's CRC32C.

    Raises:
        RefusedError: CORRUPT_MESSAGE if the checksum is not the header's.
    """
    found = crc32c.crc32c(memoryview(data)[_CHECKED_FROM:])
    if found != header.crc:
        raise RefusedError(
            ErrorCode.corrupt_message,
            f"record is corrupt (stored crc = {header.crc}, computed crc = {found})",
        )


class StoredBatch:
    """A batch in a log: the producer's bytes, and what the broker assigned. It never changes.

    Args:
        data: Bytes of the batch.
        header: Header of the batch.
        base_offset: Offset of the batch's first record.
        leader_epoch: Leader epoch in which the batch was appended.
        appended_ms: The broker's wall clock at the append, in ms since the epoch.
        log_append_time: Whether ``appended_ms`` replaces the records' timestamps.
    """

    __slots__ = (
        "appended_ms",
        "base_offset",
        "data",
        "header",
        "last_offset",
        "leader_epoch",
        "log_append_time_ms",
    )

    def __init__(
        self,
        data: bytes | memoryview,
        header: BatchHeader,
        base_offset: int,
        leader_epoch: int,
        appended_ms: int,
        log_append_time: bool,
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = base_offset + header.last_offset_delta
        self.leader_epoch = leader_epoch
        self.appended_ms = appended_ms
        self.log_append_time_ms = appended_ms if log_append_time else -1
        if log_append_time:
            data, header = _restamped(data, header, _LOG_APPEND_BIT, appended_ms)
        elif header.log_append_time or header.max_timestamp_ms < _NO_TIMESTAMP:
            newest = max(header.max_timestamp_ms, _NO_TIMESTAMP)
            data, header = _restamped(data, header, 0, newest)
        self.data = data
        self.header = header

    def __repr__(self) -> str:
        h = self.header
        return (
            f"<StoredBatch {self.base_offset}..{self.last_offset} leader_epoch={self.leader_epoch} "
            f"pid={h.producer_id} epoch={h.producer_epoch} seq={h.base_sequence} "
            f"bytes={len(self.data)}>"
        )

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return len(self.data)

    @property
    def max_timestamp_ms(self) -> int:
        """Return the largest timestamp of its records, in ms since the epoch."""
        return self.header.max_timestamp_ms

    def wire(self) -> bytes:
        """Return the batch as a consumer reads it, with offset and leader epoch filled in."""
        data = self.data
        return b"".join(
            (
                self.base_offset.to_bytes(8, "big"),
                data[8:12],
                self.leader_epoch.to_bytes(4, "big", signed=True),
                data[16:],
            )
        )


def _restamped(
    data: bytes | memoryview, header: BatchHeader, timestamp_type: int, max_timestamp_ms: int
) -> tuple[bytes, BatchHeader]:
    """Return a copy of a batch with another timestamp type, largest timestamp and checksum.

    The checksum covers both fields. The broker changes them for a topic with LogAppendTime, and for
    a batch in which the producer set the bit of LogAppendTime, which only a broker may set.
    """
    changed = bytearray(data)
    attributes = header.attributes & ~_LOG_APPEND_BIT | timestamp_type
    struct.pack_into(">h", changed, _CHECKED_FROM, attributes)
    struct.pack_into(">q", changed, _MAX_TIMESTAMP_OFFSET, max_timestamp_ms)
    crc = crc32c.crc32c(memoryview(changed)[_CHECKED_FROM:])
    struct.pack_into(">I", changed, _CRC_OFFSET, crc)
    return bytes(changed), header._replace(
        attributes=attributes, max_timestamp_ms=max_timestamp_ms, crc=crc
    )
