"""The broker's own view of a record batch (format v2): header, checksum, stored form.

Invariants
    Nothing here decodes records or copies their bytes on the way in: a produce costs one header
    unpack and one CRC32C. What the log assigns (base offset, leader epoch) lies outside the
    checksum, so a stored batch keeps the producer's buffer and is patched when somebody reads it.

Rejected
    Sharing the header code of ``aioidem.records``: the broker judges what the client wrote, and a
    judge that shares the accused's arithmetic agrees with its mistakes.
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
MAX_SEQUENCE: Final = 2**31 - 1
_LOG_APPEND_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20


class RefusedError(Exception):
    """A request, or one partition of it, that the broker answers with an error code.

    ``code`` is the Kafka error, ``message`` what an operator would read, ``record_errors`` the
    (batch index, message) pairs of KIP-467.
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str | None], ...] = ()
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.record_errors = record_errors


class BatchHeader(NamedTuple):
    """The 61 bytes in front of every v2 batch, in wire order (KIP-98)."""

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
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & 0x07

    @property
    def transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """Whether its records are the broker's own markers."""
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 for a batch without one."""
        if self.base_sequence < 0:
            return -1
        return sequence_after(self.base_sequence, self.last_offset_delta)


def sequence_after(sequence: int, records: int) -> int:
    """The sequence ``records`` further on; 2147483647 is followed by 0."""
    distance_to_wrap = MAX_SEQUENCE - sequence
    return sequence + records if records <= distance_to_wrap else records - distance_to_wrap - 1


def parse_single_batch(data: bytes | memoryview | None) -> BatchHeader:
    """The header of ``data``, which must be exactly one v2 batch (all that Produce v3+ allows).

    Raises `RefusedError`: INVALID_RECORD for no batch, several, or another format; CORRUPT_MESSAGE
    for a length that cannot be. The checksum is not looked at: see `check_crc`.
    """
    if data is None or len(data) == 0:
        raise RefusedError(
            ErrorCode.invalid_record, "Produce requests must have exactly one batch per partition"
        )
    if len(data) < HEADER_SIZE:
        raise RefusedError(
            ErrorCode.corrupt_message, f"{len(data)} bytes cannot hold a batch header"
        )
    header = BatchHeader._make(_HEADER.unpack_from(data, 0))
    if header.magic != 2:
        raise RefusedError(
            ErrorCode.invalid_record,
            f"Produce requests may hold batches of magic 2 only, not {header.magic}",
        )
    size = header.batch_length + _LENGTH_PREFIX
    if size < HEADER_SIZE or size > len(data):
        raise RefusedError(
            ErrorCode.corrupt_message, f"batch of {size} bytes in {len(data)} bytes of records"
        )
    if size < len(data):
        raise RefusedError(
            ErrorCode.invalid_record,
            "Produce requests may hold exactly one record batch per partition",
        )
    return header


def check_crc(data: bytes | memoryview, header: BatchHeader) -> None:
    """Raise `RefusedError` CORRUPT_MESSAGE unless the CRC32C over all behind it is the header's."""
    found = crc32c.crc32c(memoryview(data)[_CHECKED_FROM:])
    if found != header.crc:
        raise RefusedError(
            ErrorCode.corrupt_message,
            f"record is corrupt (stored crc = {header.crc}, computed crc = {found})",
        )


class StoredBatch:
    """A batch in a log: the producer's bytes and what the broker assigned. Never changed."""

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
        """``appended_ms``: the broker's wall clock; it replaces the records' timestamps when
        ``log_append_time``.
        """
        self.base_offset = base_offset
        self.last_offset = base_offset + header.last_offset_delta
        self.leader_epoch = leader_epoch
        self.appended_ms = appended_ms
        self.log_append_time_ms = appended_ms if log_append_time else -1
        if log_append_time:
            data, header = _with_log_append_time(data, header, appended_ms)
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
        """Bytes."""
        return len(self.data)

    @property
    def max_timestamp_ms(self) -> int:
        """The newest record's, or the broker's with LogAppendTime."""
        return self.header.max_timestamp_ms

    def wire(self) -> bytes:
        """The batch as a consumer reads it: offset and leader epoch filled in."""
        data = self.data
        return b"".join(
            (
                self.base_offset.to_bytes(8, "big"),
                data[8:12],
                self.leader_epoch.to_bytes(4, "big", signed=True),
                data[16:],
            )
        )


def _with_log_append_time(
    data: bytes | memoryview, header: BatchHeader, now_ms: int
) -> tuple[bytes, BatchHeader]:
    """Timestamp type and maximum timestamp are inside the checksum, so this is the one case where a
    batch is rewritten.
    """
    changed = bytearray(data)
    attributes = header.attributes | _LOG_APPEND_BIT
    struct.pack_into(">h", changed, _CHECKED_FROM, attributes)
    struct.pack_into(">q", changed, _MAX_TIMESTAMP_OFFSET, now_ms)
    crc = crc32c.crc32c(memoryview(changed)[_CHECKED_FROM:])
    struct.pack_into(">I", changed, _CRC_OFFSET, crc)
    return bytes(changed), header._replace(attributes=attributes, max_timestamp_ms=now_ms, crc=crc)
