"""PendingRecord: a record that has no outcome yet, and the outcome that it receives.

The engine only collects the outcomes (`outcomes`); `_producer` passes them to the records later. So
a user's callback never runs while the state of the producer is being changed.

There is one object per record, except in calls with many records (`record_block`). `_engine` needs
`PendingRecord` only. The deliveries that `send_nowait` returns (`_producer/queued.py`) inherit from
it, so that one object is both the record and its delivery.
"""

from __future__ import annotations

from typing import ClassVar, Final

from aioidem._hot import WHY_PURE, RecordFields
from aioidem.errors import InternalError
from aioidem.structs import DeliveryStatus, TopicPartition

__all__ = [
    "BLOCK_MEMORY",
    "HEADER_MEMORY",
    "RECORD_MEMORY",
    "Outcome",
    "PendingRecord",
    "RecordGroup",
]

RECORD_MEMORY: Final = 304 if WHY_PURE is None else 448
"""The bytes that a record takes in memory besides those of key, value and headers.

These are the record's object, its numbers (timestamp, deadline and so on), its place in a queue,
and what Python and the C library add to the bytes of a key and a value. On CPython 3.11 they are
230 to 290 bytes, or 380 to 430 in pure Python, where each number is an object of its own.
"""

BLOCK_MEMORY: Final = 96
"""The same as `RECORD_MEMORY`, but for a record in a block, which has no object of its own."""

HEADER_MEMORY: Final = 128
"""The bytes that a header takes in memory besides its text: a tuple, and an object for its value.
"""


class RecordGroup:
    """A group of records that the caller wants in one batch, without other records.

    Each of the records refers to this object. They are sent in several batches only if one batch
    of them all would be too large.

    Args:
        size: the size that one batch of them all has before compression, in bytes, with its header.
    """

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class PendingRecord(RecordFields):
    """One record that waits for its outcome.

    `RecordFields` has its attributes.
    """

    count = 1
    """The number of records that the object stands for: a `RecordBlock` stands for many."""

    __slots__ = ()

    memory: ClassVar[int] = RECORD_MEMORY
    """The bytes that a record takes in memory besides its key, value and headers."""

    def charge(self) -> int:
        """Return the bytes that the record takes from the memory budget.

        The attribute `size` counts bytes on the wire. A small record takes several times as much in
        memory.
        """
        return self.size + self.memory + len(self.headers) * HEADER_MEMORY

    def overhead(self) -> int:
        """Return the bytes that the record takes in memory besides its `size`."""
        return self.memory + len(self.headers) * HEADER_MEMORY

    def settle(self, outcome: Outcome, place: int) -> None:
        """Take the outcome; `_producer` calls this once, and `_engine` never does.

        Args:
            outcome: the outcome that the record shares with those settled together with it.
            place: the record's place among those records, from 0.

        Raises:
            InternalError: this is a plain `PendingRecord`, as in tests of a queue alone. The
            subclasses that callers get override this method.
        """
        raise InternalError(f"record {place} of {outcome.topic}-{outcome.partition} has no caller")


class Outcome:
    """The common outcome of some records of one partition, without the records.

    Each settled record keeps a reference to its outcome. An outcome does not refer to the records:
    otherwise one record that a caller keeps would keep its whole batch in memory.
    """

    __slots__ = (
        "attempts",
        "base_offset",
        "error",
        "log_append_time_ms",
        "log_start_offset",
        "partition",
        "status",
        "topic",
        "topic_partition",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        status: DeliveryStatus,
        *,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        attempts: int = 0,
        error: Exception | None = None,
        topic_partition: TopicPartition | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_partition = topic_partition or TopicPartition(topic, partition)
        self.status = status
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        # How often the records' batch was sent; 0 if the records were in none.
        self.attempts = attempts
        self.error = error
