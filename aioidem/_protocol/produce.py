"""Produce, the API that carries the records: write its requests, and read its answers.

Invariants:

- A request is written with one `join` of headers and batches, because the library kio would copy
  each batch three times. Tests compare the request byte by byte with what kio writes for v3 to v13.
- The answer of a healthy broker (no errors) is read without a schema too, with one `unpack` per
  partition; any other answer goes through the schema decoder (`codec`). Tests require the same
  result of both.
- Users of this module never see a schema. For every version they get `PartitionAnswer`; a field
  that the version lacks has the value that Kafka's schema defines for an absent field.
- `PartitionAnswer.retained` is None if the broker sent no value, even though the default of that
  field in Kafka's schema is 5.
- An answer that contradicts itself (a negative partition, an offset below -1, a partition twice) is
  refused as a whole, so that none of it acknowledges anything. Text from the broker is made
  printable.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple

from aioidem._protocol.codec import epoch_ms, uuid_of
from aioidem._protocol.messages import (
    decode_response,
    encoded_client_id,
    printable,
    response_type,
    throttle_ms,
)
from aioidem._protocol.metadata import BrokerAddress
from aioidem.errors import InternalError, ProtocolError

__all__ = [
    "FIRST_VERSION",
    "FIRST_VERSION_WITH_TOPIC_IDS",
    "LAST_VERSION",
    "LeaderNode",
    "PartitionAnswer",
    "ProduceAnswer",
    "TopicBatches",
    "decode_by_schema",
    "decode_produce_response",
    "encode_produce_request",
]

FIRST_VERSION: Final = 3
LAST_VERSION: Final = 14
FIRST_FLEXIBLE_VERSION: Final = 9
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13

TopicBatches = tuple[str, uuid.UUID | None, Sequence[tuple[int, bytes]]]
"""A topic's name, its id (from v13 on), and for each partition a pair (partition, record batch)."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_ACKS_AND_TIMEOUT: Final = Struct(">hi")
# A request starts with its length, the API key, the version and the correlation id.
_START: Final = Struct(">ihhi")
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
_INDEX_AND_SIZE: Final = Struct(">ii")
_NO_TAGS: Final = b"\x00\x00\x00"
"""The counts of the tagged fields of a last partition, of its topic, and of the request."""
# A response from v9 on starts with the correlation id, the count of the header's tagged fields and
# the number of topics plus one. It ends with the throttle time and the count of tagged fields.
_ANSWER_START: Final = Struct(">iBB")
_ANSWER_END: Final = Struct(">iB")
# A partition in a response from v9 on: index, error code, base offset, append time, log start
# offset. Three bytes follow: the number of record errors plus one, the length of the error message
# plus one, and the number of tagged fields. An answer without an error has no record errors, no
# message, and at most one tagged field: KIP-1269's.
_PLAIN_PARTITION: Final = Struct(">ihqqqBBB")
_RETAINED_TAG: Final = b"\x01\x04"
# A whole answer from v13 on for one partition, in the order of the bytes: `_ANSWER_START`, the
# topic's id, its number of partitions plus one, `_PLAIN_PARTITION`, the count of the topic's tagged
# fields, `_ANSWER_END`.
_PLAIN_ALONE: Final = Struct(">i2s16sBihqqq4siB")
_PLAIN_COUNTS: Final = (b"\x00\x02", 2, 0, b"\x01\x00\x00\x00", 0)
"""The counts and the error code of such an answer, if it has no error and no tagged field."""
_LAST_MOMENT_MS: Final = 253_402_300_799_999
"""The latest moment that a `datetime` can represent; the schema decoder refuses later ones."""


class LeaderNode(NamedTuple):
    """The address of a partition's new leader (KIP-951)."""

    node_id: int
    host: str
    port: int


class PartitionAnswer(NamedTuple):
    """The answer for one partition's batch.

    ``topic`` is None from v13 on, ``topic_id`` is None before. ``base_offset``,
    ``log_append_time_ms``, ``log_start_offset``, ``leader_id`` and ``leader_epoch`` are -1 if the
    broker did not send them. ``retained`` is the number of batches that the leader remembers per
    producer (KIP-1269), as it was sent, not clamped; None if it was not sent. ``record_errors`` has
    (index in the batch, message) for each record that made the broker refuse the batch (KIP-467).
    """

    topic: str | None
    topic_id: uuid.UUID | None
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    retained: int | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()


class ProduceAnswer(NamedTuple):
    """The answer to a Produce request; ``leaders`` has addresses of new leaders (KIP-951).

    ``throttle_ms`` is in milliseconds and limited to `MAX_THROTTLE_MS`.
    """

    partitions: tuple[PartitionAnswer, ...]
    throttle_ms: int
    leaders: tuple[LeaderNode, ...] = ()


def encode_produce_request(
    version: int,
    *,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[TopicBatches],
) -> bytes:
    """Encode a Produce request as a frame, with its length prefix.

    Args:
        version: 3 to 14.
        correlation_id: The correlation id in the header.
        client_id: The client id in the header, or None.
        transactional_id: The producer's transactional id, or None.
        acks: 0, 1 or -1 (all in-sync replicas).
        timeout_ms: How many milliseconds the broker may wait for the replicas.
        topics: The batches.

    Raises:
        InternalError: The version is not one of 3 to 14, or it names topics by id and an id is
            missing.
    """
    if not FIRST_VERSION <= version <= LAST_VERSION:
        raise InternalError(f"no Produce version {version}")
    flexible = version >= FIRST_FLEXIBLE_VERSION
    if version >= FIRST_VERSION_WITH_TOPIC_IDS and len(topics) == 1 and len(topics[0][2]) == 1:
        name, topic_id, [(index, records)] = topics[0]
        lead = _same_for_partition(
            client_id, transactional_id, acks, timeout_ms, name, topic_id, index
        )
        count = _uvarint(len(records) + 1)
        size = _START.size - _INT32.size + len(lead) + len(count) + len(records) + len(_NO_TAGS)
        start = _START.pack(size, 0, version, correlation_id)
        return b"".join((start, lead, count, records, _NO_TAGS))
    chunks = [b"", _same_in_all(client_id, transactional_id, acks, timeout_ms, flexible)]
    if flexible:
        _add_topics(chunks, topics, version >= FIRST_VERSION_WITH_TOPIC_IDS)
    else:
        _add_topics_before_v9(chunks, topics)
    size = _START.size - _INT32.size + sum(map(len, chunks))
    chunks[0] = _START.pack(size, 0, version, correlation_id)
    return b"".join(chunks)


def decode_produce_response(version: int, frame: bytes) -> tuple[int, ProduceAnswer]:
    """Decode a Produce response; return its correlation id and the answer.

    Args:
        version: The version of the request.
        frame: The frame, without its length prefix.

    Raises:
        ProtocolError: The response is malformed or contradicts itself.
    """
    if FIRST_FLEXIBLE_VERSION <= version <= LAST_VERSION:
        if version >= FIRST_VERSION_WITH_TOPIC_IDS and len(frame) == _PLAIN_ALONE.size:
            alone = _plain_alone(frame)
            if alone is not None:
                return alone
        plain = _plain_response(version, frame)
        if plain is not None:
            return plain
    return decode_by_schema(version, frame)


def decode_by_schema(version: int, frame: bytes) -> tuple[int, ProduceAnswer]:
    """Decode any Produce response with its schema; return its correlation id and the answer."""
    schema = response_type(0, version)
    if schema is None:
        raise InternalError(f"no Produce version {version}")
    correlation_id, response = decode_response(schema, frame)
    return correlation_id, _answer(response)


@lru_cache(maxsize=64)
def _same_in_all(
    client_id: str | None, transactional_id: str | None, acks: int, timeout_ms: int, flexible: bool
) -> bytes:
    """Encode the part that all requests of a producer share: from the client id to the topics."""
    client, acked = encoded_client_id(client_id, flexible), _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
    return client + _text(transactional_id, flexible) + acked


@lru_cache(maxsize=1024)
def _same_for_partition(
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    name: str,
    topic_id: uuid.UUID | None,
    index: int,
) -> bytes:
    """Encode what all requests with a single batch for one partition share, from v13 on.

    This is everything from the client id to the partition's index.
    """
    shared = _same_in_all(client_id, transactional_id, acks, timeout_ms, True)
    one = _uvarint(2)
    return b"".join((shared, one, _topic_id(name, topic_id), one, _INT32.pack(index)))


def _add_topics(chunks: list[bytes], topics: Sequence[TopicBatches], by_id: bool) -> None:
    chunks.append(_uvarint(len(topics) + 1))
    for name, topic_id, batches in topics:
        chunks += (
            _topic_id(name, topic_id) if by_id else _text(name, True),
            _uvarint(len(batches) + 1),
        )
        for index, records in batches:
            chunks += (_INT32.pack(index), _uvarint(len(records) + 1), records, b"\x00")
        chunks.append(b"\x00")
    chunks.append(b"\x00")


def _add_topics_before_v9(chunks: list[bytes], topics: Sequence[TopicBatches]) -> None:
    chunks.append(_INT32.pack(len(topics)))
    for name, _, batches in topics:
        chunks += (_text(name, False), _INT32.pack(len(batches)))
        for index, records in batches:
            chunks += (_INDEX_AND_SIZE.pack(index, len(records)), records)


def _topic_id(name: str, topic_id: uuid.UUID | None) -> bytes:
    if topic_id is None:
        raise InternalError(f"no topic id for {name!r}")
    return topic_id.bytes


def _text(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    raw = text.encode()
    return (_uvarint(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw


def _uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _plain_alone(frame: bytes) -> tuple[int, ProduceAnswer] | None:
    """Decode the commonest answer: one partition, appended, no error. Return None for all others.

    This is faster than `_plain_response`, which decodes such answers for several partitions too.
    """
    (
        correlation_id, begin, raw_id, partitions, index, error, offset, appended, start, counts,
        throttle, end,
    ) = _PLAIN_ALONE.unpack(frame)  # fmt: skip
    if (begin, partitions, error, counts, end) != _PLAIN_COUNTS or index < 0 or offset < -1:
        return None
    topic_id = uuid_of(raw_id)
    if topic_id is None or start < -1 or not -1 <= appended <= _LAST_MOMENT_MS:
        return None
    answer = PartitionAnswer(None, topic_id, index, 0, offset, appended, start)
    return correlation_id, ProduceAnswer((answer,), throttle_ms(throttle) if throttle else 0)


def _plain_response(version: int, frame: bytes) -> tuple[int, ProduceAnswer] | None:
    """Return the answer of a healthy broker, or None if the frame is any other answer.

    A healthy broker's answer (v9 or later) says that every batch was appended. It has no error
    message, and no tagged field except KIP-1269's. The schema decoder reads any other answer, and
    refuses malformed ones.
    """
    try:
        correlation_id, _, count = _ANSWER_START.unpack_from(frame)
        # Such an answer has no tagged fields in its header, and so few topics that their number
        # plus one is a varint of one byte.
        if frame[4] or not 0 < count < 0x80:
            return None
        at = _ANSWER_START.size
        found: list[PartitionAnswer] = []
        for _ in range(count - 1):
            at = _plain_topic(version, frame, at, found)
            if at < 0:
                return None
        throttle, tags = _ANSWER_END.unpack_from(frame, at)
    except (struct_error, IndexError):
        return None
    if tags or at + _ANSWER_END.size != len(frame):
        return None
    if len(found) > 1:
        _refuse_repeated(found)
    return correlation_id, ProduceAnswer(tuple(found), throttle_ms(throttle))


def _plain_topic(version: int, frame: bytes, at: int, found: list[PartitionAnswer]) -> int:
    """Add a topic's partitions to `found`, and return the offset after the topic.

    Returns:
        The offset in `frame`; -1 if the answer is not that of a healthy broker (see
        `_plain_response`), so that the schema decoder must read it.
    """
    name: str | None = None
    topic_id: uuid.UUID | None = None
    if version >= FIRST_VERSION_WITH_TOPIC_IDS:
        end = at + 16
        topic_id = uuid_of(frame[at:end]) if end <= len(frame) else None
    else:
        end = at + frame[at]
        raw = frame[at + 1 : end]
        name = raw.decode() if raw.isascii() and 1 < frame[at] < 0x80 else None
    count = frame[end]
    if (name is None and topic_id is None) or not 0 < count < 0x80:
        return -1
    at = end + 1
    for _ in range(count - 1):
        index, error, offset, appended, start, no_errors, no_text, tags = (
            _PLAIN_PARTITION.unpack_from(frame, at)
        )
        at += _PLAIN_PARTITION.size
        if error or no_errors != 1 or no_text or index < 0 or offset < -1:
            return -1
        if not -1 <= appended <= _LAST_MOMENT_MS:
            return -1
        retained = None
        if tags:
            if version < LAST_VERSION or tags != 1 or frame[at : at + 2] != _RETAINED_TAG:
                return -1
            retained = _INT32.unpack_from(frame, at + 2)[0]
            at += 2 + _INT32.size
        found.append(
            PartitionAnswer(
                name, topic_id, index, error, offset, appended, max(start, -1), retained
            )
        )
    return -1 if frame[at] else at + 1


def _answer(response: Any) -> ProduceAnswer:
    partitions = tuple(
        _partition(topic, partition)
        for topic in response.responses
        for partition in topic.partition_responses
    )
    if len(partitions) > 1:
        _refuse_repeated(partitions)
    return ProduceAnswer(
        partitions,
        throttle_ms(response.throttle_time),
        tuple(_leaders(getattr(response, "node_endpoints", ()))),
    )


def _partition(topic: Any, answer: Any) -> PartitionAnswer:
    if answer.index < 0 or answer.base_offset < -1:
        raise ProtocolError(
            f"ProduceResponse: partition {answer.index} with base offset {answer.base_offset}"
        )
    leader = getattr(answer, "current_leader", None)
    message = getattr(answer, "error_message", None)
    return PartitionAnswer(
        topic=getattr(topic, "name", None),
        topic_id=getattr(topic, "topic_id", None),
        partition=answer.index,
        error_code=int(answer.error_code),
        base_offset=answer.base_offset,
        log_append_time_ms=epoch_ms(answer.log_append_time),
        log_start_offset=max(getattr(answer, "log_start_offset", -1), -1),
        retained=_retained(topic, answer),
        leader_id=-1 if leader is None else max(leader.leader_id, -1),
        leader_epoch=-1 if leader is None else max(leader.leader_epoch, -1),
        error_message=None if message is None else printable(message),
        record_errors=tuple(_record_errors(getattr(answer, "record_errors", ()))),
    )


def _retained(topic: Any, answer: Any) -> int | None:
    own: int | None = getattr(answer, "producer_state_batches_to_retain", None)
    if own is not None:
        return own
    of_topic: int | None = getattr(topic, "producer_state_batches_to_retain", None)
    return of_topic


def _record_errors(errors: Iterable[Any]) -> Iterator[tuple[int, str | None]]:
    for each in errors:
        message = each.batch_index_error_message
        yield each.batch_index, None if message is None else printable(message)


def _leaders(endpoints: Iterable[Any]) -> Iterator[LeaderNode]:
    for each in endpoints:
        # An impossible address is left out; the producer then learns the leader from Metadata.
        if BrokerAddress(each.node_id, each.host, each.port).possible:
            yield LeaderNode(each.node_id, each.host, each.port)


def _refuse_repeated(partitions: Sequence[PartitionAnswer]) -> None:
    seen = {(each.topic, each.topic_id, each.partition) for each in partitions}
    if len(seen) != len(partitions):
        raise ProtocolError("ProduceResponse: a partition is answered twice")
