"""`RetentionEvidence` alone: which answers to retries prove that a broker retains too few batches.

Batches are named by their ordinals. The newest batch is number 20, and all have been sent once, on
connection 1; test_retention.py has the same rules in an engine.
"""

from __future__ import annotations

import pytest

from aioidem._engine.batch import Attempt, Batch, BatchEvent
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.record import PendingRecord
from aioidem._engine.retention import Disproof, RetentionEvidence, earlier_link

NEWEST = 20
SAID = 20


def sealed(ordinal: int) -> Batch:
    return Batch(
        ordinal=ordinal,
        records=[PendingRecord(None, b"v", (), 0, None, 10)],
        data=b"data",
        identity=None,
        base=0,
        deadline=90.0,
        max_timestamp_ms=0,
    )


def attempt(link_id: int, leader_id: int = 1, leader_epoch: int = 0) -> Attempt:
    return Attempt(link_id, leader_id, leader_epoch, 0.0, knows_us=True)


class Retries:
    """The evidence of a partition, and its batches."""

    def __init__(self) -> None:
        self.evidence = RetentionEvidence()
        self.batches = {each: sealed(each) for each in range(NEWEST + 1)}

    def resend(self, *ordinals: int, earlier: int | None = 1, distance: int | None = None) -> None:
        """Send batches again; earlier attempts at them were made on the connection `earlier`."""
        for ordinal in ordinals:
            batch = self.batches[ordinal]
            batch.send(Attempt(9, 1, 0, 0.0, knows_us=True, earlier_link=earlier))
            batch.move(BatchEvent.RETRY)
            away = NEWEST - ordinal + 1 if distance is None else distance
            self.evidence.sent(batch, away)

    def recognised(self, *ordinals: int, stored: int = NEWEST) -> None:
        """Answer retries with error NONE; `stored` is the newest batch known to be stored."""
        for ordinal in ordinals:
            self.evidence.recognised(self.batches[ordinal], stored - ordinal + 1)

    def refused(self, *ordinals: int) -> None:
        for ordinal in ordinals:
            self.evidence.refused(self.batches[ordinal])

    def none(self) -> bool:
        """Return whether there is nothing to judge."""
        return self.evidence.none

    def verdict(self, said: int = SAID) -> Disproof | None:
        return self.evidence.verdict(said)


def convicted(*refused: int) -> Retries:
    """Return retries of which 19 to 16 were recognised, and after that these refused."""
    retries = Retries()
    retries.resend(19, 18, 17, 16, *refused)
    retries.recognised(19, 18, 17, 16)
    retries.refused(*refused)
    return retries


# -- what is proof


def test_a_refusal_beyond_what_was_recognised_is_proof() -> None:
    """The refused batch is nearest to the newest one of all that lie beyond."""
    retries = convicted(12, 14, 13)
    assert retries.verdict() == Disproof(said=20, proved=5, refused=7)


def test_a_verdict_is_given_once_every_retry_is_answered_and_only_once() -> None:
    retries = convicted(15)
    retries.resend(10)
    assert retries.verdict() is None
    assert not retries.none()
    retries.evidence.ended(retries.batches[10])
    assert not retries.none()
    assert retries.verdict() == Disproof(said=20, proved=5, refused=6)
    assert retries.none()
    assert retries.verdict() is None


def test_without_a_refusal_there_is_nothing_to_judge() -> None:
    retries = Retries()
    assert retries.none()
    retries.resend(19, 18)
    assert not retries.none()
    assert retries.verdict() is None
    retries.recognised(19, 18)
    assert retries.none()
    assert retries.verdict() is None


@pytest.mark.parametrize(("said", "proof"), [(5, False), (6, True), (7, True)])
def test_a_broker_may_forget_what_it_does_not_say_that_it_retains(said: int, proof: bool) -> None:
    assert (convicted(15).verdict(said) is not None) is proof


@pytest.mark.parametrize(("distance", "proof"), [(4, False), (5, False), (6, True)])
def test_a_refusal_no_farther_back_than_what_was_recognised_is_no_proof(
    distance: int, proof: bool
) -> None:
    """Both numbers have an error, in opposite directions."""
    retries = Retries()
    retries.resend(19, 18, 17, 16)
    retries.resend(10, distance=distance)
    retries.recognised(19, 18, 17, 16)
    retries.refused(10)
    assert (retries.verdict() is not None) is proof


@pytest.mark.parametrize(
    ("recognised", "proof"),
    [((), False), ((19,), False), ((19, 17), True), ((20, 19), False), ((19, 12), False)],
)
def test_two_later_batches_that_are_not_the_newest_must_be_recognised_before(
    recognised: tuple[int, ...], proof: bool
) -> None:
    retries = Retries()
    retries.resend(20, 19, 17, 14, 12)
    retries.recognised(*recognised)
    retries.refused(14)
    for each in (20, 19, 17, 12):
        retries.evidence.ended(retries.batches[each])
    retries.resend(19, 17)
    retries.recognised(19, 17)
    assert (retries.verdict() is not None) is proof


def test_the_newest_batch_that_is_known_to_be_stored_counts_and_not_the_newest_sent() -> None:
    retries = Retries()
    retries.resend(18, 17, 16, 15)
    retries.recognised(18, 17, 16, stored=18)
    retries.refused(15)
    assert retries.verdict() == Disproof(said=20, proved=3, refused=6)


def test_batches_are_compared_only_with_those_of_the_same_earlier_connection() -> None:
    retries = Retries()
    retries.resend(19, 18, 10, earlier=1)
    retries.resend(17, 16, 11, earlier=2)
    retries.recognised(19, 17, 16)
    retries.refused(10)
    retries.recognised(18)
    retries.refused(11)
    assert retries.verdict() == Disproof(said=20, proved=5, refused=10)


def test_what_was_sent_for_the_first_time_or_on_several_connections_is_no_evidence() -> None:
    retries = Retries()
    retries.evidence.sent(sealed(21), 1)
    retries.resend(19, 18, 17, earlier=None)
    assert retries.none()
    retries.recognised(19, 18)
    retries.refused(17)
    assert retries.none()
    assert retries.verdict() is None


# -- a refusal that came too early


def test_a_batch_that_was_refused_too_early_may_be_evidence_the_next_time() -> None:
    """The refused attempt appended nothing, so the earlier connection counts as before."""
    retries = Retries()
    retries.resend(15, 19, 18)
    retries.refused(15)
    retries.recognised(19, 18)
    assert retries.verdict() is None
    retries.resend(15, earlier=None)
    assert not retries.none()
    retries.refused(15)
    assert retries.verdict() == Disproof(said=20, proved=3, refused=6)


def test_that_next_time_comes_once_after_each_refusal() -> None:
    retries = Retries()
    retries.resend(15)
    retries.refused(15)
    retries.resend(15, earlier=None)
    retries.evidence.ended(retries.batches[15])
    retries.resend(15, earlier=None)
    assert retries.none()


# -- forgetting


def test_on_another_route_no_earlier_answer_counts() -> None:
    unanswered = Retries()
    unanswered.resend(19)
    unanswered.evidence.clear()
    assert unanswered.none()
    judged = convicted(15)
    judged.evidence.clear()
    assert judged.none()
    early = Retries()
    early.resend(15)
    early.refused(15)
    early.evidence.clear()
    early.resend(15, earlier=None)
    assert early.none()
    recognised = Retries()
    recognised.resend(19, 18)
    recognised.recognised(19, 18)
    recognised.evidence.clear()
    recognised.resend(15)
    recognised.refused(15)
    assert recognised.none()


# -- where a batch was sent


@pytest.mark.parametrize(
    ("attempts", "link"),
    [
        ([], None),
        ([attempt(3)], 3),
        ([attempt(3), attempt(3)], 3),
        ([attempt(3), attempt(4)], None),
        ([attempt(3, leader_id=2)], None),
        ([attempt(3, leader_epoch=1)], None),
    ],
)
def test_the_one_connection_to_the_present_leader_on_which_a_batch_was_sent(
    attempts: list[Attempt], link: int | None
) -> None:
    batch = sealed(7)
    for each in attempts:
        batch.send(each)
        batch.move(BatchEvent.RETRY)
    assert earlier_link(batch, (1, 0)) == link


def test_what_was_sent_under_an_earlier_identity_does_not_count() -> None:
    batch = sealed(7)
    batch.send(attempt(3))
    batch.move(BatchEvent.RETRY)
    batch.renumber(ProducerIdentity(7, 1), 0, b"again", 7)
    assert earlier_link(batch, (1, 0)) is None
