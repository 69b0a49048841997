"""Mutants that the seeds of the soak hardly ever notice.

A seed rarely has two batches in doubt in a log that is read, or a batch of another epoch there; or
an election, a topic that is recreated, and an answer from before both that comes after them. So
these mutants are not among those that `make mutants` tries on seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aioidem._engine.batch import Batch
from aioidem._engine.partitions import Partitions
from aioidem._engine.read_back import ReadBack, WrittenBatch
from tests.simulated.mutation import Patch, mutant

__all__ = [
    "first_page_taken_for_the_log",
    "leader_of_a_deleted_topic_believed",
    "read_back_whatever_the_epoch",
]


@mutant("the log is read up to its end (KIP-854)")
def first_page_taken_for_the_log(patch: Patch) -> None:
    def naive(self: ReadBack, _page: Sequence[WrittenBatch], _high_watermark: int) -> None:
        self.end()

    patch(ReadBack, "following", naive)


@mutant("a batch of another epoch is another batch (KIP-854)")
def read_back_whatever_the_epoch(patch: Patch) -> None:
    def naive(
        _self: ReadBack, page: Iterable[WrittenBatch], doubtful: Iterable[Batch]
    ) -> list[tuple[Batch, WrittenBatch]]:
        wanted = {each.wire_base: each for each in doubtful}
        matched = ((wanted.pop(written.base_sequence, None), written) for written in page)
        return [(batch, written) for batch, written in matched if batch is not None]

    patch(ReadBack, "found", naive)


@mutant("what an answer says about a deleted topic is not true of the new one (KIP-951)")
def leader_of_a_deleted_topic_believed(patch: Patch) -> None:
    patch(Partitions, "holds", lambda _self, _state: True)
