"""The judge of flushes: a flush ends with the last outcome that it waits for, and counts them all.

It waits for each record that was queued before it began and had no outcome then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from aioidem._engine.flushing import FlushCount
from aioidem._engine.outcomes import Outcomes
from aioidem.structs import DeliveryCounts, DeliveryStatus
from aioidem.testing import Anomaly, Outcome, ValueId, Violation

__all__ = ["Flushes", "counted"]


class _Flush(NamedTuple):
    tally: FlushCount
    waits_for: frozenset[ValueId]


class Flushes:
    """Compares what an engine says of flushes with the outcomes that it has decided.

    Args:
        outcomes: The engine's part that says whether a flush is over, and counts for it.
        decided: The outcome of each record that has one.
    """

    def __init__(self, outcomes: Outcomes, decided: Mapping[ValueId, Outcome]) -> None:
        self._outcomes = outcomes
        self._decided = decided
        self._flushes: list[_Flush] = []

    def began(self, generation: int, queued: Iterable[ValueId]) -> None:
        """Note that a flush began, and which records had been queued until then."""
        waits_for = frozenset(value for value in queued if value not in self._decided)
        # The engine has ended these since outcomes were last delivered; `Producer.flush` counts
        # them from the beginning, too.
        untold: Counter[DeliveryStatus] = Counter()
        for settlement in self._outcomes.peek_settled():
            untold[settlement.outcome.status] += len(settlement.records)
        tally = FlushCount(generation, untold)
        self._outcomes.count_for(tally)
        self._flushes.append(_Flush(tally, waits_for))

    def judge(self) -> Iterator[Violation]:
        """Report each flush that is over too early or too late, or counts wrongly."""
        for flush in list(self._flushes):
            left = flush.waits_for.difference(self._decided)
            over = self._outcomes.flushed(flush.tally.generation)
            if over and left:
                yield Violation(Anomaly.UNSETTLED, f"a flush ends before {min(left)}")
            elif not over and not left:
                yield Violation(Anomaly.STUCK, "a flush goes on, and all that it waits for ended")
            if over or not left:
                self._flushes.remove(flush)
                self._outcomes.stop_counting(flush.tally)
                said, true = flush.tally.counts, counted(map(self._decided.get, flush.waits_for))
                if said != true and not left:
                    yield Violation(Anomaly.MISCOUNTED, f"a flush counts {said}, not {true}")


def counted(outcomes: Iterable[Outcome | None]) -> DeliveryCounts:
    """Return how many of some records were acknowledged, not written, and unknown."""
    found = Counter(outcomes)
    return DeliveryCounts(found[Outcome.ACKED], found[Outcome.NOT_WRITTEN], found[Outcome.UNKNOWN])
