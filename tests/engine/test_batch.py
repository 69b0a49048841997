"""`Batch` alone: what it learns from an attempt, and what a new identity changes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from aioidem._engine.batch import Attempt, Batch, BatchEvent, BatchState, Evidence, Persistence
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.record import PendingRecord
from aioidem.errors import InternalError

FIRST, SECOND = ProducerIdentity(7, 0), ProducerIdentity(7, 1)


def sealed(base: int = 5, count: int = 2, identity: ProducerIdentity | None = FIRST) -> Batch:
    records = [PendingRecord(None, b"v", (), 0, None, 10) for _ in range(count)]
    return Batch(
        ordinal=3,
        records=records,
        data=b"data",
        identity=identity,
        base=base,
        deadline=90.0,
        max_timestamp_ms=0,
    )


def in_doubt(base: int = 5) -> Batch:
    batch = sealed(base)
    attempt(batch, Evidence.AMBIGUOUS, 10.0)
    return batch


def attempt(batch: Batch, evidence: Evidence, now: float) -> None:
    batch.send(cast("Attempt", object()))
    batch.learn(evidence, now)
    batch.move(BatchEvent.RETRY)


def forsaken() -> Batch:
    """Return a batch in doubt that got a second identity."""
    batch = in_doubt()
    batch.forsake()
    batch.renumber(SECOND, 0, b"again", 9)
    return batch


def test_a_new_batch() -> None:
    batch = sealed()
    assert (batch.state, batch.persistence) == (BatchState.SEALED, Persistence.NEVER_SENT)
    assert batch.due
    flags = (batch.in_doubt, batch.appended, batch.astray, batch.forsaken, batch.renamed)
    assert flags == (False,) * 5
    assert (batch.doubted_here, batch.absent_here, batch.oversized) == (False,) * 3
    assert (batch.doubted_at, batch.attempts, batch.draft) == (None, 0, None)


def test_doubt_begins_with_the_first_attempt_that_shows_nothing_and_keeps_its_time() -> None:
    batch = in_doubt()
    assert (batch.in_doubt, batch.doubted_here, batch.doubted_at) == (True, True, 10.0)
    attempt(batch, Evidence.AMBIGUOUS, 20.0)
    assert batch.doubted_at == 10.0
    refused = sealed()
    attempt(refused, Evidence.REFUSED, 10.0)
    assert (refused.in_doubt, refused.doubted_here, refused.doubted_at) == (False, False, None)


def test_a_second_identity_leaves_the_doubt_with_the_first_one() -> None:
    """Under it nothing was sent yet, so the batch is missing from its sequences."""
    batch = forsaken()
    assert (batch.identity, batch.base, batch.data, batch.ordinal) == (SECOND, 0, b"again", 9)
    assert (batch.in_doubt, batch.renamed, batch.doubted_here) == (True, True, False)
    assert batch.absent_here
    assert batch.forsaken
    assert batch.first_attempt is None
    assert batch.doubted_at == 10.0


@pytest.mark.parametrize(
    ("evidence", "absent", "forsaken_still"),
    [
        (Evidence.UNSENT, True, True),
        (Evidence.REFUSED, True, False),
        (Evidence.AMBIGUOUS, False, False),
    ],
)
def test_an_attempt_under_the_second_identity(
    evidence: Evidence, absent: bool, forsaken_still: bool
) -> None:
    """Unless nothing of it was written, the identity is kept, and doubted only if it may be."""
    batch = forsaken()
    attempt(batch, evidence, 30.0)
    assert batch.in_doubt
    assert batch.absent_here is absent
    assert batch.doubted_here is not absent
    assert batch.forsaken is forsaken_still
    attempt(batch, Evidence.REFUSED, 40.0)
    assert batch.absent_here is absent, "a refusal takes no doubt away"


def test_a_batch_that_was_never_in_doubt_gets_a_new_identity_without_a_trace() -> None:
    batch = sealed()
    attempt(batch, Evidence.REFUSED, 10.0)
    batch.renumber(SECOND, 0, b"again", 9)
    assert (batch.in_doubt, batch.renamed, batch.absent_here) == (False, False, False)
    attempt(batch, Evidence.AMBIGUOUS, 20.0)
    assert (batch.in_doubt, batch.absent_here) == (True, False)


def test_a_batch_in_doubt_that_was_not_forsaken_keeps_its_identity() -> None:
    batch = in_doubt()
    with pytest.raises(InternalError):
        batch.renumber(SECOND, 0, b"again", 9)
    assert batch.identity == FIRST


def test_being_renamed_is_not_forgotten_by_a_third_identity() -> None:
    batch = forsaken()
    attempt(batch, Evidence.AMBIGUOUS, 30.0)
    batch.forsake()
    batch.renumber(ProducerIdentity(7, 2), 0, b"third", 9)
    assert batch.renamed
    assert batch.absent_here


def test_sequences_wrap_around_on_the_wire() -> None:
    assert (sealed(base=2**31 - 1).wire_base, sealed(base=2**31 - 1).wire_last) == (2**31 - 1, 0)
    assert (sealed(base=2**31).wire_base, sealed(base=2**31).wire_last) == (0, 1)
    assert sealed(identity=None).wire_base == -1


def test_bytes_that_are_built_later_replace_the_draft() -> None:
    batch = sealed()
    batch.draft = cast("Any", object())
    batch.build(b"built", 0.25)
    assert (batch.data, batch.compression, batch.draft) == (b"built", 0.25, None)


def test_a_stored_batch_is_missing_nowhere() -> None:
    batch = forsaken()
    batch.send(cast("Attempt", object()))
    batch.learn(Evidence.PROVED, 30.0)
    assert (batch.in_doubt, batch.absent_here) == (False, False)


def test_the_first_attempt_is_kept_and_the_last_one_is_too() -> None:
    batch, first, second = sealed(), cast("Attempt", object()), cast("Attempt", object())
    assert (batch.first_attempt, batch.attempt) == (None, None)
    batch.send(first)
    batch.learn(Evidence.REFUSED, 10.0)
    batch.move(BatchEvent.RETRY)
    batch.send(second)
    assert (batch.first_attempt, batch.attempt, batch.attempts) == (first, second, 2)


def test_an_attempt_that_is_disbelieved_proves_nothing_below_it() -> None:
    end = (41, FIRST, 3)
    believed = Attempt(1, 5, 9, 3.0, knows_us=True, after=end)
    assert (believed.knows_us, believed.after) == (True, end)
    believed.disbelieve()
    assert (believed.knows_us, believed.after) == (False, end)


def test_what_is_noted_of_a_batch_stays() -> None:
    batch = in_doubt()
    batch.go_astray()
    batch.find_appended()
    batch.shift(2)
    assert (batch.astray, batch.appended, batch.ordinal) == (True, True, 5)
    refused = sealed()
    refused.send(cast("Attempt", object()))
    refused.refuse_size()
    assert (refused.oversized, refused.state) == (True, BatchState.WAITING)


def test_a_batch_that_was_never_in_doubt_is_renumbered_without_a_trace() -> None:
    batch = sealed()
    attempt(batch, Evidence.REFUSED, 10.0)
    batch.renumber(SECOND, 0, b"again", 9)
    assert batch.state is BatchState.SEALED
    assert (batch.identity, batch.base, batch.data, batch.ordinal) == (SECOND, 0, b"again", 9)
    assert (batch.renamed, batch.in_doubt, batch.absent_here) == (False, False, False)


def test_a_batch_that_was_renamed_stays_so() -> None:
    batch = forsaken()
    attempt(batch, Evidence.AMBIGUOUS, 20.0)
    assert (batch.renamed, batch.absent_here) == (True, False)
    assert not sealed().absent_here
    assert not in_doubt().absent_here
