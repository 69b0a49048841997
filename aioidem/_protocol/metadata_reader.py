"""Decode a Metadata answer by hand, keeping only the topics that were asked for.

An answer may describe all partitions of a cluster, and a hostile broker's answer may describe as
many as fit into a frame. The schema decoder (`codec`) makes an object of every field and every
replica, but a producer needs four numbers for each partition of its own topics. `_Reader` skips
everything else.

Invariants:

- Tests compare `read_metadata` with the schema decoder, in each version, on the same bytes: for
  topics that were asked for both return the same, or both raise `ProtocolError`.
- Brokers, topics, partitions and tagged fields together are at most `MAX_ITEMS`, kept or not, and
  brokers at most `MAX_BROKERS`.
- `read_metadata` is a pure function, so it may run in a thread.

Rejected: a filter inside the schema decoder. It would still be four times slower, and it would
complicate every other API for the sake of Metadata.
"""

from __future__ import annotations

from collections.abc import Container
from struct import Struct
from struct import error as struct_error
from typing import Final
from uuid import UUID

from aioidem._protocol.codec import MAX_ITEMS, uuid_of
from aioidem._protocol.foreign_text import foreign_text
from aioidem._protocol.messages import throttle_ms
from aioidem._protocol.metadata import (
    BrokerAddress,
    MetadataUpdate,
    PartitionColumns,
    TopicUpdate,
)
from aioidem.errors import InternalError, ProtocolError

__all__ = ["MAX_BROKERS", "read_metadata"]

MAX_BROKERS: Final = 2_000
"""The most brokers that an answer may have, because the engine keeps an entry for each.

No real cluster has as many.
"""

_FIRST_VERSION: Final = 4
_LAST_VERSION: Final = 13
_WITH_OFFLINE_REPLICAS: Final = 5
_WITH_LEADER_EPOCH: Final = 7
_WITH_PERMISSIONS: Final = 8
_FLEXIBLE: Final = 9
_WITH_TOPIC_ID: Final = 10
_LAST_WITH_CLUSTER_PERMISSIONS: Final = 10
_WITH_NULLABLE_NAME: Final = 12
_WITH_ERROR_CODE: Final = 13

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_PARTITION: Final = Struct(">hii")
_PARTITION_WITH_EPOCH: Final = Struct(">hiii")


def read_metadata(version: int, frame: bytes, wanted: Container[str]) -> MetadataUpdate:
    """Decode a Metadata answer.

    Args:
        version: The version of the request, 4 to 13.
        frame: The frame, without its length prefix.
        wanted: The topics that were asked for; others are left out.

    Raises:
        ProtocolError: The answer is malformed, or has more items than any real cluster.
        InternalError: The version is not one of 4 to 13.
    """
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        raise InternalError(f"no Metadata version {version}")
    label = f"MetadataResponse v{version}"
    try:
        return _Reader(version, frame, wanted).answer()
    except ProtocolError as error:
        raise ProtocolError(f"{label}: {error.args[0]}") from None
    except (struct_error, IndexError):
        raise ProtocolError(f"{label}: ends in the middle of a field") from None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{label}: text is not UTF-8 ({error.reason})") from None


class _Reader:
    """Reads one answer from start to end; `_at` is the offset of the next field."""

    __slots__ = ("_at", "_flexible", "_frame", "_left", "_version", "_wanted")

    def __init__(self, version: int, frame: bytes, wanted: Container[str]) -> None:
        self._version = version
        self._frame = frame
        self._wanted = wanted
        self._flexible = version >= _FLEXIBLE
        self._at = 4  # after the correlation id
        self._left = MAX_ITEMS

    def answer(self) -> MetadataUpdate:
        """Read the answer up to the frame's end; raise ProtocolError if bytes are left."""
        self._tags()
        throttle = self._int32()
        brokers = self._brokers()
        cluster_id = self._text(nullable=True)
        self._int32()  # the controller's id
        topics = [self._topic() for _ in range(self._count(7))]
        if _WITH_PERMISSIONS <= self._version <= _LAST_WITH_CLUSTER_PERMISSIONS:
            self._int32()
        if self._version >= _WITH_ERROR_CODE:
            self._int16()
        self._tags()
        if self._at != len(self._frame):
            raise ProtocolError(f"{len(self._frame) - self._at} bytes follow the message")
        return MetadataUpdate(
            cluster_id,
            brokers,
            tuple(topic for topic in topics if topic is not None),
            throttle_ms(throttle),
        )

    def _brokers(self) -> tuple[BrokerAddress, ...]:
        count = self._count(11)
        if count > MAX_BROKERS:
            raise ProtocolError(f"{count} brokers; {MAX_BROKERS} are possible")
        found = [self._broker() for _ in range(count)]
        return tuple(each for each in found if each.possible)

    def _broker(self) -> BrokerAddress:
        node_id, host, port = self._int32(), self._text() or "", self._int32()
        rack = self._text(nullable=True)
        self._tags()
        return BrokerAddress(node_id, host, port, rack)

    def _topic(self) -> TopicUpdate | None:
        error_code = self._int16()
        name = self._text(nullable=self._version >= _WITH_NULLABLE_NAME)
        topic_id: UUID | None = None
        if self._version >= _WITH_TOPIC_ID:
            topic_id = uuid_of(self._bytes(16))
        self._bytes(1)  # whether the topic is internal
        kept = name is not None and name in self._wanted
        partitions = self._partitions(keep=kept)
        if self._version >= _WITH_PERMISSIONS:
            self._int32()
        self._tags()
        if name is None or not kept:
            return None
        return TopicUpdate(name, topic_id, error_code, partitions)

    def _partitions(self, *, keep: bool) -> PartitionColumns:
        with_epoch = self._version >= _WITH_LEADER_EPOCH
        layout = _PARTITION_WITH_EPOCH if with_epoch else _PARTITION
        unpack, size = layout.unpack_from, layout.size
        arrays = range(3 if self._version >= _WITH_OFFLINE_REPLICAS else 2)
        count = self._count(size + len(arrays))
        walk = self._walk_compact if self._flexible else self._walk
        found = PartitionColumns()
        frame = self._frame
        for _ in range(count):
            fixed = unpack(frame, self._at)
            self._at += size
            walk(arrays)
            if keep and 0 <= fixed[1] < MAX_ITEMS:
                found.append(fixed[1], fixed[2], fixed[3] if with_epoch else -1, fixed[0])
        return found

    def _walk_compact(self, arrays: range) -> None:
        """Skip a partition's lists of brokers and its tagged fields, in a flexible version."""
        frame, at = self._frame, self._at
        for _ in arrays:
            count = frame[at]
            if count >= 0x80:
                self._at = at
                count = self._uvarint()
                at = self._at
            else:
                at += 1
            if not count:
                raise ProtocolError(f"null array at byte {at}")
            at += 4 * (count - 1)
        if frame[at]:
            self._at = at
            self._tags()
        else:
            self._at = at + 1

    def _walk(self, arrays: range) -> None:
        frame, at = self._frame, self._at
        for _ in arrays:
            count = _INT32.unpack_from(frame, at)[0]
            if count < 0:
                raise ProtocolError(f"array of {count} items at byte {at}")
            at += 4 + 4 * count
        if at > len(frame):
            raise IndexError
        self._at = at

    def _count(self, least: int) -> int:
        """Read an array's count, and check that the bytes left can hold so many items.

        Args:
            least: The fewest bytes that an item can take.
        """
        count = self._uvarint() - 1 if self._flexible else self._int32()
        left = len(self._frame) - self._at
        if count < 0 or count * least > left:
            raise ProtocolError(f"array of {count} items, but {left} bytes are left")
        self._spend(count, "array")
        return count

    def _spend(self, count: int, kind: str) -> None:
        """Count these items towards `MAX_ITEMS`, the limit for the whole message."""
        self._left -= count
        if self._left < 0:
            raise ProtocolError(
                f"{kind} of {count} items at byte {self._at}: a message may have {MAX_ITEMS} in all"
            )

    def _text(self, *, nullable: bool = False) -> str | None:
        length = self._uvarint() - 1 if self._flexible else self._int16()
        if length < 0:
            if length == -1 and nullable:
                return None
            raise ProtocolError(f"length {length} at byte {self._at}")
        return foreign_text(self._bytes(length).decode())

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._frame):
            raise IndexError
        raw = self._frame[self._at : end]
        self._at = end
        return raw

    def _int16(self) -> int:
        value: int = _INT16.unpack_from(self._frame, self._at)[0]
        self._at += 2
        return value

    def _int32(self) -> int:
        value: int = _INT32.unpack_from(self._frame, self._at)[0]
        self._at += 4
        return value

    def _uvarint(self) -> int:
        value = shift = 0
        while shift <= 28:
            byte = self._frame[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
            shift += 7
        raise ProtocolError(f"varint before byte {self._at} does not fit 32 bits")

    def _tags(self) -> None:
        """Skip the tagged fields; no version of the answer defines any."""
        if not self._flexible:
            return
        for _ in range(self._tag_count()):
            self._uvarint()
            self._bytes(self._uvarint())

    def _tag_count(self) -> int:
        count = self._uvarint()
        if count * 2 > len(self._frame) - self._at:
            raise ProtocolError(f"{count} tagged fields at byte {self._at}")
        self._spend(count, "tags")
        return count
