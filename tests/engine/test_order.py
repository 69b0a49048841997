"""What may be sent when: the first-ack gate, the span, discovery of the window, retries in order.

design.md section 5, "Sequences", "The window bounds a span", "Discovery", "First-ack gate".
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem._protocol.topic_config import TopicConfig

from .driver import (
    ACKED,
    CORRUPT_MESSAGE,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNSUPPORTED_VERSION,
    Rig,
    T,
    pipelined,
    wait_until,
)

FORTY = {"max_in_flight_requests_per_connection": 40}

# -- sequences


def test_sequences_are_taken_at_drain_and_count_records() -> None:
    """S4-3, A1.1, A1.2: what waits behind the gate has no number."""
    rig = Rig(batch_size=1000, linger=0.01).start()
    rig.send(5)
    rig.tick(0.1)
    rig.send(3)
    rig.tick(0.1)
    assert rig.state().ledger.next == 5
    rig.ack(rig.outstanding()[0])
    rig.tick(0.1)
    assert rig.sequences == [5]
    assert rig.outstanding()[0].only.batch.count == 3


def test_nothing_is_sent_before_there_is_a_producer_id() -> None:
    """A1.6."""
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.send(3)
    rig.tick(5.0)
    assert rig.everything == []
    rig.grant(rig.held[0], 9, 4)
    rig.poll()
    assert rig.outstanding()[0].only.identity == (9, 4)
    assert rig.sequences == [0]


def test_the_producer_id_is_asked_for_although_metadata_holds_the_only_slot() -> None:
    """A1.7: max.in.flight 1 with metadata outstanding is no deadlock."""
    rig = Rig(max_in_flight_requests_per_connection=1)
    rig.hold = (steps.FetchMetadata,)
    rig.core.accumulator.topic(T)
    rig.send()
    assert [type(step) for step in rig.asked] == [steps.OpenLink, steps.FetchMetadata]
    rig.hold = ()
    rig.answer_metadata(rig.held[0])
    rig.tick(1.0)
    assert any(isinstance(step, steps.InitProducerId) for step in rig.asked)
    rig.ack_all()
    rig.assert_drained()
    assert rig.statuses == [ACKED]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.request_timed_out,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_server_error,
    ],
)
def test_a_producer_id_refused_retriably_is_asked_for_again(code: int) -> None:
    """A1.8, C-J13."""
    from aioidem._protocol.producer_id import ProducerIdAnswer

    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.send()
    for number in range(3):
        step = rig.held[number]
        rig.core.on_answer(step, ProducerIdAnswer(code, -1, -1), rig.now)
        rig.tick(3.0)
    rig.grant(rig.held[3], 5, 0)
    rig.ack_all()
    assert rig.statuses == [ACKED]


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (5, -1), (-1, -1)])
def test_a_success_without_a_producer_id_is_an_error(producer_id: int, epoch: int) -> None:
    """E12."""
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.send()
    rig.grant(rig.held[0], producer_id, epoch)
    rig.tick(1.0)
    assert rig.everything == []
    rig.grant(rig.held[1], 5, 0)
    rig.poll()
    assert rig.outstanding()[0].only.identity == (5, 0)


def test_sequences_wrap_with_batches_in_flight_and_are_retried_in_order() -> None:
    """S4-21, A1.4, F34, finding 9: ordered by an unbounded counter, never by the wire value."""
    rig = Rig(batch_size=400).start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.jump(2**31 - 3)
    for _ in range(4):
        rig.send(2, poll=False)
        rig.poll()
    wires = [2**31 - 3, 2**31 - 1, 1, 3]
    assert rig.sequences == wires
    first, second, third, fourth = rig.outstanding()
    rig.fail(first, NOT_LEADER, poll=False)
    for later in (second, third, fourth):
        rig.fail(later, OUT_OF_ORDER, poll=False)
    rig.tick(1.0)
    resent = []
    while rig.outstanding():
        resent.append(rig.sequences[0])
        rig.ack(rig.outstanding()[0])
    assert resent == wires
    assert rig.statuses == [ACKED] * 9
    rig.assert_drained()


def test_a_batch_that_begins_right_at_the_wrap_has_sequence_zero() -> None:
    rig = Rig().start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.jump(2**31)
    rig.send()
    assert rig.sequences == [0]
    rig.ack_all()
    rig.assert_drained()


def test_the_span_of_unresolved_records_stays_below_its_cap() -> None:
    """KIP-758; attack.md finding 17: with nothing unresolved one batch may always go."""
    rig, requests = pipelined(2, version=14)
    state = rig.state()
    state.ledger.next = state.unresolved[0].base + 2**29
    rig.send(2)
    assert len(rig.outstanding()) == 2
    for request in requests:
        rig.ack(request)
    assert len(rig.outstanding()) >= 1
    rig.ack_all()
    rig.assert_drained()


# -- the first-ack gate


def test_one_batch_is_in_flight_until_the_first_acknowledgement() -> None:
    """Finding 4, C-J1, KAFKA-15591, KAFKA-14312, KAFKA-14359, KAFKA-19880, franz-go #223, A2.11."""
    rig = Rig().start()
    rig.send(8)
    assert rig.sequences == [0]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("code", [NOT_LEADER, NOT_ENOUGH_REPLICAS, CORRUPT_MESSAGE])
def test_the_gate_closes_after_any_error(code: int) -> None:
    """S8: one in flight, the oldest, until it is acknowledged."""
    rig, requests = pipelined(5)
    rig.fail(requests[0], code, poll=False)
    for request in requests[1:]:
        rig.fail(request, OUT_OF_ORDER)
    rig.send(3)
    rig.tick(2.0)
    assert rig.sequences == [1]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [2, 3, 4, 5, 6]
    rig.ack_all()
    assert rig.statuses == [ACKED] * 9
    assert [o.offset for o in rig.outcomes] == sorted(o.offset for o in rig.outcomes)


def test_the_gate_is_closed_on_every_new_connection() -> None:
    rig, requests = pipelined(2)
    for request in requests:
        rig.ack(request)
    rig.lose()
    rig.tick(1.0)
    rig.send(4)
    assert rig.sequences == [3]


def test_the_gate_is_closed_under_every_new_leader_epoch() -> None:
    """attack.md finding 10: also without an error, also with the same broker."""
    rig, requests = pipelined(2)
    for request in requests:
        rig.ack(request)
    rig.move_leader(1, 1)
    rig.send(4)
    assert rig.sequences == [3]
    rig.ack(rig.outstanding()[0])
    assert rig.sequences == [4, 5, 6]


def test_without_idempotence_there_is_no_gate() -> None:
    rig = Rig(enable_idempotence=False, acks=1).start()
    rig.send(7)
    assert len(rig.outstanding()) == 5
    rig.ack_all()
    rig.assert_drained()


# -- the span


def test_an_unanswered_batch_holds_the_window_although_later_ones_are_acknowledged() -> None:
    """Finding 7, KAFKA-9199, KAFKA-18905, C-J2: b1 unanswered, b2 to b5 acknowledged: b6 would push
    b1 out of the broker's cache.
    fluss #2826.
    """
    rig, requests = pipelined(5)
    rig.send(2)
    for request in requests[1:]:
        rig.ack(request)
    assert [o.status for o in rig.outcomes[1:7]] == [PENDING, *[ACKED] * 4, PENDING]
    assert rig.state().span == 5
    assert rig.sequences == [1]
    rig.ack(requests[0])
    assert rig.sequences == [6, 7]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_connection_window_binds_too(limit: int) -> None:
    """KIP-1269: max.in.flight=1 with a window of 20 gives 1 (D2.6)."""
    rig = Rig(version=14, max_in_flight_requests_per_connection=limit).start()
    rig.send()
    rig.ack(rig.outstanding()[0], retained=20)
    rig.send(10)
    assert len(rig.outstanding()) == limit
    assert rig.state().window.limit == 20


def test_one_full_connection_starves_no_partition() -> None:
    """A3.29, D2.6: 20 partitions over a connection of two requests."""
    rig = Rig(partitions=20, max_in_flight_requests_per_connection=2, max_request_size=2000).start()
    for _ in range(5):
        for partition in range(20):
            rig.send(partition=partition, poll=False)
    rig.poll()
    for _ in range(6):
        rig.ack(rig.outstanding()[0])
    firsts = {o.settlement.partition for o in rig.outcomes if o.settlement is not None}
    assert firsts == set(range(20))
    rig.ack_all()
    rig.assert_drained()


def test_two_partitions_have_their_own_windows() -> None:
    """D2.7: windows 5 and 20 on one connection."""
    rig = Rig(partitions=2, version=14, max_in_flight_requests_per_connection=100).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    request = rig.outstanding()[0]
    while rig.outstanding():
        request = rig.outstanding()[0]
        rig.answer(
            request,
            [
                rig.entry(request, part, NONE, 0, retained=20 if part.partition else None)
                for part in request.parts
            ],
        )
    rig.send(30, partition=0)
    rig.send(30, partition=1)
    sent = [part.partition for request in rig.outstanding() for part in request.parts]
    assert (sent.count(0), sent.count(1)) == (5, 20)


# -- discovery


def discovered(retained: int | None, **options: object) -> Rig:
    rig = Rig(version=14, max_in_flight_requests_per_connection=3000, **options).start()  # type: ignore[arg-type]
    rig.send()
    rig.ack(rig.outstanding()[0], retained=retained)
    return rig


@pytest.mark.parametrize(
    ("told", "limit"),
    [(None, 5), (5, 5), (20, 20), (0, 1), (-7, 1), (2**31 - 1, 1000), (-(2**31), 1)],
)
def test_the_window_is_what_the_success_says_within_bounds(told: int | None, limit: int) -> None:
    """F23, D2.4, E11, attack.md finding 30."""
    assert discovered(told).state().window.limit == limit


def test_twenty_in_flight_once_the_broker_says_twenty() -> None:
    rig = discovered(20)
    rig.send(30)
    assert rig.sequences == list(range(1, 21))
    assert rig.state().window.max_span == 20
    assert rig.max_span == 20


def test_an_absent_field_after_twenty_means_five() -> None:
    """D2.4: nothing new until the span fits."""
    rig = discovered(20)
    rig.send(40)
    for _ in range(16):
        rig.ack(rig.outstanding()[0])
    assert len(rig.outstanding()) == 5
    rig.ack_all()
    assert rig.statuses == [ACKED] * 41


def test_a_window_lowered_below_what_is_outstanding_lets_nothing_new_out() -> None:
    """D2.2."""
    rig = discovered(20)
    rig.send(40)
    rig.ack(rig.outstanding()[0], retained=7)
    assert len(rig.outstanding()) == 19
    for _ in range(12):
        rig.ack(rig.outstanding()[0], retained=7)
    assert len(rig.outstanding()) == 7
    rig.ack(rig.outstanding()[0], retained=7)
    assert len(rig.outstanding()) == 7


def test_an_error_never_teaches_a_window() -> None:
    """D2.5, F23."""
    rig = discovered(None)
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS, retained=20)
    assert rig.state().window.limit == 5


def test_a_leader_change_resets_the_window() -> None:
    rig = discovered(20)
    rig.move_leader(1, 1)
    rig.send(20)
    assert rig.state().window.limit == 5
    rig.ack(rig.outstanding()[0])
    assert len(rig.outstanding()) == 5


def test_a_reconnect_resets_the_window() -> None:
    rig = discovered(20)
    rig.lose()
    rig.tick(1.0)
    rig.send(20)
    assert rig.state().window.limit == 5
    rig.ack(rig.outstanding()[0], retained=20)
    assert len(rig.outstanding()) == 19


def test_a_stale_leaders_late_answer_does_not_restore_twenty() -> None:
    """D2.5, attack.md finding 30: the leader epoch it was sent under is no longer the newest."""
    rig = discovered(None, brokers=2)
    rig.send(2)
    assert len(rig.outstanding()) == 2
    rig.move_leader(2, 1, seconds=1.0)
    for request in rig.outstanding():
        rig.ack(request, retained=20)
    assert rig.state().window.limit == 5
    rig.send(9)
    assert rig.outstanding()[0].link.host == "b2"
    assert rig.state().window.limit == 5
    rig.ack(rig.outstanding()[0])
    assert len(rig.outstanding()) == 5


@pytest.mark.parametrize(("before", "told", "room"), [(20, 7, 7), (5, 20, 20)])
def test_a_leader_that_metadata_hides_for_a_while_still_names_its_window(
    before: int, told: int, room: int
) -> None:
    """LEADER_NOT_AVAILABLE under the epoch of now: nobody else was elected, and the partition goes
    on over the same connection with what the leader said meanwhile.
    """
    rig = discovered(before)
    rig.send()
    rig.move_leader(-1, 0, seconds=1.0)
    rig.ack(rig.outstanding()[0], retained=told)
    assert rig.state().window.limit == told
    rig.send(40)
    assert rig.outstanding() == []
    rig.move_leader(1, 0)
    assert len(rig.outstanding()) == room


def test_the_old_leader_is_drained_before_the_new_one_is_written_to() -> None:
    """A7.56, S7, attack.md finding 22, aiokafka #228."""
    rig, requests = pipelined(3, brokers=2)
    rig.move_leader(2, 1, seconds=0.5)
    rig.send(3)
    assert all(r.link.host == "b1" for r in rig.outstanding())
    rig.ack(requests[0])
    rig.ack(requests[1])
    assert len(rig.outstanding()) == 1
    rig.ack(requests[2])
    assert [r.link.host for r in rig.outstanding()] == ["b2"]
    assert rig.sequences == [4]
    rig.ack_all()
    rig.assert_drained()


def test_a_leader_that_flaps_is_drained_by_leader_epoch() -> None:
    """attack.md finding 22: L1 -> L2 -> L1 is another epoch of L1."""
    rig, requests = pipelined(2, brokers=2)
    rig.move_leader(1, 2, seconds=0.5)
    rig.send(3)
    assert rig.sequences == [1, 2]
    for request in requests:
        rig.ack(request)
    assert rig.sequences == [3]


def test_a_silent_deposed_leader_does_not_hold_up_its_successor() -> None:
    """attack.md finding 22: closed after max(3 RTT, 2 s); the same bytes go to the new leader."""
    rig, _ = pipelined(2, brokers=2)
    began = rig.now
    rig.move_leader(2, 1, seconds=0.5)
    wait_until(rig, lambda: any(r.link.host == "b2" for r in rig.outstanding()))
    assert 2.0 <= rig.now - began < 4.0
    assert rig.sequences == [1]
    assert rig.state().in_doubt == 2
    rig.ack_all()
    assert rig.statuses == [ACKED] * 3


def test_stale_metadata_does_not_move_a_partition_back() -> None:
    """A7.58."""
    rig, requests = pipelined(1, brokers=2)
    rig.ack(requests[0])
    rig.move_leader(2, 5)
    rig.send()
    assert rig.outstanding()[0].link.host == "b2"
    rig.ack_all()
    rig.move_leader(1, 4)
    rig.send()
    assert rig.outstanding()[0].link.host == "b2"


# -- Produce v14


@pytest.mark.parametrize(
    ("mode", "offered", "named", "version"),
    [
        ("auto", 14, True, 14),
        ("auto", 14, False, 13),
        ("auto", 13, True, 13),
        ("on", 14, False, 14),
        ("on", 13, True, 13),
        ("off", 14, True, 13),
    ],
)
def test_v14_is_spoken_as_the_option_and_the_broker_allow(
    mode: str, offered: int, named: bool, version: int
) -> None:
    """attack.md finding 14, D2.10; 2nd attack, f: whoever is to get v14 is asked."""
    rig = Rig(version=offered, window_discovery=mode)
    rig.names_config = named
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.send()
    assert rig.outstanding()[0].version == version
    asked = [step for step in rig.asked if isinstance(step, steps.DescribeTopicConfig)]
    assert len(asked) == (mode == "auto" and offered == 14)


def test_the_config_is_asked_about_once_per_connection() -> None:
    rig = Rig(version=14, partitions=3).start()
    for partition in (0, 1, 2):
        rig.send(partition=partition)
    rig.ack_all()
    rig.lose()
    rig.tick(1.0)
    rig.send()
    rig.ack_all()
    asked = [step for step in rig.asked if isinstance(step, steps.DescribeTopicConfig)]
    assert len({step.link_id for step in asked}) == len(asked) == 2


def test_the_first_batch_of_a_connection_waits_for_the_answer_about_the_config() -> None:
    """Its own answer then names the window."""
    rig = Rig(version=14)
    rig.hold = (steps.DescribeTopicConfig,)
    rig.start()
    rig.send()
    assert rig.everything == []
    step = rig.held[0]
    rig.core.on_answer(step, TopicConfig(0, True), rig.now)
    rig.poll()
    assert rig.outstanding()[0].version == 14


def test_a_config_question_that_is_never_answered_holds_nothing_up_for_ever() -> None:
    rig = Rig(version=14, request_timeout=5.0)
    rig.hold = (steps.DescribeTopicConfig,)
    rig.start()
    rig.send()
    rig.tick(6.0)
    assert len(rig.held) == 2, "asked again on the next connection"
    step = rig.held[1]
    rig.core.on_answer(step, TopicConfig(0, False), rig.now)
    rig.ack_all()
    assert rig.statuses == [ACKED]


def test_a_v14_request_refused_falls_back_to_v13_for_a_while() -> None:
    """The batch is retried, not failed, although UNSUPPORTED_VERSION is permanent elsewhere. v14
    is tried again after a second, on this connection or another, and ever less often.
    """
    rig = Rig(version=14, window_discovery="on").start()
    rig.send()
    rig.fail(rig.outstanding()[0], UNSUPPORTED_VERSION)
    rig.tick(0.3)
    assert rig.outstanding()[0].version == 13
    rig.ack_all()
    assert rig.statuses == [ACKED]
    rig.lose()
    rig.tick(0.3)
    rig.send()
    assert rig.outstanding()[0].version == 13
    rig.ack_all()
    waits = []
    for _ in range(6):
        before = rig.now
        rig.send()
        while rig.outstanding()[0].version == 13:
            rig.ack(rig.outstanding()[0])
            rig.tick(0.1)
            rig.send()
        waits.append(rig.now - before)
        rig.fail(rig.outstanding()[0], UNSUPPORTED_VERSION)
        rig.tick(0.3)
        rig.ack_all()
    assert waits == sorted(waits)
    assert 10.0 < waits[-1] < 20.0, 'window_discovery="on" never waits longer'
    assert sum("UNSUPPORTED_VERSION" in event for event in rig.events) == 1, "told once"


def test_a_v14_answer_that_cannot_be_decoded_falls_back_to_v13_for_a_while() -> None:
    rig = Rig(version=14, window_discovery="on").start()
    rig.send()
    request = rig.outstanding()[0]
    rig.finish(request)
    request.link.closed = True
    rig.core.on_undecodable(request.link.link_id, 14, ValueError("odd"), rig.now)
    rig.tick(0.5)
    assert rig.outstanding()[0].version == 13
    rig.ack_all()
    assert rig.statuses == [ACKED]
    rig.tick(1.0)
    rig.send()
    assert rig.outstanding()[0].version == 14


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_broker_that_hangs_up_on_v14_is_spoken_to_in_v13(mode: str) -> None:
    """attack.md finding 14: "connection closed, reconnect, for ever" must end."""
    rig = Rig(version=14, window_discovery=mode).start()
    rig.hold = (steps.DescribeTopicConfig,)
    rig.send(20)
    refused = 0
    until = rig.now + 100.0
    while PENDING in rig.statuses and rig.now < until:
        for request in rig.outstanding():
            if request.done:
                continue
            if request.version == 14:
                refused += 1
                rig.lose(request.link)
            else:
                rig.ack(request)
        while rig.held:
            step = rig.held.pop()
            rig.core.on_answer(step, TopicConfig(0, True), rig.now)
        rig.tick(0.1)
    assert rig.statuses == [ACKED] * 20
    assert refused <= 2


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_broker_that_has_answered_v14_collects_no_strikes(mode: str) -> None:
    """Five connections that end before their first answer, and the sixth speaks v14 at once."""
    rig, _ = pipelined(20, version=14, window_discovery=mode, **FORTY)
    rig.ack_all()
    for _ in range(5):
        rig.send()
        assert rig.outstanding()[0].version == 14
        rig.lose()
        rig.tick(5.0)
    assert rig.outstanding()[0].version == 14
    rig.ack_all()
    assert {request.version for request in rig.everything} == {14}
    assert not rig.events


def test_a_known_broker_whose_config_questions_are_lost_is_not_asked_a_third_time() -> None:
    """A question that is never answered holds up every batch until the request timeout."""
    rig = Rig(version=14, request_timeout=5.0).start()
    rig.send()
    rig.ack_all()
    rig.hold = (steps.DescribeTopicConfig,)
    rig.lose()
    rig.send()
    rig.tick(12.0)
    assert len(rig.held) == 2
    assert rig.outstanding()[0].version == 14
    rig.ack_all()
    assert rig.statuses == [ACKED] * 2


def test_a_config_that_may_not_be_read_is_asked_about_again_while_batches_go_on() -> None:
    """On the same connection, ever less often; the batches go out in v13 meanwhile and wait for no
    answer but the first.
    """
    rig = Rig(version=14)
    rig.config_error = TOPIC_AUTHORIZATION_FAILED
    rig.start()
    asked = []
    for _ in range(300):
        rig.send()
        rig.ack(rig.outstanding()[0])
        rig.tick(0.1)
        asked.append(sum(isinstance(step, steps.DescribeTopicConfig) for step in rig.asked))
    assert [asked.index(count) // 10 for count in (2, 3, 4)] == pytest.approx([1, 3, 7], abs=1.5)
    assert asked[-1] in (5, 6)
    [told] = [event for event in rig.events if "DESCRIBE_CONFIGS" in event]
    assert "topic 't'" in told
    rig.hold = (steps.DescribeTopicConfig,)
    rig.tick(40.0)
    rig.send()
    [step] = rig.held
    assert rig.outstanding()[0].version == 13, "nothing waits for a second answer"
    rig.core.on_answer(step, TopicConfig(0, True), rig.now)
    rig.ack_all()
    rig.send()
    assert rig.outstanding()[0].version == 14


def test_a_topic_without_an_id_is_written_by_name() -> None:
    """franz-go #1312: never a zero topic id."""
    rig = Rig(version=14, window_discovery="on")
    rig.ids[T] = None
    rig.start()
    rig.send()
    request = rig.outstanding()[0]
    assert request.version == 12
    assert request.step.topics[0].topic_id is None
    rig.ack(request)
    assert rig.statuses == [ACKED]


# -- retries in order


@pytest.mark.parametrize("batches", [2, 5], ids=["room in the window", "a full window"])
def test_a_retriable_error_on_the_first_is_retried_in_order_with_new_data_behind(
    batches: int,
) -> None:
    """S4-15, A3.19, A3.21, S8, kafka-python #2937, Sarama #1430 and #3354."""
    rig, requests = pipelined(batches)
    rig.fail(requests[0], NOT_LEADER, poll=False)
    for request in requests[1:]:
        rig.fail(request, OUT_OF_ORDER, poll=False)
    rig.send(2)
    assert rig.outstanding() == []
    rig.tick(2.0)
    assert rig.sequences == [1], "it is resent alone; what is new waits although there is room"
    order = []
    while rig.outstanding():
        order.extend(rig.sequences[:1])
        rig.ack(rig.outstanding()[0])
    assert order == list(range(1, batches + 3))
    rig.assert_drained()
    assert rig.core.epoch_bumps == 0


@pytest.mark.parametrize("failing", range(5))
def test_a_retriable_error_on_any_of_five_keeps_the_order(failing: int) -> None:
    """S4-7, A3.20, Sarama #2619 and #2860."""
    rig, requests = pipelined(5)
    for number, request in enumerate(requests):
        if number < failing:
            rig.ack(request)
        else:
            rig.fail(request, NOT_ENOUGH_REPLICAS if number == failing else OUT_OF_ORDER)
    rig.tick(2.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 6
    offsets = [o.offset for o in rig.outcomes]
    assert offsets == sorted(offsets)
    rig.assert_drained()


def test_a_partition_backs_off_by_itself() -> None:
    """A3.23: another one goes on."""
    rig = Rig(partitions=2).start()
    rig.send(partition=0)
    rig.send(partition=1)
    first = next(r for r in rig.outstanding() if r.only.partition == 0)
    rig.fail(first, NOT_ENOUGH_REPLICAS)
    other = rig.outstanding()[0]
    rig.ack(other)
    rig.send(partition=1)
    assert [part.partition for r in rig.outstanding() for part in r.parts] == [1]
    rig.tick(1.0)
    assert sorted(p.partition for r in rig.outstanding() for p in r.parts) == [0, 1]


def test_back_off_grows_and_ends_with_a_success() -> None:
    rig = Rig(retry_backoff=0.1, retry_backoff_max=1.0).start()
    rig.send()
    waits = []
    for _ in range(6):
        failed_at = rig.now
        rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS)
        wait_until(rig, lambda: bool(rig.outstanding()))
        waits.append(rig.now - failed_at)
    assert waits[0] < 0.13
    assert 0.79 < waits[4] < 1.21
    assert 0.79 < waits[5] < 1.21
    rig.ack(rig.outstanding()[0])
    rig.send()
    failed_at = rig.now
    rig.fail(rig.outstanding()[0], NOT_ENOUGH_REPLICAS)
    wait_until(rig, lambda: bool(rig.outstanding()))
    assert rig.now - failed_at < 0.13


def test_the_back_off_is_skipped_when_the_leader_has_moved() -> None:
    """A3.24."""
    rig = Rig(brokers=2, retry_backoff=5.0, retry_backoff_max=60.0).start()
    rig.tick(20.0)
    rig.send()
    rig.fail(
        rig.outstanding()[0], NOT_LEADER, leader_id=2, leader_epoch=1
    )  # KIP-951 names the new one
    assert [r.link.host for r in rig.outstanding()] == ["b2"]
    assert rig.core.counters.batches_retried == 1


def test_a_leader_hint_of_an_unknown_broker_is_followed_with_its_address() -> None:
    """A7.57."""
    from aioidem._protocol.produce import LeaderNode

    rig = Rig().start()
    rig.send()
    request = rig.outstanding()[0]
    entry = rig.entry(request, request.only, NOT_LEADER, leader_id=7, leader_epoch=3)
    rig.answer(request, [entry], leaders=(LeaderNode(7, "b7", 9092),))
    assert [r.link.host for r in rig.outstanding()] == ["b7"]


def test_an_old_leader_hint_is_ignored() -> None:
    rig = Rig(brokers=2).start()
    rig.move_leader(1, 4)
    rig.send()
    rig.fail(rig.outstanding()[0], NOT_LEADER, leader_id=2, leader_epoch=3)
    rig.tick(2.0)
    assert [r.link.host for r in rig.outstanding()] == ["b1"]


def test_partial_success_is_judged_partition_by_partition() -> None:
    """F12."""
    rig = Rig(partitions=3).start()
    for partition in range(3):
        rig.send(partition=partition, poll=False)
    rig.poll()
    (request,) = rig.outstanding()
    codes = {0: NONE, 1: NOT_LEADER, 2: REQUEST_TIMED_OUT}
    rig.answer(
        request,
        [
            rig.entry(request, part, codes[part.partition], 0 if part.partition == 0 else -1)
            for part in request.parts
        ],
    )
    assert rig.statuses == [ACKED, PENDING, PENDING]
    assert [rig.state(T, p).in_doubt for p in range(3)] == [0, 0, 1]
    rig.tick(2.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 3
    rig.assert_drained()
