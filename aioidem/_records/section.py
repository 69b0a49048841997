"""RecordSection: records that encode themselves into the record section of a batch."""

from __future__ import annotations

from abc import abstractmethod

__all__ = ["RecordSection"]


class RecordSection:
    """Records that encode themselves, so that `build_batch` need not read them one by one.

    The class is not an ABC, because `isinstance`, which runs once per batch, is slow for an ABC.
    """

    __slots__ = ()

    @abstractmethod
    def encode(self) -> tuple[bytes, int, int, int]:
        """Return (record section, count, first timestamp, maximum timestamp).

        Timestamps are in milliseconds since the epoch.

        Raises:
            TypeError: A part of a record has a wrong type.
            ValueError: A part of a record has an illegal value.
            OverflowError: A timestamp does not fit 64 bits.
        """
