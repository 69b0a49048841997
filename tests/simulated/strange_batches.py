"""Batches as other clients, brokers or a failing disk leave them in a log, and what is in them.

A producer that reads its log back meets them. `strange_batch` makes one, by an encoder of its own:
with gaps in the offsets, timestamps that fall, keys and values of any length or none, names that
are not UTF-8, bits that only brokers set, varints that are longer than they need be; and every
second one is damaged. `whole_records` decodes it by the letter of the format (KIP-98), with names
as Java's consumer reads them, and stops where it is malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from importlib import import_module
from random import Random
from typing import Final, NamedTuple

from aioidem._testing.wire_frames import Record

__all__ = [
    "HEADER",
    "PREAMBLE",
    "MalformedError",
    "StrangeBatch",
    "framed",
    "strange_batch",
    "whole_records",
]

HEADER: Final = 61
"""Bytes of a batch before its records."""
PREAMBLE: Final = 12
"""Bytes of base offset and length; the length counts what follows them."""
_CHECKED: Final = 21
"""The CRC covers the bytes from here on."""
_APPEND_TIME: Final = 8
_FOREIGN: Final = ("ü" * 40).encode() + "ü".encode("latin-1")
"""The name of a header in two encodings, as by a client that does not care for UTF-8."""
_NAMELESS: Final = 0.02
"""How many headers have no name, which makes their record malformed."""
_LEAST: Final = 7
"""Bytes of the smallest record."""
_JUMPS: Final = (1, 1, 1, 2, 63, 64, 65, 8191, 8192, 20_000)
_LENGTHS: Final = (0, 1, 63, 64, 8191, 8192)
_FIRST_STAMPS: Final = (*[1_700_000_000_000] * 8, 0, 2**62, 2**63 - 1, -(2**63))
_STAMPS: Final = (0, 1, -1, 63, -64, 64, -65, 8191, 8192, -8193, 2**33)


class MalformedError(ValueError):
    """The bytes are not what the format demands."""


class StrangeBatch(NamedTuple):
    """A batch, and what its header says."""

    data: bytes
    base_offset: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    number: int
    body: bytes
    acceptable: bool = True
    """Whether a reader can take the header at all."""


def strange_batch(records: Sequence[Record], dice: Random) -> StrangeBatch:
    """Make a batch of some records' keys and values, in an unusual form."""
    body, delta = bytearray(), -1
    for record in records:
        delta += dice.choice(_JUMPS)
        body += _record(record, delta, dice)
    header = {
        "base_offset": dice.choice((0, 1, 2**40)),
        "attributes": dice.choice((0, _APPEND_TIME, 16, 32, 0x38)),
        "last_offset_delta": delta + dice.choice((0, 0, 5)),
        "first_timestamp": dice.choice(_FIRST_STAMPS),
        "max_timestamp": dice.choice((0, 1_700_000_000_001)),
        "producer_id": dice.choice((-1, 0, 2**62)),
        "producer_epoch": dice.choice((0, 32_767)),
        "base_sequence": dice.choice((-1, 0, 2**31 - 2)),
        "number": len(records),
    }
    acceptable = dice.random() >= 0.5 or _damage(header, body, dice)
    return StrangeBatch(_assembled(header, body), **header, body=bytes(body), acceptable=acceptable)


def _damage(header: dict[str, int], body: bytearray, dice: Random) -> bool:
    """Damage the body, or what the header says; return whether the header can be taken."""
    match dice.randrange(6):
        case 0:
            # Most of what has a meaning is at the beginning of a record.
            place = min(dice.randrange(12), len(body) - 1)
            body[place] ^= dice.choice((1, 2, 0x80, 0xFF))
        case 1:
            body[dice.randrange(len(body))] ^= dice.choice((1, 2, 0x80, 0xFF))
        case 2:
            del body[-dice.choice((1, 2, 30)) :]
        case 3:
            body += bytes(dice.choice((1, 2, 30)))
        case 4:
            header["number"] += dice.choice((-1, 1, 1000))
        case _:
            name, value = dice.choice(
                (
                    ("number", -1),
                    ("last_offset_delta", -1),
                    ("attributes", 5),
                    ("last_offset_delta", header["last_offset_delta"] // 2),
                    ("last_offset_delta", 0),
                )
            )
            header[name] = value
    return header["number"] >= 0 and header["last_offset_delta"] >= 0 and header["attributes"] != 5


def _assembled(header: dict[str, int], body: bytes | bytearray) -> bytes:
    offset, *fields = header.values()
    return framed(fields, body, offset, -1)


def framed(fields: Sequence[int], body: bytes | bytearray, offset: int, leader_epoch: int) -> bytes:
    """Return a batch with the right length and CRC, whatever its fields are.

    Args:
        fields: those from the attributes to the number of records, as KIP-98 has them.
        body: the records as they are on the wire.
        offset: the base offset.
        leader_epoch: the leader epoch of the log.
    """
    covered = struct.pack(">hiqqqhii", *fields) + body
    crc: int = import_module("crc32c").crc32c(covered)
    length = HEADER - PREAMBLE + len(body)
    return struct.pack(">qiibI", offset, length, leader_epoch, 2, crc) + covered


def _record(record: Record, delta: int, dice: Random) -> bytes:
    fields = bytearray([dice.choice((0, 255))])
    fields += _varint(dice.choice(_STAMPS), dice) + _varint(delta, dice)
    fields += _text(_of_any_length(record.key, dice), dice)
    fields += _text(_of_any_length(record.value, dice), dice)
    headers = [(name.encode(), value) for name, value in record.headers]
    headers += ((_FOREIGN, b"1"), (b"", None))[: dice.randrange(3)]
    fields += _varint(len(headers), dice)
    for name, value in headers:
        nameless = dice.random() < _NAMELESS
        fields += _text(None if nameless else name, dice) + _text(value, dice)
    return _varint(len(fields), dice) + bytes(fields)


def _of_any_length(text: bytes | None, dice: Random) -> bytes | None:
    choice = dice.randrange(4)
    return (text, text, None, bytes(dice.choice(_LENGTHS)))[choice]


def _text(text: bytes | None, dice: Random) -> bytes:
    return _varint(-1, dice) if text is None else _varint(len(text), dice) + text


def _varint(number: int, dice: Random) -> bytes:
    """Encode a number in zigzag; one in ten has a byte more than it needs."""
    rest = 2 * number if number >= 0 else -2 * number - 1
    groups = [rest & 0x7F]
    while rest := rest >> 7:
        groups.append(rest & 0x7F)
    if len(groups) < 5 and dice.random() < 0.1:
        groups.append(0)
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


# --- decoding -------------------------------------------------------------------------------------


def whole_records(batch: StrangeBatch) -> Iterator[tuple[object, ...]]:
    """Yield what each record says: offset, timestamp, key, value and headers.

    Raises:
        MalformedError: a record, or what follows the last one, is malformed.
    """
    rest, last = batch.body, -1
    if batch.number * _LEAST > len(rest):
        raise MalformedError("more records than bytes for them")
    for _ in range(batch.number):
        size, rest = _signed(rest, 32)
        if not 0 < size <= len(rest):
            raise MalformedError("a record of no such length")
        own, rest = rest[1:size], rest[size:]
        later, own = _signed(own, 64)
        delta, own = _signed(own, 32)
        stamp = batch.first_timestamp + later
        if batch.attributes & _APPEND_TIME:
            stamp = batch.max_timestamp
        if not last < delta <= batch.last_offset_delta or abs(2 * stamp + 1) >= 2**64:
            raise MalformedError("an offset or a timestamp that cannot be")
        last = delta
        key, own = _bytes_or_none(own)
        value, own = _bytes_or_none(own)
        headers, own = _named(own)
        if own:
            raise MalformedError("a record is longer than its fields")
        yield batch.base_offset + delta, stamp, key, value, headers
    if rest:
        raise MalformedError("more bytes than records")


def _named(rest: bytes) -> tuple[tuple[tuple[str, bytes | None], ...], bytes]:
    count, rest = _signed(rest, 32)
    if not 0 <= count <= len(rest):
        raise MalformedError("headers of no such number")
    headers = []
    for _ in range(count):
        name, rest = _bytes_or_none(rest)
        value, rest = _bytes_or_none(rest)
        if name is None:
            raise MalformedError("a header without a name")
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), rest


def _bytes_or_none(rest: bytes) -> tuple[bytes | None, bytes]:
    size, rest = _signed(rest, 32)
    if not -1 <= size <= len(rest):
        raise MalformedError("a field of no such length")
    return (None, rest) if size < 0 else (rest[:size], rest[size:])


def _signed(rest: bytes, bits: int) -> tuple[int, bytes]:
    """Return the number at the beginning, and what follows it."""
    most = -(-bits // 7)
    size = next((at + 1 for at, byte in enumerate(rest[:most]) if byte < 0x80), None)
    if size is None:
        raise MalformedError("a number without end")
    number = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(rest[:size]))
    if number >= 2**bits:
        raise MalformedError("a number that is too large")
    return number // 2 if number % 2 == 0 else -(number // 2) - 1, rest[size:]
