"""Rows of partitions with batches in doubt: their logs, and what is being done about the doubt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aioidem._engine.batch import Batch
from aioidem._engine.partition import PartitionState

__all__ = ["MODES", "Lane", "Stored", "key_of"]

MODES: Final[tuple[tuple[tuple[float, float], tuple[float, ...]], ...]] = (
    ((60e3, 200e3), (60.0, 100.0)),
    ((60e3, 200e3), (60.0, 5000.0)),
    ((0.0, 20e3), (5000.0,)),
    ((0.0, 60e3), (100.0, 5000.0)),
)
"""Pairs: how old records may be when they are sent, in milliseconds, and for how many seconds
brokers say that they remember producers.
"""


class Stored(NamedTuple):
    """A batch in a log: its first offset, and the offset after it."""

    base_offset: int
    next_offset: int
    data: bytes
    """Its bytes as they were sent."""
    identity: tuple[int, int, int]
    """Its producer id, epoch and base sequence then."""
    append_time_ms: int
    """When it was appended, on a topic with LogAppendTime; else -1."""


@dataclass
class Lane:
    """A partition, its log, and what is done about its batches in doubt."""

    index: int
    state: PartitionState
    flights: list[Batch] = field(default_factory=list)
    """The batches in flight, oldest first."""
    log: list[Stored] = field(default_factory=list)
    known_when_sent: dict[Batch, int] = field(default_factory=dict)
    """The last offset that was known to be stored when a batch was first sent; -1 if none was."""
    reading: int | None = None
    """The offset of the next page, while the log is read."""
    awaited: int | None = None
    """The token of the request for that page."""
    behind_since: float | None = None
    """Since when the leader names no log end above what was acknowledged, in this reading."""
    asked: bool = False
    """Whether the leader was asked for its last sequence, since it refused the oldest batch."""
    pass_began: float | None = None
    """When the first probe of this pass was sent, in seconds."""

    @property
    def tail(self) -> int:
        """The end of the log."""
        return self.log[-1].next_offset if self.log else 0

    def doubts(self) -> list[Batch]:
        """Return the batches in doubt that nobody is about to answer, oldest first."""
        return [batch for batch in self.state.batches.unresolved if batch.in_doubt and batch.due]

    def end_reading(self) -> None:
        """Note that the log is not read any more."""
        self.reading = self.awaited = self.behind_since = None


def key_of(batch: Batch) -> tuple[int, int, int]:
    """Return by what a batch is recognised in a log: producer id, epoch and base sequence."""
    producer_id, epoch = (-1, -1) if batch.identity is None else batch.identity
    return producer_id, epoch, batch.wire_base
