"""`PartitionState`: what it tells about its batches, and which batch may be sent when.

The tests of its answers are in test_partition_answers.py, and those of doubt in
test_partition_doubt.py. Here the partition stands alone (`partition_bench`): b1, b2 and so on are
the batches with sequences 1, 2 and so on.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from aioidem._engine.partition import SEQUENCE_CAP
from aioidem._engine.recovery import Rung
from aioidem._engine.route import Route
from aioidem._records import read_batches
from aioidem.errors import InternalError, KafkaError

from .driver import (
    INVALID_RECORD,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    T,
)
from .partition_bench import (
    EXPIRATION,
    FIRST,
    GRACE,
    HALF_MS,
    HOME,
    MOVED,
    PAUSE,
    RECONNECTED,
    SECOND,
    STAMP_MS,
    Bench,
)

# -- what a partition tells about itself


def test_a_partition_is_active_while_a_record_a_batch_or_an_answer_is_left() -> None:
    """A batch that has ended on its way leaves the partition active until it is answered."""
    bench = Bench()
    state = bench.state

    def active() -> bool:
        return state.active

    assert not active()
    bench.queue()
    assert active()
    state.queue.empty()
    assert not active()
    batch = bench.seal()
    assert active()
    bench.send(batch)
    assert active()
    state.endings.abandon(KafkaError("closed"), bench.told)
    assert state.batches.unresolved == []
    assert active()
    bench.ack(batch, 5)
    assert not active()


def test_a_new_partition_may_send_at_once() -> None:
    bench = Bench(idempotent=False)
    state = bench.state
    assert (state.batches.outstanding, state.batches.in_doubt, state.setbacks.retry_at) == (
        0,
        0,
        0.0,
    )
    batch = bench.seal()
    assert batch.ordinal == 0
    assert state.next_resend(0.0) is batch


def test_the_records_without_an_outcome_are_counted_and_the_oldest_is_known() -> None:
    bench = Bench()
    state = bench.state
    assert (state.unsettled, state.oldest) == (0, math.inf)
    bench.queue(5.0)
    bench.queue(6.0)
    assert (state.unsettled, state.oldest) == (2, 5.0)
    bench.seal([bench.record(1.0), bench.record(2.0), bench.record(3.0)])
    bench.seal([bench.record(4.0), bench.record(4.5)])
    assert (state.unsettled, state.oldest) == (7, 1.0)


def test_a_partition_waits_while_a_record_is_queued_or_a_batch_is_due() -> None:
    bench = Bench()
    state = bench.state
    assert not state.waits()
    bench.queue()
    assert state.waits()
    state.queue.empty()
    batch = bench.seal()
    assert state.waits()
    bench.send(batch)
    assert not state.waits()
    bench.lose(batch, written=False)
    assert state.waits()


def test_a_partition_is_untroubled_without_ladder_suspicion_and_stranger() -> None:
    """Each of the three alone is something to resolve."""
    assert Bench().state.untroubled()
    refused = Bench()
    refused.refuse(refused.send(), OUT_OF_ORDER)
    assert refused.rung() is Rung.REFUSED
    assert not refused.state.untroubled()
    suspect = Bench()
    suspect.seal()
    suspect.suspect()
    assert not suspect.state.untroubled()
    shared = Bench()
    shared.state.endings.disown(KafkaError("shared"), shared.told)
    assert not shared.state.untroubled()


def test_a_deadline_has_passed_when_it_is_reached_by_the_first_record_or_any_batch() -> None:
    bench = Bench()
    bench.queue(deadline=200.0)
    bench.queue(deadline=300.0)
    assert not bench.state.deadlines.past(199.9)
    assert bench.state.deadlines.past(200.0)
    bench = Bench()
    bench.seal(deadline=400.0)
    bench.seal(deadline=350.0)
    assert not bench.state.deadlines.past(349.9)
    assert bench.state.deadlines.past(350.0)


def test_doubt_is_as_old_as_the_first_lost_attempt_of_a_batch_in_doubt() -> None:
    """Batches in flight are not in doubt, and the oldest batch need not be so for longest."""
    bench = Bench()
    first, second, third, _ = bench.pipelined(4)
    since = [bench.state.batches.doubted_since]
    for batch, at in [(second, 101.0), (third, 102.0), (first, 103.0)]:
        bench.now = at
        bench.lose(batch)
        since.append(bench.state.batches.doubted_since)
    assert since == [None, 101.0, 101.0, 101.0]
    assert bench.state.batches.in_doubt == 3


def test_the_span_reaches_from_the_oldest_unresolved_to_the_newest_sent_batch() -> None:
    """The largest one is kept for statistics."""
    bench = Bench()
    assert bench.state.batches.span == 0
    first, second, _ = [bench.send() for _ in range(3)]
    assert bench.state.batches.span == 3
    bench.ack(first, 0)
    assert bench.state.batches.span == 2
    bench.ack(second, 1)
    bench.send()
    assert bench.state.batches.span == 2
    assert bench.state.window.max_span == 3


@pytest.mark.parametrize(
    ("options", "suspect"),
    [({}, True), ({"idempotent": False}, False), ({"transactional": True}, False)],
    ids=["idempotent", "not idempotent", "transactional"],
)
def test_only_an_idempotent_partition_without_transactions_asks_whether_it_was_forgotten(
    options: dict[str, Any], suspect: bool
) -> None:
    """Its records must be older than half of the expiration by more than nothing."""
    bench = Bench(**options)
    bench.seal()
    bench.state.assess_memory(STAMP_MS + HALF_MS, EXPIRATION)
    assert not bench.state.suspicion.suspect
    bench.state.assess_memory(STAMP_MS + HALF_MS + 1, EXPIRATION)
    assert bench.state.suspicion.suspect is suspect


# -- the first-ack gate


@pytest.mark.parametrize(
    ("idempotent", "gated", "opened"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, True)],
)
def test_a_gate_is_where_numbers_are_and_the_transaction_has_one(
    idempotent: bool, gated: bool, opened: bool
) -> None:
    bench = Bench(idempotent=idempotent)
    bench.state.begin_transaction(1, gated=gated)
    assert bench.state.leadership.gate_open is opened


def test_a_transaction_closes_the_gate_once() -> None:
    bench = Bench()
    bench.state.begin_transaction(1, gated=True)
    bench.ack(bench.send(), 0)
    bench.state.begin_transaction(1, gated=True)
    assert bench.state.leadership.gate_open
    bench.state.begin_transaction(2, gated=True)
    assert not bench.state.leadership.gate_open


# -- the route


def test_the_same_route_changes_nothing() -> None:
    bench = Bench()
    bench.pipelined(1, retained=20)
    assert bench.state.follow(HOME)
    assert bench.state.window.limit == 20
    assert bench.state.leadership.gate_open


def test_another_route_is_taken_when_nothing_is_outstanding() -> None:
    bench = Bench()
    (batch,) = bench.pipelined(1, retained=20)
    assert not bench.state.follow(RECONNECTED)
    assert bench.state.leadership.route == HOME
    bench.ack(batch, 1, retained=20)
    assert bench.state.follow(RECONNECTED)
    assert bench.state.leadership.route == RECONNECTED


@pytest.mark.parametrize("route", [RECONNECTED, MOVED], ids=["reconnected", "moved"])
def test_on_another_route_all_that_was_learned_on_the_old_one_is_forgotten(route: Route) -> None:
    """The back-off and the suspicion belong to a leader: only another leader changes them."""
    bench = Bench()
    state = bench.state
    first, second = bench.pipelined(2, retained=20)
    bench.suspect()
    bench.lose(second)
    bench.refuse(first, REQUEST_TIMED_OUT)
    bench.state.gate.question()
    assert state.lookup.begin() == 1
    retry_at = state.setbacks.retry_at
    assert retry_at == 101.0
    assert state.follow(route)
    assert (state.window.limit, state.window.heard, state.window.said) == (5, False, 20)
    assert not state.leadership.gate_open
    assert not state.gate.questioned
    assert state.read_back.offset is None
    assert state.setbacks.retry_at == (retry_at if route == RECONNECTED else 0.0)
    state.assess_memory(STAMP_MS, EXPIRATION)
    assert state.suspicion.suspect is (route == MOVED)


def test_another_route_ends_the_ladder() -> None:
    bench = Bench()
    first, second = bench.pipelined(2)
    bench.lose(second)
    bench.refuse(first, OUT_OF_ORDER)
    assert bench.rung() is Rung.REFUSED
    bench.state.follow(RECONNECTED)
    assert bench.rung() is Rung.CLEAR


# -- what is resent


def test_nothing_is_resent_before_its_back_off_is_over() -> None:
    bench = Bench()
    assert bench.state.next_resend(bench.now) is None
    batch = bench.send()
    bench.refuse(batch, NOT_ENOUGH_REPLICAS)
    assert bench.state.next_resend(100.9) is None
    assert bench.state.next_resend(101.0) is batch


def test_the_back_off_grows_once_for_what_fails_together() -> None:
    """A failure before the end of the back-off is part of the same failure, and one at its end not.

    A success sets it back.
    """
    bench = Bench()
    batch = bench.send()
    waits = []
    for now in (100.0, 100.5, 101.0, 102.9, 103.0):
        bench.now = now
        bench.refuse(batch, NOT_ENOUGH_REPLICAS)
        waits.append(bench.state.setbacks.retry_at)
        bench.send(batch)
    assert waits == [101.0, 101.0, 103.0, 103.0, 107.0]
    bench.ack(batch, 0)
    assert bench.state.setbacks.retry_at == 0.0
    bench.refuse(bench.send(), NOT_ENOUGH_REPLICAS)
    assert bench.state.setbacks.retry_at == 104.0


@pytest.mark.parametrize("idempotent", [True, False])
def test_without_a_gate_a_batch_is_resent_when_all_in_flight_are_before_it(
    idempotent: bool,
) -> None:
    """Otherwise the leader could append it behind one that was sent later."""
    bench = Bench(idempotent=idempotent)
    state = bench.state
    state.begin_transaction(1, gated=False)
    first, second, third = (bench.send() for _ in range(3))
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    bench.refuse(third, NOT_ENOUGH_REPLICAS)
    assert state.next_resend(200.0) is None
    bench.lose(second)
    assert state.next_resend(200.0) is first
    bench.send(first)
    assert state.next_resend(200.0) is second


def test_with_a_gate_one_batch_is_resent_until_it_is_acknowledged() -> None:
    bench = Bench()
    first, second, third = bench.doubt(3)
    assert bench.state.next_resend(200.0) is first
    bench.send(first)
    assert bench.state.next_resend(200.0) is None
    bench.ack(first, 1)
    bench.send(second)
    assert bench.state.next_resend(200.0) is third


@pytest.mark.parametrize(
    ("options", "resent"),
    [({}, 5), ({"idempotent": False}, 7), ({"sequence_cap": 100}, 1)],
    ids=["idempotent", "not idempotent", "range of sequences"],
)
def test_what_is_resent_together_fits_the_window(options: dict[str, Any], resent: int) -> None:
    """The window is that of the new connection. Without sequences there is none.

    With KIP-758 the gate stays: copies of all but the newest batch would be answered DUPLICATE.
    """
    bench = Bench(**options)
    state = bench.state
    state.begin_transaction(1, gated=False)
    bench.ack(bench.send(), 0, retained=20)
    batches = [bench.send() for _ in range(7)]
    bench.lose(*batches)
    state.follow(RECONNECTED)
    again = []
    while (batch := state.next_resend(200.0)) is not None:
        again.append(bench.send(batch))
    assert again == batches[:resent]


def test_what_will_be_renumbered_is_not_resent_before_and_what_is_in_doubt_is() -> None:
    """A batch in doubt keeps its numbers, and is resolved under them first."""
    bench = Bench()
    failed, refused, doubtful = bench.pipelined(3)
    bench.refuse(failed, INVALID_RECORD)
    bench.refuse(refused, NOT_ENOUGH_REPLICAS)
    assert bench.state.next_resend(200.0) is None
    bench.lose(doubtful)
    assert bench.state.next_resend(200.0) is doubtful
    bench.send(doubtful)
    bench.ack(doubtful, 3)
    assert bench.state.next_resend(200.0) is None


@pytest.mark.parametrize("resend", [False, True])
def test_a_suspect_partition_looks_into_the_doubt_before_it_resends_what_was_refused(
    resend: bool,
) -> None:
    """The batch in doubt may be stored, and the refused one would come after it.

    With in_doubt="resend" it resends both.
    """
    bench = Bench(resend=resend)
    first, second = bench.pipelined(2)
    bench.suspect()
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    assert bench.state.next_resend(200.0) is None, "the second one is in flight"
    bench.refuse(second, REQUEST_TIMED_OUT)
    assert bench.state.next_resend(200.0) is (first if resend else None)
    assert bench.state.lookup.wanted is not resend
    if resend:
        bench.send(first)
        bench.ack(first, 1)
        assert bench.state.next_resend(200.0) is second


def test_a_suspect_partition_resends_what_was_refused_if_nothing_is_in_doubt() -> None:
    bench = Bench()
    (only,) = bench.pipelined(1)
    bench.suspect()
    bench.refuse(only, NOT_ENOUGH_REPLICAS)
    assert bench.state.next_resend(200.0) is only


def test_while_the_log_is_read_nothing_is_resent() -> None:
    bench = Bench()
    (batch,) = bench.doubt(1)
    assert bench.state.next_resend(200.0) is batch
    assert bench.state.lookup.begin() == 1
    assert bench.state.next_resend(200.0) is None
    bench.state.lookup.end()
    assert bench.state.next_resend(200.0) is batch


def test_the_log_is_not_read_again_before_its_time() -> None:
    """Without a time, it may be read again at once."""
    bench = Bench()
    bench.doubt(1)
    bench.state.lookup.begin()
    bench.state.lookup.end(150.0)
    assert bench.state.read_back.offset is None
    assert bench.state.setbacks.retry_at == 150.0
    bench.state.lookup.begin()
    bench.state.lookup.end()
    assert bench.state.setbacks.retry_at == 150.0


# -- what is sent new


def test_a_new_batch_waits_for_the_renumbering() -> None:
    bench = Bench()
    assert bench.state.may_send_new()
    bench.state.endings.drop(bench.seal(), KafkaError("cannot be built"), bench.told)
    assert not bench.state.may_send_new()
    bench.state.adopt(SECOND)
    assert bench.state.may_send_new()


def test_without_a_gate_a_new_batch_waits_for_the_renumbering_too() -> None:
    bench = Bench()
    bench.state.begin_transaction(1, gated=False)
    first, _ = bench.send(), bench.send()
    assert bench.state.may_send_new()
    bench.refuse(first, INVALID_RECORD)
    assert bench.state.ledger.bump_wanted
    assert not bench.state.may_send_new()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_new_batch_waits_behind_one_that_is_to_be_resent(idempotent: bool) -> None:
    bench = Bench(idempotent=idempotent)
    bench.state.begin_transaction(1, gated=False)
    first, _ = bench.send(), bench.send()
    assert bench.state.may_send_new()
    bench.refuse(first, NOT_ENOUGH_REPLICAS)
    assert not bench.state.may_send_new()


def test_a_new_batch_waits_for_the_gate_and_for_room_in_the_window() -> None:
    bench = Bench()
    batch = bench.send()
    assert not bench.state.may_send_new()
    bench.ack(batch, 0, retained=3)
    for _ in range(3):
        assert bench.state.may_send_new()
        bench.send()
    assert not bench.state.may_send_new()


def test_a_range_of_sequences_counts_records_and_not_batches() -> None:
    """No batch has room for none, so one larger than the range may be sent alone (KIP-758)."""
    bench = Bench()
    state = bench.state
    assert state.sequence_room() == SEQUENCE_CAP
    state.window.limit_records(10)
    assert state.sequence_room() == 10
    bench.ack(bench.send(), 0)
    assert state.sequence_room() == 10
    for _ in range(9):
        bench.send()
    assert state.may_send_new()
    assert state.sequence_room() == 1
    last = bench.send()
    assert not state.may_send_new()
    assert state.sequence_room() == 1
    bench.lose(last, written=False)
    state.window.limit_records(None)
    assert state.sequence_room() == SEQUENCE_CAP


def test_unresolved_records_span_less_than_half_of_what_can_be_ordered() -> None:
    """One batch takes at most the other half (2^29 records), so all stay within 2^30."""
    assert SEQUENCE_CAP == 2**30
    bench = Bench()
    bench.ack(bench.send(), 0)
    batch = bench.send()
    bench.state.ledger.next = batch.base + SEQUENCE_CAP // 2 - 1
    assert bench.state.may_send_new()
    bench.state.ledger.next += 1
    assert not bench.state.may_send_new()


def test_a_batch_may_outgrow_its_size_if_it_was_held_back_or_the_queue_is_long() -> None:
    bench = Bench()
    queue = bench.state.queue
    queue.bytes = 500
    assert not bench.state.may_outgrow(100)
    queue.bytes = 501
    assert bench.state.may_outgrow(100)
    queue.bytes = 1
    queue.hold_back()
    assert bench.state.may_outgrow(100)


# -- a new identity


def test_an_identity_is_adopted_once() -> None:
    bench = Bench()
    bench.ack(bench.send(), 0)
    bench.state.adopt(FIRST)
    assert bench.state.ledger.next == 1
    assert bench.state.leadership.gate_open


def test_an_identity_is_not_adopted_while_a_batch_is_outstanding_or_in_doubt() -> None:
    bench = Bench()
    batch = bench.send()
    bench.state.adopt(SECOND)
    assert bench.state.ledger.identity == FIRST
    bench.lose(batch)
    bench.state.adopt(SECOND)
    assert bench.state.ledger.identity == FIRST
    bench.send(batch)
    bench.ack(batch, 0)
    bench.state.adopt(SECOND)
    assert bench.state.ledger.identity == SECOND


def test_under_a_new_identity_everything_begins_anew() -> None:
    """What waits is renumbered from 0, and what was known about the old identity is forgotten.

    A part of a divided batch has no bytes yet, and gets none.
    """
    bench = Bench()
    state = bench.state
    stopped, second, third = bench.pipelined(3)
    assert state.log.ordinal == 0
    bench.refuse(stopped, INVALID_RECORD)
    bench.refuse(second, NOT_ENOUGH_REPLICAS)
    bench.refuse(third, OUT_OF_ORDER)
    part = bench.seal(2)
    part.build(b"")
    bench.suspect()
    state.gate.question()
    state.endings.disown(KafkaError("shared"), bench.told)
    state.adopt(SECOND)
    assert state.ledger.identity == SECOND
    assert not state.ledger.bump_wanted
    assert state.ledger.disowned is None
    assert not state.suspicion.suspect
    assert not state.gate.questioned
    assert not state.leadership.gate_open
    assert state.log.ordinal == -1
    assert state.log.offset == 0
    assert [(b.identity, b.base, b.ordinal) for b in state.batches.unresolved] == [
        (SECOND, 0, 0),
        (SECOND, 1, 1),
        (SECOND, 2, 2),
    ]
    assert (state.ledger.next, state.batches.next_ordinal) == (4, 3)
    for batch in (second, third):
        (read,) = read_batches(batch.data)
        assert (read.producer_id, read.producer_epoch) == SECOND
        assert read.base_sequence == batch.base
    assert part.data == b""
    bench.told.take()
    part.build(bench.data(2, 2, SECOND))
    for offset, batch in enumerate((second, third, part), start=1):
        bench.ack(bench.send(batch), offset)
    assert bench.told.take() == [], "the refused record is no gap in the new epoch"


@pytest.mark.parametrize("rung", [Rung.REFUSED, Rung.SALVAGE])
def test_a_new_identity_ends_the_ladder(rung: Rung) -> None:
    bench = Bench()
    if rung is Rung.REFUSED:
        bench.refuse(bench.send(), OUT_OF_ORDER)
    else:
        bench.state.recovery.salvage([])
    assert bench.rung() is rung
    bench.state.adopt(SECOND)
    assert bench.rung() is Rung.CLEAR


# -- attempts


def test_nothing_is_sent_without_a_route() -> None:
    bench = Bench()
    batch = bench.seal()
    bench.state.leadership.route = None
    with pytest.raises(InternalError, match="without a route"):
        bench.send(batch)


def test_an_attempt_keeps_where_it_went_and_what_was_stored_before() -> None:
    """A retry names the connection of all attempts before it, if that was one and is still the one.

    More exactly: if they all went over it to the present leader.
    """
    bench = Bench()
    (batch,) = bench.pipelined(1)
    first = batch.attempt
    assert first is not None
    assert (first.link_id, first.leader_id, first.leader_epoch, first.sent_at) == (1, 1, 0, 100.0)
    assert first.after == (0, FIRST, 0)
    assert first.earlier_link is None
    bench.lose(batch)
    assert bench.state.batches.outstanding == 0
    bench.state.follow(RECONNECTED)
    bench.now = 105.0
    bench.send(batch)
    second = batch.attempt
    assert second is not None
    assert (second.link_id, second.sent_at, second.earlier_link) == (2, 105.0, 1)
    assert bench.state.batches.outstanding == 1
    bench.lose(batch)
    bench.state.follow(MOVED)
    bench.send(batch)
    assert batch.attempt is not None
    assert batch.attempt.earlier_link is None


def knows(bench: Bench) -> bool:
    """Send a batch, and return whether its success would prove earlier ones."""
    attempt = bench.send().attempt
    assert attempt is not None
    return attempt.knows_us


def test_a_success_proves_what_is_before_it_if_the_leader_was_heard_when_it_was_sent() -> None:
    bench = Bench()
    assert not knows(bench)
    bench.ack(bench.state.batches.unresolved[0], 0)
    assert knows(bench)
    bench.suspect()
    assert not knows(bench), "the leader may have forgotten the producer since"
    plain = Bench(idempotent=False)
    plain.ack(plain.send(), 0)
    assert not knows(plain), "without sequences it proves nothing"


@pytest.mark.parametrize("questioned", [False, True])
def test_a_probe_proves_what_is_before_it_unless_an_unknown_code_came_since(
    questioned: bool,
) -> None:
    """The leader has answered OUT_OF_ORDER, so it holds the producer's state."""
    bench = Bench()
    first, second = bench.doubt(2)
    bench.send(first)
    assert first.attempt is not None
    assert not first.attempt.knows_us
    bench.refuse(first, OUT_OF_ORDER)
    bench.advance()
    assert bench.rung() is Rung.PROBING
    if questioned:
        bench.state.gate.question()
    bench.send(second)
    assert second.attempt is not None
    assert second.attempt.knows_us is not questioned


@pytest.mark.parametrize(
    ("suspect", "outstanding", "wait", "opened"),
    [
        (True, False, 1.5, False),
        (True, False, 1.0, True),
        (True, True, 1.5, True),
        (False, False, 1.5, True),
    ],
)
def test_the_gate_of_a_suspect_partition_closes_if_nothing_came_for_a_second(
    suspect: bool, outstanding: bool, wait: float, opened: bool
) -> None:
    bench = Bench()
    bench.ack(bench.send(), 0)
    if outstanding:
        bench.send()
    if suspect:
        bench.suspect()
    bench.now += wait
    bench.send()
    assert bench.state.leadership.gate_open is opened


# -- when a partition is to be looked at


def test_a_partition_wakes_for_its_first_record_and_its_next_deadline() -> None:
    """A linger time that is over has had its effect."""
    bench = Bench()
    state = bench.state

    def wake(now: float, linger: float = 0.0) -> float:
        return state.deadlines.next_wake(now, GRACE, linger)

    assert wake(100.0) == math.inf
    bench.queue(100.0, deadline=150.0)
    bench.queue(101.0, deadline=170.0)
    assert wake(100.0) == 150.0
    assert wake(100.0, 5.0) == 105.0
    assert wake(105.0, 5.0) == 150.0
    assert wake(100.0, 60.0) == 150.0
    assert wake(150.0) == 180.0
    assert wake(149.0) == 150.0
    bench.seal(deadline=140.0)
    bench.seal(deadline=145.0)
    assert wake(100.0) == 140.0
    assert wake(140.0) == 145.0, "the first one may have its grace time, which ends at 170"
    assert wake(146.0) == 150.0


def test_a_partition_wakes_for_its_back_off_and_for_its_next_pass_of_probes() -> None:
    bench = Bench()
    state = bench.state
    first, second = bench.doubt(2)

    def wake(now: float) -> float:
        return state.deadlines.next_wake(now, GRACE, 0.0)

    assert (wake(100.0), wake(101.0)) == (101.0, 1000.0)
    bench.now = 101.0
    bench.send(first)
    bench.refuse(first, OUT_OF_ORDER)
    bench.advance()
    for batch in (second, first):
        assert state.next_resend(bench.now) is batch
        bench.send(batch)
    for batch in (second, first):
        bench.refuse(batch, OUT_OF_ORDER)
    bench.advance()
    again = 101.0 + PAUSE
    assert (wake(101.0), wake(again - 0.1), wake(again)) == (again, again, 1000.0)
    assert state.next_resend(again - 0.1) is None
    assert state.next_resend(again) is second


def test_where_tells_topic_and_partition() -> None:
    assert Bench().state.where == f"{T}-0"
