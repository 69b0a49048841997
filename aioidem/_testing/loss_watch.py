"""Check that the producer reports each loss of acknowledged records that Produce answers prove.

An identity is a producer id with its epoch. A sequence is given up when its record ends NOT_WRITTEN
or UNKNOWN. Answers to Produce prove in four ways that a broker has lost acknowledged records:
- By an offset: a batch newer than every acknowledged batch is answered NONE, with a base offset
  that was acknowledged for an older record.
- By a hole: a batch is answered NONE although an earlier batch of its identity cannot have been
  appended. Only a leader that has lost the producer's state accepts such a batch.
- By a gap: a batch that cannot have been appended before is refused with
  OUT_OF_ORDER_SEQUENCE_NUMBER. All earlier batches of its identity were acknowledged, and no
  sequence of the identity was given up. The producer then sends the batch's records under another
  identity.
- By refused resends: a record in doubt ends UNKNOWN because resends of its batch were refused with
  OUT_OF_ORDER_SEQUENCE_NUMBER. Earlier batches of its identity were acknowledged, and no other
  sequence of the identity was given up.

A refusal proves nothing if the leader has answered that it does not know the producer.
INVALID_PRODUCER_EPOCH shows that another producer writes under the same producer id. After that
answer, refusals of batches with this producer id prove nothing in any partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aioidem._testing.history import Anomaly, Outcome, ValueId, Violation
from aioidem._testing.wire_account import Identity, PartitionAccount, Sent, WireAnswer

__all__ = ["LossWatch"]


class LossWatch:
    """Collects the proofs, in the answers to one producer, that acknowledged records were lost.

    An identity is a producer id with its epoch. There is a gap if a batch is refused
    with OUT_OF_ORDER_SEQUENCE_NUMBER although all earlier batches of its identity are stored.

    Args:
        outcomes: Returns the outcomes that the producer has reported for a batch's records; None if
            they are unknown.
    """

    def __init__(self, outcomes: Callable[[Sent], set[Outcome] | None]) -> None:
        self.proved = 0
        """How often the answers have proved a loss."""
        self._outcomes = outcomes
        self._shared: set[int] = set()

    def shared(self, producer_id: int) -> None:
        """Note that another producer writes under this id, as INVALID_PRODUCER_EPOCH shows."""
        self._shared.add(producer_id)

    def cluster_changed(self) -> None:
        """Forget which producer ids are shared, because another cluster assigns its ids anew."""
        self._shared.clear()

    def reported(self, state: PartitionAccount) -> None:
        """Forget the losses in a partition: the producer has raised a data-loss event for them."""
        state.evidence.losses.clear()
        state.evidence.gap = None

    @staticmethod
    def unreported(states: Iterable[PartitionAccount]) -> list[Violation]:
        """Return a violation for each proved loss after which no data-loss event was raised."""
        return [
            Violation(Anomaly.EVENT, f"none raised: {detail}")
            for state in states
            for detail in state.evidence.losses
        ]

    def succeeded(
        self, state: PartitionAccount, identity: Identity, sent: Sent, answer: WireAnswer
    ) -> None:
        """Check whether an answer NONE proves a loss, by its offset or by a hole in the sequences.

        The caller must not yet have called `Identity.prove` for this answer.
        """
        if state.newest is None or state.current is not identity:
            return
        where, evidence = f"{answer.topic}-{answer.partition}", state.evidence
        # If the producer has given up records, their sequences are missing from the log (a hole),
        # but nothing is lost. To exclude that, a hole counts only if the batch accepted after it
        # still has a record without an outcome: the producer has not given up that batch.
        awaited = Outcome.PENDING in (self._outcomes(sent) or ())
        below = (identity.batches[base] for base in identity.order if base < sent.base)
        if awaited and any(map(self._refused, below)):
            self._prove(state, f"{where}: sequence {sent.base} was accepted over a hole")
        last, this = evidence.acked_last, (state.newest, sent.base)
        older = last is not None and last[0] == this[0] and sent.base <= last[1]
        if answer.base_offset < 0 or older:
            return
        if answer.base_offset < evidence.acked_end:
            self._prove(
                state, f"{where}: offset {answer.base_offset} after {evidence.acked_end - 1}"
            )
            evidence.acked_end = 0
        evidence.acked_last = this
        evidence.acked_end = max(evidence.acked_end, answer.base_offset + sent.count)

    def _refused(self, lower: Sent) -> bool:
        """Return whether a batch cannot have been appended, and was refused before it was given up.

        A batch whose records ended UNKNOWN at their deadline, while it was in flight, was given up
        first. The producer has taken a new epoch for that, and a later refusal tells it nothing.
        """
        if lower.outstanding or lower.ambiguous:
            return False
        return self._outcomes(lower) != {Outcome.UNKNOWN}

    def out_of_order(self, state: PartitionAccount, identity: Identity, sent: Sent) -> None:
        """Remember a batch if its refusal OUT_OF_ORDER_SEQUENCE_NUMBER shows a gap before it."""
        asked = sent.ambiguous or sent.outstanding or identity.order[:1] != [sent.base]
        if not asked and self._gapless(identity, sent):
            state.evidence.gap = sent

    def new_identity(self, state: PartitionAccount, where: str) -> None:
        """Count a remembered gap as a loss when the producer takes another id or epoch.

        Until then the leader could still accept the refused batch under its old sequence numbers.
        """
        gap, state.evidence.gap = state.evidence.gap, None
        if gap is None or state.current is None:
            return
        # Since the refusal, the batch may have been proved to be stored, or given up for another
        # reason; then the refusal is no proof of a loss.
        pending = Outcome.PENDING in (self._outcomes(gap) or ())
        if pending and not gap.proved and self._gapless(state.current, gap):
            self._prove(state, f"{where}: sequence {gap.base} was refused over a gap")

    def gave_up(self, state: PartitionAccount, where: str, value: ValueId) -> None:
        """Count a loss if a record's batch was refused although all batches before it are stored.

        The record is about to end UNKNOWN because of OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        identity = state.current
        if identity is None or not identity.order:
            return
        head = identity.batches[identity.order[0]]
        if value in head.values() and self._gapless(identity, head):
            self._prove(state, f"{where}: {value} ended UNKNOWN over a gap")

    def _prove(self, state: PartitionAccount, detail: str) -> None:
        self.proved += 1
        state.evidence.losses.append(detail)

    def _gapless(self, identity: Identity, head: Sent) -> bool:
        """Return whether all batches before ``head`` are stored and no other batch was given up."""
        before = [sent for base, sent in identity.batches.items() if base < head.base]
        if identity.disowned or identity.producer_id in self._shared:
            return False
        if not before or not all(sent.proved for sent in before):
            return False
        # `proved` is also set for a batch in doubt, when a later batch is answered NONE. But a
        # leader that has forgotten the producer answers NONE too. So a batch in doubt counts as
        # stored only if the producer has reported ACKED.
        if any(self._outcomes(sent) != {Outcome.ACKED} for sent in before if sent.ambiguous):
            return False
        others = (sent for base, sent in identity.batches.items() if base != head.base)
        given_up = {Outcome.NOT_WRITTEN, Outcome.UNKNOWN}
        return not any((self._outcomes(sent) or set()) & given_up for sent in others)
