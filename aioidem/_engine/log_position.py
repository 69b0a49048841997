"""LogPosition: how far the log of a partition is known to reach, from the answers to its batches.

The offset of a later batch is above that of an earlier one, as long as the leader keeps what it has
acknowledged. If it is not above, the log has lost its end (an unclean election, a deleted disk).
Such a loss is reported once: earlier batches that are then missing belong to the same loss.
"""

from __future__ import annotations

from aioidem._engine.batch import Batch

__all__ = ["LogPosition"]


class LogPosition:
    """The newest batch and the last offset of one partition that are known to be stored."""

    __slots__ = ("_lost_before", "offset", "ordinal")

    def __init__(self) -> None:
        # The offset of the last record that is known to be stored; -1 if none is.
        self.offset = -1
        # The ordinal of the newest batch that is known to be stored; -1 if none is. Ordinals count
        # the partition's batches under its present producer id and epoch, from 0.
        self.ordinal = -1
        # The ordinal of the newest batch whose offset showed a loss; -1 if none did.
        self._lost_before = -1

    def contradicts(self, batch: Batch, base_offset: int) -> bool:
        """Return whether a batch's offset shows that the log lost records stored before it."""
        return batch.ordinal > self.ordinal and 0 <= base_offset <= self.offset

    def accept_loss(self, batch: Batch, base_offset: int) -> None:
        """Take this batch as the end of the log, so that the loss before it is reported once."""
        self.offset = base_offset + batch.count - 1
        self._lost_before = batch.ordinal

    def is_explained(self, batch: Batch) -> bool:
        """Return whether the loss that this batch shows is part of a loss reported earlier.

        It is, if the batch is not newer than the batch whose offset showed the earlier loss.
        """
        return batch.ordinal <= self._lost_before

    def reach(self, batch: Batch, base_offset: int) -> None:
        """Record that the leader has a batch; `base_offset` is -1 if the offset is not known."""
        self.ordinal = max(self.ordinal, batch.ordinal)
        if base_offset >= 0:
            self.offset = max(self.offset, base_offset + batch.count - 1)

    def renumber(self) -> None:
        """Forget ordinals, because batches under a new id or epoch count from 0; keep offsets."""
        self.ordinal = self._lost_before = -1
