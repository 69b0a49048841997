"""`Suspicion` alone: which timestamp counts, and how long a suspicion lasts."""

from __future__ import annotations

import pytest

from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.record import PendingRecord
from aioidem._engine.suspicion import Suspicion

NONE_NAMED = -1
"""What an answer has instead of a log append time on a topic with CreateTime."""
EXPIRATION = 100.0
HALF_MS = 50_000


def batch(stamp_ms: int) -> Batch:
    return Batch(
        ordinal=0,
        records=[PendingRecord(None, b"v", (), stamp_ms, None, 10)],
        data=b"data",
        identity=ProducerIdentity(7, 0),
        base=0,
        deadline=90.0,
        max_timestamp_ms=stamp_ms,
    )


def suspected_from(of: Suspicion, *unresolved: int) -> int:
    """Return the stamp from which the expiration is counted, in milliseconds."""
    batches = [batch(stamp) for stamp in unresolved]
    stamp: int
    for stamp in sorted({*unresolved, *range(0, 5000, 500)}):
        due = stamp + HALF_MS
        if not of.assess(due, EXPIRATION, batches) and of.assess(due + 1, EXPIRATION, batches):
            return stamp
    raise AssertionError("it is suspect at no time, or always")


def test_a_partition_without_batches_is_not_suspect() -> None:
    of = Suspicion()
    assert not of.suspect
    assert not of.assess(10**15, EXPIRATION, [])


@pytest.mark.parametrize(
    ("appended_ms", "counts"), [(NONE_NAMED, 1000), (1000, 1000), (0, 0), (500, 500), (2000, 2000)]
)
def test_the_time_of_the_acknowledged_batch_counts_or_when_it_was_appended(
    appended_ms: int, counts: int
) -> None:
    of = Suspicion()
    of.acked(1000, appended_ms)
    assert suspected_from(of) == counts


def test_it_says_after_which_time_of_day_it_suspects() -> None:
    of = Suspicion()
    of.assess(0, EXPIRATION, [])
    told = [of.due_ms]
    of.acked(1000, NONE_NAMED)
    of.assess(2000, EXPIRATION, [batch(700)])
    told.append(of.due_ms)
    assert told == [None, 700 + HALF_MS]
    assert not of.suspect


def test_the_last_acknowledgement_counts() -> None:
    of = Suspicion()
    of.acked(1000, 500)
    of.acked(2000, NONE_NAMED)
    assert suspected_from(of) == 2000
    assert suspected_from(of, 1500, 2500) == 1500, "the topic has no log append times any more"


def test_the_oldest_stamp_of_an_unresolved_batch_counts_if_it_is_older() -> None:
    of = Suspicion()
    assert suspected_from(of, 2000, 1500, 3000) == 1500
    of.acked(1000, NONE_NAMED)
    assert suspected_from(of, 2000) == 1000
    assert suspected_from(of, 2000, 500) == 500


def test_where_the_log_sets_the_time_the_records_time_does_not_count() -> None:
    of = Suspicion()
    of.acked(0, 1500)
    assert suspected_from(of, 500) == 1500
    of.renewed()
    assert suspected_from(of, 500) == 1500, "a fact about the log outlasts an identity"


def test_the_time_of_a_stored_duplicate_is_no_append_time() -> None:
    of = Suspicion()
    of.acked(1000, 1000)
    assert suspected_from(of, 500) == 500


def test_a_new_identity_ends_the_suspicion_and_what_it_was_about() -> None:
    of = Suspicion()
    of.acked(1000, NONE_NAMED)
    assert of.assess(10**9, EXPIRATION, [])
    of.leader_changed()
    of.renewed()
    assert not of.suspect
    assert not of.assess(10**9, EXPIRATION, [])


def test_a_suspicion_lasts_over_changes_of_the_leader_until_the_new_one_acknowledges() -> None:
    of = Suspicion()
    of.acked(1000, NONE_NAMED)
    of.assess(10**9, EXPIRATION, [])
    of.leader_changed()
    assert of.assess(0, EXPIRATION, []), "even if the clock is put back"
    of.suspect = False
    of.leader_changed()
    assert of.assess(0, EXPIRATION, [])
    of.acked(1000, NONE_NAMED)
    assert not of.assess(0, EXPIRATION, [])


def test_a_change_of_the_leader_alone_makes_nothing_suspect() -> None:
    of = Suspicion()
    of.acked(1000, NONE_NAMED)
    of.leader_changed()
    assert not of.assess(1000, EXPIRATION, [])


def test_a_batch_that_was_found_in_the_log_counts_until_the_next_acknowledgement() -> None:
    """It may be the last one in the log, from which the leader counts; or an earlier one is."""
    of = Suspicion()
    of.found(1000)
    assert suspected_from(of) == 1000
    of.found(2000)
    assert suspected_from(of) == 1000
    of.acked(3000, NONE_NAMED)
    of.found(1500)
    assert suspected_from(of) == 1500
    of.acked(3000, NONE_NAMED)
    assert suspected_from(of) == 3000


def test_a_batch_that_was_found_was_appended_after_the_acknowledged_ones() -> None:
    """On a topic with log append times its own timestamp does not count."""
    of = Suspicion()
    of.acked(0, 1500)
    of.found(500)
    assert suspected_from(of) == 1500
    assert suspected_from(of, 500) == 1500


def test_the_oldest_batch_that_ended_unknown_counts_until_the_identity_changes() -> None:
    of = Suspicion()
    of.acked(3000, NONE_NAMED)
    of.given_up(1500)
    of.given_up(2000)
    of.acked(3000, NONE_NAMED)
    assert suspected_from(of) == 1500
    assert suspected_from(of, 1000) == 1000
    of.acked(0, 2500)
    assert suspected_from(of) == 2500, "it was appended after the acknowledged one, if it was"
    of.renewed()
    of.acked(3000, NONE_NAMED)
    assert suspected_from(of) == 3000


def test_a_batch_that_ended_unknown_is_alone_enough() -> None:
    of = Suspicion()
    of.given_up(1000)
    assert suspected_from(of) == 1000


# -- the batch that may be resent all the same

OLD_MS, YOUNG_MS, NOW_MS = 0, 60_000, 100_000
"""Records of these times are beyond half of the expiration, and within it, at the third."""


def sent(stamp_ms: int = YOUNG_MS, sent_ms: float | None = YOUNG_MS) -> Batch:
    """Return a batch that was sent once, at a time of day."""
    made = batch(stamp_ms)
    made.send(Attempt(1, 0, 0, 5.0, knows_us=False, sent_ms=sent_ms))
    return made


def suspected() -> Suspicion:
    """Return the suspicion of a partition whose last acknowledged batch is old."""
    of = Suspicion()
    of.acked(OLD_MS, NONE_NAMED)
    assert of.assess(NOW_MS, EXPIRATION, [sent()])
    return of


def test_the_only_batch_is_exempt_until_its_own_records_are_old() -> None:
    of = suspected()
    assert of.forbids_resend
    of.exempt_alone(sent(), YOUNG_MS + HALF_MS, EXPIRATION)
    assert (of.exempt, of.forbids_resend, of.suspect) == (True, False, True)
    assert of.due_ms == YOUNG_MS + HALF_MS
    of.exempt_alone(sent(), YOUNG_MS + HALF_MS + 1, EXPIRATION)
    assert (of.exempt, of.forbids_resend) == (False, True)


@pytest.mark.parametrize("alone", [None, batch(YOUNG_MS), sent(sent_ms=None)])
def test_nothing_is_exempt_without_a_batch_that_was_sent_at_a_known_time(
    alone: Batch | None,
) -> None:
    of = suspected()
    of.exempt_alone(sent(), NOW_MS, EXPIRATION)
    of.exempt_alone(alone, NOW_MS, EXPIRATION)
    assert of.forbids_resend


def test_nothing_is_exempt_after_a_refusal_until_the_next_acknowledgement() -> None:
    of = suspected()
    of.exempt_alone(sent(), NOW_MS, EXPIRATION)
    of.refused()
    assert of.forbids_resend
    of.exempt_alone(sent(), NOW_MS, EXPIRATION)
    assert of.forbids_resend
    of.acked(OLD_MS, NONE_NAMED)
    of.exempt_alone(sent(), NOW_MS, EXPIRATION)
    assert of.exempt


def test_a_new_identity_forgets_a_refusal() -> None:
    of = suspected()
    of.refused()
    of.renewed()
    of.exempt_alone(sent(), NOW_MS, EXPIRATION)
    assert of.exempt


def test_nothing_is_exempt_under_another_leader_or_after_a_batch_that_ended_unknown() -> None:
    moved, unknown = suspected(), suspected()
    moved.exempt_alone(sent(), NOW_MS, EXPIRATION)
    moved.leader_changed()
    assert moved.forbids_resend, "at once, before the next look"
    unknown.given_up(YOUNG_MS)
    for of in (moved, unknown):
        of.exempt_alone(sent(), NOW_MS, EXPIRATION)
        assert of.forbids_resend


def test_records_from_the_future_are_as_old_as_their_first_attempt() -> None:
    """The leader may stamp them when they come, whatever they say."""
    of = suspected()
    future = sent(10**12, YOUNG_MS)
    of.exempt_alone(future, YOUNG_MS + HALF_MS, EXPIRATION)
    assert of.exempt
    of.exempt_alone(future, YOUNG_MS + HALF_MS + 1, EXPIRATION)
    assert not of.exempt


def test_it_remembers_the_time_of_day_at_which_it_looked() -> None:
    of = Suspicion()
    assert of.now_ms is None
    of.assess(2000, EXPIRATION, [])
    assert of.now_ms == 2000
