"""Expiry, linger, timeouts, throttling and lost connections: what happens because time passes."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem.errors import DeliveryTimeoutError, KafkaTimeoutError, UnknownTopicOrPartitionError

from .driver import (
    ACKED,
    INVALID_RECORD,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    UNKNOWN,
    Rig,
    T,
    pipelined,
    refuse_until,
    wait_until,
)

LEADER_NOT_AVAILABLE = ErrorCode.leader_not_available
SHORT: dict[str, Any] = {"delivery_timeout": 20.0, "request_timeout": 5.0}

# -- expiry


def test_what_was_never_sent_expires_as_not_written_and_takes_no_number() -> None:
    """A record that was never sealed expires NOT_WRITTEN and takes no sequence (aiokafka #1017)."""
    rig = Rig(**SHORT).start()
    rig.down = {1}
    rig.lose(rig.produce_link())
    rig.send(3)
    rig.tick(21.0)
    assert rig.statuses == [NOT_WRITTEN] * 3
    assert isinstance(rig.outcomes[0].error, DeliveryTimeoutError)
    rig.down = set()
    rig.tick(5.0)
    rig.send()
    rig.tick(3.0)
    assert (rig.outstanding()[0].epoch, rig.sequences) == (0, [0])
    rig.ack_all()
    rig.assert_drained()


def test_a_rejected_batch_expires_as_not_written_and_its_numbers_are_given_up() -> None:
    """A batch that was always refused expires NOT_WRITTEN, and the epoch is bumped.

    The refusals came before an append, so nothing of the batch is stored. Its sequences are a gap.
    """
    rig, (only,) = pipelined(1, **SHORT)
    rig.fail(only, NOT_ENOUGH_REPLICAS)
    refuse_until(rig, lambda: rig.outcomes[1].status is NOT_WRITTEN, NOT_ENOUGH_REPLICAS)
    rig.send()
    rig.tick(2.0)
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    rig.ack_all()
    rig.assert_drained()


def test_an_unanswered_batch_expires_as_unknown_and_the_next_waits_for_a_bump() -> None:
    """A batch that expires unanswered is UNKNOWN, and the next one waits for an epoch bump.

    No new batch is sent until the expired one is answered or its connection ends.
    """
    rig, (only,) = pipelined(1, delivery_timeout=8.0, request_timeout=5.0)
    rig.tick(4.0)
    rig.fail(only, NOT_ENOUGH_REPLICAS)
    rig.tick(4.1)
    assert rig.statuses[1:] == [UNKNOWN], "the second attempt is unanswered"
    rig.send()
    rig.tick(0.2)
    assert rig.sequences == [1], "no new batch is sent beside one of the old epoch"
    rig.ack(rig.outstanding()[0])
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    assert rig.statuses[1] is UNKNOWN
    rig.ack_all()
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


@pytest.mark.parametrize(
    "end", [NONE, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, INVALID_RECORD, OUT_OF_ORDER, None]
)
def test_what_comes_for_a_batch_that_expired_on_its_way_changes_nothing(end: int | None) -> None:
    """Whatever answer comes for a batch that expired in flight, its record stays UNKNOWN.

    `None` stands for the loss of the connection.
    """
    rig, (only,) = pipelined(1, delivery_timeout=8.0, request_timeout=5.0)
    rig.tick(4.0)
    rig.fail(only, NOT_ENOUGH_REPLICAS)
    rig.tick(4.1)
    assert rig.statuses[1:] == [UNKNOWN]
    (late,) = rig.outstanding()
    if end is None:
        rig.lose()
    else:
        rig.fail(late, end, 99 if end == NONE else -1)
    assert (rig.outcomes[1].status, rig.outcomes[1].offset) == (UNKNOWN, -1)
    rig.send()
    rig.settle_down(5.0)
    assert rig.statuses[2:] == [ACKED]
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_a_doubtful_batch_has_a_grace_while_its_leader_answers() -> None:
    """A batch in doubt whose leader answers ends UNKNOWN a request timeout after its deadline."""
    rig, (only,) = pipelined(1, **SHORT)
    sent_at = only.sent_at
    rig.fail(only, REQUEST_TIMED_OUT)
    while rig.outcomes[1].status is PENDING:
        for request in rig.outstanding():
            rig.fail(request, REQUEST_TIMED_OUT)
        rig.tick(0.2)
    assert rig.outcomes[1].status is UNKNOWN
    assert rig.outcomes[1].at is not None
    assert 24.9 <= rig.outcomes[1].at - sent_at <= 25.5


def test_a_success_within_the_grace_still_acknowledges() -> None:
    rig, (only,) = pipelined(1, **SHORT)
    rig.fail(only, REQUEST_TIMED_OUT)
    deadline = rig.state().batches.unresolved[0].deadline
    while rig.now < deadline + 1.0:
        for request in rig.outstanding():
            rig.fail(request, REQUEST_TIMED_OUT)
        rig.tick(0.2)
    wait_until(rig, lambda: bool(rig.outstanding()), 4.0)
    rig.ack_all()
    assert rig.outcomes[1].status is ACKED
    assert rig.core.epoch_bumps == 0


def test_a_broker_that_never_answers_ends_every_record_at_its_deadline() -> None:
    """With a broker that never answers no record waits beyond its deadline (aiokafka #1101).

    See also aiokafka #512 and #176.
    """
    rig, _ = pipelined(5, **SHORT)
    rig.send(10)
    sent_at = rig.now
    rig.tick(120.0)
    assert rig.statuses[1:] == [UNKNOWN] * 5 + [NOT_WRITTEN] * 10
    for outcome in rig.outcomes[1:]:
        assert outcome.at is not None
        assert outcome.at - sent_at <= 20.0 + 0.01
    rig.send()
    rig.tick(30.0)
    assert PENDING not in rig.statuses


def test_records_behind_a_batch_in_its_grace_expire_on_time() -> None:
    """Records behind a batch in doubt expire on time although the batch is kept past its deadline.

    The engine's wake-up for that batch must not hide the earlier wake-ups for the records.
    """
    rig, (only,) = pipelined(1, **SHORT)
    rig.fail(only, REQUEST_TIMED_OUT)
    deadline = rig.state().batches.unresolved[0].deadline
    rig.tick(1.0)
    late = rig.send(2)
    appended = rig.now
    # Answer with an ambiguous code until just before the deadline, and then not at all.
    while rig.now < deadline - 0.5:
        for request in rig.outstanding():
            rig.fail(request, REQUEST_TIMED_OUT)
        rig.tick(0.3)
    wait_until(rig, lambda: all(o.status is NOT_WRITTEN for o in late))
    assert rig.now - appended <= 20.1


def test_expiry_of_a_rejected_batch_leaves_the_ones_behind_it_in_order() -> None:
    """The batches behind a rejected batch that expires are delivered in order.

    They are renumbered under the next epoch.
    """
    rig = Rig(**SHORT).start()
    rig.send()
    rig.ack_all()
    (early,) = rig.send()
    rig.tick(3.0)
    rig.send(2)
    refuse_until(rig, lambda: early.status is NOT_WRITTEN, NOT_ENOUGH_REPLICAS)
    rig.settle_down(5.0)
    assert rig.statuses == [ACKED, NOT_WRITTEN, ACKED, ACKED]
    assert rig.outcomes[2].offset < rig.outcomes[3].offset
    rig.assert_drained()


def test_expiry_in_several_partitions_happens_in_one_pass() -> None:
    """One poll expires the records of all partitions whose deadline has passed, and no other."""
    rig = Rig(partitions=4, **SHORT).start()
    rig.down = {1}
    rig.lose(rig.produce_link())
    for partition in range(4):
        rig.send(2, partition=partition)
    rig.tick(1.0)
    rig.send(partition=0)
    rig.tick(18.9)
    assert rig.statuses == [PENDING] * 9
    rig.now += 0.2
    rig.core.poll(rig.now)
    rig.collect()
    assert rig.statuses == [NOT_WRITTEN] * 8 + [PENDING]


def test_waiting_for_a_deadline_costs_few_polls() -> None:
    """The engine is polled fewer than 300 times while records wait for their deadline.

    The records are in four partitions; their broker is down until the deadline, for 20 seconds.
    """
    rig = Rig(partitions=4, **SHORT).start()
    rig.down = {1}
    rig.lose(rig.produce_link())
    for partition in range(4):
        rig.send(2, partition=partition)
    polls = rig.polls
    rig.tick(30.0)
    assert rig.statuses == [NOT_WRITTEN] * 8
    assert rig.polls - polls < 300


def test_idle_costs_nothing() -> None:
    """An idle producer is polled fewer than 150 times in an hour."""
    rig = Rig().start()
    rig.send()
    rig.ack_all()
    polls = rig.polls
    rig.tick(3600.0)
    assert rig.polls - polls < 150


# -- linger


def test_a_record_waits_for_its_linger_and_no_longer() -> None:
    """A batch that is not full is sent when its linger is over, and not before."""
    rig = Rig(linger=0.5, batch_size=10_000).start()
    rig.send(3)
    rig.tick(0.4)
    assert rig.everything == []
    rig.tick(0.2)
    assert rig.outstanding()[0].only.batch.count == 3


def test_the_tail_of_a_queue_that_was_held_back_is_woken_for() -> None:
    """The engine wakes for the last record of a queue that a full window held back.

    Linger is 1 s. When the window opens, all records but a fresh one leave the queue. No other
    event will wake the engine for the fresh one.
    """
    rig = Rig(linger=1.0, batch_size=500, late_sealing=False).start()
    rig.send(3)
    assert len(rig.outstanding()) == 1
    rig.send(3)
    rig.tick(2.0)
    assert rig.state().queue.blocked
    rig.send(1)
    began = rig.now
    rig.ack_all()
    assert len(rig.state().queue.records) == 1
    wait_until(rig, lambda: not rig.state().queue.records, 5.0)
    assert rig.now - began < 1.5
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}


def test_a_record_held_back_longer_than_its_linger_does_not_linger_again() -> None:
    rig = Rig(linger=1.0, batch_size=500, late_sealing=False).start()
    rig.send(3)
    rig.send(4)
    rig.tick(2.0)
    rig.ack_all()
    assert not rig.state().queue.records


def test_a_record_sent_after_others_expired_is_woken_for() -> None:
    """A record sent after others expired lingers as usual and is then sent.

    The queue was marked as held back by the lost connection when its records expired, and must not
    keep that mark.
    """
    rig = Rig(linger=1.0, **SHORT).start()
    rig.down = {1}
    rig.lose(rig.produce_link())
    rig.send(3)
    rig.tick(21.0)
    assert rig.statuses == [NOT_WRITTEN] * 3
    rig.down = set()
    rig.tick(30.0)
    rig.send(size=10)
    began = rig.now
    wait_until(rig, lambda: bool(rig.outstanding()), 5.0)
    assert rig.now - began < 1.5


def test_flush_ends_linger() -> None:
    rig = Rig(linger=10.0, batch_size=10_000).start()
    rig.send(3)
    generation = rig.core.accumulator.begin_flush()
    rig.poll()
    assert len(rig.outstanding()) == 1
    assert not rig.core.outcomes.flushed(generation)
    rig.send(1)
    rig.ack_all()
    assert rig.core.outcomes.flushed(generation), (
        "a flush does not wait for records that came after its call"
    )
    assert rig.core.unsettled == 1


def test_flush_waits_for_failures_too() -> None:
    """A flush ends when every record has an outcome, even if the outcome is an error."""
    rig, requests = pipelined(2)
    generation = rig.core.accumulator.begin_flush()
    rig.fail(requests[0], 87)
    assert not rig.core.outcomes.flushed(generation)
    rig.settle_down(5.0)
    assert rig.core.outcomes.flushed(generation)


# -- topics that are not there


def test_an_unknown_topic_is_waited_for_and_then_not_written() -> None:
    """A record for an unknown topic waits until max_block is over and ends NOT_WRITTEN."""
    rig = Rig(max_block=10.0).start()
    rig.send(2, topic="nowhere")
    sent_at = rig.now
    wait_until(rig, lambda: PENDING not in rig.statuses)
    assert rig.now - sent_at == pytest.approx(10.0, abs=0.1)
    assert rig.statuses == [NOT_WRITTEN] * 2
    assert isinstance(rig.outcomes[0].error, UnknownTopicOrPartitionError)
    assert len([s for s in rig.asked if isinstance(s, steps.FetchMetadata)]) < 25
    rig.assert_drained()


def test_without_any_metadata_the_error_says_so() -> None:
    rig = Rig(max_block=10.0)
    rig.down = {1}
    rig.send()
    rig.tick(11.0)
    assert isinstance(rig.outcomes[0].error, KafkaTimeoutError)
    assert rig.core.bootstrap_failure() is not None


def test_a_topic_that_appears_takes_the_records_in_call_order() -> None:
    rig = Rig(batch_size=10_000).start()
    rig.send(5, topic="late", partition=None)
    rig.tick(1.0)
    assert rig.everything == []
    rig.leaders["late", 0] = (1, 0)
    rig.tick(3.0)
    values = rig.outstanding()[0].only.values
    assert values == sorted(values, key=lambda v: v or b"")
    rig.ack_all()
    assert rig.statuses == [ACKED] * 5


def test_a_partition_out_of_range_is_refused_by_the_first_fresh_metadata() -> None:
    """A record for a missing partition is refused by the first metadata requested after the send.

    A record for a partition that was added before is delivered after the same metadata.
    """
    rig = Rig(max_block=10.0).start()
    rig.leaders[T, 1] = (1, 0)
    (soon,) = rig.send(partition=1, poll=False)
    (never,) = rig.send(partition=9, poll=False)
    (other,) = rig.send(partition=0)
    assert len(rig.outstanding()) == 1, "the missing partition holds up no other record"
    rig.ack_all()
    assert other.status is ACKED
    rig.tick(0.2)
    assert never.status is NOT_WRITTEN
    assert "topic 't' has 2 partitions (0 to 1); there is no partition 9" in str(never.error)
    rig.ack_all()
    assert soon.status is ACKED


def test_metadata_that_was_asked_for_before_a_record_came_refuses_no_partition() -> None:
    rig = Rig(max_block=10.0).start()
    rig.hold = (steps.FetchMetadata,)
    rig.core.metadata.want()
    rig.tick(1.0)
    [asked] = rig.held
    (record,) = rig.send(partition=9)
    rig.answer_metadata(asked)
    rig.tick(1.0)
    assert record.status is PENDING
    rig.leaders[T, 9] = (1, 0)
    rig.answer_metadata(rig.held.pop())
    rig.poll()
    rig.ack_all()
    assert record.status is ACKED


def test_metadata_that_cannot_tell_of_the_topic_refuses_no_partition() -> None:
    """Metadata that has an error for the topic refuses no partition of that topic."""
    rig = Rig(max_block=10.0).start()
    rig.topic_errors[T] = LEADER_NOT_AVAILABLE
    (record,) = rig.send(partition=1)
    rig.tick(5.0)
    assert record.status is PENDING
    del rig.topic_errors[T]
    rig.leaders[T, 1] = (1, 0)
    rig.tick(3.0)
    rig.ack_all()
    assert record.status is ACKED


def test_what_a_caller_has_waited_before_counts_for_its_topic_too() -> None:
    """The time that a caller has waited for memory counts towards max_block for its topic too.

    The caller passes its deadline as `block_until`, so max_block does not start anew.
    """
    rig = Rig(max_block=10.0).start()
    began = rig.now
    (first,) = rig.send(topic="nowhere")
    (late,) = rig.send(topic="nowhere", block_until=began + 3.0)
    wait_until(rig, lambda: late.status is NOT_WRITTEN)
    assert rig.now - began == pytest.approx(3.0, abs=0.01)
    assert first.status is PENDING
    wait_until(rig, lambda: first.status is NOT_WRITTEN)
    assert rig.now - began == pytest.approx(10.0, abs=0.01)


def test_a_topic_refused_for_good_fails_its_records_at_once() -> None:
    rig = Rig().start()
    rig.topic_errors["secret"] = 29
    rig.send(topic="secret")
    rig.tick(1.0)
    assert rig.statuses == [NOT_WRITTEN]
    rig.assert_drained()


# -- connections


def test_requests_lost_before_they_were_written_are_not_in_doubt() -> None:
    """A request of which no byte was written is not in doubt when its connection is lost."""
    rig, requests = pipelined(3)
    rig.lose(unwritten=requests[1:])
    state = rig.state()
    assert state.batches.in_doubt == 1
    rig.tick(1.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 4


def test_a_request_that_never_left_expires_as_not_written() -> None:
    rig, requests = pipelined(1, **SHORT)
    rig.down = {1}
    rig.lose(unwritten=requests)
    rig.tick(25.0)
    assert rig.outcomes[1].status is NOT_WRITTEN


def test_a_silent_connection_is_closed_at_the_request_timeout() -> None:
    """A silent connection is closed at the request timeout; its unanswered batches are in doubt."""
    rig, _ = pipelined(3, request_timeout=5.0)
    began = rig.now
    end = rig.produce_link()
    wait_until(rig, lambda: end.closed)
    assert rig.now - began == pytest.approx(5.0, abs=0.01)
    assert rig.state().batches.in_doubt == 3
    rig.tick(1.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 4


def test_what_is_sent_meanwhile_does_not_put_the_request_timeout_off() -> None:
    """A silent connection is closed in time, though records go on being sent on it."""
    rig, (only,) = pipelined(1, request_timeout=5.0)
    while not only.link.closed and rig.now - only.sent_at < 8.0:
        rig.send()
        rig.tick(1.0)
    assert only.link.closed
    assert rig.now - only.sent_at == pytest.approx(5.0, abs=0.01)


def test_a_late_answer_of_a_closed_connection_is_ignored() -> None:
    """An answer that comes after its connection was closed changes nothing."""
    rig, requests = pipelined(2, request_timeout=5.0)
    old = requests[0]
    rig.tick(5.1)
    assert old.link.closed
    old.done = False
    rig.ack(old, 99)
    assert rig.outcomes[1].status is PENDING
    rig.tick(1.0)
    rig.ack(rig.outstanding()[0], 1)
    rig.ack_all()
    assert rig.outcomes[1].offset == 1


def test_moving_bytes_put_the_request_timeout_off() -> None:
    """Bytes that move on a connection restart its request timeout: a large batch takes its time."""
    rig, _ = pipelined(1, request_timeout=5.0)
    end = rig.produce_link()
    for _ in range(8):
        rig.tick(1.0)
        rig.core.on_progress(end.link_id, rig.now)
        rig.poll()
    assert not end.closed
    rig.tick(5.1)
    assert end.closed


@pytest.mark.parametrize("throttle", [10.0, 90.0])
def test_throttle_time_extends_the_timeout_of_all_that_is_outstanding(throttle: float) -> None:
    """The throttle time in an answer extends the timeout of all outstanding requests (KIP-219).

    A stock broker was seen to throttle for 90 s.
    """
    rig, (first, second) = pipelined(2, request_timeout=5.0, delivery_timeout=200.0)
    end = first.link
    rig.answer(first, [rig.entry(first, first.only, 0, 1)], throttle=throttle)
    rig.send(3)
    rig.tick(throttle - 0.1)
    assert not end.closed
    assert rig.outstanding() == [second], "no new batch is sent while the broker throttles"
    rig.tick(0.2)
    assert len(rig.outstanding()) == 4
    rig.ack_all()
    assert rig.statuses == [ACKED] * 6


def test_a_throttled_connection_times_out_in_the_end() -> None:
    rig, (first, _) = pipelined(2, request_timeout=5.0)
    rig.answer(first, [rig.entry(first, first.only, 0, 1)], throttle=10.0)
    rig.tick(14.9)
    assert not first.link.closed
    rig.tick(0.2)
    assert first.link.closed


def test_a_dead_broker_is_tried_again_with_back_off() -> None:
    """A dead broker is tried again with back-off, and used once it is back."""
    rig = Rig().start()
    rig.down = {1}
    rig.send()
    rig.lose()
    before = len(rig.asked)
    rig.tick(10.0)
    opens = [s for s in rig.asked[before:] if isinstance(s, steps.OpenLink)]
    assert 6 < len(opens) < 60
    rig.down = set()
    rig.tick(3.0)
    rig.ack_all()
    assert rig.statuses == [ACKED]


def test_an_idle_connection_is_closed_and_opened_again_when_needed() -> None:
    rig = Rig(connections_max_idle=30.0, metadata_max_age=1000.0).start()
    rig.send()
    rig.ack_all()
    rig.tick(40.0)
    assert all(end.closed for end in rig.links.values())
    rig.send()
    rig.tick(1.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 2


def test_the_bootstrap_connection_is_closed_once_a_broker_is_connected() -> None:
    rig = Rig().start()
    rig.send()
    rig.ack_all()
    assert [end.closed for end in rig.links.values()] == [True, False]


def test_a_request_timeout_while_the_leader_moves_ends_in_order_on_the_new_leader() -> None:
    """Batches in doubt are resent to the new leader in order, oldest first."""
    rig, _ = pipelined(4, brokers=2, request_timeout=5.0)
    rig.lose(poll=False)
    rig.move_leader(2, 1)
    assert rig.sequences == [1]
    assert rig.outstanding()[0].link.host == "b2"
    rig.fail(rig.outstanding()[0], NOT_LEADER)
    rig.tick(1.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 5


def test_an_out_of_order_storm_after_every_deadline_still_recovers() -> None:
    """The producer goes on after all batches in doubt were refused (librdkafka #3584).

    Every resend is answered OUT_OF_ORDER. The batches end UNKNOWN, and later ones are delivered
    under a new epoch.
    """
    rig, _ = pipelined(5, **SHORT)
    rig.lose()
    until = rig.now + 60.0
    while PENDING in rig.statuses:
        assert rig.now < until
        for request in rig.outstanding():
            if request.epoch == 0:
                rig.fail(request, OUT_OF_ORDER)
            else:
                rig.ack(request)
        rig.tick(0.05)
    assert rig.statuses == [ACKED, *[UNKNOWN] * 5]
    rig.send(3)
    rig.settle_down(5.0)
    assert rig.statuses[6:] == [ACKED] * 3
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


@pytest.mark.parametrize("sent", [False, True])
def test_a_deadline_that_passed_names_the_option_and_the_partition(sent: bool) -> None:
    """The error of an expired record names its partition and the option `delivery_timeout`.

    It also says how long the record waited, how far it came, why, and what to do.
    """
    rig = Rig(delivery_timeout=4.0, request_timeout=3.0)
    if not sent:
        rig.leaders[T, 0] = (-1, 0)
    rig.start()
    rig.send()
    rig.tick(5.0)
    assert rig.statuses == [UNKNOWN if sent else NOT_WRITTEN]
    told = str(rig.outcomes[0].error)
    verdict = "not acknowledged, perhaps written," if sent else "not written"
    assert f"{T}-0: 1 record {verdict} in delivery_timeout (4 s): " in told
    assert ("sent 2 times" if sent else "never sent") in told
    assert ("no leader for 4.0 s" in told) is not sent
    assert ("an attempt got no answer" in told) is sent
    assert ("broker 1" in told) is sent
    assert "or raise delivery_timeout" in told
    assert ("producer.resolve(error)" in told) is sent


def test_what_an_earlier_record_waited_for_is_not_what_a_later_one_waits_for() -> None:
    """The partition had a leader in between, and nothing to send."""
    rig = Rig(delivery_timeout=4.0, request_timeout=3.0).start()
    for epoch in (1, 3):
        rig.move_leader(-1, epoch)
        rig.send()
        rig.tick(5.0)
        rig.move_leader(1, epoch + 1)
        rig.tick(3600.0)
    assert rig.statuses == [NOT_WRITTEN] * 2
    for outcome in rig.outcomes:
        assert "no leader for 4.0 s" in str(outcome.error)


def test_a_partition_has_no_leader_since_the_last_one_was_known() -> None:
    """Also if the last one could not be reached, so that the record waited all the time."""
    rig = Rig(delivery_timeout=400.0, request_timeout=10.0, brokers=2).start()
    rig.down.add(2)
    rig.move_leader(-1, 1)
    rig.send()
    rig.move_leader(2, 2)
    rig.tick(300.0)
    rig.move_leader(-1, 3, seconds=0.0)
    rig.tick(2.0)
    assert "no leader for 2.0 s" in str(rig.core.obstacle(rig.now))


def test_a_deadline_that_passed_in_the_queue_names_what_the_record_waited_for() -> None:
    """The error of a record that waited behind an unresolved batch names that batch's last error.

    A failure before the last acknowledgement of the partition is no reason any more.
    """
    rig = Rig(delivery_timeout=4.0, request_timeout=3.0).start()
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_LEADER)
    rig.tick(1.0)
    rig.ack(rig.outstanding()[0])
    rig.send(8)
    for _ in range(20):
        for request in rig.outstanding():
            rig.fail(request, NOT_ENOUGH_REPLICAS)
        rig.tick(0.25)
    assert rig.statuses[-1] is NOT_WRITTEN
    first, last = (str(rig.outcomes[place].error) for place in (1, -1))
    assert "; sent " in first
    assert "waiting behind 5 batches" in last
    for told in (first, last):
        assert "NotEnoughReplicas" in told
        assert "NotLeader" not in told
    assert "delivery.timeout" not in told
