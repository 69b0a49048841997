"""The broker's own count of how far a producer is ahead of its oldest unresolved batch.

A batch is *read* when its bytes were read from the socket (before the simulated delay), and
*resolved* when the bytes of a definite answer to it were written (after the delay). The span of a
producer id and epoch is the number of batches, in sequence order, from the oldest unresolved one to
the newest one read, both counted. A producer's window must bound this number (KIP-1269).

Invariants
    A batch stays unresolved if its answer or connection was lost, or if its answer has an error
    code that brokers send both before and after an append. From then on only a success resolves
    the batch: a refusal of a resend does not prove that the first send was not appended.
    A batch is recognised by its sequence, unwrapped to an unbounded number, so a resend is the same
    batch.

There are two counts. In `span` only a batch's own answer resolves it. In `unproven_span` the
success of a later batch of the same epoch resolves it too, because a broker appends the batches of
an epoch in sequence.

Rejected
    Counting outstanding requests: if b1 is unanswered and b2 to b5 are acknowledged, only b1 is
    outstanding, but the span is 5.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import Enum

__all__ = ["PartitionSpans", "Verdict"]

_WRAP = 2**31
_HALF = 2**30


class Verdict(Enum):
    """What an answer proves about a batch: stored, not stored, or neither."""

    STORED = "stored"
    REFUSED = "refused"
    UNSURE = "unsure"


class _Window:
    """The span of one (producer id, epoch): how far it is ahead of its oldest unresolved batch.

    A batch is identified by its first sequence, unwrapped: the number goes on rising where the
    sequence on the wire starts again at 0.

    ``order`` has the oldest unresolved batch and all later batches that were read; its length is
    the span, and ``maximum`` the largest span so far. ``open`` has the unresolved batches, and
    ``doubted`` those that only a success can resolve. ``last`` is the newest batch that was read.
    """

    __slots__ = ("doubted", "last", "maximum", "open", "order")

    def __init__(self) -> None:
        self.order: list[int] = []
        self.open: set[int] = set()
        self.doubted: set[int] = set()
        self.last = 0
        self.maximum = 0

    def position(self, sequence: int) -> int:
        """Unwrap ``sequence``: of all numbers that wrap to it, return the nearest to ``last``."""
        ahead = (sequence - self.last) % _WRAP
        return self.last + ahead if ahead < _HALF else self.last + ahead - _WRAP

    def read(self, sequence: int) -> None:
        at = self.position(sequence)
        if not self.order or at > self.order[-1]:
            self.order.append(at)
        else:
            index = bisect_left(self.order, at)
            if self.order[index] != at:
                self.order.insert(index, at)
        if at > self.last:
            self.last = at
        self.open.add(at)
        if len(self.order) > self.maximum:
            self.maximum = len(self.order)

    def answered(self, sequence: int, verdict: Verdict, *, proves_below: bool) -> None:
        at = self.position(sequence)
        if verdict is Verdict.UNSURE:
            if at in self.open:
                self.doubted.add(at)
            return
        if verdict is Verdict.REFUSED and at in self.doubted:
            return
        settled = (
            self.order[: bisect_right(self.order, at)]
            if proves_below and verdict is Verdict.STORED
            else [at]
        )
        self.open.difference_update(settled)
        self.doubted.difference_update(settled)
        done = 0
        while done < len(self.order) and self.order[done] not in self.open:
            done += 1
        del self.order[:done]


class PartitionSpans:
    """The span of every producer id and epoch that has written to one partition.

    The span is the number of batches from the oldest one without a definite answer, which is called
    unresolved, to the newest one that the broker has read, both counted.
    """

    __slots__ = ("_newest", "_proven", "_strict")

    def __init__(self) -> None:
        self._strict: dict[tuple[int, int], _Window] = {}
        self._proven: dict[tuple[int, int], _Window] = {}
        self._newest: dict[int, int] = {}

    def read(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Note that a batch of this producer was read from a socket."""
        key = (producer_id, epoch)
        strict = self._strict.get(key)
        if strict is None:
            strict = self._strict[key] = _Window()
            self._proven[key] = _Window()
            self._newest[producer_id] = max(epoch, self._newest.get(producer_id, -1))
        strict.read(sequence)
        self._proven[key].read(sequence)

    def answered(self, producer_id: int, epoch: int, sequence: int, verdict: Verdict) -> None:
        """Note what an answer proves about a batch; `Verdict.UNSURE` if no answer will come."""
        key = (producer_id, epoch)
        strict = self._strict.get(key)
        if strict is not None:
            strict.answered(sequence, verdict, proves_below=False)
            self._proven[key].answered(sequence, verdict, proves_below=True)

    def span(self) -> int:
        """Return the largest present span: of each producer, only its newest epoch counts."""
        return max((len(self._strict[key].order) for key in self._newest.items()), default=0)

    def max_span(self) -> int:
        """Return the largest span that any producer ever had, in any epoch."""
        return max((w.maximum for w in self._strict.values()), default=0)

    def unproven_span(self) -> int:
        """Return what `span` would return if a success also resolved all batches before it."""
        return max((len(self._proven[key].order) for key in self._newest.items()), default=0)

    def max_unproven_span(self) -> int:
        """Return what `max_span` would return if a success also resolved all batches before it."""
        return max((w.maximum for w in self._proven.values()), default=0)
