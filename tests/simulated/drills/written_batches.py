"""Batches that are written twice: by the library, and by the table of the format (KIP-98)."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from random import Random
from typing import Any, Final, NamedTuple

from aioidem._engine.record import PendingRecord
from aioidem._records import (
    BuiltBatch,
    Codec,
    RecordBatch,
    assign_offsets,
    build_batch,
    build_body,
    checksum_and_codec,
    read_batches,
    record_size_bound,
    restamp,
)
from aioidem.errors import InternalError, ProtocolError, RecordError

__all__ = ["HEADER", "PREAMBLE", "WrittenBatch", "raises", "read"]

HEADER: Final = 61
"""Bytes of a batch before its records."""
PREAMBLE: Final = 12
"""Bytes of base offset and length; the length counts what follows them."""
_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 8, 16, 32
_CONTROL_BYTES: Final = 4096
"""How much of a batch is decompressed for its control key."""
_STAMPS: Final = (-1, 0, 1, 1_700_000_000_000, 1_700_000_000_063, 2**63 - 2)
_VALUES: Final = (None, b"", b"v", bytes(63), bytes(64), bytes(300))


class _Fields(NamedTuple):
    """The fields of a batch's header that its writer chooses."""

    attributes: int
    number: int
    first: int
    largest: int
    producer_id: int
    epoch: int
    sequence: int

    def bytes(self, body: bytes, offset: int = 0, leader_epoch: int = -1) -> bytes:
        """Return the batch with these fields."""
        covered = struct.pack(
            ">hiqqqhii",
            *(self.attributes, self.number - 1, self.first, self.largest),
            *(self.producer_id, self.epoch, self.sequence, self.number),
        )
        crc: int = import_module("crc32c").crc32c(covered + body)
        length = HEADER - PREAMBLE + len(body)
        return struct.pack(">qiibI", offset, length, leader_epoch, 2, crc) + covered + body


def _varint(number: int) -> bytes:
    rest = 2 * number if number >= 0 else -2 * number - 1
    groups = []
    while rest >= 0x80:
        groups.append(rest % 0x80 + 0x80)
        rest //= 0x80
    return bytes([*groups, rest])


def _text(text: bytes | None) -> bytes:
    return _varint(-1) if text is None else _varint(len(text)) + text


def _plain(records: Sequence[PendingRecord]) -> bytes:
    """Return the record section of a batch, before its compression."""
    section = b""
    for delta, record in enumerate(records):
        fields = b"\0" + _varint(record.timestamp_ms - records[0].timestamp_ms) + _varint(delta)
        fields += _text(record.key) + _text(record.value) + _varint(len(record.headers))
        fields += b"".join(_text(name.encode()) + _text(value) for name, value in record.headers)
        section += _varint(len(fields)) + fields
    return section


def _record(dice: Random) -> PendingRecord:
    headers = [("h", dice.choice(_VALUES)), ("ü", b"")][: dice.randrange(3)]
    return PendingRecord(
        *(dice.choice(_VALUES), dice.choice(_VALUES), headers, dice.choice(_STAMPS), None, 0)
    )


class WrittenBatch:
    """A batch that is built, and what its bytes must be."""

    def __init__(self, dice: Random) -> None:
        self.records = [_record(dice) for _ in range(dice.randrange(1, 4))]
        self.codec = dice.choice((Codec.NONE, Codec.NONE, Codec.GZIP))
        self.append_time = dice.choice((None, None, 0, 5_000))
        self.transactional, self.control = dice.random() < 0.3, dice.random() < 0.3
        stamps = [record.timestamp_ms for record in self.records]
        self.fields = _Fields(
            self.codec
            + _TRANSACTIONAL * self.transactional
            + _CONTROL * self.control
            + _APPEND_TIME * (self.append_time is not None),
            len(self.records),
            stamps[0],
            max(stamps) if self.append_time is None else self.append_time,
            dice.choice((-1, 0, 2**40)),
            dice.choice((-1, 0, 32_767)),
            dice.choice((-1, 0, 2**31 - 2, 2**31 - 1)),
        )
        self.plain = _plain(self.records)
        self.built = self._build(*self.fields[4:])
        self.data = self.built.data

    def _build(self, producer_id: int, epoch: int, sequence: int) -> BuiltBatch:
        return build_batch(
            self.records,
            codec=self.codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=self.transactional,
            control=self.control,
            log_append_time_ms=self.append_time,
        )

    @property
    def body(self) -> bytes:
        """The records as they are on the wire."""
        return self.data[HEADER:]

    def differences(self, dice: Random) -> Iterator[str]:
        """Yield how the batch, its variants, and what is read of it are not what they must be."""
        plain = gzip.decompress(self.body) if self.codec else self.body
        if plain != self.plain or self.data != self.fields.bytes(self.body):
            yield f"{self.data.hex()} is built of {self.fields} and {self.plain.hex()}"
        size, built = HEADER + len(self.plain), self.built
        facts = built.count, built.first_timestamp_ms, built.max_timestamp_ms
        if (*facts, built.uncompressed_size) != (*self.fields[1:4], size):
            yield f"{facts} and {built.uncompressed_size} are told of {self.fields}"
        body = build_body(self.records, self.codec)
        for ratio in (built.compression_ratio, body.compression):
            if abs(ratio * len(self.plain) - len(self.body)) > 1e-6:
                yield f"the ratio is {ratio}"
        if (body.batch_size, body.data) != (len(self.data), self.body):
            yield f"a body of {body.batch_size} bytes is told, not {len(self.data)}"
        if any(_bound(record) != 21 + _payload(record) for record in self.records):
            yield f"the records may need {[_bound(record) for record in self.records]} bytes"
        yield from self._of_changes(dice)
        yield from self._asread(RecordBatch(self.data), 0)
        yield from self._of_limits()
        yield from self._of_bad_input(dice)

    def _of_changes(self, dice: Random) -> Iterator[str]:
        fields = self.fields._replace(producer_id=7, epoch=dice.choice((-1, 3)), sequence=2**31 - 1)
        changed = restamp(
            *(self.data,), producer_id=7, producer_epoch=fields.epoch, base_sequence=2**31 - 1
        )
        if changed != fields.bytes(self.body):
            yield "another identity changes more or less than the identity"
        crc = int.from_bytes(self.data[17:21], "big")
        if checksum_and_codec(self.data) != (crc, self.codec):
            yield f"{checksum_and_codec(self.data)} are told, not {(crc, self.codec)}"
        stamp = dice.choice((None, 77))
        offset, epoch = dice.choice((0, 2**40)), dice.choice((-1, 0, 9))
        appended = assign_offsets(
            self.data, base_offset=offset, leader_epoch=epoch, log_append_time_ms=stamp
        )
        fields = self.fields
        if stamp is not None:
            fields = fields._replace(attributes=fields.attributes | _APPEND_TIME, largest=stamp)
        if appended != fields.bytes(self.body, offset, epoch):
            yield "a batch that is appended differs in more or less than its place and time"

    def _asread(self, batch: RecordBatch, offset: int) -> Iterator[str]:
        fields, raw = self.fields, batch.raw
        told = (
            *(batch.attributes, batch.count, batch.first_timestamp_ms, batch.max_timestamp_ms),
            *(batch.producer_id, batch.producer_epoch, batch.base_sequence),
        )
        if told != fields or batch.base_offset != offset or batch.last_offset_delta != told[1] - 1:
            yield f"the header {fields} is read as {told}"
        sequence = -1
        if fields.sequence >= 0:
            sequence = (fields.sequence + fields.number - 1) % 2**31
        flags = batch.transactional, batch.control, batch.log_append
        due = self.transactional, self.control, self.append_time is not None
        pairs = {
            "flags": (flags, due),
            "codec": (batch.codec, self.codec),
            "last offset": (batch.last_offset, offset + fields.number - 1),
            "last sequence": (batch.last_sequence, sequence),
            "CRC": (batch.crc_ok(), True),
            "length": (batch.batch_length, len(raw) - PREAMBLE),
            "control key": (batch.control_key(), self.records[0].key or b""),
            "records": (batch.records(), list(self._rows(offset))),
            "equality": ((batch == RecordBatch(raw), batch == raw), (True, False)),
        }
        for name, (is_told, is_due) in pairs.items():
            if is_told != is_due:
                yield f"{name}: {is_told}, not {is_due}"

    def _rows(self, offset: int) -> Iterator[tuple[object, ...]]:
        for delta, record in enumerate(self.records):
            stamp = record.timestamp_ms if self.append_time is None else self.append_time
            yield offset + delta, stamp, record.key, record.value, tuple(record.headers)

    def _of_limits(self) -> Iterator[str]:
        """Yield whether records are read although, or not read because, a limit was reached."""
        items = len(self.records) + sum(len(record.headers) for record in self.records)
        if read(self.data, max_items=items) is None:
            yield f"{items} records and headers are too many, where {items} may be"
        if read(self.data, max_items=items - 1) is not None:
            yield f"{items} records and headers are read, where one less may be"
        size = len(self.plain)
        if read(self.data, max_decompressed_bytes=size) is None:
            yield f"{size} bytes are too many, where {size} may be"
        if self.codec and read(self.data, max_decompressed_bytes=size - 1) is not None:
            yield f"{size} bytes are read, where one less may be"

    def _of_bad_input(self, dice: Random) -> Iterator[str]:
        """Yield which error is missing where the input is no batch, or fits no field."""
        whole = self.data
        short, old = whole[: HEADER - 1], whole[:16] + b"\1" + whole[17:]
        for data in (short, old, b""):
            for call in (checksum_and_codec, lambda data: restamp(data, **_identity())):
                if not raises(InternalError, call, data):
                    yield f"{len(data)} bytes that are no batch are changed or looked at"
        for data in (short, old, whole + b"\0", whole[:-1]):
            if not raises(ProtocolError, _placed, data):
                yield f"{len(data)} bytes that are no batch are appended"
            if not raises(ProtocolError, RecordBatch, data):
                yield f"{len(data)} bytes that are no batch are read"
        if not raises(InternalError, lambda data: restamp(data, **_identity(2**15)), whole):
            yield "an epoch of 2^15 is written"
        if not raises(InternalError, lambda data: _placed(data, 2**63), whole):
            yield "an offset of 2^63 is written"
        if not raises(InternalError, lambda _: self._build(1, 2**15, 0), whole):
            yield "an epoch of 2^15 is built"
        if not raises(RecordError, lambda _: build_batch([]), whole):
            yield "a batch of no record is built"
        if dice.random() < 0.2 and not raises(ProtocolError, _marker_key, whole):
            yield "a marker is decompressed to more than 4 KiB"
        if dice.random() < 0.2 and not raises(RecordError, lambda _: _bad_bound(), whole):
            yield "a value that is text has a size"


def _bound(record: PendingRecord) -> int:
    return record_size_bound(record.key, record.value, record.headers)


def _payload(record: PendingRecord) -> int:
    """Return the bytes of key, value and headers, each with a length of its own where it has one.

    A header's two lengths, and their number, take what varints of them take.
    """
    headers = [(name.encode(), value) for name, value in record.headers]
    fields = b"".join(_text(name) + _text(value) for name, value in headers)
    return len(_text(record.key) + _text(record.value) + _varint(len(headers)) + fields)


def _bad_bound() -> object:
    value: object = "text"
    return record_size_bound(None, value, ())  # type: ignore[arg-type]


def _marker_key(_: bytes) -> bytes:
    """Read the key of a marker that is far larger than markers are."""
    record = PendingRecord(b"k", bytes(_CONTROL_BYTES), (), 0, None, 0)
    batch = RecordBatch(build_batch([record], codec=Codec.GZIP, control=True).data)
    return batch.control_key()


def _identity(epoch: int = 0) -> dict[str, int]:
    return {"producer_id": 1, "producer_epoch": epoch, "base_sequence": 0}


def _placed(data: bytes, offset: int = 0) -> bytes:
    return assign_offsets(data, base_offset=offset, leader_epoch=0)


def raises(kind: type[Exception], call: Callable[[bytes], object], data: bytes) -> bool:
    try:
        call(data)
    except kind:
        return True
    return False


def read(data: bytes, **limits: Any) -> list[object] | None:
    """Return the records of a batch; None if it is refused."""
    with suppress(ProtocolError):
        return [record for batch in read_batches(data, **limits) for record in batch.records()]
    return None
