"""`Meters` without an engine: turns of the event loop, calls, connections and record sizes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from aioidem._engine.meters import Meters
from aioidem._engine.record import PendingRecord
from aioidem._engine.record_block import Columns, RecordBlock, RecordRuns
from aioidem.errors import KafkaTimeoutError, RecordListTooLargeError, TransactionAborted

NOBODY = SimpleNamespace(take=lambda *_: None)
"""A receiver that ignores outcomes."""


def entry(count: int, size: int) -> Any:
    """Return a partition and a batch of so many records of a size."""
    batch = SimpleNamespace(
        count=count,
        data=b"x" * 100,
        deadline=130.0,
        compression=1.0,
        records=[SimpleNamespace(size=size + place) for place in range(count)],
        attempts=1,
    )
    return SimpleNamespace(topic="t"), batch


def test_work_and_pauses_of_the_loop_are_told_apart() -> None:
    """A pause is the time between the end of a turn and the beginning of the next one."""
    meters = Meters()
    meters.turns += [(10.0, 10.5), (12.0, 12.25)]
    meters.fold(13.0)
    assert (meters.work.count, meters.work.total) == (2, 0.75)
    assert (meters.pauses.count, meters.pauses.total) == (2, 1.5)
    meters.turns += [(13.25, 13.5)]
    meters.fold(14.0)
    assert (meters.work.count, meters.work.total) == (3, 1.0)
    assert (meters.pauses.count, meters.pauses.total) == (3, 2.5)
    assert meters.turns == []


def test_the_numbers_of_turns_count_when_the_last_turn_began() -> None:
    meters = Meters()
    meters.turns += [(10.0, 10.5), (12.0, 12.25)]
    meters.fold(999.0)
    assert meters.work.largest(12.0 + 59.0) == 0.5
    assert meters.pauses.largest(12.0 + 59.0) == 1.5
    assert math.isnan(meters.work.largest(12.0 + 61.0))
    assert math.isnan(meters.pauses.largest(12.0 + 61.0))


def test_the_time_of_calls_adds_up_by_kind() -> None:
    meters = Meters()
    meters.spend("flush", 1.5)
    meters.spend("flush", 0.5)
    meters.spend("metadata", 0.25)
    assert {call: meters.spent[call] for call in ("flush", "metadata")} == {
        "flush": 2.0,
        "metadata": 0.25,
    }


@pytest.mark.parametrize(("sasl", "authenticated"), [(True, 1), (False, 0)])
def test_connections_are_counted_and_those_with_sasl(sasl: bool, authenticated: int) -> None:
    meters = Meters()
    meters.connected(1.0, authenticated=sasl)
    assert (meters.opened.total, meters.authenticated.total) == (1, authenticated)


def test_of_large_batches_only_the_first_of_each_second_are_looked_at_for_large_records() -> None:
    """Sizes of records in small batches are always known; 0 is not counted as a size."""
    meters = Meters()
    meters.now = 101.0
    large, small = entry(2_000, 1_000), entry(2, 10)
    for _ in range(200):
        meters.sent([large], 2_000, 100.0)
    meters.sent([small], 2, 100.0)
    meters.fold(101.0)
    looked_at = meters.record_size.count - 1
    assert 0 < looked_at < 200
    assert meters.record_size.largest(101.0) == 2_999
    meters.sent([large], 2_000, 101.0)
    meters.fold(102.0)
    assert meters.record_size.count == looked_at + 2
    meters.sent([entry(1, 7)], 1, 102.0)
    meters.fold(103.0)
    assert meters.record_size.count == looked_at + 3


@pytest.mark.parametrize(
    ("measured_before", "count", "measured"),
    [(1000, 16, True), (1000, 17, False), (999, 17, True), (0, 2000, True)],
)
def test_a_thousand_records_per_second_of_batches_of_more_than_sixteen_are_looked_at(
    measured_before: int, count: int, measured: bool
) -> None:
    meters = Meters()
    meters.now = 100.0
    if measured_before:
        meters.sent([entry(measured_before, 0)], measured_before, 100.0)
    meters.sent([entry(count, 5_000)], count, 100.0)
    meters.fold(101.0)
    largest = 5_000 + count - 1 if measured else measured_before - 1
    assert meters.record_size.largest(101.0) == largest


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_size_of_the_largest_record_of_each_batch_is_told(count: int) -> None:
    meters = Meters()
    meters.sent([entry(count, 50)], count, 100.0)
    meters.fold(101.0)
    assert (meters.record_size.count, meters.record_size.total) == (1, 50 + count - 1)


def test_of_records_of_one_call_the_largest_one_of_the_call_is_told() -> None:
    """Unless there is one record in the batch, whose own size is told."""
    call = RecordBlock(Columns((b"a", b"b" * 40, b"c"), None, (), 0), NOBODY, None)
    single = PendingRecord(None, b"", (), 0, None, 20)
    state, batch = entry(4, 0)
    batch.records = RecordRuns([single, call])
    other, alone = entry(1, 0)
    alone.records = RecordRuns([call])[2:]
    meters = Meters()
    meters.sent([(state, batch), (other, alone)], 5, 100.0)
    meters.fold(101.0)
    assert call.columns.largest > max(single.size, alone.records[0].size)
    assert meters.record_size.largest(0.0) == call.columns.largest
    assert meters.record_size.total == call.columns.largest + alone.records[0].size


def test_new_meters_are_due_at_once() -> None:
    meters = Meters()
    assert (meters.now, meters.due_at) == (0.0, 0.0)
    meters.fold(7.0)
    assert meters.due_at == 8.0


def test_what_is_said_of_batches_is_added_up_by_topic_and_in_all() -> None:
    meters = Meters()
    meters.now, meters.delivery_timeout = 100.0, 40.0
    state, batch = entry(3, 10)
    batch.compression, batch.deadline = 0.5, 130.0
    other, again = SimpleNamespace(topic="u"), entry(4, 5)[1]
    again.data, again.attempts, again.deadline = b"x" * 60, 2, 140.0
    first = entry(1, 1)[1]
    first.deadline = 140.0
    meters.sent([(state, batch), (other, again), (other, first)], 8, 100.0)
    meters.fold(100.5)
    assert meters.due_at == 101.5
    of_t, of_u = meters.topics["t"], meters.topics["u"]
    assert [(each.records.total, each.bytes.total) for each in (of_t, of_u)] == [(3, 100), (5, 160)]
    assert (of_t.compression.total, of_u.compression.total) == (0.5, 2.0)
    assert (meters.compression.count, meters.compression.total) == (3, 2.5)
    assert (meters.batch_size.count, meters.batch_size.total) == (3, 260)
    assert (meters.per_request.count, meters.per_request.total) == (1, 8)
    # Queued for 40 - (130 - 100) seconds, and twice for 40 - (140 - 100).
    assert (meters.queue_time.count, meters.queue_time.total) == (3, 10.0)
    assert (meters.record_size.count, meters.record_size.total) == (3, 12 + 8 + 1)
    assert (meters.retries.total, of_t.retries.total, of_u.retries.total) == (4, 0, 4)


def test_first_attempts_alone_are_no_retries() -> None:
    meters = Meters()
    meters.sent([entry(3, 10)], 3, 100.0)
    meters.fold(101.0)
    assert meters.retries.count == 0


def test_the_records_of_later_attempts_are_retries_however_many_they_are() -> None:
    meters = Meters()
    state, again = entry(1, 10)
    again.attempts = 2
    meters.sent([entry(3, 10), (state, again)], 4, 100.0)
    meters.fold(101.0)
    assert (meters.retries.count, meters.retries.total) == (1, 1)
    assert meters.topics["t"].retries.total == 1


def test_the_time_until_records_are_acknowledged_is_that_since_they_were_queued() -> None:
    """What is noted is the time from the deadline, which is a negative number."""
    meters = Meters()
    meters.now, meters.delivery_timeout = 100.0, 40.0
    meters.fold(100.0)
    assert meters.delivery.count == 0
    meters.acked += [-30.0, -39.0]
    meters.fold(101.0)
    assert (meters.delivery.count, meters.delivery.total) == (2, 11.0)
    assert meters.acked == []


@pytest.mark.parametrize("noted", ["requests", "answers", "latencies"])
def test_what_is_noted_of_a_broker_is_added_up(noted: str) -> None:
    meters = Meters()
    node = meters.nodes[1]
    getattr(node, noted).append(8)
    meters.fold(1.0)
    sensors = {"requests": node.sent, "answers": node.received, "latencies": node.latency}
    totals = {name: sensor.total for name, sensor in sensors.items() if sensor.count}
    assert totals == {noted: 12 if noted == "answers" else 8}
    in_all = (meters.requests.count, meters.answers.count, meters.latency.count)
    assert in_all == tuple(each.count for each in sensors.values())


def test_answers_without_a_throttle_time_count_as_throttled_by_nothing() -> None:
    meters = Meters()
    node = meters.nodes[1]
    node.latencies += [0.1, 0.1, 0.1]
    node.throttles.append(1.5)
    meters.fold(1.0)
    assert (node.throttle.count, node.throttle.total) == (3, 1.5)
    assert meters.throttle.count == 3


def test_failed_records_are_counted_by_topic_and_by_kind_but_not_those_of_an_abort() -> None:
    meters = Meters()
    meters.failed("t", 2, KafkaTimeoutError("slow"), 5.0)
    meters.failed("u", 3, RecordListTooLargeError("large"), 5.0)
    meters.failed("t", 9, TransactionAborted("aborted"), 5.0)
    assert meters.errors.total == 5
    assert meters.errors.rate(5.0) > 0 == meters.errors.rate(500.0)
    assert (meters.topics["t"].errors.total, meters.topics["u"].errors.total) == (2, 3)
    assert dict(meters.kinds) == {"KafkaTimeoutError": 2, "RecordListTooLargeError": 3}
