"""Batches in doubt (perhaps stored, perhaps not): how they arise, and how they are resolved.

The steps that resolve them are called the ladder. The first step resends the oldest batch. If that
is refused, the next step, probing, resends all of them, newest first. In the tests b1, b2 and so on
are the batches with sequences 1, 2 and so on.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine.recovery import Rung

from .driver import (
    ACKED,
    CORRUPT_MESSAGE,
    DUPLICATE,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    KAFKA_STORAGE_ERROR,
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    UNKNOWN,
    UNKNOWN_PRODUCER_ID,
    Request,
    Rig,
    pipelined,
    wait_until,
)

AMBIGUOUS = [REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR, -1, 12345]


def doubted(count: int = 5, **options: object) -> Rig:
    """Make a rig with `count` batches in doubt after a lost connection; b1 is resent alone."""
    rig, _ = pipelined(count, **options)
    rig.lose()
    rig.tick(2.0)
    assert rig.state().batches.in_doubt == count
    assert rig.sequences == [1]
    return rig


def probing(count: int = 5, **options: object) -> tuple[Rig, list[Request]]:
    """Make a rig like that of `doubted`, in which probes are in flight, newest batch first.

    The oldest batch was resent and answered OUT_OF_ORDER.
    """
    rig = doubted(count, **options)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.state().recovery.rung is Rung.PROBING
    return rig, rig.outstanding()


def test_after_a_lost_connection_the_oldest_is_resent_alone_with_the_same_bytes() -> None:
    """After a lost connection the oldest batch is resent first, alone (librdkafka #4736).

    The rig compares its bytes with those of the first attempt.
    """
    rig = doubted()
    assert len(rig.outstanding()) == 1
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [2, 3, 4, 5]
    rig.ack_all()
    rig.assert_drained()
    assert rig.statuses == [ACKED] * 6
    assert rig.core.counters.batches_retried == 5


def test_a_resent_batch_keeps_its_own_original_offset() -> None:
    """A resent batch gets the offset in the answer, which is the offset of its first copy."""
    rig, requests = pipelined(2)
    first, second = requests
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, NOT_LEADER)
    rig.tick(1.0)
    rig.ack(rig.outstanding()[0], 77)
    assert rig.outcomes[1].offset == 77


@pytest.mark.parametrize("code", AMBIGUOUS)
def test_an_ambiguous_code_puts_the_batch_in_doubt(code: int) -> None:
    """A code that may come after the append puts the batch in doubt."""
    rig, (only,) = pipelined(1)
    rig.fail(only, code)
    assert rig.state().batches.in_doubt == 1


@pytest.mark.parametrize(
    "code", [NOT_LEADER, ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id]
)
def test_a_two_faced_code_with_a_base_offset_is_in_doubt_and_without_one_is_not(code: int) -> None:
    """NOT_LEADER and the codes for unknown topics leave doubt only if they have a base offset.

    A base offset shows that the leader appended the batch before it answered.
    """
    rig, (only,) = pipelined(1)
    rig.fail(only, code, 10)
    assert rig.state().batches.in_doubt == 1
    rig, (only,) = pipelined(1)
    rig.fail(only, code, -1)
    assert rig.state().batches.in_doubt == 0


def test_brokers_that_are_not_kafka_get_no_trust_in_their_base_offset() -> None:
    """With `trust_base_offset=False` NOT_LEADER leaves doubt without a base offset too."""
    rig, (only,) = pipelined(1, trust_base_offset=False)
    rig.fail(only, NOT_LEADER, -1)
    assert rig.state().batches.in_doubt == 1


@pytest.mark.parametrize(
    "refusal", [NOT_LEADER, NOT_ENOUGH_REPLICAS, CORRUPT_MESSAGE, OUT_OF_ORDER, MESSAGE_TOO_LARGE]
)
def test_no_later_refusal_clears_doubt(refusal: int) -> None:
    """No refusal takes a batch out of doubt (franz-go #1217)."""
    rig, (only,) = pipelined(1)
    rig.fail(only, REQUEST_TIMED_OUT)
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], refusal)
    state = rig.state()
    assert state.batches.in_doubt == 1
    rig.tick(200.0)
    assert rig.outcomes[1].status is UNKNOWN


def test_a_success_proves_every_doubtful_batch_below_it_through_the_open_gate() -> None:
    """Error NONE for a batch acknowledges all batches below it too (KAFKA-9199).

    The first-ack gate must have been open when the batch was sent: the leader had acknowledged an
    earlier batch on the same connection, so it knew the producer. The offsets of the batches below
    are unknown: each record has -1, and not -1 + i (fluss-rust #448).
    """
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, NOT_ENOUGH_REPLICAS_AFTER_APPEND, poll=False)
    rig.ack(third, 30)
    assert [o.status for o in rig.outcomes[1:]] == [ACKED] * 3
    assert [o.offset for o in rig.outcomes[1:]] == [-1, -1, 30]
    rig.assert_drained()
    assert rig.core.counters.data_loss_events == 0


def test_while_the_gate_is_closed_nothing_is_sent_above_a_batch_in_doubt() -> None:
    """While the first-ack gate is closed, only the oldest batch is sent.

    Error NONE for a later batch would prove nothing about the oldest one: a leader without the
    producer's state accepts any first sequence.
    """
    rig = Rig().start()
    rig.send(3)
    (first,) = rig.outstanding()
    rig.fail(first, REQUEST_TIMED_OUT)
    assert rig.state().batches.in_doubt == 1
    rig.tick(0.01)
    assert rig.outstanding() == []
    rig.tick(1.0)
    rig.send(3)
    assert rig.sequences == [0]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [1, 2, 3, 4, 5]
    rig.ack_all()
    rig.assert_drained()


def test_a_success_above_a_rejected_batch_is_data_loss_and_a_bump() -> None:
    """A batch that was refused is NOT_WRITTEN once a later one is acknowledged (KAFKA-15591).

    A leader that has the producer's state accepts no batch after a gap. So this acknowledgement
    shows that the leader lost the state: it counts as data loss, and bumps the epoch once.
    """
    rig, (first, second) = pipelined(2)
    rig.fail(first, NOT_LEADER, -1, poll=False)
    rig.ack(second, 9)
    assert rig.outcomes[1].status is NOT_WRITTEN
    assert rig.outcomes[2].status is ACKED
    assert rig.core.counters.data_loss_events == 1
    rig.send()
    assert (rig.outstanding()[0].epoch, rig.outstanding()[0].sequence) == (1, 0)
    rig.ack_all()
    rig.assert_drained()


def test_a_success_above_a_rejected_batch_proves_no_doubtful_one_below() -> None:
    """A success above a rejected batch does not prove that batches below that one are stored.

    Without a rejected batch between them it would prove that. Those in doubt are resent.
    """
    rig, (first, second, third, fourth) = pipelined(4)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, KAFKA_STORAGE_ERROR, poll=False)
    rig.fail(third, NOT_LEADER, -1, poll=False)
    rig.ack(fourth, 9)
    assert [o.status for o in rig.outcomes[1:]] == [PENDING, PENDING, NOT_WRITTEN, ACKED]
    rig.tick(2.0)
    assert rig.sequences == [2]
    rig.ack(rig.outstanding()[0], 7)
    assert rig.outcomes[1].status is PENDING
    assert rig.sequences == [1]
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.outcomes[1].status is UNKNOWN
    assert rig.outcomes[2].status is ACKED
    rig.send()
    assert rig.outstanding()[0].epoch == 1
    rig.ack_all()
    rig.assert_drained()


def test_a_success_above_numbers_that_a_failed_batch_had_is_data_loss_too() -> None:
    """Error NONE above a batch that failed for good is data loss, and proves no batch below.

    b1 is answered UNKNOWN_SERVER_ERROR (in doubt), and b2 is refused for good. The leader loses the
    producer's state and accepts b3, which proves nothing about b1: the leader accepted b3 although
    it lacks b2's sequence.
    """
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, ErrorCode.unknown_server_error, poll=False)
    rig.fail(second, INVALID_RECORD, poll=False)
    rig.ack(third, 9)
    assert rig.outcomes[2].status is NOT_WRITTEN
    assert rig.outcomes[1].status is PENDING
    assert rig.core.counters.data_loss_events == 1
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.outcomes[1].status is UNKNOWN


# -- probing


def test_out_of_order_on_the_oldest_makes_the_rest_be_asked_newest_first() -> None:
    """OUT_OF_ORDER for the oldest batch starts probes (resends) of all batches, newest first.

    A broker that was restarted remembers only the newest batch of a producer.
    """
    _, probes = probing()
    assert [probe.sequence for probe in probes] == [5, 4, 3, 2, 1]


def test_the_first_probe_that_succeeds_proves_all_below_and_the_rest_goes_in_order() -> None:
    """The first probe that succeeds proves all batches below it; those above are resent in order.

    Here b5 and b4 are refused and b3 is stored; then b4 and b5 are appended.
    """
    rig, probes = probing()
    fifth, fourth, third, second, first = probes
    assert [probe.sequence for probe in probes] == [5, 4, 3, 2, 1]
    rig.fail(fifth, OUT_OF_ORDER, poll=False)
    rig.fail(fourth, OUT_OF_ORDER, poll=False)
    rig.ack(third, 30, poll=False)
    assert [o.status for o in rig.outcomes[1:]] == [ACKED, ACKED, ACKED, PENDING, PENDING]
    assert [o.offset for o in rig.outcomes[1:4]] == [-1, -1, 30]
    rig.fail(second, OUT_OF_ORDER, poll=False)
    rig.fail(first, OUT_OF_ORDER)
    assert rig.sequences == [4, 5]
    rig.ack_all()
    rig.assert_drained()
    assert rig.statuses == [ACKED] * 6
    assert rig.core.epoch_bumps == 0
    assert rig.core.counters.data_loss_events == 0


def test_probes_are_not_bound_by_the_span() -> None:
    """The window does not bind probes: twenty batches in doubt are probed at a window of five."""
    rig = doubted(20, version=14, max_in_flight_requests_per_connection=20)
    assert rig.state().window.limit == 5
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.sequences == list(range(20, 0, -1))
    rig.ack(rig.outstanding()[0], 500)
    assert [o.status for o in rig.outcomes] == [ACKED] * 21


def test_twenty_in_doubt_at_limit_five_all_resolve() -> None:
    """Twenty batches in doubt are resent five at a time at a window of five, until all resolve."""
    rig = doubted(20, version=14, max_in_flight_requests_per_connection=20)
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [2, 3, 4, 5, 6]
    rig.ack_all()
    rig.assert_drained()
    assert rig.statuses == [ACKED] * 21


def test_two_full_passes_of_refused_probes_end_in_unknown_and_one_bump() -> None:
    """Two passes of refused probes, a request timeout apart, end in UNKNOWN and one epoch bump."""
    rig, probes = probing(3, request_timeout=10.0)
    began = rig.now
    for probe in probes:
        rig.fail(probe, OUT_OF_ORDER)
    assert rig.outstanding() == []
    assert [o.status for o in rig.outcomes[1:]] == [PENDING] * 3
    rig.tick(9.9)
    assert rig.outstanding() == []
    wait_until(rig, lambda: bool(rig.outstanding()))
    assert rig.now >= began + 10.0
    assert rig.sequences == [3, 2, 1]
    for probe in rig.outstanding():
        rig.fail(probe, OUT_OF_ORDER)
    assert [o.status for o in rig.outcomes[1:]] == [UNKNOWN] * 3
    assert rig.core.counters.data_loss_events == 1
    assert rig.core.epoch_bumps == 1
    rig.send()
    rig.tick(1.0)
    assert rig.outstanding()[0].epoch == 1
    rig.ack_all()
    rig.assert_drained()


def test_a_copy_that_jumps_over_the_first_pass_is_found_by_the_second() -> None:
    """A batch that the first pass of probes missed is acknowledged by the second pass.

    Between two probes the broker may append an earlier copy of the batch, from a closed connection.
    So one pass in which all probes were refused proves nothing.
    """
    rig, probes = probing(3, request_timeout=10.0)
    for probe in probes:
        rig.fail(probe, OUT_OF_ORDER)
    wait_until(rig, lambda: bool(rig.outstanding()))
    third, second, first = rig.outstanding()
    rig.ack(third, 12, poll=False)
    rig.fail(second, OUT_OF_ORDER, poll=False)
    rig.fail(first, OUT_OF_ORDER)
    assert rig.statuses == [ACKED] * 4


@pytest.mark.parametrize("when", ["first pass", "second pass"])
def test_a_probe_lost_with_its_connection_was_not_refused(when: str) -> None:
    """A probe lost with its connection counts as no refusal, and the oldest batch is resent first.

    A probe is a resend of one batch in doubt. What the probes showed holds for their connection
    only, so on the next connection the recovery begins at its first step.
    """
    rig, probes = probing(3, request_timeout=10.0)
    if when == "second pass":
        for probe in probes:
            rig.fail(probe, OUT_OF_ORDER)
        wait_until(rig, lambda: bool(rig.outstanding()))
    rig.lose()
    rig.tick(3.0)
    assert [o.status for o in rig.outcomes[1:]] == [PENDING] * 3
    assert rig.sequences == [1]
    rig.ack_all()
    assert rig.statuses == [ACKED] * 4
    assert rig.core.counters.data_loss_events == 0


@pytest.mark.parametrize("code", [REQUEST_TIMED_OUT, NOT_LEADER, DUPLICATE])
def test_a_probe_answered_retriably_restarts_the_ladder_and_counts_as_no_refusal(code: int) -> None:
    """A retriable answer to a probe starts the ladder again and counts as no refusal.

    With followers down, the newest stored batch is answered REQUEST_TIMED_OUT: it is in the log, so
    two such passes must not end in UNKNOWN.
    """
    rig, _ = probing(3, request_timeout=10.0)
    for _ in range(6):
        for probe in rig.outstanding():
            rig.fail(probe, code if probe.sequence == 3 else OUT_OF_ORDER)
        wait_until(rig, lambda: bool(rig.outstanding()))
    assert [o.status for o in rig.outcomes[1:]] == [PENDING] * 3
    assert rig.core.counters.data_loss_events == 0
    wait_until(rig, lambda: rig.sequences[:1] == [3])
    rig.ack(rig.outstanding()[0], 30)
    assert rig.statuses == [ACKED] * 4


def test_a_new_leader_epoch_ends_the_probing() -> None:
    """A new leader epoch starts the ladder (the steps that resolve doubt) again.

    What the former leader refuses then counts for nothing, because it was stale (Redpanda #12712).
    """
    rig, probes = probing(3)
    rig.move_leader(1, 1, seconds=0.5)
    for probe in probes:
        rig.fail(probe, OUT_OF_ORDER)
    assert rig.state().recovery.rung is Rung.CLEAR
    assert rig.sequences == [1]


def test_a_batch_whose_wire_sequence_is_zero_is_never_probed_before_the_one_under_it() -> None:
    """A batch whose sequence wraps to 0 on the wire is never probed before the batch below it.

    A broker whose state is of an older epoch accepts sequence 0 although it lacks the batch below.
    """
    rig = Rig().start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.jump(2**31 - 2)
    rig.send(4)
    assert rig.sequences == [2**31 - 2, 2**31 - 1, 0, 1]
    rig.lose()
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    order = rig.sequences
    assert order[0] == 1
    assert order.index(2**31 - 1) < order.index(0)


def test_a_probe_success_above_a_rejected_oldest_proves_nothing_even_for_probes_in_flight() -> None:
    """If the oldest batch was rejected, error NONE for a probe proves nothing about lower batches.

    b1 is answered NOT_LEADER with base offset -1, and b2 to b4 are lost. b1 is resent and answered
    OUT_OF_ORDER, so b4, b3 and b2 are probed. b4 is answered NONE above the rejected b1, then b3
    NONE, then b2 OUT_OF_ORDER. b3's NONE must not prove b2.
    """
    rig, (first, *_) = pipelined(4)
    rig.fail(first, NOT_LEADER, -1, poll=False)
    rig.lose()
    rig.tick(2.0)
    assert rig.sequences == [1]
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    fourth, third, second = rig.outstanding()
    rig.ack(fourth, 40)
    assert rig.outcomes[1].status is NOT_WRITTEN
    rig.ack(third, 30)
    assert rig.outcomes[2].status is PENDING
    rig.fail(second, OUT_OF_ORDER)
    assert rig.outcomes[2].status is UNKNOWN
    rig.send()
    rig.ack_all()
    rig.assert_drained()


def test_an_offset_without_room_for_the_batches_below_proves_none_of_them() -> None:
    """A success whose offset leaves no room for the batches below it proves that one is missing.

    The leader forgets the producer although no record is old, and so accepts the third batch
    without the first two. Its offset is two above that of the last acknowledged record: one of the
    two may be stored, and not both. Each is then resent by itself.
    """
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, REQUEST_TIMED_OUT, poll=False)
    rig.ack(third, 2)
    assert rig.statuses == [ACKED, PENDING, PENDING, ACKED]
    assert rig.core.counters.data_loss_events == 1
    rig.tick(1.0)
    assert rig.sequences == [2]
    rig.ack(rig.outstanding()[0], 1)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.statuses == [ACKED, UNKNOWN, ACKED, ACKED]
    assert rig.core.counters.data_loss_events == 1


@pytest.mark.parametrize(("in_doubt", "order"), [("fail", [2, 1]), ("resend", [1, 2])])
def test_each_is_resent_by_itself_oldest_first_where_second_copies_are_permitted(
    in_doubt: str, order: list[int]
) -> None:
    """A leader that forgets the producer again appends what is resent in rising order.

    So newest first by default, where it then appends one of them at most. With in_doubt="resend"
    it may append all of them, and then in the order in which they were sent first.
    """
    rig, (first, second, third) = pipelined(3, in_doubt=in_doubt)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, REQUEST_TIMED_OUT, poll=False)
    rig.ack(third, 2)
    resent = []
    for offset in (3, 4):
        rig.tick(1.0)
        resent += rig.sequences
        rig.ack(rig.outstanding()[0], offset)
    assert resent == order
    assert rig.statuses == [ACKED] * 4


def test_an_offset_with_just_enough_room_proves_the_batches_below() -> None:
    """Offsets that leave room for every batch below are no reason for doubt."""
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, REQUEST_TIMED_OUT, poll=False)
    rig.ack(third, 3)
    assert rig.statuses == [ACKED] * 4
    assert rig.core.counters.data_loss_events == 0


def test_batches_that_are_known_to_be_stored_need_no_room_again() -> None:
    """Only batches above the newest stored one need room above its offset.

    The second batch is acknowledged and proves nothing about the first one, so each is resent by
    itself. The third batch then needs room for neither.
    """
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.ack(second, 1, poll=False)
    rig.ack(third, 2)
    assert rig.statuses == [ACKED, PENDING, ACKED, ACKED]
    assert rig.core.counters.data_loss_events == 1


def test_an_offset_that_was_acknowledged_before_is_a_loss_and_proves_nothing_below() -> None:
    """An offset that was acknowledged for another batch is data loss, and proves no batch below.

    Seed 1328 of the simulation `storm` found this: a recreated topic, addressed by name, accepts a
    batch although the batch before it may have gone to the deleted topic.
    """
    rig, (first, second) = pipelined(2)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.ack(second, 0)
    assert rig.core.counters.data_loss_events == 1
    assert rig.statuses == [ACKED, PENDING, ACKED]
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], OUT_OF_ORDER)
    assert rig.outcomes[1].status is UNKNOWN


def test_a_late_answer_shows_a_loss_as_well() -> None:
    """A late answer whose offset is below an acknowledged one shows data loss.

    The late answer's batch was given up before, and stays UNKNOWN.
    """
    rig, (second,) = pipelined(1, request_timeout=10.0, delivery_timeout=10.0)
    rig.ack(second, 100)
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_LEADER, -1)
    rig.tick(1.0)
    (late,) = rig.outstanding()
    rig.tick(9.02)
    assert rig.outcomes[2].status is UNKNOWN
    rig.ack(late, 50)
    assert rig.core.counters.data_loss_events == 1
    assert rig.outcomes[2].status is UNKNOWN


def test_an_offset_that_came_too_late_is_one_that_a_later_answer_must_exceed() -> None:
    """The offset in a late answer counts as acknowledged (simulation seed 7710).

    The late answer's batch was given up before; the answer for the next batch has a lower offset,
    which shows data loss.
    """
    rig, (second,) = pipelined(1, request_timeout=10.0, delivery_timeout=10.0)
    rig.fail(second, NOT_LEADER, -1)
    rig.tick(1.0)
    (late,) = rig.outstanding()
    rig.tick(9.02)
    assert rig.outcomes[1].status is UNKNOWN
    rig.ack(late, 100)
    rig.send()
    rig.ack(rig.outstanding()[0], 50)
    assert rig.core.counters.data_loss_events == 1
    assert rig.outcomes[2].status is ACKED


def test_a_loss_that_offsets_show_is_reported_once() -> None:
    rig, _ = pipelined(1)
    rig.ack(rig.outstanding()[0], 100)
    for offset in (50, 51, 52):
        rig.send()
        rig.ack(rig.outstanding()[0], offset)
    assert rig.core.counters.data_loss_events == 1


@pytest.mark.parametrize("order", ["refused, accepted", "accepted, refused"])
def test_a_loss_that_an_offset_and_a_hole_show_is_reported_once(order: str) -> None:
    """A data loss that both an offset and a refused batch show is reported once.

    The third batch's offset is below the first one's, and the third batch was appended although the
    second was refused. If requests name the topic, and not its id, both can happen after the topic
    was deleted and created again.
    """
    rig, (first, second, third, fourth) = pipelined(4)
    rig.ack(first, 100)
    if order == "accepted, refused":
        rig.ack(third, 50)
    rig.fail(second, OUT_OF_ORDER)
    if order == "refused, accepted":
        rig.ack(third, 50)
    rig.ack(fourth, 51)
    assert rig.core.counters.data_loss_events == 1
    assert (rig.outcomes[3].status, rig.outcomes[4].status) == (ACKED, ACKED)


# -- permanent refusals of a batch in doubt


def test_a_permanent_refusal_of_a_doubtful_batch_where_nothing_was_heard_is_unknown() -> None:
    """A batch in doubt that is refused for good is UNKNOWN if no ack came on this connection."""
    rig = doubted(1)
    rig.fail(rig.outstanding()[0], INVALID_TIMESTAMP)
    assert rig.outcomes[1].status is UNKNOWN
    assert rig.core.epoch_bumps == 1


def test_a_permanent_refusal_counts_as_out_of_order_where_this_leader_acknowledged_before() -> None:
    """A permanent refusal does not settle a batch in doubt if its leader has acknowledged a batch.

    The producer probes: it resends batches in doubt, newest first, to learn which are stored. The
    refusal was of the resend, and the first copy may be in the log.
    """
    rig, (first, second) = pipelined(2)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, REQUEST_TIMED_OUT)
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], INVALID_TIMESTAMP)
    assert rig.sequences == [2, 1]
    rig.ack(rig.outstanding()[0], 20)
    assert rig.statuses == [ACKED] * 3


@pytest.mark.parametrize(
    ("passes", "events"),
    [
        ((OUT_OF_ORDER, OUT_OF_ORDER), 1),
        ((OUT_OF_ORDER, INVALID_TIMESTAMP), 0),
        ((INVALID_TIMESTAMP, OUT_OF_ORDER), 1),
        ((MESSAGE_TOO_LARGE, INVALID_RECORD), 0),
    ],
)
def test_what_is_refused_for_good_when_asked_about_is_no_loss_of_the_brokers(
    passes: tuple[int, int], events: int
) -> None:
    """Data loss is counted only if each probe of the last pass was answered OUT_OF_ORDER.

    A pass resends each batch in doubt once, as a probe. A probe that is refused for another reason
    proves no loss: its batch may never have been appended.
    """
    rig, _ = pipelined(2, request_timeout=10.0)
    for request in rig.outstanding():
        rig.fail(request, REQUEST_TIMED_OUT, poll=False)
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], INVALID_TIMESTAMP)
    for code in passes:
        wait_until(rig, lambda: bool(rig.outstanding()))
        second, first = rig.outstanding()
        rig.fail(second, OUT_OF_ORDER, poll=False)
        rig.fail(first, code)
    assert rig.statuses[1:] == [UNKNOWN] * 2
    assert rig.core.counters.data_loss_events == events
    assert rig.core.epoch_bumps == 1


def test_too_large_never_splits_a_batch_in_doubt() -> None:
    """MESSAGE_TOO_LARGE never splits a batch in doubt, which ends UNKNOWN.

    A split sends other bytes under the same sequences, but the first copy may be stored.
    """
    rig = Rig(batch_size=1000).start()
    rig.send()
    rig.ack_all()
    rig.send(3, poll=False)
    rig.poll()
    assert rig.outstanding()[0].only.batch.count == 3
    rig.lose()
    rig.tick(2.0)
    rig.fail(rig.outstanding()[0], MESSAGE_TOO_LARGE)
    assert rig.core.counters.batches_split == 0
    assert rig.statuses[1:] == [UNKNOWN] * 3


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH])
def test_a_leader_that_lost_our_state_leaves_a_doubtful_batch_unknown(code: int) -> None:
    """UNKNOWN_PRODUCER_ID and INVALID_PRODUCER_EPOCH end a batch in doubt as UNKNOWN.

    A resend under another identity could be a duplicate.
    """
    rig = doubted(1)
    rig.fail(rig.outstanding()[0], code)
    assert rig.outcomes[1].status is UNKNOWN
    rig.send()
    before = rig.everything[0].only.identity
    renewed = (before[0], 1) if code == UNKNOWN_PRODUCER_ID else (before[0] + 1, 0)
    assert rig.outstanding()[0].only.identity == renewed


# -- DUPLICATE_SEQUENCE_NUMBER


def test_duplicate_means_appended_but_not_yet_acknowledged() -> None:
    """DUPLICATE leaves a batch pending, until that batch or a later one is acknowledged.

    A broker answers DUPLICATE before the batch is replicated.
    """
    rig, (first, second) = pipelined(2)
    rig.fail(first, DUPLICATE, poll=False)
    assert rig.outcomes[1].status is PENDING
    rig.ack(second, 5)
    assert rig.statuses[1:] == [ACKED, ACKED]
    assert rig.outcomes[1].offset == -1


def test_duplicate_on_a_rejected_batch_is_data_loss() -> None:
    """DUPLICATE for a batch that was always refused is data loss, and the batch ends UNKNOWN.

    Another batch must have been accepted under the same sequence.
    """
    rig, (only,) = pipelined(1)
    rig.fail(only, NOT_LEADER, -1)
    rig.tick(1.0)
    rig.fail(rig.outstanding()[0], DUPLICATE)
    assert rig.outcomes[1].status is UNKNOWN
    assert rig.core.counters.data_loss_events == 1


# -- loops


def refused_for_ten_seconds(rig: Rig, code: int) -> int:
    """Refuse every request for ten seconds, and return how many there were."""
    rounds = 0
    until = rig.now + 10.0
    while rig.now < until:
        for request in rig.outstanding():
            rig.fail(request, code)
            rounds += 1
        rig.tick(0.005)
    return rounds


@pytest.mark.parametrize("code", [OUT_OF_ORDER, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH])
def test_a_broker_that_always_refuses_is_not_asked_in_a_hot_loop(code: int) -> None:
    """A broker that refuses everything gets fewer than 60 requests in ten seconds."""
    rig = Rig().start()
    rig.send(3)
    assert refused_for_ten_seconds(rig, code) < 60
    rig.tick(200.0)
    assert PENDING not in rig.statuses


def test_a_leader_that_lost_what_was_appended_is_not_asked_in_a_hot_loop() -> None:
    """The first batch was answered DUPLICATE; then a leader is elected that lacks it, uncleanly."""
    rig, (first, _) = pipelined(2)
    rig.fail(first, DUPLICATE, poll=False)
    rig.lose()
    assert 2 < refused_for_ten_seconds(rig, OUT_OF_ORDER) < 60
    rig.tick(200.0)
    assert rig.statuses[1:] == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("batches", [3, 9])
def test_a_doubtful_batch_above_a_failed_one_is_asked_and_not_left_to_its_deadline(
    batches: int,
) -> None:
    """A batch in doubt above a failed one is probed, and does not wait for its deadline.

    b1 is refused for good, the next are answered OUT_OF_ORDER, and the last one is lost with its
    connection. On the new connection the window is 5: the batches that wait to be renumbered are
    not in the log, so the leader need not remember them beside the last one.
    """
    rig, (first, *others, _last) = pipelined(
        batches, version=14, max_in_flight_requests_per_connection=20, request_timeout=10.0
    )
    rig.fail(first, INVALID_RECORD, poll=False)
    for other in others:
        rig.fail(other, OUT_OF_ORDER, poll=False)
    rig.lose()
    began = rig.now
    rounds = 0
    while rig.outcomes[-1].status is PENDING and rig.now < began + 60.0:
        for request in rig.outstanding():
            if request.epoch:
                rig.ack(request)
            else:
                rig.fail(request, OUT_OF_ORDER)
                rounds += 1
        rig.tick(0.01)
    assert rig.now < began + 30.0, "the batch in doubt waited for its deadline"
    assert 2 <= rounds < 20
    assert rig.outcomes[-1].status is UNKNOWN
    rig.settle_down()
    assert rig.statuses == [ACKED, NOT_WRITTEN, *[ACKED] * (batches - 2), UNKNOWN]
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_what_the_broker_never_got_is_appended_by_the_retry() -> None:
    """A batch whose request was lost on its way is appended by its retry, with the same bytes."""
    rig, requests = pipelined(3)
    rig.lose()
    rig.tick(2.0)
    again = []
    for offset in (1, 2, 3):
        again.append(rig.outstanding()[0])
        rig.ack(again[-1], offset)
    assert [r.only.data for r in again] == [r.only.data for r in requests]
    assert [(o.status, o.offset) for o in rig.outcomes[1:]] == [(ACKED, n) for n in (1, 2, 3)]


def test_what_the_broker_stored_is_acknowledged_by_the_retry_with_its_first_offset() -> None:
    """A batch whose answer was lost is acknowledged by its retry, with the first copy's offset."""
    rig, (first, *_) = pipelined(1)
    rig.lose()
    rig.tick(2.0)
    (again,) = rig.outstanding()
    assert again.only.data == first.only.data
    rig.ack(again, 1)
    rig.send()
    rig.ack(rig.outstanding()[0], 90)
    assert [o.offset for o in rig.outcomes] == [0, 1, 90]
    assert rig.core.epoch_bumps == 0


def test_one_partition_stuck_in_doubt_stalls_no_other() -> None:
    """A partition that is stuck in doubt stalls no other partition, and recovers later.

    librdkafka (#4736) and Dekaf (#3342) had bugs here.
    """
    rig = Rig(partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    (stuck,) = rig.send(partition=0)
    for _ in range(20):
        for request in rig.outstanding():
            if request.only.partition == 0:
                rig.fail(request, REQUEST_TIMED_OUT)
        (other,) = rig.send(partition=1)
        for request in rig.outstanding():
            if request.only.partition == 1:
                rig.ack(request)
        assert other.status is ACKED
        rig.tick(0.5)
    assert stuck.status is PENDING
    rig.settle_down(5.0)
    assert stuck.status is ACKED
    rig.assert_drained()


def test_a_batch_called_a_duplicate_gives_none_of_its_records_an_offset() -> None:
    """The records of a batch acknowledged after DUPLICATE have offset -1.

    aiokafka reports -1 + i for record i of such a batch.
    """
    rig = Rig(batch_size=10_000).start()
    rig.send()
    rig.ack_all()
    rig.send(3, poll=False)
    rig.poll()
    rig.send()
    first, second = rig.outstanding()
    assert first.only.batch.count == 3
    rig.fail(first, DUPLICATE, poll=False)
    rig.ack(second, 4)
    assert rig.statuses == [ACKED] * 5
    assert [outcome.offset for outcome in rig.outcomes] == [0, -1, -1, -1, 4]
    rig.assert_drained()


@pytest.mark.parametrize("who", ["connections_max_idle", "something in between"])
def test_a_connection_that_is_closed_while_idle_does_not_begin_the_ladder_anew(who: str) -> None:
    """The pause between two passes may be longer than connections may be idle."""
    idle = 20.0 if who == "connections_max_idle" else 540.0
    rig = Rig(request_timeout=30.0, delivery_timeout=120.0, connections_max_idle=idle).start()
    rig.send()
    rig.ack_all()
    rig.send(2)
    first, _ = rig.outstanding()
    rig.fail(first, INVALID_TIMESTAMP, poll=False)
    rig.lose(first.link)
    behind = rig.send(3)
    for _ in range(40):
        for request in rig.outstanding():
            if request.epoch == 0:
                rig.fail(request, OUT_OF_ORDER)  # the numbers of the first one are missing
            else:
                rig.ack(request)
        if who != "connections_max_idle" and rig.core.unsettled and not rig.outstanding():
            rig.lose()
        rig.tick(1.0)
    assert [record.status for record in behind] == [ACKED] * 3
