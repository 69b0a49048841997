"""A topic's max.message.bytes: when the engine asks brokers for it, and what the answer changes."""

from __future__ import annotations

import pytest

from aioidem._engine import steps

from .driver import (
    ACKED,
    MESSAGE_TOO_LARGE,
    NOT_LEADER,
    NOT_WRITTEN,
    UNKNOWN,
    Request,
    Rig,
)

BATCH_SIZE = 1000
LARGE = 50_000


def questions(rig: Rig) -> list[steps.DescribeTopicLimit]:
    return [step for step in rig.asked if isinstance(step, steps.DescribeTopicLimit)]


def size(request: Request) -> int:
    return len(request.only.data)


def growing(told: int | None = LARGE, **options: object) -> Rig:
    """Make a rig with five batches in flight, many records waiting, and a known delivery rate."""
    rig = Rig(batch_size=BATCH_SIZE, late_sealing=True, **options)  # type: ignore[arg-type]
    rig.topic_limit = told
    rig.start()
    rig.send()
    rig.now += 0.01
    rig.ack(rig.outstanding()[0])
    for _ in range(5):
        # Each call sends one batch. Its 5 records of 150 bytes are less than a full batch, so that
        # it does not outgrow `batch_size`.
        rig.send(5)
    rig.send(175)
    assert len(rig.outstanding()) == 5
    return rig


def test_a_topic_is_asked_once_where_a_batch_could_grow() -> None:
    rig = growing()
    rig.now += 0.01
    rig.ack(rig.outstanding()[0])
    assert size(rig.outstanding()[-1]) > BATCH_SIZE
    rig.ack_all()
    assert len(questions(rig)) == 1
    assert set(rig.statuses) == {ACKED}


def test_a_topic_is_not_asked_where_no_batch_would_grow() -> None:
    rig = Rig(batch_size=BATCH_SIZE).start()
    rig.send(200)
    rig.ack_all()
    assert not questions(rig)


def test_what_a_topic_does_not_tell_bounds_its_batches_to_batch_size() -> None:
    rig = growing(told=None)
    for _ in range(50):
        rig.now += 0.01
        if rig.outstanding():
            rig.ack(rig.outstanding()[0])
    assert max(size(request) for request in rig.everything) <= BATCH_SIZE
    assert len(questions(rig)) == 1
    assert sum("max.message.bytes" in event for event in rig.events) == 1


def test_a_limit_heard_on_a_lost_connection_is_asked_again_on_the_next() -> None:
    rig = growing()
    rig.topic_limit = None
    rig.lose()
    rig.tick(1.0)
    before = len(rig.everything)
    rig.send(200)
    rig.ack_all()
    assert len(questions(rig)) == 2
    new = [r for r in rig.everything[before:] if r.sequence > 50]
    assert new
    assert max(size(request) for request in new) <= BATCH_SIZE


def with_a_large_batch() -> tuple[Rig, Request]:
    """Return a rig, and the request with its only unanswered batch, which is large."""
    rig = growing()
    rig.now += 0.01
    rig.ack(rig.outstanding()[0])
    large = rig.outstanding()[-1]
    assert size(large) > 20_000
    for request in rig.outstanding()[:-1]:
        rig.ack(request)
    return rig, large


def test_what_was_refused_waits_for_the_limit_and_is_cut_to_it() -> None:
    rig, large = with_a_large_batch()
    rig.hold = (steps.DescribeTopicLimit,)
    sent = len(rig.everything)
    rig.fail(large, MESSAGE_TOO_LARGE)
    [step] = rig.held
    assert len(rig.everything) == sent, "a batch that would be refused again is not sent"
    rig.hold = ()
    rig.core.on_answer(step, 9000, rig.now)
    rig.ack_all()
    assert set(rig.statuses) == {ACKED}
    later = rig.everything[sent:]
    assert max(size(request) for request in later) <= 9000
    assert rig.core.counters.batches_split == 1


def test_batches_are_numbered_on_behind_the_parts_of_a_split() -> None:
    rig, large = with_a_large_batch()
    rig.fail(large, MESSAGE_TOO_LARGE)
    rig.send()
    rig.tick(1.0)
    ordinals = [batch.ordinal for batch in rig.state().batches.unresolved]
    assert len(ordinals) > 2
    assert ordinals == list(range(ordinals[0], rig.state().batches.next_ordinal))


def test_a_refusal_that_the_known_limit_explains_asks_nothing() -> None:
    rig = growing(told=BATCH_SIZE)
    rig.ack_all()
    [lone] = rig.send(size=3000)
    rig.fail(rig.outstanding()[0], MESSAGE_TOO_LARGE)
    assert lone.status is NOT_WRITTEN
    assert f"{BATCH_SIZE} bytes" in str(lone.error)
    assert len(questions(rig)) == 1


def test_a_denied_question_is_asked_again_when_metadata_is_old_and_no_sooner() -> None:
    rig = growing(told=None, metadata_max_age=60.0)
    rig.ack_all()
    rig.send(200)
    rig.ack_all()
    assert len(questions(rig)) == 1
    rig.topic_limit = LARGE
    rig.tick(61.0)
    rig.send(200)
    rig.ack_all()
    assert len(questions(rig)) == 2


def test_a_question_that_ends_a_connection_is_left_out_on_the_next() -> None:
    rig = Rig(batch_size=BATCH_SIZE, late_sealing=True, request_timeout=5.0)
    rig.hold = (steps.DescribeTopicLimit,)
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.send(200)
    assert len(questions(rig)) == 1
    rig.tick(6.0)
    rig.settle_down()
    assert len(questions(rig)) == 1
    assert set(rig.statuses) == {ACKED}


def test_what_was_refused_for_another_reason_keeps_its_bytes() -> None:
    """A batch that was refused for another reason than its size is resent with the same bytes.

    The rig compares the bytes of every retry with those of the first attempt.
    """
    rig = growing()
    rig.now += 0.01
    rig.ack(rig.outstanding()[0])
    for request in rig.outstanding():
        rig.fail(request, NOT_LEADER)
    rig.topic_limit = 2000
    rig.settle_down()
    assert set(rig.statuses) == {ACKED}


@pytest.mark.parametrize("lost", [False, True])
def test_a_lone_record_too_large_ends_by_whether_its_refusal_was_heard(lost: bool) -> None:
    rig = Rig(batch_size=BATCH_SIZE).start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    [lone] = rig.send(size=3000)
    if lost:
        rig.lose()
        rig.tick(1.0)
    for _ in range(20):
        for request in rig.outstanding():
            rig.fail(request, MESSAGE_TOO_LARGE)
        rig.tick(40.0)
    assert lone.status is (UNKNOWN if lost else NOT_WRITTEN)
    assert "one record" in str(lone.error)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("held", [(), (steps.FetchMetadata,)], ids=["alone", "beside Metadata"])
def test_questions_that_take_longer_than_their_answers_are_valid_leave_room_for_records(
    held: tuple[type, ...], partitions: int
) -> None:
    """With one request in flight, a batch is sent between two questions about the topic.

    Each answer takes longer than `metadata_max_age`, so the question was due again when it came,
    and records were never sent. If Metadata requests take as long, the question was due when their
    answers came, and they were due when its answer came. All partitions of a topic share a limit:
    the first one found room, and the second one asked again before anything was sent.
    """
    rig = Rig(
        partitions=partitions,
        batch_size=BATCH_SIZE,
        late_sealing=True,
        max_in_flight_requests_per_connection=1,
        metadata_max_age=0.1,
    )
    rig.start()
    rig.send()
    rig.ack(rig.outstanding()[0])
    rig.hold = (steps.DescribeTopicLimit, *held)
    for partition in range(partitions):
        rig.send(200, partition=partition)
    for _ in range(5 * partitions):
        rig.tick(0.15)
        for step in rig.held:
            if isinstance(step, steps.FetchMetadata):
                rig.answer_metadata(step)
            else:
                rig.core.on_answer(step, LARGE, rig.now)
        rig.held.clear()
        rig.poll()
        rig.ack_all()
    assert set(rig.statuses) == {ACKED}
