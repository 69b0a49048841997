"""BatchBuilder: a batch that the caller fills record by record, as in aiokafka.

The builder keeps the records and counts their bytes; `aioidem.Producer` assigns sequence numbers
and encodes the records when it sends them. If `close` was called before `send_batch`, the records
are written as one batch of their own. Otherwise they may share a batch with records of `send`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from aioidem._aiokafka.translation import OWN
from aioidem._producer.arguments import Headers, checked_headers, checked_payload, checked_timestamp
from aioidem._records import BATCH_OVERHEAD, payload_size, record_size
from aioidem.errors import KafkaError, RecordError

__all__ = [
    "BatchBuilder",
    "BatchRecord",
    "BatchRecordMetadata",
    "Serializer",
    "being_sent",
    "whole_milliseconds",
]

Serializer = Callable[[Any], bytes | None]


class BatchRecord(NamedTuple):
    """One record of a batch, with its key and value serialised."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class BatchRecordMetadata(NamedTuple):
    """What `BatchBuilder.append` returns for a record."""

    offset: int
    """The record's place in the batch, counted from 0."""
    crc: None
    """Always None: records of format v2 have no checksum of their own."""
    size: int
    """The record's size in the batch, in bytes before compression."""
    timestamp: int
    """The record's timestamp, in milliseconds since the epoch."""


class BatchBuilder:
    """A batch that the caller fills, made by `create_batch` and sent by `send_batch`.

    Args:
        batch_size: The bytes that the batch may have before compression. The first record is added
            even if it is larger.
        key_serializer: Turns a key into bytes.
        value_serializer: Turns a value into bytes.
        reraise: Raises what the producer raises for an error of `append`.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        reraise: Callable[[KafkaError], NoReturn] = OWN.reraise,
    ) -> None:
        self._batch_size = batch_size
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._reraise = reraise
        self._records: list[BatchRecord] = []
        self._size = BATCH_OVERHEAD
        self._closed = self._sent = False

    def append(
        self,
        *,
        timestamp: float | None,
        key: Any,
        value: Any,
        headers: Sequence[tuple[str, bytes | None]] | None = (),
    ) -> BatchRecordMetadata | None:
        """Add a record unless the batch is closed or has no room for it.

        A batch that has no room for a record is closed.

        Args:
            timestamp: Milliseconds since the epoch, fractions dropped; None is now.
            key: Bytes, or what the key serialiser takes.
            value: Bytes, or what the value serialiser takes.
            headers: (name, value) pairs.

        Returns:
            The record's place and size in the batch, or None if it was not added.

        Raises:
            TypeError: An argument has the wrong type.
            RecordError: The timestamp is illegal.
        """
        if self._closed or self._sent:
            return None
        try:
            record = BatchRecord(
                checked_payload("key", _serialized(self._key_serializer, key)),
                checked_payload("value", _serialized(self._value_serializer, value)),
                checked_headers(headers or ()),
                round(time.time() * 1000) if timestamp is None else whole_milliseconds(timestamp),
            )
        except KafkaError as error:
            self._reraise(error)
        first = self._records[0] if self._records else record
        size = record_size(
            payload_size(record.key, record.value, record.headers),
            len(self._records),
            record.timestamp_ms - first.timestamp_ms,
        )
        if self._records and self._size + size > self._batch_size:
            self.close()
            return None
        self._records.append(record)
        self._size += size
        return BatchRecordMetadata(len(self._records) - 1, None, size, record.timestamp_ms)

    def close(self) -> None:
        """Close the batch: it takes no more records, and cannot be opened again."""
        self._closed = True

    def closed(self) -> bool:
        """Return whether the batch takes no more records."""
        return self._closed or self._sent

    def size(self) -> int:
        """Return the batch's size in bytes before compression, header included."""
        return self._size

    def record_count(self) -> int:
        """Return how many records the batch has."""
        return len(self._records)

    def __repr__(self) -> str:
        state = "sent" if self._sent else "closed" if self._closed else "open"
        return f"<BatchBuilder {state}, {len(self._records)} records, {self._size} bytes>"


@contextmanager
def being_sent(batch: BatchBuilder) -> Iterator[Sequence[BatchRecord]]:
    """Give a batch's records, in order, to the block that sends them.

    From the beginning of the block on, the batch takes no more records and is not sent again. If
    the block raises, or is cancelled, nothing was sent, and the batch is as it was before.

    Raises:
        RecordError: The batch was sent before, or another call is sending it.
    """
    if batch._sent:  # noqa: SLF001 - no method, so that users do not see it
        raise RecordError(
            "this batch was sent before, or another call is sending it: make another with "
            "create_batch()"
        )
    batch._sent = True  # noqa: SLF001
    try:
        yield batch._records  # noqa: SLF001
    except BaseException:
        batch._sent = False  # noqa: SLF001
        raise


def whole_milliseconds(timestamp: float) -> int:
    """Return a timestamp in milliseconds without its fraction.

    Callers often pass `time.time() * 1000`, which has one.

    Raises:
        TypeError: The timestamp is not a number.
        RecordError: The timestamp is negative, not finite or after the year 5138.
    """
    if isinstance(timestamp, float):
        if not math.isfinite(timestamp):
            raise RecordError(
                f"timestamp_ms {timestamp!r}: expected milliseconds since the epoch, as "
                "time.time() * 1000 gives them"
            )
        timestamp = int(timestamp)
    return checked_timestamp(timestamp)


def _serialized(serializer: Serializer | None, value: Any) -> Any:
    return value if serializer is None else serializer(value)
