"""Batches that are written twice: by the library, and by the table of the format (KIP-98)."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
from tests.simulated.strange_batches import HEADER, PREAMBLE, framed

from .comparing import unequal

__all__ = ["WrittenBatch", "raises", "read"]

_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 8, 16, 32
_CONTROL_BYTES: Final = 4096
"""How many bytes of a batch are decompressed at most for its control key."""
_LOOSE: Final = 21
"""The most bytes of a record besides key, value and headers: its attributes, and the longest of a
length, a timestamp delta and an offset delta."""
_STAMPS: Final = (-1, 0, 1, 1_700_000_000_000, 1_700_000_000_063, 2**63 - 2)
_VALUES: Final = (None, b"", b"v", bytes(63), bytes(64), bytes(300))


class _Fields(NamedTuple):
    """The fields of a batch's header that its writer chooses."""

    attributes: int
    number: int
    """How many records it has."""
    first: int
    """The timestamp of the first record, in milliseconds."""
    largest: int
    """The largest timestamp, in milliseconds."""
    producer_id: int
    epoch: int
    sequence: int

    def bytes(self, body: bytes, offset: int = 0, leader_epoch: int = -1) -> bytes:
        """Return the batch with these fields."""
        fields = (
            *(self.attributes, self.number - 1, self.first, self.largest),
            *(self.producer_id, self.epoch, self.sequence, self.number),
        )
        return framed(fields, body, offset, leader_epoch)


def _varint(number: int) -> bytes:
    """Return a number as a varint in zigzag, in as few bytes as possible."""
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
        """Yield how the batch, changed copies of it, and what is read differ from the format."""
        plain = gzip.decompress(self.body) if self.codec else self.body
        if plain != self.plain or self.data != self.fields.bytes(self.body):
            due_hex = f"{self.fields} and the records {self.plain.hex()}"
            yield f"{self.data.hex()} is built, which is not the batch of {due_hex}"
        size, built = HEADER + len(self.plain), self.built
        facts = built.count, built.first_timestamp_ms, built.max_timestamp_ms
        if (*facts, built.uncompressed_size) != (*self.fields[1:4], size):
            told = f"{facts} and {built.uncompressed_size} bytes"
            yield f"a batch of {self.fields} and {size} bytes is said to have {told}"
        body = build_body(self.records, self.codec)
        for ratio in (built.compression_ratio, body.compression):
            if abs(ratio * len(self.plain) - len(self.body)) > 1e-6:
                yield f"compression is said to leave {ratio} of {len(self.plain)} bytes"
        if (body.batch_size, body.data) != (len(self.data), self.body):
            yield f"a body, {body.data.hex()}, is built for a batch of {body.batch_size} bytes"
        told_sizes = [_bound(record) for record in self.records]
        due_sizes = [_LOOSE + _payload(record) for record in self.records]
        if told_sizes != due_sizes:
            yield f"the records may need {told_sizes} bytes, not {due_sizes}"
        yield from self._of_changes(dice)
        yield from self._of_reading(RecordBatch(self.data), 0)
        yield from self._of_limits()
        yield from self._of_bad_input(dice)

    def _of_changes(self, dice: Random) -> Iterator[str]:
        fields = self.fields._replace(producer_id=7, epoch=dice.choice((-1, 3)), sequence=2**31 - 1)
        changed = restamp(
            *(self.data,), producer_id=7, producer_epoch=fields.epoch, base_sequence=2**31 - 1
        )
        if changed != fields.bytes(self.body):
            yield f"with other numbers, {fields}, the batch is {changed.hex()}"
        crc = int.from_bytes(self.data[17:21], "big")
        if checksum_and_codec(self.data) != (crc, self.codec):
            told = checksum_and_codec(self.data)
            yield f"the CRC and the codec are {told}, not {(crc, self.codec)}"
        stamp = dice.choice((None, 77))
        offset, epoch = dice.choice((0, 2**40)), dice.choice((-1, 0, 9))
        appended = assign_offsets(
            self.data, base_offset=offset, leader_epoch=epoch, log_append_time_ms=stamp
        )
        fields = self.fields
        if stamp is not None:
            fields = fields._replace(attributes=fields.attributes | _APPEND_TIME, largest=stamp)
        if appended != fields.bytes(self.body, offset, epoch):
            yield f"appended at {offset} in epoch {epoch}, the batch is {appended.hex()}"

    def _of_reading(self, batch: RecordBatch, offset: int) -> Iterator[str]:
        """Yield which properties of the batch are read as something else."""
        fields, raw = self.fields, batch.raw
        told = (
            *(batch.attributes, batch.count, batch.first_timestamp_ms, batch.max_timestamp_ms),
            *(batch.producer_id, batch.producer_epoch, batch.base_sequence),
        )
        if told != fields or batch.base_offset != offset or batch.last_offset_delta != told[1] - 1:
            place = f"at offset {batch.base_offset}, last delta {batch.last_offset_delta}"
            yield f"the header {fields} at offset {offset} is read as {told} {place}"
        sequence = -1
        if fields.sequence >= 0:
            sequence = (fields.sequence + fields.number - 1) % 2**31
        flags = batch.transactional, batch.control, batch.log_append
        due = self.transactional, self.control, self.append_time is not None
        pairs: dict[str, tuple[object, object]] = {
            "transactional, control, log append time": (flags, due),
            "codec": (batch.codec, self.codec),
            "last offset": (batch.last_offset, offset + fields.number - 1),
            "last sequence": (batch.last_sequence, sequence),
            "CRC": (batch.crc_ok(), True),
            "length": (batch.batch_length, len(raw) - PREAMBLE),
            "control key": (batch.control_key(), self.records[0].key or b""),
            "records": (batch.records(), list(self._rows(offset))),
            "equality": ((batch == RecordBatch(raw), batch == raw), (True, False)),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            yield wrong

    def _rows(self, offset: int) -> Iterator[tuple[object, ...]]:
        """Yield offset, timestamp, key, value and headers of each record."""
        for delta, record in enumerate(self.records):
            stamp = record.timestamp_ms if self.append_time is None else self.append_time
            yield offset + delta, stamp, record.key, record.value, tuple(record.headers)

    def _of_limits(self) -> Iterator[str]:
        """Yield which limit of reading lets too much pass, or too little."""
        items = len(self.records) + sum(len(record.headers) for record in self.records)
        if read(self.data, max_items=items) is None:
            yield f"{items} records and headers are refused, where {items} may be read"
        if read(self.data, max_items=items - 1) is not None:
            yield f"{items} records and headers are read, where one less may be"
        size = len(self.plain)
        if read(self.data, max_decompressed_bytes=size) is None:
            yield f"{size} bytes are refused, where {size} may be read"
        if self.codec and read(self.data, max_decompressed_bytes=size - 1) is not None:
            yield f"{size} bytes are read, where one less may be"

    def _of_bad_input(self, dice: Random) -> Iterator[str]:
        """Yield which error is missing where the input is no batch, or does not fit its field."""
        whole = self.data
        short, old = whole[: HEADER - 1], whole[:16] + b"\1" + whole[17:]
        for data in (short, old, b""):
            for call in (checksum_and_codec, lambda data: restamp(data, **_identity())):
                if not raises(InternalError, call, data):
                    yield f"no InternalError: {len(data)} bytes, no batch, are changed or examined"
        for data in (short, old, whole + b"\0", whole[:-1]):
            if not raises(ProtocolError, _placed, data):
                yield f"no ProtocolError: {len(data)} bytes, no batch, are appended"
            if not raises(ProtocolError, RecordBatch, data):
                yield f"no ProtocolError: {len(data)} bytes, no batch, are read"
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
    """Return the bytes of key, value and headers, with their lengths and the number of headers."""
    headers = [(name.encode(), value) for name, value in record.headers]
    fields = b"".join(_text(name) + _text(value) for name, value in headers)
    return len(_text(record.key) + _text(record.value) + _varint(len(headers)) + fields)


def _bad_bound() -> object:
    """Ask for the size of a record whose value is text, not bytes."""
    value: object = "text"
    return record_size_bound(None, value, ())  # type: ignore[arg-type]


def _marker_key(_: bytes) -> bytes:
    """Read the key of a marker that is far larger than markers are."""
    record = PendingRecord(b"k", bytes(_CONTROL_BYTES), (), 0, None, 0)
    batch = RecordBatch(build_batch([record], codec=Codec.GZIP, control=True).data)
    return batch.control_key()


def _identity(epoch: int = 0) -> dict[str, int]:
    """Return the arguments of `restamp` for some identity."""
    return {"producer_id": 1, "producer_epoch": epoch, "base_sequence": 0}


def _placed(data: bytes, offset: int = 0) -> bytes:
    """Return a batch as a leader appends it."""
    return assign_offsets(data, base_offset=offset, leader_epoch=0)


def raises(kind: type[Exception], call: Callable[[bytes], object], data: bytes) -> bool:
    """Return whether a call with some bytes raises an error of a kind."""
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
