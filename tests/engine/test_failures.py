"""Failures: refused batches, splits, lost producer ids, malformed answers, and acks 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem._engine.assigning import SLICE
from aioidem._engine.flushing import FlushCount
from aioidem._protocol.produce import PartitionAnswer
from aioidem._protocol.producer_id import ProducerIdAnswer
from aioidem.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    ProducerClosed,
    ProtocolError,
)
from aioidem.structs import DeliveryCounts

from .driver import (
    ACKED,
    CLUSTER_AUTHORIZATION_FAILED,
    DUPLICATE,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN,
    UNKNOWN_PRODUCER_ID,
    UNSUPPORTED_VERSION,
    Outcome,
    Rig,
    T,
    pipelined,
    topic_id,
    wait_until,
)

# -- permanent errors


@pytest.mark.parametrize("failing", range(5))
@pytest.mark.parametrize("code", [INVALID_RECORD, TOPIC_AUTHORIZATION_FAILED])
def test_a_permanent_error_on_one_of_five_leaves_the_rest_delivered_in_order(
    failing: int, code: int
) -> None:
    """The batches behind a failed one are delivered in order after one epoch bump (KAFKA-14034)."""
    rig, requests = pipelined(5)
    for number, request in enumerate(requests):
        if number < failing:
            rig.ack(request, poll=False)
        else:
            rig.fail(request, code if number == failing else OUT_OF_ORDER, poll=False)
    rig.settle_down(10.0)
    expected = [ACKED] * 6
    expected[failing + 1] = NOT_WRITTEN
    assert rig.statuses == expected
    offsets = [o.offset for o in rig.outcomes if o.status is ACKED]
    assert offsets == sorted(offsets)
    assert rig.core.epoch_bumps == 1
    [bumped] = [event for event in rig.events if "epoch bumped" in event]
    assert bumped.startswith(f"{T}-0: producer epoch bumped, because a batch ended NOT_WRITTEN (")
    assert rig.core.counters.data_loss_events == 0
    rig.assert_drained()


def test_a_permanent_error_below_a_doubtful_batch_does_not_renumber_the_doubtful() -> None:
    """A batch in doubt keeps its epoch and sequence when another batch fails (KAFKA-14034)."""
    rig, (first, second, third) = pipelined(3)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    rig.fail(second, INVALID_RECORD, poll=False)
    rig.fail(third, OUT_OF_ORDER, poll=False)
    rig.tick(1.0)
    assert (rig.outstanding()[0].epoch, rig.sequences) == (0, [1])
    rig.ack(rig.outstanding()[0])
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    rig.ack_all()
    assert rig.statuses == [ACKED, ACKED, NOT_WRITTEN, ACKED]
    rig.assert_drained()


def test_one_incident_is_one_bump_however_many_siblings_fail() -> None:
    """However many batches of a partition fail together, the epoch is bumped once."""
    rig, requests = pipelined(5)
    for request in requests:
        rig.fail(request, INVALID_RECORD, poll=False)
    rig.tick(1.0)
    assert rig.statuses[1:] == [NOT_WRITTEN] * 5
    assert rig.core.epoch_bumps == 1
    rig.send()
    assert rig.outstanding()[0].epoch == 1


def test_two_partitions_with_an_incident_under_the_same_epoch_share_one_bump() -> None:
    rig = Rig(partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition, poll=False)
    rig.poll()
    rig.fail(rig.outstanding()[0], INVALID_RECORD)
    assert rig.core.epoch_bumps == 1
    for partition in (0, 1):
        rig.send(partition=partition)
    assert {part.epoch for r in rig.outstanding() for part in r.parts} == {1}


def test_the_refused_records_have_the_brokers_specific_error() -> None:
    """The error of a refused record includes what the broker said about that record (KIP-467)."""
    rig = Rig().start()
    rig.send()
    rig.fail(
        rig.outstanding()[0],
        INVALID_RECORD,
        error_message="bad\nrecord",
        record_errors=((0, "no key"),),
    )
    text = str(rig.outcomes[0].error)
    assert "no key" in text
    assert "\n" not in text


# -- epochs


def test_a_healthy_partition_finishes_under_the_old_epoch_and_adopts_lazily() -> None:
    """A partition adopts a new epoch only when no batch of it is outstanding (KAFKA-12152).

    See also librdkafka #4953, franz-go v0.6.3 and Dekaf #3342.
    """
    rig = Rig(partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    rig.send(3, partition=1)
    healthy = rig.outstanding()
    rig.send(partition=0)
    rig.fail(rig.outstanding()[-1], INVALID_RECORD)
    rig.send(partition=1)
    assert {r.epoch for r in healthy} == {0}
    assert rig.outstanding()[-1].epoch == 0, "the healthy partition keeps its epoch"
    while rig.outstanding():
        rig.ack(rig.outstanding()[0])
    rig.send(partition=1)
    assert (rig.outstanding()[0].epoch, rig.sequences) == (1, [0])
    rig.ack_all()
    assert rig.core.epoch_bumps == 1
    rig.assert_drained()


def test_a_doubtful_batch_keeps_its_partition_on_the_old_epoch() -> None:
    """No partition adopts a new epoch while a batch of it is in doubt (librdkafka #4953).

    The first append under epoch e+1 would fence a resend under e, and a resend under e+1 would be a
    second copy.
    """
    rig = Rig(partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition)
    rig.ack_all()
    rig.send(partition=1)
    rig.fail(rig.outstanding()[0], REQUEST_TIMED_OUT)
    rig.send(partition=0)
    rig.fail(rig.outstanding()[0], INVALID_RECORD)
    rig.tick(1.0)
    (resend,) = rig.outstanding()
    assert (resend.only.partition, resend.epoch, resend.sequence) == (1, 0, 1)
    rig.ack(resend)
    assert rig.statuses.count(ACKED) == 3


def test_the_last_epoch_gives_way_to_a_new_producer_id() -> None:
    """After epoch 32767 the producer gets a new producer id (librdkafka #3720, Dekaf #3341)."""
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.grant(rig.held[0], 77, 32767)
    rig.poll()
    rig.hold = ()
    rig.send(3)
    assert rig.outstanding()[0].only.identity == (77, 32767)
    rig.fail(rig.outstanding()[0], INVALID_RECORD)
    rig.tick(1.0)
    producer_id, epoch = rig.outstanding()[0].only.identity
    assert producer_id != 77
    assert (epoch, rig.sequences) == (0, [0])
    rig.ack_all()
    assert rig.statuses == [NOT_WRITTEN, ACKED, ACKED]
    rig.assert_drained()


# -- fatal and closed


def test_a_fatal_error_ends_everything_and_later_sends_raise() -> None:
    """A fatal error settles every record, and every later send raises it."""
    rig, requests = pipelined(3)
    rig.send(4)
    rig.fail(requests[0], CLUSTER_AUTHORIZATION_FAILED)
    assert rig.statuses[1:] == [NOT_WRITTEN, *[UNKNOWN] * 4, *[NOT_WRITTEN] * 2]
    with pytest.raises(KafkaError):
        rig.send()
    rig.core.budget.release(rig.core.budget.used)
    for request in rig.outstanding():
        rig.ack(request)
    assert rig.statuses.count(ACKED) == 1
    rig.assert_drained()


def test_a_refused_producer_id_fails_what_waits_and_recovers_when_granted() -> None:
    """A refused producer id fails the waiting records; once granted, later records are sent.

    The refusal is not fatal (KAFKA-13668, KAFKA-14417).
    """
    rig = Rig()
    rig.hold = (steps.InitProducerId,)
    rig.start()
    rig.send(2)
    step = rig.held[0]
    rig.core.on_answer(
        step,
        ProducerIdAnswer(ErrorCode.cluster_authorization_failed, -1, -1),
        rig.now,
    )
    rig.collect()
    assert rig.statuses == [NOT_WRITTEN] * 2
    assert isinstance(rig.core.identity_error, ClusterAuthorizationFailedError)
    rig.tick(2.0)
    rig.send()
    rig.grant(rig.held[1], 9, 0)
    rig.ack_all()
    assert rig.statuses[2] is ACKED
    assert getattr(rig.core, "identity_error") is None  # noqa: B009 (mypy has narrowed it)


def test_close_settles_everything_and_closes_every_connection() -> None:
    """Closing settles every record and closes every connection."""
    rig, _ = pipelined(2)
    rig.send(3, partition=0)
    rig.send(topic="nowhere")
    rig.fail(rig.outstanding()[0], NOT_LEADER)
    closing = rig.core.close(rig.now)
    rig.collect()
    assert {type(step) for step in closing} == {steps.CloseLink}
    assert rig.statuses[1:] == [NOT_WRITTEN, *[UNKNOWN] * 4, NOT_WRITTEN]
    assert all(isinstance(o.error, ProducerClosed) for o in rig.outcomes[1:])
    rig.requests.clear()
    rig.assert_drained()
    assert not rig.core.connections.links


# -- split


def serve(rig: Rig, largest: int) -> None:
    """Answer as a broker that refuses each batch over `largest` bytes and all batches behind it."""
    for _ in range(200):
        if not rig.outstanding():
            return
        assert len(rig.outstanding()) <= 5
        request, *behind = rig.outstanding()
        if len(request.only.data) <= largest:
            rig.ack(request)
        else:
            rig.fail(request, MESSAGE_TOO_LARGE, poll=False)
            for later in behind:
                rig.fail(later, OUT_OF_ORDER, poll=False)
            rig.poll()
        rig.tick(0.01)
    raise AssertionError("the partition does not come to rest")


def test_a_batch_that_is_too_large_is_split_until_it_fits() -> None:
    """A batch that is too large is split, and so are its parts, until every part fits.

    The parts keep the sequences and the order of the batch, and each record gets its outcome.
    """
    rig = Rig(batch_size=10_000).start()
    rig.send(8, poll=False)
    rig.poll()
    assert rig.outstanding()[0].only.batch.count == 8
    serve(rig, 500)
    assert rig.statuses == [ACKED] * 8
    assert [o.offset for o in rig.outcomes] == list(range(8))
    assert rig.core.epoch_bumps == 0
    assert rig.core.counters.batches_split >= 2
    rig.assert_drained()


def test_the_topics_ceiling_is_remembered_after_a_split() -> None:
    rig = Rig(batch_size=10_000).start()
    rig.send(8, poll=False)
    rig.poll()
    size = len(rig.outstanding()[0].only.data)
    rig.fail(rig.outstanding()[0], MESSAGE_TOO_LARGE)
    rig.ack_all()
    rig.send(8, poll=False)
    rig.poll()
    assert len(rig.outstanding()[0].only.data) <= size // 2


def test_a_single_record_that_is_too_large_fails_alone() -> None:
    """A batch of one record that is too large fails, and the batches behind it are delivered."""
    rig, requests = pipelined(3)
    rig.fail(requests[0], MESSAGE_TOO_LARGE, poll=False)
    rig.fail(requests[1], OUT_OF_ORDER, poll=False)
    rig.fail(requests[2], OUT_OF_ORDER, poll=False)
    rig.settle_down(5.0)
    assert rig.statuses == [ACKED, NOT_WRITTEN, ACKED, ACKED]
    rig.assert_drained()


def test_a_split_with_a_full_window_behind_it_keeps_span_and_order() -> None:
    """Splitting the oldest batch of a full window exceeds no window and reorders no records.

    The window is five batches, although the connection would take twenty requests.
    """
    rig = Rig(batch_size=1000, max_in_flight_requests_per_connection=20).start()
    rig.send()
    rig.ack_all()
    for _ in range(5):
        rig.send(4, poll=False)
        rig.poll()
    assert len(rig.outstanding()) == 5
    requests = rig.outstanding()
    rig.fail(requests[0], MESSAGE_TOO_LARGE, poll=False)
    for request in requests[1:]:
        rig.fail(request, OUT_OF_ORDER, poll=False)
    rig.poll()
    serve(rig, 300)
    assert rig.statuses == [ACKED] * 21
    offsets = [o.offset for o in rig.outcomes]
    assert offsets == sorted(offsets)
    assert rig.core.epoch_bumps == 0
    assert rig.state().window.max_span <= 5
    rig.assert_drained()


def test_a_part_of_a_split_that_fails_leaves_the_others_in_order() -> None:
    rig = Rig(batch_size=10_000).start()
    rig.send(4, poll=False)
    rig.poll()
    rig.fail(rig.outstanding()[0], MESSAGE_TOO_LARGE)
    rig.fail(rig.outstanding()[0], INVALID_RECORD)
    rig.settle_down(5.0)
    assert NOT_WRITTEN in rig.statuses
    assert PENDING not in rig.statuses
    acked = [o.offset for o in rig.outcomes if o.status is ACKED]
    assert acked == sorted(acked)
    rig.assert_drained()


# -- odd answers


def test_a_partition_missing_from_the_answer_is_in_doubt() -> None:
    """A batch whose partition is missing from the answer is in doubt, and is resent."""
    rig = Rig(partitions=2).start()
    for partition in (0, 1):
        rig.send(partition=partition, poll=False)
    rig.poll()
    (request,) = rig.outstanding()
    assert rig.answer(request, [rig.entry(request, request.parts[0], NONE, 0)]) is None
    assert rig.state(T, request.parts[1].partition).batches.in_doubt == 1
    rig.tick(1.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 2


@pytest.mark.parametrize("odd", ["doubled", "invented partition", "invented topic"])
def test_an_answer_with_odd_entries_closes_the_connection(odd: str) -> None:
    """An answer with a doubled or invented entry closes the connection; its correct entry counts.

    The batches that are still in flight on the connection are in doubt (KAFKA-4966).
    """
    rig, (first, _second) = pipelined(2)
    entry = rig.entry(first, first.only, NONE, 7)
    strange = {
        "doubled": rig.entry(first, first.only, OUT_OF_ORDER),
        "invented partition": PartitionAnswer(None, topic_id(T), 99, NONE, 1),
        "invented topic": PartitionAnswer(None, topic_id("other"), 0, NONE, 1),
    }[odd]
    error = rig.answer(first, [entry, strange])
    assert isinstance(error, ProtocolError)
    assert rig.outcomes[1].offset == 7
    assert rig.state().batches.in_doubt == 1
    rig.tick(1.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 3
    rig.assert_drained()


def test_an_answer_to_a_request_that_is_not_outstanding_changes_nothing() -> None:
    """An answer to a request that is not outstanding settles neither its batch nor another one."""
    rig, (first, second) = pipelined(2)
    rig.ack(first)
    first.done = False
    rig.ack(first, 99)
    assert rig.outcomes[1].offset != 99
    assert rig.outcomes[2].status is PENDING
    rig.ack(second)
    rig.assert_drained()


def test_an_answer_is_matched_by_what_the_request_carried() -> None:
    """An answer counts even if metadata lost the topic after the request was sent (KAFKA-19397)."""
    rig = Rig().start()
    rig.send()
    request = rig.outstanding()[0]
    del rig.leaders[T, 0]
    rig.topic_errors[T] = 3
    rig.refresh()
    rig.ack(request)
    assert rig.statuses == [ACKED]


def test_an_answer_for_a_topic_id_that_is_gone_is_no_stranger() -> None:
    """An answer may name a topic id that metadata no longer has (KAFKA-19397).

    The topic was recreated, which settled the batches in flight. Their answers settle no record
    again, every counter returns to zero, and the connection stays open.
    """
    rig, (first, second) = pipelined(2)
    rig.ids[T] = topic_id(T, 1)
    rig.refresh(0.5)
    assert rig.statuses == [ACKED, UNKNOWN, UNKNOWN]
    for request in (first, second):
        assert rig.answer(request, [rig.entry(request, request.only, NONE, 5)]) is None
    assert not first.link.closed
    rig.send()
    assert rig.outstanding()[0].link is first.link
    rig.ack_all()
    rig.assert_drained()


def test_a_success_without_an_offset_is_acknowledged_with_none() -> None:
    """A batch answered with error NONE and offset -1 is ACKED without offset (franz-go v1.18.1)."""
    rig = Rig().start()
    rig.send()
    rig.ack(rig.outstanding()[0], -1)
    assert (rig.outcomes[0].status, rig.outcomes[0].offset) == (ACKED, -1)


def test_offsets_count_from_the_base_offset() -> None:
    """The records of a batch have consecutive offsets from its base offset on."""
    rig = Rig(batch_size=10_000).start()
    rig.send(4, poll=False)
    rig.poll()
    rig.ack(rig.outstanding()[0], 1000)
    assert [o.offset for o in rig.outcomes] == [1000, 1001, 1002, 1003]


# -- topics that change


@pytest.mark.parametrize("left_out", [False, True])
def test_a_topic_that_vanishes_for_a_while_keeps_its_sequences(left_out: bool) -> None:
    """The sequences of a topic that was unknown for a while go on (librdkafka #3672).

    A Metadata answer has error 3 for it, or leaves it out. If the sequences began at 0 again, the
    broker would take new records for duplicates: acknowledged and lost.
    """
    rig, requests = pipelined(2)
    for request in requests:
        rig.ack(request)
    if left_out:
        rig.hold = (steps.FetchMetadata,)
        rig.refresh()
        rig.core.on_answer(rig.held[0], rig.metadata(()), rig.now)
        rig.hold = ()
    else:
        rig.topic_errors[T] = 3
        rig.refresh()
        rig.topic_errors.clear()
    rig.refresh()
    rig.send()
    assert (rig.outstanding()[0].epoch, rig.sequences) == (0, [3])


def test_a_recreated_topic_ends_doubt_at_once_and_starts_under_one_bumped_epoch() -> None:
    """When a topic is recreated, its sent batches end UNKNOWN at once, with one epoch bump."""
    rig, (first, *_) = pipelined(3)
    rig.send(4)
    rig.fail(first, REQUEST_TIMED_OUT, poll=False)
    owed, queued = rig.outstanding(), rig.outcomes[-2:]
    assert len(owed) == 4
    rig.ids[T] = topic_id(T, 1)
    rig.refresh(0.5)
    assert rig.statuses[1:6] == [UNKNOWN] * 5
    assert rig.core.epoch_bumps == 1
    for request in owed:
        rig.ack(request)
    rig.settle_down(5.0)
    assert rig.statuses == [ACKED, *[UNKNOWN] * 5, ACKED, ACKED]
    assert all(o.offset >= 0 for o in queued)
    new = [r for r in rig.everything if r.step.topics[0].topic_id == topic_id(T, 1)]
    assert [(r.epoch, r.sequence) for r in new] == [(1, 0), (1, 1)]
    rig.assert_drained()


def test_nobody_waits_for_the_leader_of_a_deleted_topic() -> None:
    """It owes an answer, and the new topic has another leader epoch. Its batches have ended."""
    rig = Rig(request_timeout=30.0).start()
    rig.send()
    rig.leaders[T, 0] = (1, 5)
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    assert rig.statuses == [UNKNOWN]
    polls = rig.polls
    rig.tick(20.0)
    assert rig.polls - polls < 10
    rig.send()
    rig.ack(rig.outstanding()[-1])
    assert rig.statuses == [UNKNOWN, ACKED]


@pytest.mark.parametrize("version", [12, 13])
def test_a_leader_of_the_deleted_topic_is_none_of_the_new_one(version: int) -> None:
    """A late answer names the leader of the old topic, with a higher leader epoch (KIP-951).

    No Metadata answer about the new topic could replace such a leader, so nothing would be written
    until the new topic had as many elections as the old one.
    """
    rig = Rig(brokers=2, version=version).start()
    rig.move_leader(1, 5)
    rig.send()
    (owed,) = rig.outstanding()
    rig.leaders[T, 0] = (1, 0)
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    rig.fail(owed, NOT_LEADER, leader_id=2, leader_epoch=6)
    rig.tick(2.0)
    (record,) = rig.send()
    (request,) = rig.outstanding()
    assert request.link.host == "b1"
    rig.ack(request)
    assert record.status is ACKED


@pytest.mark.parametrize("left", [1, 2], ids=["fewer partitions", "as many"])
def test_a_flush_that_has_begun_ends_lingering_in_a_recreated_topic_too(left: int) -> None:
    rig = Rig(partitions=2, linger=60.0).start()
    for partition in range(2):
        rig.leaders[T, partition] = (-1, 1)
    rig.refresh()
    (record,) = rig.send()
    rig.core.accumulator.begin_flush()
    rig.poll()
    rig.ids[T] = topic_id(T, 1)
    rig.leaders[T, 0] = (1, 0)
    if left == 1:
        del rig.leaders[T, 1]
    rig.refresh()
    rig.tick(1.0)
    rig.ack_all()
    assert record.status is ACKED


def test_an_outdated_answer_about_a_recreated_topic_ends_nothing() -> None:
    """A broker that lags behind names the topic's earlier id; metadata is asked for again."""
    rig = Rig(brokers=2, window_discovery="off").start()
    rig.send()
    rig.ack_all()
    rig.ids[T] = topic_id(T, 1)
    rig.leaders[T, 0] = (1, 0)
    rig.refresh()
    rig.send(2)
    rig.ids[T] = topic_id(T, 0)
    rig.core.metadata.want()
    rig.tick(0.5)
    assert rig.core.metadata.wanted
    assert rig.statuses[1:] == [PENDING, PENDING]
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    rig.ack_all()
    assert rig.statuses[1:] == [ACKED, ACKED]
    assert rig.core.epoch_bumps == 1


def test_outdated_answers_without_a_pause_between_them_end_nothing_either() -> None:
    """New topics are asked for at once, and a broker that lags behind answers each time."""
    rig = Rig(brokers=2, window_discovery="off").start()
    rig.send()
    rig.ack_all()
    rig.ids[T] = topic_id(T, 1)
    rig.leaders[T, 0] = (1, 0)
    rig.refresh()
    (record,) = rig.send()
    rig.ids[T] = topic_id(T, 0)
    asked = rig.core.metadata.requests
    for number in range(12):
        rig.core.accumulator.topic(f"new{number}")
        rig.tick(0.001)
    assert rig.core.metadata.requests == asked + 12
    assert record.status is PENDING
    rig.ids[T] = topic_id(T, 1)
    rig.refresh()
    rig.ack_all()
    assert record.status is ACKED
    assert rig.core.epoch_bumps == 1


def _recreated_with_one_partition_of_two(count: int = 1) -> tuple[Rig, Outcome, Outcome]:
    """Queue records for partition 1 and a later one for 0, then recreate the topic without 1.

    The caller gave the first ones no partition, so the engine may move them to 0.
    """

    def last(_key: bytes | None, everything: Sequence[int], _led: Sequence[int]) -> int:
        return max(everything)

    rig = Rig(partitions=2, partitioner=last, delivery_timeout=80.0, linger=30.0).start()
    early = rig.send(count, partition=None, size=20)[-1]
    rig.tick(2.0)
    late = rig.send(partition=0, size=20)[0]
    rig.ids[T] = topic_id(T, 1)
    del rig.leaders[T, 1]
    return rig, early, late


def test_call_order_is_kept_where_a_topic_is_recreated_with_fewer_partitions() -> None:
    rig, early, late = _recreated_with_one_partition_of_two()
    rig.refresh()
    rig.settle_down(60.0)
    assert (early.status, late.status) == (ACKED, ACKED)
    assert early.offset < late.offset


def test_a_deadline_is_kept_where_a_topic_is_recreated_with_fewer_partitions() -> None:
    """A record moved to another partition of a recreated topic expires at its own deadline.

    Only the head of a queue is checked for expiry, so the record must not be behind a later one.
    """
    rig, early, late = _recreated_with_one_partition_of_two()
    rig.refresh()
    rig.leaders[T, 0] = (-1, 1)
    rig.refresh()
    wait_until(rig, lambda: early.status is NOT_WRITTEN)
    assert late.status is PENDING


def test_a_close_settles_what_is_being_moved_to_other_partitions() -> None:
    """Records of a recreated topic with fewer partitions have none until the next polls."""
    rig, early, late = _recreated_with_one_partition_of_two(2 * SLICE)
    rig.hold = (steps.FetchMetadata,)
    rig.refresh()
    rig.answer_metadata(rig.held.pop())
    rig.core.close(rig.now)
    rig.collect()
    assert (early.status, late.status) == (NOT_WRITTEN, NOT_WRITTEN)


def test_partitions_that_are_added_take_records() -> None:
    """A record for a partition that was added to its topic is delivered."""
    rig = Rig().start()
    rig.leaders[T, 1] = (1, 0)
    rig.refresh()
    rig.send(partition=1)
    rig.ack_all()
    assert rig.statuses == [ACKED]


# -- acks 0 and 1


def test_without_acknowledgements_a_written_record_is_unknown_without_an_error() -> None:
    """With acks=0 a written record ends UNKNOWN without an error, and never ACKED."""
    rig = Rig(enable_idempotence=False, acks=0).start()
    rig.send(3)
    for request in rig.outstanding():
        rig.finish(request)
        rig.core.produce.on_written_unanswered(request.link.link_id, request.step.token, rig.now)
    rig.poll()
    assert rig.statuses == [UNKNOWN] * 3
    assert all(o.error is None for o in rig.outcomes)
    rig.assert_drained()


def test_without_acknowledgements_what_never_left_is_sent_again() -> None:
    rig = Rig(enable_idempotence=False, acks=0).start()
    rig.send()
    rig.lose(unwritten=rig.outstanding())
    rig.tick(1.0)
    assert rig.statuses == [PENDING]
    assert len(rig.outstanding()) == 1


def test_with_one_acknowledgement_a_lost_answer_is_retried_and_not_numbered() -> None:
    rig = Rig(enable_idempotence=False, acks=1).start()
    rig.send(2)
    rig.lose()
    rig.tick(1.0)
    rig.ack_all()
    assert rig.statuses == [ACKED] * 2
    assert {part.batch.base_sequence for r in rig.everything for part in r.parts} == {-1}
    assert not [s for s in rig.asked if isinstance(s, steps.InitProducerId)]
    rig.assert_drained()


def test_without_idempotence_a_permanent_error_fails_its_batch_alone() -> None:
    rig = Rig(enable_idempotence=False, acks=1).start()
    rig.send(3)
    first, *rest = rig.outstanding()
    rig.fail(first, INVALID_RECORD)
    for request in rest:
        rig.ack(request)
    assert rig.statuses == [NOT_WRITTEN, ACKED, ACKED]
    rig.assert_drained()


@pytest.mark.parametrize("doubtful", [False, True])
@pytest.mark.parametrize(
    "code", [OUT_OF_ORDER, DUPLICATE, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH]
)
def test_without_idempotence_a_refusal_about_a_producer_id_fails_its_batch(
    code: int, doubtful: bool
) -> None:
    """No broker answers so to a batch without a producer id. The records behind it go on."""
    rig = Rig(enable_idempotence=False, acks=1, max_in_flight_requests_per_connection=1).start()
    rig.send(2)
    if doubtful:
        rig.lose()
        rig.tick(1.0)
    rig.fail(rig.outstanding()[0], code)
    rig.ack_all()
    unknown = doubtful or code == DUPLICATE
    assert rig.statuses == [UNKNOWN if unknown else NOT_WRITTEN, ACKED]
    assert len(rig.everything) == 2 + doubtful
    rig.assert_drained()


def test_without_idempotence_a_doubtful_record_expires_as_unknown() -> None:
    rig = Rig(enable_idempotence=False, acks=1, delivery_timeout=20.0, request_timeout=5.0).start()
    rig.send()
    rig.tick(60.0)
    assert rig.statuses == [UNKNOWN]
    rig.assert_drained()


# -- accounting


def test_memory_is_given_back_by_every_way_to_end() -> None:
    """Every outcome of a record gives its memory back, once."""
    rig, requests = pipelined(4, delivery_timeout=20.0, request_timeout=5.0)
    rig.send(3)
    used = rig.core.budget.used
    assert used > 0
    rig.ack(requests[0], poll=False)
    rig.fail(requests[1], INVALID_RECORD, poll=False)
    rig.lose()
    rig.tick(60.0)
    assert PENDING not in rig.statuses
    assert {ACKED, NOT_WRITTEN, UNKNOWN} == set(rig.statuses)
    assert rig.core.budget.used == 0


def test_batches_in_flight_count_as_copies_of_their_records() -> None:
    """A batch takes memory beside its records while its request is unanswered, however it ends."""
    rig, requests = pipelined(4)
    rig.send(3)
    budget = rig.core.budget
    sizes = [len(batch.data) for batch in rig.core.partitions["t", 0].batches.unresolved]
    assert budget.copies == sum(sizes) > 0
    rig.ack(requests[0], poll=False)
    assert budget.copies == sum(sizes[1:])
    rig.lose(poll=False)
    assert budget.copies == 0


# -- what a flush counts


def test_a_flush_does_not_count_what_was_queued_after_it() -> None:
    rig, requests = pipelined(3)
    count = FlushCount(rig.core.accumulator.begin_flush())
    rig.core.outcomes.count_for(count)
    rig.send()
    rig.fail(requests[0], TOPIC_AUTHORIZATION_FAILED, poll=False)
    rig.settle_down()
    assert rig.core.outcomes.flushed(count.generation)
    assert count.counts == DeliveryCounts(acked=2, not_written=1, unknown=0)
    assert len(rig.statuses) == 5  # one before the three, and the one after the flush


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("success", ACKED),
        ("retriable", ACKED),
        ("not retriable", NOT_WRITTEN),
        ("version mismatch", NOT_WRITTEN),
        ("disconnect", ACKED),
        ("time-out", ACKED),
        ("time-outs until the deadline", UNKNOWN),
    ],
)
def test_every_way_a_request_can_end_reaches_its_record(end: str, status: object) -> None:
    """However a request ends, its record is settled and the next record is delivered."""
    rig = Rig(request_timeout=5.0, delivery_timeout=20.0).start()
    (outcome,) = rig.send()
    (request,) = rig.outstanding()
    match end:
        case "retriable":
            rig.fail(request, NOT_ENOUGH_REPLICAS)
            assert outcome.status is PENDING
        case "not retriable":
            rig.fail(request, TOPIC_AUTHORIZATION_FAILED)
        case "version mismatch":
            rig.fail(request, UNSUPPORTED_VERSION)
        case "disconnect":
            rig.lose()
        case "time-out":
            rig.tick(6.0)
        case "time-outs until the deadline":
            rig.tick(30.0)
    rig.settle_down(5.0)
    assert outcome.status is status
    (after,) = rig.send()
    rig.settle_down(5.0)
    assert after.status is ACKED
    rig.assert_drained()
