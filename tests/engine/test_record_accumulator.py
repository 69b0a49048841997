"""`RecordAccumulator`: where records wait, what a request takes, and how the others end.

The producer around it is the rig's; each test looks at one promise of the accumulator.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.record import Outcome as Shared
from aioidem._engine.record_accumulator import MOST_BATCHES
from aioidem._engine.record_block import Columns, RecordBlock
from aioidem.structs import DeliveryStatus

from .driver import (
    ACKED,
    NOT_WRITTEN,
    PENDING,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    Rig,
    T,
    topic_id,
)

LOST = errors.KafkaConnectionError("lost")


class Told:
    """Receives the outcomes of a block's records."""

    def __init__(self) -> None:
        self.statuses: dict[int, DeliveryStatus] = {}

    def take(self, rows: Sequence[int], outcome: Shared, place: int) -> None:
        del place
        self.statuses.update(dict.fromkeys(rows, outcome.status))


def block(count: int, told: Told | None = None, *, partition: int | None = None) -> RecordBlock:
    return RecordBlock(Columns((b"v" * 50,) * count, None, (), 0), told or Told(), partition)


def append(rig: Rig, made: RecordBlock, topic: str = T) -> None:
    assert rig.core.budget.try_take(made.charge())
    rig.core.accumulator.append_block(topic, made, rig.now)


def closed(rig: Rig) -> None:
    rig.core.accumulator.close()


def ended(rig: Rig) -> None:
    rig.core.fatal(LOST)


# -- appending


@pytest.mark.parametrize(
    ("end", "error"), [(closed, errors.ProducerClosed), (ended, errors.KafkaConnectionError)]
)
def test_a_producer_that_has_ended_takes_no_record(
    end: Callable[[Rig], None], error: type[errors.KafkaError]
) -> None:
    """The refused record is not written, whatever the status of the producer's own end is."""
    rig = Rig().start()
    LOST.status = DeliveryStatus.UNKNOWN
    end(rig)
    for call in (rig.send, lambda: append(rig, block(3))):
        with pytest.raises(error) as raised:
            call()
        assert raised.value is not LOST
        assert raised.value.status in (NOT_WRITTEN, None)
    assert rig.core.unsettled == 0


def test_a_record_that_no_transaction_takes_counts_for_nothing() -> None:
    rig = Rig(transactional_id="x", transaction_version=2).start()
    for call in (rig.send, lambda: append(rig, block(3))):
        with pytest.raises(errors.IllegalOperation):
            call()
        assert rig.core.accumulator.unsettled == 0
    rig.begin().send(2)
    assert rig.core.accumulator.unsettled == 2


def test_the_records_of_a_block_are_numbered_and_counted_one_by_one() -> None:
    rig = Rig(linger=9.0, batch_size=10_000).start()
    (first,) = rig.send(poll=False)
    made = block(5, partition=0)
    append(rig, made)
    (last,) = rig.send(poll=False)
    accumulator = rig.core.accumulator
    assert accumulator.unsettled == 7
    assert (made.ordinal, made.base) == (2, 2)
    assert accumulator.appender.ordinal == 7
    assert [item.ordinal for item in rig.state().queue.records] == [1, 2, 7]
    assert (first.status, last.status) == (PENDING, PENDING)


def test_a_new_topic_is_asked_for_once() -> None:
    rig = Rig().start()
    accumulator, wanted = rig.core.accumulator, []
    for name in (T, "u"):
        state = accumulator.topic(name)
        wanted.append(rig.core.metadata.wanted)
        assert accumulator.topic(name) is state
    assert wanted == [False, True]


def test_a_block_without_a_partition_waits_for_its_topic_as_one() -> None:
    told = Told()
    rig = Rig(max_block=5.0).start()
    accumulator = rig.core.accumulator
    append(rig, block(6, told), "unknown")
    assert [len(topic.unassigned) for topic in accumulator.unplaced] == [6]
    accumulator.expire(rig.now + 5.0)
    (settlement,) = rig.core.outcomes.take_settled()
    for record in settlement.records:
        record.settle(settlement.outcome, 0)
    assert told.statuses == dict.fromkeys(range(6), NOT_WRITTEN)
    assert (accumulator.unsettled, accumulator.unplaced) == (0, {})


def test_a_spread_block_has_no_partition_of_its_own_afterwards() -> None:
    """If the producer moves to another cluster, it is spread again."""
    told = Told()
    rig = Rig(partitions=3, linger=9.0, batch_size=10_000).start()
    append(rig, block(900, told))
    items = [item for state in rig.core.partitions.values() for item in state.queue.records]
    assert sum(item.count for item in items) == 900
    assert [item.partition for item in items] == [None] * len(items)
    assert [bool(state.queue.records) for state in rig.core.partitions.values()] == [True] * 3
    assert rig.core.accumulator.unplaced == {}
    append(rig, block(9, told, partition=2))
    assert rig.state(partition=2).queue.records[-1].partition == 2


# -- partitioners


def choosing(choice: Any, calls: list[Any] | None = None, **options: Any) -> Rig:
    """Return a producer of four partitions with a partitioner of its own."""

    def partitioner(key: bytes | None, every: Sequence[int], led: Sequence[int]) -> Any:
        if calls is not None:
            calls.append((key, list(every), list(led)))
        return choice() if callable(choice) else choice

    return Rig(partitions=4, partitioner=partitioner, **options).start()


def test_a_partitioner_is_told_all_partitions_and_those_that_have_a_leader() -> None:
    calls: list[Any] = []
    rig = choosing(2, calls)
    rig.leaders[T, 1] = (-1, 5)
    rig.refresh()
    rig.send(partition=None, key=b"k")
    assert calls == [(b"k", [0, 1, 2, 3], [0, 2, 3])]
    assert [part.partition for part in rig.outstanding()[0].parts] == [2]
    for partition in range(4):
        rig.leaders[T, partition] = (-1, 7)
    rig.refresh()
    rig.send(partition=None)
    assert calls[-1] == (None, [0, 1, 2, 3], [0, 1, 2, 3]), "no leader is better than none"


def raising(error: BaseException) -> Callable[..., int]:
    """Return a partitioner that raises this error."""

    def partitioner(*_: Any) -> int:
        raise error

    return partitioner


def test_a_partitioner_that_raises_is_the_cause() -> None:
    def broken() -> int:
        raise KeyError("no")

    rig = choosing(broken)
    with pytest.raises(
        errors.RecordError, match=r"the partitioner raised KeyError for topic 't'$"
    ) as error:
        rig.send(partition=None)
    assert isinstance(error.value.__cause__, KeyError)


def test_a_partitioner_that_raises_later_fails_its_record_alone() -> None:
    def broken() -> int:
        raise KeyError("no")

    rig = Rig(partitioner=lambda *_: broken(), max_block=9.0)
    (lost,) = rig.send(partition=None)
    (other,) = rig.send(partition=0)
    rig.start()
    assert lost.status is NOT_WRITTEN
    assert isinstance(lost.error, errors.RecordError)
    assert lost.error.status is NOT_WRITTEN
    rig.ack_all()
    assert other.status is ACKED


class HiddenError(Exception):
    """An error that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Odd:
    """What can be neither shown nor taken for a number."""

    def __repr__(self) -> str:
        raise asyncio.CancelledError

    def __index__(self) -> int:
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (asyncio.CancelledError(), "CancelledError"),
        (GeneratorExit("over"), "GeneratorExit"),
        (HiddenError(), "HiddenError"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_whatever_a_partitioner_raises_refuses_its_record(
    error: BaseException, shown: str, known: bool
) -> None:
    """The error is that of the call, or of the record if the topic was not known at the call."""
    rig = Rig(partitioner=raising(error), max_block=9.0)
    said = rf"the partitioner raised {shown} for topic 't'"
    if known:
        with pytest.raises(errors.RecordError, match=said) as raised:
            rig.start().send(partition=None)
        assert raised.value.__cause__ is error
        assert raised.value.status is NOT_WRITTEN
    else:
        (lost,) = rig.send(partition=None)
        rig.start()
        assert lost.status is NOT_WRITTEN
        assert re.search(said, str(lost.error))
    assert rig.core.unsettled == 0


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        (Odd(), "a value of type Odd"),
        ("alice@example.com", "a value of type str"),
        (None, "a value of type NoneType"),
        (2.0, "a value of type float"),
        pytest.param(10**5000, "a value of type int", id="huge"),
        (4, "4"),
        (-7, "-7"),
    ],
)
def test_a_choice_that_is_no_partition_is_named_without_a_word_of_the_record(
    chosen: Any, shown: str
) -> None:
    rig = choosing(chosen)
    said = f"the partitioner chose {shown}, which is none of the 4 partitions of topic 't'$"
    with pytest.raises(errors.RecordError, match=said):
        rig.send(partition=None)
    assert rig.core.unsettled == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2)])
def test_an_end_of_the_program_in_the_partitioner_loses_no_record(error: BaseException) -> None:
    """It refuses its record and goes on; the records around it get their outcomes."""
    rig = Rig(partitioner=raising(error), max_block=9.0).start()
    rig.hold = (steps.FetchMetadata,)
    rig.leaders["u", 0] = (1, 0)
    missing, first, lost, last = (
        rig.send(topic="u", partition=partition, poll=False)[0] for partition in (7, 0, None, 0)
    )
    rig.tick(1.0)
    asked = rig.held.pop()
    with pytest.raises(type(error)) as raised:
        rig.core.on_answer(asked, rig.metadata(asked.topics), rig.now)
    assert raised.value is error
    rig.tick(1.0)
    assert lost.status is NOT_WRITTEN
    assert isinstance(lost.error, errors.RecordError)
    assert f"the partitioner raised {type(error).__name__} for topic 'u'" in str(lost.error)
    assert missing.status is NOT_WRITTEN
    assert "there is no partition 7" in str(missing.error)
    rig.ack_all()
    assert (first.status, last.status) == (ACKED, ACKED)
    assert rig.core.unsettled == 0


def test_an_end_of_the_program_in_a_call_counts_no_record() -> None:
    rig = Rig(partitions=1, partitioner=raising(KeyboardInterrupt())).start()
    with pytest.raises(KeyboardInterrupt):
        rig.send(partition=None)
    assert rig.core.unsettled == 0


# -- records without a partition


def unplaced(**options: Any) -> tuple[Rig, Any]:
    """Return a producer and a record for a topic that its cluster does not have."""
    rig = Rig(max_block=4.0, **options).start()
    return rig, rig.send(topic="u", partition=None)[0]


def test_a_record_is_woken_for_when_it_may_wait_no_longer() -> None:
    rig = Rig(max_block=4.0, delivery_timeout=30.0, request_timeout=10.0).start()
    accumulator, now = rig.core.accumulator, rig.now
    assert accumulator.awaits(now) is None
    rig.send(topic="u", partition=None)
    assert accumulator.awaits(now) == now + 4.0
    rig.send(topic="w", partition=None, block_until=now + 2.5)
    assert accumulator.awaits(now) == now + 2.5
    rig.send(topic="x", partition=None, block_until=now + 3.0)
    assert accumulator.awaits(now) == now + 2.5


def test_the_oldest_record_of_all_counts() -> None:
    rig = Rig(max_block=60.0, linger=50.0, batch_size=10_000).start()
    accumulator, began = rig.core.accumulator, rig.now
    assert accumulator.first_queued_at == math.inf
    rig.send(topic="u", partition=None)
    rig.now += 1.0
    rig.send()
    rig.now += 1.0
    rig.send(topic="w", partition=None)
    assert accumulator.first_queued_at == pytest.approx(began)
    rig.now += 1.0
    rig.send(partition=0, poll=False)
    assert accumulator.first_queued_at == pytest.approx(began)
    other = Rig(max_block=60.0, linger=50.0, batch_size=10_000).start()
    began = other.now
    other.send()
    other.now += 1.0
    other.send(topic="u", partition=None)
    assert other.core.accumulator.first_queued_at == pytest.approx(began)


def test_the_oldest_of_several_partitions_counts() -> None:
    rig = Rig(partitions=3, linger=50.0, batch_size=10_000).start()
    rig.send(partition=1)
    first = rig.now
    for partition in (0, 2):
        rig.now += 1.0
        rig.send(partition=partition)
    assert rig.core.accumulator.first_queued_at == pytest.approx(first)


def test_the_time_that_records_wait_for_metadata_is_measured() -> None:
    rig = Rig(max_block=60.0).start()
    rig.send(topic="u", partition=None)
    began = rig.now
    rig.tick(1.5)
    rig.leaders["u", 0] = (1, 0)
    rig.refresh()
    (request,) = rig.outstanding()
    assert rig.core.meters.spent["metadata-wait"] == pytest.approx(request.sent_at - began)


def test_a_topic_that_no_metadata_names_in_time_ends_its_records() -> None:
    rig, record = unplaced()
    rig.tick(5.0)
    assert (record.status, record.error.status) == (NOT_WRITTEN, NOT_WRITTEN)
    assert "after max_block (4 s)" in str(record.error)
    assert "has been created" in str(record.error)
    assert not rig.core.accumulator.unplaced


def test_a_topic_of_which_nothing_is_heard_ends_its_records_with_the_reason() -> None:
    rig = Rig(max_block=4.0)
    rig.down = {1}
    rig.core.accumulator.topic(T)
    (record,) = rig.send(partition=None)
    rig.tick(5.0)
    assert isinstance(record.error, errors.KafkaTimeoutError)
    assert "no metadata came within max_block (4 s): no broker can be reached" in str(record.error)
    assert isinstance(record.error.__cause__, errors.KafkaConnectionError)
    silent = Rig(max_block=4.0)
    silent.hold = (steps.FetchMetadata,)
    (record,) = silent.send(partition=None)
    silent.tick(5.0)
    assert "no metadata came within max_block (4 s). Check whether" in str(record.error)
    assert record.error is not None
    assert record.error.__cause__ is None


@pytest.mark.parametrize("known", [True, False])
def test_the_delivery_timeout_is_named_where_it_ended_the_wait_for_metadata(known: bool) -> None:
    rig = Rig(max_block=60.0, delivery_timeout=4.0, request_timeout=1.0)
    if known:
        rig.start()
    rig.hold = (steps.FetchMetadata,)
    (record,) = rig.send(partition=7)
    rig.tick(5.0)
    assert record.status is NOT_WRITTEN
    assert "metadata came within delivery_timeout (4 s). Check" in str(record.error)


@pytest.mark.parametrize(
    ("count", "has"), [(1, "1 partition (0);"), (2, "2 partitions (0 to 1);"), (4, "(0 to 3);")]
)
def test_a_partition_that_the_topic_lacks_is_told_with_those_it_has(count: int, has: str) -> None:
    rig = Rig(partitions=count, max_block=9.0).start()
    (record,) = rig.send(partition=7)
    rig.refresh()
    assert record.status is NOT_WRITTEN
    assert f"topic 't' has {has}" in str(record.error).replace("4 partitions ", "")
    assert "there is no partition 7" in str(record.error)
    assert record.settlement is not None
    assert (record.settlement.topic, record.settlement.partition) == (T, -1)


def test_a_partition_of_which_no_newer_metadata_tells_is_waited_for() -> None:
    rig = Rig(max_block=4.0).start()
    rig.hold = (steps.FetchMetadata,)
    (record,) = rig.send(partition=7)
    rig.tick(3.0)
    assert record.status is PENDING
    rig.tick(2.0)
    assert "no newer metadata came within max_block (4 s)" in str(record.error)


def test_a_refused_topic_ends_all_of_its_records_at_once() -> None:
    rig, record = unplaced()
    (second,) = rig.send(topic="u", partition=None)
    rig.topic_errors["u"] = TOPIC_AUTHORIZATION_FAILED
    rig.refresh(2.0)
    for each in (record, second):
        assert each.status is NOT_WRITTEN
        assert isinstance(each.error, errors.TopicAuthorizationFailedError)


# -- draining


def test_a_request_takes_as_many_batches_as_it_has_room_for() -> None:
    """A batch takes a third of the request; with less room than a batch no more is tried."""
    rig = Rig(partitions=5, batch_size=1000, max_request_size=3000).start()
    rig.hold = (steps.SendProduce,)
    for partition in range(5):
        rig.send(6, partition=partition, size=150, poll=False)
    rig.poll()
    (request,) = rig.held[:1]
    sizes = [len(data) for topic in request.topics for _, data in topic.partitions]
    assert len(sizes) == 3
    assert sum(sizes) <= 3000


def test_a_record_that_does_not_fit_waits_but_smaller_ones_pass() -> None:
    rig = Rig(partitions=3, batch_size=100, max_request_size=1000).start()
    rig.hold = (steps.SendProduce,)
    rig.send(partition=0, size=500, poll=False)
    rig.send(partition=1, size=500, poll=False)
    rig.send(partition=2, size=100, poll=False)
    rig.poll()
    first, second = rig.held
    assert [index for topic in first.topics for index, _ in topic.partitions] == [0, 2]
    assert [index for topic in second.topics for index, _ in topic.partitions] == [1]


def test_nothing_is_taken_where_the_transaction_may_not_send() -> None:
    rig = Rig(transactional_id="x", transaction_version=2).start().begin()
    rig.send(poll=False)
    rig.transactions.fail(LOST)
    rig.poll()
    assert rig.outstanding() == []


def test_most_batches_of_a_request_are_as_many_as_are_said() -> None:
    assert MOST_BATCHES == 1_000


@pytest.mark.parametrize(("room", "together"), [(500, True), (330, False)])
def test_a_batch_goes_where_the_request_has_room_for_it(room: int, together: bool) -> None:
    rig = Rig(partitions=2, batch_size=200, max_request_size=room).start()
    for partition in range(2):
        rig.send(partition=partition, poll=False)
    rig.poll()
    assert (len(rig.outstanding()) == 1) is together


def test_a_full_request_takes_no_more_batches_than_are_said() -> None:
    rig = Rig(partitions=MOST_BATCHES + 2, max_request_size=10_000_000).start()
    for partition in range(MOST_BATCHES + 2):
        rig.send(partition=partition, poll=False)
    rig.poll()
    assert [len(request.parts) for request in rig.outstanding()] == [MOST_BATCHES, 2]


def size_of_a_batch() -> int:
    rig = Rig().start()
    rig.send()
    return len(rig.outstanding()[0].only.data)


@pytest.mark.parametrize(("missing", "again"), [(0, [[0, 1]]), (1, [[0], [1]])])
def test_batches_that_are_sent_again_share_a_request_if_they_just_fit(
    missing: int, again: list[list[int]]
) -> None:
    """New batches need some bytes more, because their size is only estimated."""
    size = size_of_a_batch()
    rig = Rig(partitions=2, batch_size=size, max_request_size=2 * size - missing).start()
    for partition in range(2):
        rig.send(partition=partition, poll=False)
    rig.poll()
    assert parts(rig) == [[0], [1]]
    lose_and_wait(rig)
    assert parts(rig) == again


def parts(rig: Rig) -> list[list[int]]:
    """Return the partitions of each request that is not answered."""
    return [[part.partition for part in request.parts] for request in rig.outstanding()]


def lose_and_wait(rig: Rig) -> None:
    """Lose the connection, and open the next one when all batches may be sent again."""
    rig.hold = (steps.OpenLink,)
    rig.lose()
    rig.tick(3.0)
    for step in rig.held:
        rig.opened(step)
    rig.poll()


def test_a_batch_that_is_larger_than_a_request_is_sent_again_alone() -> None:
    rig = Rig(partitions=2, batch_size=100, max_request_size=200).start()
    rig.send(partition=1, size=10)
    rig.send(partition=0, size=400)
    lose_and_wait(rig)
    assert sorted(parts(rig)) == [[0], [1]]


# -- what has no outcome yet


def test_records_without_an_outcome_are_counted_by_topic() -> None:
    rig = Rig(partitions=2, max_block=60.0).start()
    assert rig.core.accumulator.unsettled_by_topic() == {}
    rig.send(8, partition=0)
    rig.send(2, partition=1)
    rig.send(3, topic="u", partition=None)
    assert rig.core.accumulator.unsettled_by_topic() == {T: 10, "u": 3}
    rig.ack(rig.outstanding()[0], poll=False)
    assert rig.core.accumulator.unsettled_by_topic() == {T: 9, "u": 3}


def test_each_flush_closes_a_generation() -> None:
    rig = Rig(linger=50.0, batch_size=10_000).start()
    first = rig.core.accumulator.begin_flush()
    rig.send()
    assert rig.state().queue.records[0].generation == first + 1
    assert rig.core.accumulator.begin_flush() == first + 1
    rig.poll()
    assert len(rig.outstanding()) == 1, "it does not linger"


def test_whether_a_topic_had_numbers_of_an_identity_is_known() -> None:
    rig = Rig(partitions=2).start()
    accumulator, identity = rig.core.accumulator, rig.core.identity.current
    assert not accumulator.numbered(T, identity)
    rig.send(partition=1)
    assert accumulator.numbered(T, identity)
    assert not accumulator.numbered(T, None)
    assert not accumulator.numbered("u", identity)
    waiting = Rig(linger=9.0, batch_size=10_000).start()
    waiting.send()
    identity = waiting.core.identity.current
    assert waiting.state().ledger.identity is identity
    assert not waiting.core.accumulator.numbered(T, identity), "no batch has had a number"


def test_a_closed_producer_has_no_shortcut_to_a_partition() -> None:
    rig = Rig(linger=9.0, batch_size=10_000).start()
    rig.send(2, partition=None, poll=False)
    appender = rig.core.accumulator.appender
    again = rig.state().queue.records[0]
    rig.core.accumulator.close()
    assert not appender.append(T, again, rig.now)


@pytest.mark.parametrize("placed", ["u", "w"])
def test_a_topic_whose_records_are_placed_wakes_nobody(placed: str) -> None:
    rig = Rig(max_block=4.0).start()
    accumulator, now = rig.core.accumulator, rig.now
    for topic in ("u", "w"):
        rig.send(topic=topic, partition=None, block_until=now + 3.0 - (topic == placed))
    accumulator.topics[placed].unassigned.take()
    assert accumulator.awaits(now) == now + 3.0


def test_a_closed_producer_sends_what_it_has() -> None:
    rig = Rig().start()
    (record,) = rig.send(partition=None)
    rig.core.accumulator.close()
    with pytest.raises(errors.ProducerClosed):
        rig.send(partition=None)
    rig.ack_all()
    assert record.status is ACKED


def test_an_abandoned_record_without_a_partition_ends_too() -> None:
    rig, record = unplaced()
    rig.core.accumulator.abandon(errors.ProducerClosed("closed"))
    rig.collect()
    assert record.status is NOT_WRITTEN
    assert not rig.core.accumulator.unplaced


@pytest.mark.parametrize("how", ["the topic was recreated", "the cluster is another"])
def test_no_record_is_aimed_at_a_partition_that_is_gone(how: str) -> None:
    """Records with keys do not ask which partition the next ones without a key go to."""
    rig = Rig(partitions=3, delivery_timeout=60.0, batch_size=1000).start()
    sticky = rig.core.accumulator.topic(T).sticky
    while sticky.current != 2:
        rig.send(partition=None)
        rig.ack_all()
        if sticky.current != 2:
            sticky.left = 0
    assert sticky.left > 0
    rig.leaders = {(T, 0): (1, 0)}
    rig.ids[T] = topic_id(T, 1)
    if how == "the topic was recreated":
        rig.refresh()
    else:
        rig.cluster_id = "another"
        rig.lose()
        rig.tick(5.0)
    keyed = Columns((b"v",) * 2, (b"k1", b"k2"), (), 0)
    append(rig, RecordBlock(keyed, Told(), None))
    rig.send(3, partition=None, poll=False)
    assert rig.state().queue.count == 5


def move(rig: Rig, topic: str) -> None:
    """Let all addresses lead to another cluster."""
    rig.cluster_id = f"not {rig.core.cluster.cluster_id}"
    rig.ids[topic] = topic_id(topic, 1)
    for end in [each for each in rig.links.values() if each.open and not each.closed]:
        rig.lose(end, poll=False)
    rig.poll()


@pytest.mark.parametrize("how", ["metadata", "another cluster"])
def test_a_record_that_has_waited_does_not_linger_anew(how: str) -> None:
    """Its linger time counts from the call, so it is sent before its deadline."""
    options: dict[str, Any] = {"linger": 20.0, "request_timeout": 10.0, "delivery_timeout": 30.0}
    rig = Rig(batch_size=16_384, **options).start()
    if how == "metadata":
        rig.topic_errors["u"] = UNKNOWN_TOPIC_OR_PARTITION
    else:
        rig.leaders["u", 0] = (1, 0)
    (record,) = rig.send(topic="u", partition=0)
    called_at = rig.now
    rig.tick(15.0)
    if how == "metadata":
        del rig.topic_errors["u"]
        rig.leaders["u", 0] = (1, 0)
        rig.refresh()
    else:
        move(rig, "u")
    rig.settle_down(called_at + 21.0 - rig.now)
    assert record.status is ACKED


def test_a_record_that_had_a_partition_does_not_wait_max_block_for_another_cluster() -> None:
    rig = Rig(batch_size=16_384, linger=60.0, max_block=0.0, delivery_timeout=100.0).start()
    (record,) = rig.send()
    for moves in range(2):
        if moves == 0:
            rig.topic_errors[T] = UNKNOWN_TOPIC_OR_PARTITION
        move(rig, T)
        rig.tick(3.0)
        assert record.status is PENDING
        rig.topic_errors.clear()
    rig.settle_down(61.0)
    assert record.status is ACKED
