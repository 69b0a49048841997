"""A partitioner of the user's, which fails for some keys, and what is to become of the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from aioidem.errors import RecordError
from aioidem.testing import Outcome, Row

__all__ = ["Partitioner"]


class _Number:
    """A number of another type than int, as libraries for numbers have it."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


class Partitioner:
    """Chooses a partition by the key, and fails for some keys.

    Args:
        partitions: How many partitions every topic has at least.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def choose(self, key: bytes | None, everything: Sequence[int], available: Sequence[int]) -> Any:
        """Return the partition for a key: mostly a number, sometimes what is none."""
        del available
        number = crc32(key or b"")
        match number % 12:
            case 0:
                raise ValueError("the partitioner knows no such key")
            case 1:
                return len(everything) + 1000
            case 2:
                return "0"
            case 3 | 4:
                return _Number(number % self._partitions)
            case _:
                return number % self._partitions

    def chosen(self, key: bytes | None) -> int | None:
        """Return the partition in which a record with this key is; None if it is refused."""
        number = crc32(key or b"")
        return None if number % 12 < 3 else number % self._partitions

    def complaint(self, key: bytes | None, row: Row, error: BaseException | None) -> str | None:
        """Return what is wrong with the outcome of a record whose call names no partition."""
        chosen = self.chosen(key)
        if chosen is None and not (row.outcome is Outcome.NOT_WRITTEN and error is not None):
            return f"{row.value} ended {row.outcome.value}, and the partitioner chose nothing"
        if chosen is not None and isinstance(error, RecordError) and "partitioner" in str(error):
            return f"{row.value} was refused, and the partitioner chose {chosen}: {error}"
        if chosen is not None and row.outcome is Outcome.ACKED and row.partition != chosen:
            return f"{row.value} is in partition {row.partition}, not {chosen}"
        return None
