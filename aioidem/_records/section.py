"""RecordSection: records that encode themselves into the record section of a batch."""

from __future__ import annotations

from abc import abstractmethod

__all__ = ["RecordSection"]


class RecordSection:
    """Records that `build_batch` need not read one by one.

    This is no ABC, because `isinstance` of an ABC costs several calls, for each batch.
    """

    __slots__ = ()

    @abstractmethod
    def encode(self) -> tuple[bytes, int, int, int]:
        """Return (record section, count, first timestamp, maximum timestamp).

        Timestamps are in milliseconds since the epoch.

        Raises:
            TypeError: A record has a wrong type; ValueError, OverflowError: a wrong value.
        """
