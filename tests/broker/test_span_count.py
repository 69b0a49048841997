"""The broker's span: how many batches a producer is ahead of its oldest unresolved one.

A batch is unresolved until it has a definite answer. The span counts the batches from the oldest
unresolved one to the newest one.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioidem._broker.spans import PartitionSpans, Verdict

STORED, REFUSED, UNSURE = Verdict.STORED, Verdict.REFUSED, Verdict.UNSURE


class Spans(PartitionSpans):
    """The spans of producer 1 at epoch 0."""

    def seen(self, *sequences: int) -> None:
        for sequence in sequences:
            self.read(1, 0, sequence)

    def said(self, sequence: int, verdict: Verdict) -> None:
        self.answered(1, 0, sequence, verdict)


def test_a_batch_counts_from_being_read_until_it_is_answered() -> None:
    """A batch counts in the span from when the broker reads it until it is answered."""
    spans = Spans()
    assert spans.span() == 0
    spans.seen(0, 10, 20)
    assert spans.span() == 3
    for sequence in (0, 10, 20):
        spans.said(sequence, STORED)
    assert (spans.span(), spans.max_span()) == (0, 3)


def test_acknowledged_batches_above_an_unanswered_one_still_count() -> None:
    """Acknowledged batches above an unanswered one still count in the span."""
    spans = Spans()
    spans.seen(0, 1, 2, 3, 4)
    for sequence in (1, 2, 3, 4):
        spans.said(sequence, STORED)
    assert spans.span() == 5
    spans.seen(5)
    assert spans.span() == 6
    spans.said(0, STORED)
    assert spans.span() == 1


def test_an_answer_that_does_not_say_leaves_the_batch_open_until_a_success() -> None:
    """A batch whose answer leaves open whether it was stored is resolved only by a success."""
    spans = Spans()
    spans.seen(0)
    spans.said(0, UNSURE)
    spans.said(0, REFUSED)
    assert spans.span() == 1
    spans.seen(0)
    spans.said(0, STORED)
    assert spans.span() == 0


def test_a_refusal_of_what_was_never_in_doubt_resolves() -> None:
    """A refusal resolves a batch if no earlier answer left open whether it was stored."""
    spans = Spans()
    spans.seen(0, 1)
    spans.said(0, REFUSED)
    assert spans.span() == 1


def test_a_resend_is_the_same_batch() -> None:
    """A resend does not count as another batch in the span."""
    spans = Spans()
    spans.seen(0, 1, 2)
    spans.said(0, UNSURE)
    spans.seen(0, 1, 2)
    assert (spans.span(), spans.max_span()) == (3, 3)


def test_a_later_success_proves_what_is_below_only_for_the_unproven_count() -> None:
    """A later success resolves the batches below it in `unproven_span`, but not in `span`."""
    spans = Spans()
    spans.seen(0, 1, 2)
    spans.said(0, UNSURE)
    spans.said(1, STORED)
    spans.said(2, STORED)
    assert (spans.span(), spans.unproven_span()) == (3, 0)
    spans.seen(3)
    assert (spans.max_span(), spans.max_unproven_span()) == (4, 3)


def test_spans_cross_the_wrap_of_sequences() -> None:
    """A span is counted right where sequences wrap to 0."""
    spans = Spans()
    spans.seen(2**31 - 10, 0, 10)
    assert spans.span() == 3
    spans.said(2**31 - 10, STORED)
    assert spans.span() == 2
    spans.said(10, STORED)
    assert spans.span() == 2
    spans.said(0, STORED)
    assert spans.span() == 0


def test_each_epoch_and_producer_has_its_own_span_and_the_newest_epoch_is_shown() -> None:
    """Each producer and epoch has its own span; `span` counts each producer's newest epoch only."""
    spans = PartitionSpans()
    for sequence in range(4):
        spans.read(1, 0, sequence)
    spans.read(1, 1, 0)
    spans.read(2, 0, 0)
    spans.read(2, 0, 1)
    assert (spans.span(), spans.max_span()) == (2, 4)


def test_an_answer_to_something_never_read_changes_nothing() -> None:
    """An answer about a batch that the broker has not read changes nothing."""
    spans = Spans()
    spans.said(0, STORED)
    spans.seen(0)
    spans.said(99, STORED)
    assert spans.span() == 1


@given(st.lists(st.tuples(st.integers(0, 15), st.sampled_from([None, *Verdict])), max_size=80))
def test_the_span_is_newest_minus_oldest_open_for_any_history(
    history: list[tuple[int, Verdict | None]],
) -> None:
    """The span is 0 only if no batch is unresolved, and is at least the number of such batches."""
    spans = Spans()
    newest, open_, doubted = -1, set[int](), set[int]()
    for choice, verdict in history:
        if verdict is None:
            batch = min(choice, newest + 1)
            spans.seen(batch * 3)
            newest = max(newest, batch)
            open_.add(batch)
        elif choice in open_:
            spans.said(choice * 3, verdict)
            if verdict is UNSURE:
                doubted.add(choice)
            elif verdict is STORED or choice not in doubted:
                open_.discard(choice)
                doubted.discard(choice)
        if open_ and newest in open_:
            # Resolved batches below the oldest unresolved one do not count.
            assert spans.span() <= newest - min(open_) + 1
        assert (spans.span() == 0) == (not open_)
        if open_:
            assert spans.span() >= len(open_)
