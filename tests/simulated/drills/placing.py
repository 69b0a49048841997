"""Which partition each record belongs to, and which records wait for one: the model of a topic.

The sticky partitioner draws at random. So the model is told in which partition a record is, and
says whether it may be there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aioidem.partitioner import murmur2

__all__ = ["NOWHERE", "SentRow", "TopicRows", "chosen_by_user", "users_partitioner"]

NOWHERE: Final = -1
"""No partition: the user's partitioner refuses the record."""


@dataclass(slots=True)
class SentRow:
    """One record that was given to the accumulator, and has no outcome yet.

    Attributes:
        ordinal: Its number among all records.
        key: Its key.
        partition: The partition that the caller chose.
        size: The most bytes that it takes in a batch.
        called_at: When it was sent, in seconds.
        deadline: When it expires, in seconds.
        generation: How many flushes had begun before.
        until: Until when it waits for a partition, in seconds.
        asked: How many Metadata requests had been sent when it began to wait.
    """

    ordinal: int
    key: bytes | None
    partition: int | None
    size: int
    called_at: float
    deadline: float
    generation: int
    until: float = 0.0
    asked: int = 0


@dataclass(slots=True)
class TopicRows:
    """A topic: what the cluster says about it, and its records that have no partition.

    Attributes:
        leaders: The leader of each partition, -1 for none; empty if the topic is not known.
        told_by: The number of the Metadata request whose answer last named the partitions.
        error_code: The error that the cluster last gave.
        waiting: The records that wait for metadata.
        due: Those that get a partition soon.
        current: The partition that gets records without a key.
        left: How many more bytes it gets before another is drawn.
        used: Whether a record was sent to the topic.
    """

    batch_size: int
    leaders: list[int] = field(default_factory=list)
    told_by: int = 0
    error_code: int = 0
    waiting: list[SentRow] = field(default_factory=list)
    due: list[SentRow] = field(default_factory=list)
    current: int | None = None
    left: int = 0
    used: bool = False

    @property
    def choices(self) -> list[int]:
        """The partitions that have a leader; all of them, if none has one."""
        led = [index for index, leader in enumerate(self.leaders) if leader >= 0]
        return led or list(range(len(self.leaders)))

    def lacks(self, row: SentRow) -> bool:
        """Return whether the cluster is not known to have a partition for a record."""
        count = len(self.leaders)
        return not count or (row.partition is not None and row.partition >= count)

    def misplaced(
        self, rows: Sequence[SentRow], landed: Mapping[int, int], *, block: bool, users: bool
    ) -> str | None:
        """Return what is wrong with the partitions of records that were placed together.

        Args:
            rows: The record, or the records of a block.
            landed: The partition that each record is in, by its number.
            block: Whether they are a block.
            users: Whether the user's partitioner chooses.
        """
        sticky = [row for row in rows if row.partition is None and row.key is None and not users]
        if block and len(sticky) == len(rows) and self._is_large(rows):
            return self._unequal_shares(rows, landed)
        for row in rows:
            found = landed.get(row.ordinal)
            due = self._sticky(row, found) if row in sticky else [self._due(row, users)]
            if found not in due:
                return f"record {row.ordinal} (key {row.key!r}) is in partition {found}, not {due}"
        return None

    def _due(self, row: SentRow, users: bool) -> int:
        """Return the partition of a record that is not placed at random."""
        if row.partition is not None:
            return row.partition
        if users:
            return chosen_by_user(row.key, self.choices)
        return (murmur2(row.key or b"") & 0x7FFFFFFF) % len(self.leaders)

    def _sticky(self, row: SentRow, found: int | None) -> list[int]:
        """Note where a record without a key is; return the partitions in which it may be."""
        current, choices = self.current, self.choices
        if current is None or current >= len(self.leaders) or self.left <= 0:
            choices = [each for each in choices if each != current] or choices
            self.current, self.left = found, self.batch_size
        else:
            choices = [current]
        self.left -= row.size
        return choices

    def _is_large(self, rows: Sequence[SentRow]) -> bool:
        """Return whether a block would give each partition more than one batch."""
        return sum(row.size for row in rows) > self.batch_size * len(self.choices)

    def _unequal_shares(self, rows: Sequence[SentRow], landed: Mapping[int, int]) -> str | None:
        """Return what is wrong with a large block: every partition gets one share, in turn."""
        choices = self.choices
        total = sum(row.size for row in rows)
        at = first = landed.get(rows[0].ordinal, NOWHERE)
        if first not in choices:
            return f"a large block begins in partition {first}, not in one of {choices}"
        taken = 0
        for row in rows:
            if landed.get(row.ordinal) != at:
                found = landed.get(row.ordinal)
                return f"record {row.ordinal} of a large block is in partition {found}, not {at}"
            self.current, self.left = at, 0
            taken += row.size
            if taken * len(choices) >= total:
                taken, at = 0, choices[(choices.index(at) + 1) % len(choices)]
        return None


# -- a partitioner of the user's -------------------------------------------------------------------


class _Number:
    """An integer that is no `int`, as numeric libraries have them."""

    def __index__(self) -> int:
        return 0


def users_partitioner(
    key: bytes | None, everything: Sequence[int], available: Sequence[int]
) -> Any:
    """Choose by the key, or fail in one of the ways in which a user's function fails."""
    match key:
        case b"no":
            raise KeyError(key)
        case b"end":
            raise KeyboardInterrupt
        case b"far":
            return len(everything)
        case b"text":
            return "0"
        case b"float":
            return 0.0
        case b"number":
            return _Number()
        case _:
            return available[len(key or b"") % len(available)]


def chosen_by_user(key: bytes | None, choices: Sequence[int]) -> int:
    """Return which of the partitions with a leader the user's partitioner chooses, or NOWHERE."""
    if key in (b"no", b"end", b"far", b"text", b"float"):
        return NOWHERE
    return 0 if key == b"number" else choices[len(key or b"") % len(choices)]
