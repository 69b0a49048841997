"""`Recovery` alone: which batch in doubt is probed or salvaged next, and what a rung forgets."""

from __future__ import annotations

from typing import cast

import pytest

from aioidem import errors
from aioidem._engine.batch import Attempt, Batch, BatchEvent, Evidence
from aioidem._engine.idempotence import SEQUENCE_MODULUS, ProducerIdentity
from aioidem._engine.record import PendingRecord
from aioidem._engine.recovery import Recovery, RecoveryEvent, Rung

TOO_LARGE = errors.MessageSizeTooLargeError("t-0: too large")


def batch(ordinal: int, *, base: int | None = None, doubtful: bool = True) -> Batch:
    """Return a batch of one record, which is in doubt and waits to be sent again."""
    made = Batch(
        ordinal=ordinal,
        records=[PendingRecord(None, b"v", (), 0, None, 10)],
        data=b"data",
        identity=ProducerIdentity(7, 0),
        base=ordinal if base is None else base,
        deadline=90.0,
        max_timestamp_ms=0,
    )
    send(made)
    made.learn(Evidence.AMBIGUOUS if doubtful else Evidence.REFUSED, 10.0)
    made.move(BatchEvent.RETRY)
    return made


def send(made: Batch) -> None:
    made.send(cast("Attempt", object()))


def probe(recovery: Recovery, unresolved: list[Batch], now: float = 0.0) -> Batch | None:
    """Send the next probe."""
    made = recovery.next_probe(unresolved, now)
    if made is not None:
        recovery.probed(made, now)
        send(made)
    return made


def refuse(made: Batch) -> None:
    """Let a probe come back without being appended."""
    made.learn(Evidence.REFUSED, 11.0)
    made.move(BatchEvent.RETRY)


def probing(hinted: Batch | None = None, *, searches: bool = False) -> Recovery:
    """Return a recovery that probes, by a hint of DescribeProducers if there is one."""
    recovery = Recovery()
    recovery.move(RecoveryEvent.HEAD_REFUSED)
    if hinted is None:
        recovery.move(RecoveryEvent.DOUBT_REMAINS)
    else:
        recovery.move(RecoveryEvent.ASK)
        recovery.ask()
        recovery.search(wanted=searches)
        recovery.hint(hinted)
    return recovery


def test_at_first_nothing_is_to_be_found_out() -> None:
    recovery = Recovery()
    assert (recovery.rung, recovery.passes, recovery.pass_not_before) == (Rung.CLEAR, 0, 0.0)
    assert (recovery.asked, recovery.searches, recovery.refusal) == (False, False, None)
    assert (recovery.salvaging, recovery.proof) == (False, "resend")
    assert recovery.next_salvage(oldest=False) is None
    assert recovery.end_pass(5.0, 1.0) is False
    assert recovery.pass_not_before == 6.0


def test_the_newest_batch_in_doubt_is_probed_first_and_each_once() -> None:
    recovery = probing()
    batches = [batch(1), batch(2), batch(3, doubtful=False), batch(4)]
    assert recovery.proof == "probe"
    asked = [probe(recovery, batches) for _ in range(4)]
    assert asked == [batches[3], batches[1], batches[0], None]


def test_a_probe_that_is_still_outstanding_from_before_is_left_alone() -> None:
    recovery = probing()
    batches = [batch(1), batch(2), batch(3)]
    send(batches[2])
    assert probe(recovery, batches) is batches[1]


def test_a_batch_at_sequence_0_is_probed_only_if_it_is_the_oldest() -> None:
    """Its success would prove nothing about those before the wrap."""
    recovery = probing()
    last, first, second = (batch(i, base=SEQUENCE_MODULUS - 2 + i) for i in (1, 2, 3))
    assert [each.wire_base for each in (last, first, second)] == [SEQUENCE_MODULUS - 1, 0, 1]
    batches = [last, first, second]
    assert [probe(recovery, batches) for _ in range(3)] == [second, last, first]
    recovery = probing()
    batches = [batch(i, base=SEQUENCE_MODULUS - 2 + i) for i in (2, 3)]
    assert [probe(recovery, batches) for _ in range(3)] == [batches[1], batches[0], None]


def test_two_passes_are_needed_and_the_second_waits() -> None:
    recovery = probing()
    batches = [batch(1), batch(2)]
    for made in (probe(recovery, batches, 5.0), probe(recovery, batches, 6.0)):
        assert made is not None
        refuse(made)
    assert recovery.end_pass(7.0, 10.0) is False
    assert recovery.pass_not_before == 15.0, "it counts from the first probe"
    assert probe(recovery, batches, 14.9) is None
    assert probe(recovery, batches, 15.0) is batches[1]
    refuse(batches[1])
    assert recovery.end_pass(40.0, 10.0) is True
    assert recovery.pass_not_before == 40.0
    assert recovery.passes == 2


def test_a_permanent_refusal_counts_for_one_pass() -> None:
    recovery = probing()
    batches = [batch(1), batch(2)]
    probe(recovery, batches)
    recovery.refused_for_good(TOO_LARGE)
    probe(recovery, batches)
    assert recovery.refusal is TOO_LARGE
    for made in batches:
        refuse(made)
    recovery.end_pass(0.0, 0.0)
    assert recovery.refusal is TOO_LARGE
    probe(recovery, batches, 1.0)
    assert recovery.refusal is None


def test_the_batch_of_the_hint_is_probed_first_and_alone() -> None:
    batches = [batch(1), batch(2), batch(3)]
    recovery = probing(batches[1])
    assert recovery.proof == "asked"
    assert probe(recovery, batches) is batches[1]
    assert probe(recovery, batches) is None, "its success would prove all earlier ones"
    refuse(batches[1])
    assert [probe(recovery, batches) for _ in range(2)] == [batches[2], batches[0]]


def test_the_batch_of_the_hint_is_waited_for_if_it_is_in_flight() -> None:
    batches = [batch(1), batch(2)]
    recovery = probing(batches[1])
    send(batches[1])
    assert probe(recovery, batches) is None


def test_if_it_is_asked_for_how_many_are_retained_older_batches_are_probed_as_well() -> None:
    batches = [batch(1), batch(2), batch(3), batch(4)]
    recovery = probing(batches[2], searches=True)
    assert recovery.searches
    assert [probe(recovery, batches) for _ in range(4)] == [
        batches[2],
        batches[1],
        batches[0],
        None,
    ]


def test_a_hint_that_is_settled_decides_nothing_more() -> None:
    batches = [batch(1), batch(2), batch(3)]
    recovery = probing(batches[1])
    batches[1].move(BatchEvent.ACK)
    assert probe(recovery, batches) is batches[2]


def used() -> Recovery:
    """Return a recovery that probes, and of which every detail is set."""
    batches = [batch(1), batch(2)]
    recovery = probing(batches[1], searches=True)
    recovery.end_pass(5.0, 10.0)
    probe(recovery, batches, 15.0)
    recovery.refused_for_good(TOO_LARGE)
    recovery.ask()
    return recovery


@pytest.mark.parametrize(
    "event", [RecoveryEvent.PROVED, RecoveryEvent.RESOLVED, RecoveryEvent.RESTART]
)
def test_another_rung_begins_anew(event: RecoveryEvent) -> None:
    recovery = used()
    recovery.move(event)
    assert (recovery.rung, recovery.passes, recovery.pass_not_before) == (Rung.CLEAR, 0, 0.0)
    assert (recovery.asked, recovery.searches, recovery.refusal) == (False, False, None)
    recovery.move(RecoveryEvent.HEAD_REFUSED)
    recovery.move(RecoveryEvent.DOUBT_REMAINS)
    assert recovery.proof == "probe"
    recovery.end_pass(20.0, 10.0)
    assert recovery.pass_not_before == 30.0, "no probe was sent"
    batches = [batch(1), batch(2), batch(3)]
    assert probe(recovery, batches, 30.0) is batches[2]


def test_what_was_probed_may_be_probed_again_on_another_rung() -> None:
    batches = [batch(1), batch(2)]
    recovery = probing()
    assert probe(recovery, batches) is batches[1]
    refuse(batches[1])
    recovery.move(RecoveryEvent.RESTART)
    recovery.move(RecoveryEvent.HEAD_REFUSED)
    recovery.move(RecoveryEvent.DOUBT_REMAINS)
    assert probe(recovery, batches) is batches[1]


def test_the_same_rung_forgets_nothing() -> None:
    recovery = Recovery()
    batches = [batch(1), batch(2)]
    recovery.salvage(batches)
    recovery.refused_for_good(TOO_LARGE)
    recovery.end_pass(5.0, 10.0)
    for event in (RecoveryEvent.RESTART, RecoveryEvent.PROVED):
        recovery.move(event)
        assert recovery.salvaged == batches
        assert (recovery.passes, recovery.refusal) == (1, TOO_LARGE)


def test_the_question_how_many_are_retained_goes_with_asking_and_probing() -> None:
    recovery = Recovery()
    recovery.move(RecoveryEvent.HEAD_REFUSED)
    recovery.search(wanted=True)
    recovery.move(RecoveryEvent.ASK)
    recovery.ask()
    assert (recovery.searches, recovery.asked) == (True, True)
    recovery.hint(None)
    assert recovery.searches
    recovery.salvage([])
    assert not recovery.searches


def test_batches_are_salvaged_newest_first_or_oldest_first_without_those_in_flight() -> None:
    recovery = Recovery()
    batches = [batch(2), batch(1), batch(4), batch(3)]
    recovery.salvage(batches[:2])
    recovery.salvage(batches[2:])
    assert recovery.rung is Rung.SALVAGE
    assert recovery.proof == "resend"
    assert recovery.next_salvage(oldest=False) is batches[2]
    assert recovery.next_salvage(oldest=True) is batches[1]
    send(batches[2])
    assert recovery.next_salvage(oldest=False) is batches[3]
    batches[1].move(BatchEvent.ACK)
    assert recovery.next_salvage(oldest=True) is batches[0]
    assert batches[1] not in recovery.salvaged
    for made in batches:
        assert recovery.salvaging is (not all(each.settled for each in batches))
        if not made.settled:
            made.move(BatchEvent.ACK)
    assert recovery.next_salvage(oldest=True) is None
    recovery.move(RecoveryEvent.RESOLVED)
    assert recovery.salvaged == []
