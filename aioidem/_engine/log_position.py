"""LogPosition: how far the log of a partition is known to reach, from the answers to its batches.

The offset of a later batch is above that of an earlier one, as long as the leader keeps what it has
acknowledged. If it is not above, the log has lost its end (an unclean election, a deleted disk).
Such a loss is reported once: earlier batches that are then missing belong to the same loss.

Between two batches of a partition, the log has room for the batches between them. If their offsets
leave less room, a batch between them is not stored, whatever the leader's state seemed to prove: it
forgot the producer in between, and then accepted a batch without those before it.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioidem._engine.batch import Batch, LogEnd

__all__ = ["LogPosition"]


class LogPosition:
    """The newest batch and the last offset of one partition that are known to be stored."""

    __slots__ = ("_lost_before", "end", "offset", "ordinal")

    def __init__(self) -> None:
        # The offset of the last record that is known to be stored; -1 if none is.
        self.offset = -1
        # The same record with its identity; None if no record is known to be stored.
        self.end: LogEnd | None = None
        # The ordinal of the newest batch that is known to be stored; -1 if none is. Ordinals count
        # the partition's batches under its present producer id and epoch, from 0.
        self.ordinal = -1
        # The ordinal of the newest batch that showed a loss; -1 if none did.
        self._lost_before = -1

    def contradicts(self, batch: Batch, base_offset: int) -> bool:
        """Return whether a batch's offset shows that the log lost records stored before it."""
        return batch.ordinal > self.ordinal and 0 <= base_offset <= self.offset

    def leaves_room(self, batch: Batch, base_offset: int, between: Iterable[Batch]) -> bool:
        """Return whether earlier batches can be stored, judged by the offset of a later one.

        Args:
            batch: the later batch, which is stored, and was not known to be before.
            base_offset: its offset; -1 if it is not known. Then the answer is True.
            between: the earlier batches.
        """
        if base_offset < 0:
            return True
        newer = sum(each.count for each in between if each.ordinal > self.ordinal)
        return batch.ordinal < self.ordinal or base_offset > self.offset + newer

    def accept_loss(self, batch: Batch, base_offset: int) -> None:
        """Set the end of the log to the end of this batch, so that its loss is reported only once.

        Args:
            batch: the batch whose offset showed that earlier records were lost.
            base_offset: the offset at which the batch was appended.
        """
        self._end_at(batch, base_offset + batch.count - 1)
        self.note_loss(batch)

    def note_loss(self, batch: Batch) -> None:
        """Note that a batch showed a loss of batches before it."""
        self._lost_before = max(self._lost_before, batch.ordinal)

    def is_explained(self, batch: Batch) -> bool:
        """Return whether the loss that this batch shows is part of a loss reported earlier.

        It is, if the batch is not newer than the batch whose offset showed the earlier loss.
        """
        return batch.ordinal <= self._lost_before

    def reach(self, batch: Batch, base_offset: int) -> None:
        """Record that the leader has a batch; `base_offset` is -1 if the offset is not known."""
        if batch.ordinal > self.ordinal:
            self.ordinal = batch.ordinal
        last = base_offset + batch.count - 1
        if base_offset >= 0 and last > self.offset:
            self._end_at(batch, last)

    def _end_at(self, batch: Batch, offset: int) -> None:
        self.offset = offset
        self.end = (offset, batch.identity, batch.wire_last)

    def renumber(self) -> None:
        """Forget ordinals, because batches under a new id or epoch count from 0; keep offsets."""
        self.ordinal = self._lost_before = -1
