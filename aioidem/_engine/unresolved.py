"""UnresolvedBatches: the batches of one partition that have no outcome yet.

Invariants
- The batches are in the order in which they were cut from the queue. That is the order of their
  sequences, so the list is never sorted.
- A batch is outstanding from the moment when it is given to a connection until its answer comes or
  the connection ends, even if it has its outcome before. So there may be more outstanding batches
  than unresolved ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem._engine.batch import Batch, BatchEvent, BatchState
from aioidem._engine.idempotence import SequenceLedger
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import items_of
from aioidem._engine.retention import RetentionEvidence

__all__ = ["UnresolvedBatches"]


class UnresolvedBatches:
    """The unresolved batches of one partition, oldest first, and how many are outstanding.

    A batch is unresolved until it has an outcome. It is in doubt if an attempt to send it has ended
    and the leader may have appended it.

    Args:
        ledger: the partition's next sequence number, and whether numbers were given up.
        evidence: what the leader's answers show of its memory. It measures distances in batches, so
        it is cleared when a batch is replaced by several.
    """

    __slots__ = ("_evidence", "_ledger", "next_ordinal", "outstanding", "unresolved")

    def __init__(self, ledger: SequenceLedger, evidence: RetentionEvidence) -> None:
        self._ledger = ledger
        self._evidence = evidence
        self.unresolved: list[Batch] = []
        self.outstanding = 0
        self.next_ordinal = 0

    @property
    def span(self) -> int:
        """The number of batches from the oldest unresolved to the newest sent one, inclusive."""
        return self.next_ordinal - self.unresolved[0].ordinal if self.unresolved else 0

    @property
    def sequences(self) -> int:
        """The number of sequences (records) from the oldest unresolved batch to the newest one."""
        return self._ledger.next - self.unresolved[0].base if self.unresolved else 0

    @property
    def in_doubt(self) -> int:
        """The number of unresolved batches that may have been appended."""
        return sum(batch.in_doubt for batch in self.unresolved)

    @property
    def doubted_since(self) -> float | None:
        """Since when a batch is in doubt (sent, and perhaps appended), in seconds; None if none is.

        A batch whose attempt is unanswered is not in doubt yet, unless an earlier attempt was lost.
        """
        first: float | None = None
        for batch in self.unresolved:  # of each busy partition, once a second
            at = batch.doubted_at
            if at is not None and batch.in_doubt and (first is None or at < first):
                first = at
        return first

    def doubts(self) -> list[Batch]:
        """Return the batches in doubt that are not in flight, oldest first."""
        return [batch for batch in self.unresolved if batch.in_doubt and batch.due]

    @property
    def head(self) -> Batch | None:
        """The oldest unresolved batch that keeps its sequence numbers; None if there is none.

        While an epoch bump is pending, all batches but those in doubt will be renumbered.
        """
        for batch in self.unresolved:
            if not self._ledger.bump_wanted or batch.keeps_numbers:
                return batch
        return None

    def all_in_flight_precede(self, position: int) -> bool:
        """Return whether each batch in flight is older than the one at this place of the list."""
        return not any(b.state is BatchState.IN_FLIGHT for b in self.unresolved[position:])

    def enlist(self, batch: Batch) -> int:
        """Add a newly sealed batch to the end of the list, and return the span with it."""
        self.unresolved.append(batch)
        self.next_ordinal = batch.ordinal + 1
        return self.next_ordinal - self.unresolved[0].ordinal

    def replace(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """Put other batches with the same records in the place of a batch that was never appended.

        The parts of a batch that was too large share its sequence numbers. That is safe because
        every attempt at the whole batch was refused, so none can be appended later. Later batches
        keep their sequence numbers; only their ordinals (positions among the batches) change.
        """
        self._evidence.clear()  # it measures distances in batches, which may change here
        position = self.unresolved.index(batch)
        batch.move(BatchEvent.SPLIT)
        self.unresolved[position : position + 1] = parts
        for later in self.unresolved[position + len(parts) :]:
            later.shift(len(parts) - 1)
        self.next_ordinal += len(parts) - 1

    def reclaim(self) -> list[PendingRecord]:
        """Take back the records and blocks of batches that were never appended, in order.

        The records get sequence numbers anew, in this partition or another. Batches in flight or in
        doubt stay.
        """
        taken: list[PendingRecord] = []
        for batch in [b for b in self.unresolved if b.due and not b.in_doubt]:
            batch.move(BatchEvent.SPLIT)
            self.unresolved.remove(batch)
            taken.extend(items_of(batch.records))
        return taken
