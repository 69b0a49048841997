"""Records that waited for metadata get their partitions slice by slice, in call order.

A slice is the most that one poll assigns. A close, a flush or metadata between two slices also
applies to the records that have no partition yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

from aioidem._engine import steps
from aioidem._engine.assigning import SLICE, Assigning
from aioidem._engine.record import PendingRecord, RecordGroup
from aioidem._engine.record_block import BLOCK, Columns, RecordBlock
from aioidem._engine.topics import TopicState
from aioidem._engine.unassigned import Unassigned, UnassignedRecords
from aioidem.errors import ProducerClosed
from aioidem.partitioner import murmur2

from .driver import NOT_WRITTEN, PENDING, Rig, T

MANY = 3 * SLICE + 1
PARTITIONS = 3
NOBODY = SimpleNamespace(take=lambda *_: None)
"""A receiver that ignores outcomes."""


class Counting:
    """A partitioner by key that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, key: bytes | None, everything: Sequence[int], _: Sequence[int], /) -> int:
        self.calls += 1
        return everything[murmur2(key or b"") % len(everything)]


def waiting(count: int = MANY, **options: Any) -> tuple[Rig, Counting]:
    """Make a rig with `count` records that wait for the first metadata of their topic.

    After that, `on_metadata(rig)` makes the engine request that metadata and answers the request.
    """
    counting = Counting()
    rig = Rig(partitions=PARTITIONS, partitioner=counting, batch_size=1 << 20, **options)
    rig.core.accumulator.topic("other")
    rig.leaders["other", 0] = (1, 0)
    rig.poll()
    rig.tick(1.0)
    send(rig, count)
    return rig, counting


def send(rig: Rig, count: int) -> None:
    """Append records with the keys 0 to 6 in turn."""
    for _ in range(count):
        rig.send(partition=None, key=b"%d" % (len(rig.outcomes) % 7), size=8, poll=False)


def ask(rig: Rig) -> steps.FetchMetadata:
    """Let time pass until the engine sends a Metadata request, and return it unanswered."""
    rig.hold = (steps.FetchMetadata,)
    rig.tick(1.0)
    rig.hold = ()
    return cast("steps.FetchMetadata", rig.held.pop())


def answer(rig: Rig, asked: steps.FetchMetadata) -> None:
    """Answer a Metadata request; the engine is not polled after that."""
    rig.core.on_answer(asked, rig.metadata(asked.topics), rig.now)


def on_metadata(rig: Rig) -> None:
    """Let the engine send a Metadata request, and answer it."""
    answer(rig, ask(rig))


def queued(rig: Rig) -> list[list[int]]:
    """List the numbers of the records in each partition's queue."""
    return [
        [int((record.value or b"").rstrip(b".")) for record in rig.state(T, index).queue.records]
        for _, index in sorted(rig.core.partitions)
    ]


def test_neither_metadata_nor_a_poll_assigns_more_than_a_slice() -> None:
    rig, counting = waiting(linger=60.0)
    on_metadata(rig)
    assert counting.calls <= SLICE
    for _ in range(3):
        before = counting.calls
        rig.core.poll(rig.now)
        assert counting.calls - before <= SLICE
    assert counting.calls == MANY


def test_a_slice_counts_the_records_of_a_block() -> None:
    """A block waits as one item, but to assign it takes as long as its records do."""
    topic, assigning = TopicState(T, 1000, lambda: 0.0), Assigning()
    for _ in range(3):
        topic.unassigned.wait(60.0, 0, block(SLICE - 1))
    assigning.add(topic)
    taken = [[each.record.count for _, each in assigning.take(SLICE)] for _ in range(3)]
    assert taken == [[SLICE - 1, SLICE - 1], [SLICE - 1], []]


def test_until_all_are_assigned_the_engine_wants_to_be_polled_at_once() -> None:
    rig, _ = waiting(linger=60.0)
    on_metadata(rig)
    for left in (2, 1, 0):
        rig.core.poll(rig.now)
        assert (rig.core.wake_at == rig.now) == (left > 0)


def test_a_short_queue_is_assigned_with_the_answer() -> None:
    rig, counting = waiting(SLICE, linger=60.0)
    on_metadata(rig)
    assert counting.calls == SLICE
    assert not rig.core.accumulator.topics[T].unassigned


def test_what_is_sent_while_others_are_due_comes_behind_them() -> None:
    rig, _ = waiting(linger=60.0)
    on_metadata(rig)
    for _ in range(4):
        send(rig, 10)
        rig.send(2, partition=1, size=8, poll=False)
        rig.core.poll(rig.now)
    assert not rig.core.accumulator.topics[T].unassigned
    numbers = queued(rig)
    assert all(each == sorted(each) for each in numbers), "each partition keeps call order"
    assert sorted(chain.from_iterable(numbers)) == list(range(len(rig.outcomes)))
    assert len(numbers[1]) >= 8


def test_metadata_that_comes_in_between_keeps_the_order_too() -> None:
    """Records keep call order in a partition that metadata adds between two slices.

    The first record of that partition waits for metadata again, while later records of the
    partition are already due to be assigned.
    """
    rig, _ = waiting(2, linger=60.0)
    asked = ask(rig)
    rig.send(partition=3, size=8, poll=False)
    send(rig, MANY)
    rig.send(partition=3, size=8, poll=False)
    answer(rig, asked)
    assert rig.core.accumulator.topics[T].unassigned.waits
    rig.now += 1.0
    (asked,) = (step for step in rig.core.poll(rig.now) if isinstance(step, steps.FetchMetadata))
    rig.leaders[T, 3] = (1, 0)
    rig.send(partition=3, size=8, poll=False)
    answer(rig, asked)
    assert rig.core.accumulator.topics[T].unassigned.due
    rig.core.poll(rig.now)
    rig.core.poll(rig.now)
    by_number = [number for number in queued(rig)[3] if number in {2, MANY + 3, MANY + 4}]
    assert by_number == [2, MANY + 3, MANY + 4]


def test_closing_in_between_settles_each_once() -> None:
    rig, counting = waiting(linger=60.0)
    on_metadata(rig)
    assert counting.calls < MANY
    rig.core.close(rig.now)
    rig.collect()
    assert rig.statuses == [NOT_WRITTEN] * MANY
    assert all(isinstance(outcome.error, ProducerClosed) for outcome in rig.outcomes)
    rig.assert_drained()


def test_a_record_that_is_due_is_not_given_up_for_want_of_metadata() -> None:
    """A record whose topic has become known does not expire when max_block is over.

    The records are due to be assigned, but the engine is not polled for ten seconds after the
    answer.
    """
    rig, counting = waiting(linger=0.0, max_block=5.0)
    on_metadata(rig)
    rig.now += 10.0
    rig.poll()
    assert counting.calls == MANY
    assert rig.statuses == [PENDING] * MANY


def test_a_flush_that_began_before_ends_lingering_for_what_is_assigned_after() -> None:
    rig, _ = waiting(linger=60.0)
    on_metadata(rig)
    rig.core.accumulator.begin_flush()
    rig.poll()
    for request in rig.outstanding():
        rig.ack(request)
    rig.poll()
    while rig.outstanding():
        rig.ack(rig.outstanding()[0])
    assert PENDING not in rig.statuses
    rig.assert_drained()


def test_the_missing_partitions_of_a_later_slice_are_asked_for_and_refused() -> None:
    rig, _ = waiting(linger=60.0)
    on_metadata(rig)
    rig.send(partition=PARTITIONS + 4, size=8, poll=False)
    rig.tick(3.0)
    assert rig.statuses[-1] is NOT_WRITTEN
    assert "there is no partition 7" in str(rig.outcomes[-1].error)


def record(deadline: float = 60.0, ordinal: int = 0) -> PendingRecord:
    made = PendingRecord(None, b"", (), 0, None, 10)
    made.deadline, made.ordinal = deadline, ordinal
    return made


def block(count: int) -> RecordBlock:
    return RecordBlock(Columns((b"value",) * count, None, (), 0), NOBODY, None)


def test_records_wait_for_their_topic_in_order_and_not_for_ever() -> None:
    """Each record that waits for its topic expires at its own time.

    Records that expire together do so in call order, whether their deadlines are equal or not.
    """
    unassigned = UnassignedRecords()
    first, second, third, fourth, fifth, sixth = (record() for _ in range(6))
    assert unassigned.next_end() is None
    unassigned.wait(10.0, 0, first)
    unassigned.wait(11.0, 0, second)
    unassigned.wait(9.5, 0, third)  # its caller has already waited 0.5 s for buffer space
    unassigned.wait(10.0, 0, fourth)
    unassigned.wait(10.5, 0, fifth)
    unassigned.wait(10.0, 0, sixth)
    assert unassigned.next_end() == 9.5
    assert unassigned.expire(9.4) == []
    assert unassigned.expire(9.5) == [third]
    assert unassigned.next_end() == 10.0
    assert unassigned.expire(10.0) == [first, fourth, sixth]
    assert unassigned.expire(99.0) == [second, fifth]
    assert unassigned.next_end() is None


def test_records_without_a_partition_are_counted_and_a_block_counts_as_many_as_it_holds() -> None:
    unassigned = UnassignedRecords()
    assert (len(unassigned), bool(unassigned), unassigned.waits) == (0, False, False)
    unassigned.wait(10.0, 0, block(3))
    unassigned.wait(10.0, 0, record())
    assert (len(unassigned), bool(unassigned), unassigned.waits) == (4, True, True)
    unassigned.make_due()
    unassigned.follow(10.0, 0, block(2))
    assert (len(unassigned), bool(unassigned), unassigned.waits) == (6, True, False)
    unassigned.wait(10.0, 0, record())
    assert (len(unassigned), unassigned.waits) == (7, True)


def test_how_long_the_first_waiting_record_has_waited_counts_from_when_it_was_queued() -> None:
    """It was queued `delivery_timeout` before its deadline. Those that are due wait no more."""
    unassigned = UnassignedRecords()
    assert (unassigned.first_queued_at(30.0), unassigned.waited(70.0, 30.0)) == (math.inf, 0.0)
    for deadline in (95.0, 98.0):
        unassigned.wait(80.0, 0, record(deadline=deadline))
    assert (unassigned.first_queued_at(30.0), unassigned.waited(70.0, 30.0)) == (65.0, 5.0)
    unassigned.make_due()
    assert (unassigned.first_queued_at(30.0), unassigned.waited(70.0, 30.0)) == (65.0, 0.0)
    unassigned.wait(80.0, 0, record(deadline=97.0))
    assert (unassigned.first_queued_at(30.0), unassigned.waited(70.0, 30.0)) == (65.0, 3.0)


def test_records_that_wait_are_due_before_those_that_are_due_already() -> None:
    unassigned = UnassignedRecords()
    first, second, third = record(), record(), record()
    unassigned.follow(10.0, 1, second)
    unassigned.follow(10.0, 1, third)
    unassigned.wait(9.0, 2, first)
    unassigned.make_due()
    assert list(unassigned.due) == [
        Unassigned(9.0, 2, first),
        Unassigned(10.0, 1, second),
        Unassigned(10.0, 1, third),
    ]
    assert unassigned.next_end() is None
    assert unassigned.expire(99.0) == []


def test_all_records_are_taken_once_and_those_that_wait_come_first() -> None:
    unassigned = UnassignedRecords()
    first, second = record(), record()
    unassigned.follow(10.0, 1, second)
    unassigned.wait(9.0, 2, first)
    assert unassigned.take() == [Unassigned(9.0, 2, first), Unassigned(10.0, 1, second)]
    assert not unassigned
    assert unassigned.take() == []


def test_records_that_are_put_in_order_wait_until_they_end_each_at_its_own_time() -> None:
    unassigned = UnassignedRecords()
    first, second, third = (record(ordinal=each) for each in (1, 2, 3))
    unassigned.follow(12.0, 1, third)
    unassigned.wait(11.0, 2, second)
    unassigned.wait(10.0, 3, first)
    unassigned.put_in_order()
    assert not unassigned.due
    assert unassigned.next_end() == 10.0
    assert unassigned.take() == [
        Unassigned(10.0, 3, first),
        Unassigned(11.0, 2, second),
        Unassigned(12.0, 1, third),
    ]


# -- the queue of topics alone


def topic_with(name: str, *counts: int) -> TopicState:
    """Return a topic with waiting records; a count other than 1 is a block of so many."""
    topic = TopicState(name, 1, lambda: 0.0)
    for count in counts:
        record = cast("PendingRecord", SimpleNamespace(count=count, deadline=99.0, group=None))
        topic.unassigned.wait(1.0, 0, record)
    return topic


def test_a_queue_of_topics_is_busy_while_one_of_them_has_records_that_are_due() -> None:
    assigning = Assigning()
    assert not assigning
    first, second = topic_with("a", 1), topic_with("b", 1)
    assigning.add(first)
    assigning.add(second)
    assert assigning
    first.unassigned.due.clear()
    assert assigning, "the second one's records are still due"
    second.unassigned.due.clear()
    assert not assigning


def test_a_topic_is_queued_once_and_only_if_it_has_records() -> None:
    assigning = Assigning()
    none, some = topic_with("a"), topic_with("b", 1, 1)
    assigning.add(none)
    assigning.add(some)
    assigning.add(some)
    assert [topic.name for topic, _ in assigning.take(1)] == ["b"]
    assert assigning
    another = SimpleNamespace(count=1, deadline=99.0, group=None)
    some.unassigned.wait(1.0, 0, cast("PendingRecord", another))
    assigning.add(some)
    assert [topic.name for topic, _ in assigning.take(9)] == ["b", "b"]
    assert not assigning
    assert list(assigning.take(9)) == []


def test_no_more_than_so_many_records_are_taken_but_a_block_is_taken_whole() -> None:
    assigning = Assigning()
    assigning.add(topic_with("a", 1, 5, 1))
    assert list(assigning.take(0)) == []
    assert [each.record.count for _, each in assigning.take(2)] == [1, 5]
    assert [each.record.count for _, each in assigning.take(2)] == [1]


def test_a_batch_of_the_callers_is_taken_whole_and_blocks_one_by_one() -> None:
    def taken(*groups: RecordGroup | None) -> list[int]:
        topic = TopicState("a", 1000, lambda: 0.0)
        for group in groups:
            record = SimpleNamespace(count=1, deadline=99.0, group=group)
            topic.unassigned.wait(1.0, 0, cast("PendingRecord", record))
        assigning = Assigning()
        assigning.add(topic)
        slices = []
        while assigning:
            slices.append(len(list(assigning.take(2))))
        return slices

    one, other = RecordGroup(100), RecordGroup(100)
    assert taken(None, one, one, one, None) == [4, 1]
    assert taken(one, one, one, other, other) == [3, 2]
    assert taken(one, one, None, one) == [2, 2]
    assert taken(BLOCK, BLOCK, BLOCK, BLOCK) == [2, 2]
    assert taken(one, one, one) == [3]
