"""Drafts: which batches are compressed in threads, and how many of them at once.

A batch that can be compressed in half a millisecond (`quick_bytes`) is compressed on the event
loop, when it is made: handing it to a thread would take CPU time, too. A larger batch becomes a
`Draft`, which a thread compresses. A batch can grow until its draft begins, so drafts begin as late
as possible: at most `Drafts.at_once` are under way, just enough to keep the Sender's threads busy.

Rejected: compressing every batch in a thread (a batch of 16 kB would take twice the CPU time);
several drafts of one partition under way (the records of the second would be chosen before it can
be sent; and it would be useless if the first turned out to be too large for a batch).
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem._config import ProducerConfig
from aioidem._engine.batch import Batch
from aioidem._engine.draft import Draft
from aioidem._engine.partition import PartitionState
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.record import PendingRecord
from aioidem._engine.steps import Compress
from aioidem._records import Codec, quick_bytes

__all__ = ["Drafts"]


class Drafts:
    """The drafts of one producer: batches that threads are compressing.

    Args:
        config: validated options, for codec and level.

    Attributes:
        quick: the most bytes of records that the event loop compresses itself, without a draft.
        at_once: how many drafts may be under way at once; the Sender, which owns the threads, sets
            it.
        steps: the `Compress` steps of the drafts begun since the last `ProducerCore.poll`.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._codec = Codec.from_name(config.compression_type)
        self._level = config.compression_level
        self._under_way: dict[int, tuple[PartitionState, PartitionQueue | Batch, Draft]] = {}
        self._next_token = 1
        self.quick = quick_bytes(self._codec, self._level)
        self.at_once = 4
        self.steps: list[Compress] = []

    @property
    def needed(self) -> bool:
        """Whether the producer compresses its batches: `compression_type` is not "none"."""
        return self._codec is not Codec.NONE

    @property
    def full(self) -> bool:
        """Whether `at_once` drafts are under way, so that no other draft should begin now."""
        return len(self._under_way) >= self.at_once

    def begin(
        self, state: PartitionState, owner: PartitionQueue | Batch, records: Sequence[PendingRecord]
    ) -> None:
        """Begin a draft: add a `Compress` step, for which a thread compresses the records.

        Args:
            state: the partition.
            owner: the batch that consists of the records; or else the partition's queue, at whose
            head the records stay meanwhile.
            records: the records.
        """
        draft = owner.draft = Draft(records)
        token = self._next_token
        self._next_token += 1
        self._under_way[token] = state, owner, draft
        self.steps.append(Compress(token, records, self._codec, self._level))

    def end(self, token: int) -> tuple[PartitionState, PartitionQueue | Batch, Draft] | None:
        """Take out the draft of a `Compress` step that was performed, with partition and owner.

        Returns:
            None if the result is of no use any more, for example because the records have expired.
        """
        state, owner, draft = self._under_way.pop(token)
        if owner.draft is not draft or (isinstance(owner, Batch) and owner.settled):
            return None
        return state, owner, draft

    def take_steps(self) -> list[Compress]:
        """Take the list of steps, and begin a new one."""
        taken, self.steps = self.steps, []
        return taken
