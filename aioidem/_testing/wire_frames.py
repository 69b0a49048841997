"""Read Produce and Metadata frames, and record batches, for a judge of the client's own decoder.

Everything here is written from Kafka's protocol guide (request and response schemas, record batch
v2) and KIP-1269, and uses none of the client's or the embedded broker's code. Only what the judge
needs is returned; bytes that do not have the form of their version raise `FrameError`.

Versions: Produce 3 to 14 and Metadata 0 to 13. From Produce 9 and Metadata 9 on, messages are
flexible (KIP-482): lengths are unsigned varints plus one, and structs end with tagged fields.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final, NamedTuple, TypeVar

__all__ = [
    "METADATA",
    "PRODUCE",
    "FrameError",
    "MetadataTold",
    "PartitionTold",
    "ProduceTold",
    "ProduceWritten",
    "Record",
    "RequestHeader",
    "TopicTold",
    "batch_values",
    "misstatements",
    "read_header",
    "read_metadata",
    "read_produce",
    "read_produced",
]

PRODUCE: Final = 0
METADATA: Final = 3

_FLEXIBLE: Final = 9  # from this version on, in Produce as well as in Metadata
_PRODUCE_WITH_IDS: Final = 13
_PRODUCE_WITH_RETAINED: Final = 14
_LEADER_TAG: Final = 0
_RETAINED_TAG: Final = 1
_BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CHECKED_FROM: Final = 21  # the CRC covers what follows it
# The bits of the attributes that a producer may set: four codecs (3 bits), and "transactional".
_PRODUCERS_BITS: Final = 0x17
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE: Final = 16

T = TypeVar("T")


class FrameError(ValueError):
    """The bytes do not have the form that the protocol gives them."""


class RequestHeader(NamedTuple):
    """The beginning of a request."""

    api_key: int
    api_version: int
    correlation_id: int


class ProduceWritten(NamedTuple):
    """A Produce request: its `acks`, and (topic name or topic id, partition, bytes) per batch."""

    acks: int
    batches: list[tuple[str | bytes, int, bytes]]


class ProduceTold(NamedTuple):
    """What an answer to Produce says about one partition.

    Attributes:
        topic: Name of the topic; from v13 on its id.
        leader_epoch: Epoch of the leader that the answer names (KIP-951); None if it names none.
        retained: How many batches per producer the leader retains (KIP-1269); None if unsaid.
    """

    topic: str | bytes
    partition: int
    code: int
    base_offset: int
    leader_epoch: int | None
    retained: int | None


class PartitionTold(NamedTuple):
    """What an answer to Metadata says about one partition."""

    partition: int
    leader: int
    leader_epoch: int


class TopicTold(NamedTuple):
    """What an answer to Metadata says about one topic; `topic_id` is None before v10."""

    code: int
    name: str | None
    topic_id: bytes | None
    partitions: list[PartitionTold]


class MetadataTold(NamedTuple):
    """What an answer to Metadata says; `cluster_id` is None before v2."""

    cluster_id: str | None
    topics: list[TopicTold]


class Record(NamedTuple):
    """One record of a batch."""

    offset: int
    timestamp_ms: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class _Cursor:
    """Reads the protocol's primitive types from bytes, one after the other."""

    __slots__ = ("at", "data", "flexible")

    def __init__(self, data: bytes, at: int = 0, *, flexible: bool = False) -> None:
        self.data = data
        self.at = at
        self.flexible = flexible

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise FrameError(f"{size} bytes at {self.at} of {len(self.data)}")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def unsigned_varint(self) -> int:
        # The simulation reads a few thousand of these for each schedule, most of one byte.
        data, at = self.data, self.at
        value = shift = 0
        while at < len(data):
            byte = data[at]
            at += 1
            if byte < 0x80:
                self.at = at
                return value | byte << shift
            value |= (byte & 0x7F) << shift
            shift += 7
        raise FrameError(f"a number at {self.at} of {len(data)} bytes has no end")

    def varint(self) -> int:
        value = self.unsigned_varint()
        return (value >> 1) ^ -(value & 1)

    def length(self, size: int) -> int:
        """Read the length of a string, of bytes or of an array; -1 is null."""
        return self.unsigned_varint() - 1 if self.flexible else self.number(size)

    def string(self) -> str | None:
        size = self.length(2)
        return None if size < 0 else self.take(size).decode()

    def blob(self) -> bytes:
        return self.take(max(0, self.length(4)))

    def array(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(max(0, self.length(4)))]

    def tags(self) -> dict[int, bytes]:
        if not self.flexible:
            return {}
        return {
            self.unsigned_varint(): self.take(self.unsigned_varint())
            for _ in range(self.unsigned_varint())
        }


def read_header(frame: bytes) -> tuple[RequestHeader, int]:
    """Return a request's header, and the offset of what follows its client id.

    Args:
        frame: The request without the four bytes of its length.
    """
    cursor = _Cursor(frame)
    header = RequestHeader(cursor.number(2), cursor.number(2), cursor.number(4))
    cursor.string()
    return header, cursor.at


def read_produce(frame: bytes) -> ProduceWritten:
    """Read a Produce request, without the four bytes of its length."""
    header, at = read_header(frame)
    cursor = _Cursor(frame, at, flexible=header.api_version >= _FLEXIBLE)
    cursor.tags()
    cursor.string()
    acks = cursor.number(2)
    cursor.number(4)
    batches: list[tuple[str | bytes, int, bytes]] = []

    def topic() -> None:
        named = _topic(cursor, header.api_version)

        def partition() -> None:
            batches.append((named, cursor.number(4), cursor.blob()))
            cursor.tags()

        cursor.array(partition)
        cursor.tags()

    cursor.array(topic)
    cursor.tags()
    return ProduceWritten(acks, batches)


def read_produced(payload: bytes, version: int) -> list[ProduceTold]:
    """Read an answer to Produce, from its correlation id on."""
    cursor = _Cursor(payload, flexible=version >= _FLEXIBLE)
    cursor.number(4)
    cursor.tags()
    found: list[ProduceTold] = []

    def topic() -> None:
        named = _topic(cursor, version)
        answers = cursor.array(lambda: _partition_told(cursor, version, named))
        said = _retained(cursor.tags(), version)
        found.extend(
            answer if answer.retained is not None else answer._replace(retained=said)
            for answer in answers
        )

    cursor.array(topic)
    cursor.number(4)
    cursor.tags()
    return found


def _topic(cursor: _Cursor, version: int) -> str | bytes:
    return cursor.take(16) if version >= _PRODUCE_WITH_IDS else cursor.string() or ""


def _partition_told(cursor: _Cursor, version: int, topic: str | bytes) -> ProduceTold:
    index, code, base_offset = cursor.number(4), cursor.number(2), cursor.number(8)
    cursor.number(8)
    if version >= 5:  # the log start offset
        cursor.number(8)
    if version >= 8:  # KIP-467: the records at fault, and a message
        cursor.array(lambda: (cursor.number(4), cursor.string(), cursor.tags()))
        cursor.string()
    tags = cursor.tags()
    leader = tags.get(_LEADER_TAG)
    epoch = None if leader is None else _Cursor(leader, 4).number(4)
    return ProduceTold(topic, index, code, base_offset, epoch, _retained(tags, version))


def _retained(tags: dict[int, bytes], version: int) -> int | None:
    field = tags.get(_RETAINED_TAG)
    if version < _PRODUCE_WITH_RETAINED or field is None or len(field) != 4:
        return None
    return int.from_bytes(field, "big", signed=True)


def read_metadata(payload: bytes, version: int) -> MetadataTold:
    """Read an answer to Metadata, from its correlation id on."""
    cursor = _Cursor(payload, flexible=version >= _FLEXIBLE)
    cursor.number(4)
    cursor.tags()
    if version >= 3:  # the throttle time
        cursor.number(4)
    cursor.array(lambda: _skip_broker(cursor, version))
    cluster_id = cursor.string() if version >= 2 else None
    if version >= 1:  # the controller
        cursor.number(4)
    return MetadataTold(cluster_id, cursor.array(lambda: _topic_told(cursor, version)))


def _skip_broker(cursor: _Cursor, version: int) -> None:
    cursor.number(4)
    cursor.string()
    cursor.number(4)
    if version >= 1:  # the rack
        cursor.string()
    cursor.tags()


def _topic_told(cursor: _Cursor, version: int) -> TopicTold:
    code, name = cursor.number(2), cursor.string()
    topic_id = cursor.take(16) if version >= 10 else None
    if version >= 1:  # whether the topic is internal
        cursor.number(1)
    partitions = cursor.array(lambda: _partition_of_metadata(cursor, version))
    if version >= 8:  # what the client may do with the topic
        cursor.number(4)
    cursor.tags()
    return TopicTold(code, name, topic_id, partitions)


def _partition_of_metadata(cursor: _Cursor, version: int) -> PartitionTold:
    cursor.number(2)
    index, leader = cursor.number(4), cursor.number(4)
    epoch = cursor.number(4) if version >= 7 else -1
    # The replicas, those in sync, and from v5 on those that are offline.
    for _ in range(3 if version >= 5 else 2):
        cursor.array(lambda: cursor.number(4))
    cursor.tags()
    return PartitionTold(index, leader, epoch)


def batch_values(data: bytes) -> Iterator[Record]:
    """Yield the records of all batches in `data`, which must be of format v2."""
    at = 0
    while at < len(data):
        if len(data) - at < _BATCH_HEADER.size:
            raise FrameError(f"{len(data) - at} bytes are no record batch")
        header = _BATCH_HEADER.unpack_from(data, at)
        base_offset, length, _, magic, _, attributes, _, base_timestamp = header[:8]
        end = at + 12 + length
        if magic != 2 or end > len(data):
            raise FrameError(f"a batch of magic {magic} and {length} bytes")
        cursor = _Cursor(_plain(attributes & 7, data[at + _BATCH_HEADER.size : end]))
        for _ in range(header[12]):
            yield _record(cursor, base_offset, base_timestamp)
        at = end


def misstatements(data: bytes) -> list[str]:
    """Return what is wrong in a batch as a producer writes it, by what its records say themselves.

    A broker believes the header of a batch in much of what it does: how many sequences a batch has,
    how long it remembers its producer, and where the next batch begins.

    Raises:
        FrameError: The batch, or a record in it, is cut short.
    """
    if len(data) < _BATCH_HEADER.size:
        raise FrameError(f"{len(data)} bytes are no record batch")
    header = _BATCH_HEADER.unpack_from(data)
    cursor = _Cursor(_plain(header[5] & 7, data[_BATCH_HEADER.size :]))
    deltas, stamps = [], []
    while cursor.at < len(cursor.data):
        stamp, delta = _whole_record(cursor)
        deltas.append(delta)
        stamps.append(header[7] + stamp)
    identity = header[9:12]
    crc: int = import_module("crc32c").crc32c(data[_CHECKED_FROM:])
    expected = {
        "base offset": (header[0], 0),
        "length": (header[1], len(data) - 12),
        "magic": (header[3], 2),
        "CRC": (header[4], crc),
        "attributes": (header[5] & ~_PRODUCERS_BITS, 0),
        "last offset delta": (header[6], len(deltas) - 1),
        "offset deltas": (deltas, list(range(len(deltas)))),
        "maximum timestamp": (header[8], max(stamps, default=None)),
        "producer without epoch or sequence": (min(identity) < 0, identity == (-1, -1, -1)),
        "record count": (header[12], len(deltas)),
    }
    return [
        f"{what}: {said}, not {true}" for what, (said, true) in expected.items() if said != true
    ]


def _whole_record(cursor: _Cursor) -> tuple[int, int]:
    """Read a record to its last byte; return its timestamp delta and its offset delta."""
    size = cursor.varint()
    end = cursor.at + size
    cursor.take(1)
    deltas = cursor.varint(), cursor.varint()
    for _ in range(2):  # key and value
        _nullable(cursor)
    for _ in range(2 * cursor.varint()):  # name and value of each header
        _nullable(cursor)
    if cursor.at != end:
        raise FrameError(f"a record of {size} bytes has {cursor.at - end} bytes more")
    return deltas


def _record(cursor: _Cursor, base_offset: int, base_timestamp: int) -> Record:
    size = cursor.varint()
    end = cursor.at + size
    cursor.take(1)
    timestamp_ms = base_timestamp + cursor.varint()
    offset = base_offset + cursor.varint()
    key, value = _nullable(cursor), _nullable(cursor)
    headers = tuple(
        ((_nullable(cursor) or b"").decode(), _nullable(cursor)) for _ in range(cursor.varint())
    )
    cursor.at = end
    return Record(offset, timestamp_ms, value, key, headers)


def _nullable(cursor: _Cursor) -> bytes | None:
    length = cursor.varint()
    return None if length < 0 else cursor.take(length)


def _plain(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return zlib.decompress(data, 31)
    if codec == 2:
        return _unsnapped(data)
    if codec == 3:
        found: bytes = import_module("lz4.frame").decompress(data)
        return found
    if codec == 4:
        plain: bytes = (
            import_module("zstandard").ZstdDecompressor().decompressobj().decompress(data)
        )
        return plain
    return data


def _unsnapped(data: bytes) -> bytes:
    raw = import_module("cramjam").snappy.decompress_raw
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(raw(data))
    cursor, plain = _Cursor(data, _XERIAL_HEADER_SIZE), b""
    while cursor.at < len(data):
        plain += bytes(raw(cursor.take(cursor.number(4))))
    return plain
