"""LogPosition: how far the log of a partition is known to reach, by the answers to our batches.

The offset of a later batch is above that of an earlier one, as long as the leader keeps what it has
acknowledged. An offset that is not shows that the log has lost its end (an unclean election, a
deleted disk), and is reported once: what is missing below that batch belongs to the same loss.
"""

from __future__ import annotations

from aioidem._engine.batch import Batch

__all__ = ["LogPosition"]


class LogPosition:
    """The newest batch of one partition that is known to be stored, and the last offset."""

    __slots__ = ("_lost_before", "offset", "ordinal")

    def __init__(self) -> None:
        # Of the last record that is known to be stored; -1 while none is.
        self.offset = -1
        # Of the newest batch that is known to be stored; -1 while none is, under this identity.
        self.ordinal = -1
        # Of the newest batch whose offset showed a loss.
        self._lost_before = -1

    def contradicts(self, batch: Batch, base_offset: int) -> bool:
        """Whether the offset of a batch shows that the log has lost what was stored before it."""
        return batch.ordinal > self.ordinal and 0 <= base_offset <= self.offset

    def accept_loss(self, batch: Batch, base_offset: int) -> None:
        """Take the log to end with this batch: the loss before it is reported once."""
        self.offset = base_offset + batch.count - 1
        self._lost_before = batch.ordinal

    def is_explained(self, batch: Batch) -> bool:
        """Whether a hole at this batch belongs to a loss that an offset has shown."""
        return batch.ordinal <= self._lost_before

    def reach(self, batch: Batch, base_offset: int) -> None:
        """Note that the leader has a batch; `base_offset` is -1 where it did not say where."""
        self.ordinal = max(self.ordinal, batch.ordinal)
        if base_offset >= 0:
            self.offset = max(self.offset, base_offset + batch.count - 1)

    def renumber(self) -> None:
        """Begin to count batches anew, under another identity; offsets stay."""
        self.ordinal = self._lost_before = -1
