"""PendingRecord: a record on its way, its sink, and the outcome that the sink receives.

The engine never calls a sink. It collects settlements (`outcomes`), and the driver passes them on
between two polls, so that a user's callback never runs in the middle of a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aioidem.structs import DeliveryStatus

__all__ = ["PendingRecord", "RecordGroup", "RecordSink", "Settlement"]


class RecordSink(Protocol):
    """The receiver of a record's outcome.

    The driver calls it, outside of the engine; the engine never does.
    """

    def settle(self, settlement: Settlement, index: int) -> None:
        """Receive the outcome; `index` is the record's place in `settlement.records`."""
        ...


class RecordGroup:
    """The group of records that a caller wants in a batch of their own.

    They are not mixed with other records, and not divided if a batch of their `size` is allowed.

    Args:
        size: the size of that batch before compression, in bytes, its header included.
    """

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class PendingRecord:
    """One record that waits for its outcome."""

    __slots__ = (
        "deadline",
        "generation",
        "group",
        "headers",
        "key",
        "ordinal",
        "partition",
        "queued_at",
        "sink",
        "size",
        "timestamp_ms",
        "value",
    )

    def __init__(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
        partition: int | None,
        size: int,
        sink: RecordSink,
        group: RecordGroup | None = None,
    ) -> None:
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.size = size
        self.sink = sink
        self.group = group
        self.deadline = self.queued_at = 0.0
        self.generation = self.ordinal = 0


class Settlement:
    """The common outcome of some records of one partition."""

    __slots__ = (
        "base_offset",
        "error",
        "log_append_time_ms",
        "log_start_offset",
        "partition",
        "records",
        "status",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        records: Sequence[PendingRecord],
        status: DeliveryStatus,
        *,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        error: Exception | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records
        self.status = status
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.error = error
