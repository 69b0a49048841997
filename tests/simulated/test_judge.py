"""Tests of the simulation's judge: planted violations that it must notice, and what it allows."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import crc32c
import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._broker.state import ClusterState
from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore, deadlines
from aioidem._engine.batch import Batch
from aioidem._engine.connections import Connections
from aioidem._engine.flushing import FlushCount
from aioidem._engine.meters import Meters
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import Outcome as SharedOutcome
from aioidem._engine.samples import Distribution
from aioidem._engine.settlement import Settlement
from aioidem._producer.sender import Alarm, Sender
from aioidem._records import build_batch
from aioidem.structs import DeliveryStatus
from aioidem.testing import (
    Anomaly,
    LogRecord,
    Outcome,
    Row,
    ValueId,
    WireAnswer,
    WireBatch,
    make_value,
)

from .alarms import Watch
from .attempts import Attempts
from .broker_changes import once_in_each_log
from .deadlines import GRACE, Deadlines
from .perform import perform
from .progress import Progress
from .reasons import Reasons
from .schedule import Call, Fault, Glitch, Schedule
from .soak import quiet
from .test_written_schedules import calls, clean, schedule
from .whole import Whole, draw_whole
from .world import World

VALUE = ValueId("p", "t", 0, 0)
CONFIG = ProducerConfig.build(
    [("b0", 9092)], delivery_timeout=10.0, request_timeout=2.0, linger=0.0
)


class _Record:
    key, headers, timestamp_ms = None, (), 0
    value = make_value(VALUE)


class Watched:
    """One record to partition t-0, which broker 0 leads, and what the judge is told about it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.requests = 0
        self.attempts = Attempts(lambda: self.now, {ErrorCode.not_leader_or_follower})
        self.deadlines = Deadlines(CONFIG, self.attempts, lambda: self.now)
        cluster = ClusterState(brokers=2)
        cluster.topology.create_topic("t", assignments={0: [0]}, configs={})
        self.deadlines.led(cluster)

    def send(self, at: float) -> int:
        self.now = at
        self.requests += 1
        data = build_batch([_Record()], producer_id=7, producer_epoch=0, base_sequence=0).data
        self.attempts.wrote("a", self.requests, [WireBatch("t", 0, data)])
        return self.requests

    def answer(self, at: float, request: int, code: int, offset: int = -1) -> None:
        self.now = at
        self.attempts.answered("a", request, [WireAnswer("t", 0, code, offset)])
        self.deadlines.answered(0)

    def lose(self, at: float, unwritten: tuple[int, ...] = ()) -> None:
        self.now = at
        self.attempts.lost("a", unwritten)

    def judged(self, settled: float) -> tuple[list[Anomaly], set[str]]:
        row = Row(VALUE, "t", 0, 0.0, Outcome.UNKNOWN, settled=settled)
        used: set[str] = set()
        found = self.deadlines.judge([row], used.add)
        return [violation.anomaly for violation in found], used


IN_TIME: tuple[list[Anomaly], set[str]] = ([], set())
LATE: tuple[list[Anomaly], set[str]] = ([Anomaly.LATE], set())
ALLOWED: tuple[list[Anomaly], set[str]] = ([], {GRACE})


@pytest.mark.parametrize(("every", "storms"), [(0.05, 0), (0.001, 1)])
def test_a_record_that_is_sent_again_without_a_back_off_is_told_once(
    every: float, storms: int
) -> None:
    told: list[str] = []
    watched = Watched()
    watched.attempts = Attempts(lambda: watched.now, (), pause=0.1, storm=told.append)
    for number in range(400):
        watched.send(number * every)
    assert len(told) == storms
    assert all("was sent" in each for each in told)


def test_a_record_that_was_never_in_doubt_has_no_grace() -> None:
    """A record that waits, or whose first attempt is not answered, ends at its deadline."""
    watched = Watched()
    assert watched.judged(10.0) == IN_TIME
    assert watched.judged(10.1) == LATE
    watched.answer(1.0, watched.send(0.5), ErrorCode.not_leader_or_follower)
    watched.send(2.0)
    watched.deadlines.answered(0)
    assert watched.judged(10.1) == LATE


def test_a_record_in_doubt_has_grace_only_if_its_leader_answers() -> None:
    """One request timeout more is granted if the leader has answered since the doubt arose."""
    watched = Watched()
    watched.send(0.5)
    watched.lose(1.0)
    assert watched.judged(10.1) == LATE
    watched.now = 1.5
    watched.deadlines.answered(1)  # it leads another partition
    assert watched.judged(10.1) == LATE
    watched.answer(2.0, watched.send(1.5), ErrorCode.not_leader_or_follower)
    assert watched.judged(11.9) == ALLOWED
    assert watched.judged(12.1) == LATE


def test_an_answer_after_the_deadline_grants_nothing() -> None:
    """At the deadline the leader must already have answered."""
    watched = Watched()
    watched.send(0.5)
    watched.lose(1.0)
    watched.now = 10.5
    watched.deadlines.answered(0)
    assert watched.judged(11.0) == LATE


def test_a_request_of_which_no_byte_was_written_leaves_no_doubt() -> None:
    watched = Watched()
    request = watched.send(0.5)
    watched.lose(1.0, (request,))
    assert watched.attempts.of(VALUE) is None
    assert watched.attempts.oldest_stamp_ms(("t", 0)) == 0  # its age may still raise suspicion


def test_a_stopped_process_is_late_by_no_more_than_its_stop() -> None:
    """If the process is stopped at the deadline, outcomes come when it continues."""
    watched = Watched()
    watched.now = 8.0
    watched.deadlines.stalled(3.0)
    assert watched.judged(11.0) == IN_TIME
    assert watched.judged(11.1) == LATE
    earlier = Watched()
    earlier.now = 2.0
    earlier.deadlines.stalled(3.0)
    assert earlier.judged(10.1) == LATE


def test_unknown_needs_a_reason() -> None:
    """A record may end UNKNOWN only if it may be written, and something hides whether it is."""
    watched = Watched()
    reasons = Reasons(CONFIG, watched.attempts, lambda: watched.now, lambda: 0.0, 86400.0)
    row = Row(VALUE, "t", 0, 0.0)
    assert "never written to a socket" in str(reasons.judge([row]))
    watched.answer(1.0, watched.send(0.5), ErrorCode.not_leader_or_follower)
    assert "refused before the append" in str(reasons.judge([row]))
    watched.send(2.0)
    assert "in flight, and not in doubt" in str(reasons.judge([row]))
    watched.lose(3.0)
    assert "in doubt" in str(reasons.judge([row]))
    watched.answer(4.0, watched.send(3.5), ErrorCode.out_of_order_sequence_number)
    assert "in doubt" in str(reasons.judge([row]))
    watched.answer(5.0, watched.send(4.5), ErrorCode.out_of_order_sequence_number)
    assert reasons.judge([row]) is None
    assert reasons.found == {"two passes of probes were refused": 1}


@pytest.mark.parametrize(
    ("code", "blamed", "explained"),
    [
        (ErrorCode.invalid_record, ErrorCode.invalid_record, True),
        (ErrorCode.invalid_record, ErrorCode.invalid_timestamp, False),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_leader_or_follower, False),
        (ErrorCode.network_exception, ErrorCode.out_of_order_sequence_number, False),
        (None, ErrorCode.invalid_record, False),
        (None, ErrorCode.unknown_topic_or_partition, True),
    ],
)
def test_not_written_needs_a_reason(code: int | None, blamed: int, explained: bool) -> None:
    """A record ends NOT_WRITTEN before its deadline if it was refused for good, or never can be."""
    watched = Watched()
    reasons = Reasons(CONFIG, watched.attempts, lambda: watched.now, lambda: 0.0, 86400.0)
    row = Row(VALUE, "t", 0, 0.0)
    if code is not None:
        watched.answer(1.0, watched.send(0.5), code)
    error = errors.broker_error(blamed, "t-0")
    outcome = SharedOutcome("t", 0, DeliveryStatus.NOT_WRITTEN, error=error)
    assert (reasons.judge_end([row], outcome) is None) == explained
    watched.now = 10.0
    assert reasons.judge_end([row], outcome) is None


def test_the_code_that_refuses_v14_is_no_reason_until_it_answers_v13_too() -> None:
    watched = Watched()
    reasons = Reasons(CONFIG, watched.attempts, lambda: watched.now, lambda: 0.0, 86400.0)
    error = errors.broker_error(ErrorCode.unsupported_version, "t-0")
    outcome = SharedOutcome("t", 0, DeliveryStatus.NOT_WRITTEN, error=error)
    watched.answer(1.0, watched.send(0.5), ErrorCode.unsupported_version)
    watched.attempts.refused_v14([VALUE])
    assert "alone" in str(reasons.judge_end([Row(VALUE, "t", 0, 0.0)], outcome))
    watched.answer(2.0, watched.send(1.5), ErrorCode.unsupported_version)
    assert reasons.judge_end([Row(VALUE, "t", 0, 0.0)], outcome) is None


def test_a_topic_without_metadata_is_a_reason_after_max_block() -> None:
    watched = Watched()
    config = dataclasses.replace(CONFIG, max_block=5.0)
    reasons = Reasons(config, watched.attempts, lambda: watched.now, lambda: 0.0, 86400.0)
    error = errors.KafkaTimeoutError("no metadata")
    late = SharedOutcome("t", 0, DeliveryStatus.NOT_WRITTEN, error=error)
    watched.now = 4.0
    assert "was never sent" in str(reasons.judge_end([Row(VALUE, "t", 0, 0.0)], late))
    watched.now = 5.0
    assert reasons.judge_end([Row(VALUE, "t", 0, 0.0)], late) is None


@pytest.mark.parametrize(
    ("code", "partition", "at", "explained"),
    [
        (ErrorCode.unsupported_sasl_mechanism, 0, 2.0, True),
        (ErrorCode.unsupported_sasl_mechanism, 0, 0.5, True),
        (ErrorCode.unsupported_sasl_mechanism, 0, 0.1, False),
        (ErrorCode.unsupported_sasl_mechanism, 1, 2.0, False),
        (ErrorCode.not_leader_or_follower, 0, 2.0, False),
    ],
)
def test_a_code_for_another_batch_explains_a_doubt_that_one_pass_did_not_end(
    code: int, partition: int, at: float, explained: bool
) -> None:
    """After a code that no broker answers to Produce, a later success proves nothing.

    It explains nothing if it came before the batch was sent, or from another partition.
    """
    watched = Watched()
    reasons = Reasons(CONFIG, watched.attempts, lambda: watched.now, lambda: 0.0, 86400.0)

    def refuse_another(begins: float, ends: float) -> None:
        if begins < at < ends:
            watched.now = at
            watched.attempts.answered("b", 1, [WireAnswer("t", partition, code, -1)])

    refuse_another(0.0, 0.2)
    watched.send(0.2)
    refuse_another(0.2, 1.0)
    watched.lose(1.0)
    request = watched.send(1.5)
    refuse_another(1.5, 2.5)
    watched.answer(2.5, request, ErrorCode.out_of_order_sequence_number)
    assert (reasons.judge([Row(VALUE, "t", 0, 0.0)]) is None) == explained


@pytest.mark.parametrize("offset", [-1, 7])
def test_an_answer_that_contradicts_itself_explains_a_doubt(offset: int) -> None:
    """Without the offset such an answer says only that the batch was not stored."""
    watched = Watched()
    reasons = Reasons(CONFIG, watched.attempts, lambda: watched.now, lambda: 0.0, 86400.0)
    watched.answer(1.0, watched.send(0.5), ErrorCode.not_leader_or_follower, offset)
    watched.send(1.5)
    watched.lose(2.0)
    watched.answer(3.0, watched.send(2.5), ErrorCode.out_of_order_sequence_number)
    assert (reasons.judge([Row(VALUE, "t", 0, 0.0)]) is None) == (offset >= 0)


def test_a_deadline_or_the_end_of_the_producer_explains_a_doubt() -> None:
    watched = Watched()
    reasons = Reasons(CONFIG, watched.attempts, lambda: watched.now, lambda: 0.0, 86400.0)
    row = Row(VALUE, "t", 0, 0.0)
    watched.send(0.5)
    watched.now = 9.9
    assert reasons.judge([row]) is not None
    watched.now = 10.0
    assert reasons.judge([row]) is None
    watched.now = 1.0
    reasons.closing = True
    assert reasons.judge([row]) is None


def test_a_record_that_ends_late_after_the_last_fault_is_noticed() -> None:
    """The bound counts from the last fault or from the record's own start, whichever is later."""
    progress = Progress(CONFIG, Schedule(0, "attack"))
    progress.disturbed(100.0)
    bound = progress.bound(1, 0.1)
    early, late = (Row(VALUE, "t", 0, 50.0, Outcome.ACKED, settled=s) for s in (99.0, 100.1))
    assert not list(progress.judge([early, late], 0.1))
    for started in (50.0, 120.0):
        since = max(100.0, started)
        in_time = Row(VALUE, "t", 0, started, Outcome.ACKED, settled=since + bound - 0.01)
        assert not list(progress.judge([in_time], 0.1))
        stuck = Row(VALUE, "t", 0, started, Outcome.ACKED, settled=since + bound + 0.01)
        assert [violation.anomaly for violation in progress.judge([stuck], 0.1)] == [Anomaly.STUCK]
        assert not list(progress.judge([stuck], 0.1, {VALUE}))


def test_metadata_that_is_not_asked_for_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a load that fills the connection, metadata is renewed; a planted fault forgets it.

    The engine of efcc3be had that fault: a question that found no room was never asked again.
    """
    load = tuple(Call(0.5 + 0.004 * number, "t", 0, None, 60) for number in range(700))
    options = {"max_in_flight_requests_per_connection": 5, "metadata_max_age": 0.5}
    plan = schedule(options=options | {"request_timeout": 30.0}, calls=load)
    clean(plan)
    monkeypatch.setattr(ProducerCore, "_has_unasked", lambda *_: False)
    assert [each.anomaly for each in World(plan).run().violations] == [Anomaly.STALE]


@pytest.mark.parametrize("part", [Connections, deadlines.Deadlines])
def test_an_engine_that_wakes_too_late_is_noticed(
    part: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll before anything is due does what the engine was not woken for."""
    options = {"request_timeout": 2.0, "delivery_timeout": 30.0, "linger": 0.1}
    load = tuple(Call(0.3 * number, "t", 0, None, 60) for number in range(100))
    plan = schedule(options=options, calls=load, faults=(Fault(1.0, "kill", (0, True, 3.0, True)),))
    clean(plan)
    monkeypatch.setattr(part, "next_wake", lambda *_: math.inf)
    told = World(plan).run().violations
    assert any("before anything is due" in each.detail for each in told)


def _keep_to_itself(patch: pytest.MonkeyPatch) -> None:
    """Let the Sender go on sleeping when a connection ends."""
    lost = Sender._lost

    def silent(self: Sender, *ended: Any) -> None:
        wakeup, nobody = self.wakeup, SimpleNamespace(set=lambda: None)
        self.wakeup = cast("Any", nobody)
        lost(self, *ended)
        self.wakeup = wakeup

    patch.setattr(Sender, "_lost", silent)


def _oversleep(patch: pytest.MonkeyPatch) -> None:
    """Let the Sender sleep longer than it was asked to."""
    alarm = Alarm.set
    patch.setattr(Alarm, "set", lambda self, at: alarm(self, None if at is None else at + 0.01))


def _look_away(patch: pytest.MonkeyPatch) -> None:
    """Let the Sender never look for incidents."""
    patch.setattr(Watch, "look", lambda *_: None)


def _plan(**values: Any) -> Schedule:
    options = {
        "request_timeout": 2.0,
        "delivery_timeout": 60.0,
        "max_block": 1.0,
        "max_in_flight_requests_per_connection": 5,
    }
    return Schedule(0, profile="attack", options=options, versions=(12,), **values)


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (35, ">q", 0),  # the maximum timestamp
        (23, ">i", 0),  # the last offset delta
        (57, ">i", 1),  # the number of records
        (8, ">i", 60),  # the length
        (17, ">I", 7),  # the CRC
        (21, ">h", 0x40),  # an attribute that only brokers set
    ],
)
@pytest.mark.parametrize("backend", ["", "trio"])
def test_a_header_that_its_records_contradict_is_noticed(
    monkeypatch: pytest.MonkeyPatch, backend: str, at: int, layout: str, value: int
) -> None:
    """The judge computes again what a batch's header says; the brokers of a run believe it."""
    enlist = PartitionState.enlist

    def lie(state: PartitionState, batch: Batch) -> None:
        changed = bytearray(batch.data)
        struct.pack_into(layout, changed, at, value)
        if at != 17:
            struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
        batch.build(bytes(changed))
        enlist(state, batch)

    monkeypatch.setattr(PartitionState, "enlist", lie)
    calls = tuple(Call(0.1, "t", 0, None, 20) for _ in range(2))
    plan = _plan(backend=backend, calls=calls)
    plan.options["linger"] = 0.1
    plan.options["delivery_timeout"] = 3.0
    with quiet():
        found = {violation.anomaly for violation in perform(plan).violations}
    # A wrong length also ends the run, because nothing can read the batch any more.
    assert found & {Anomaly.MISSTATED, Anomaly.CRASH}
    assert Anomaly.MISSTATED in found or at == 8


@pytest.mark.parametrize("kind", ["unclean", "recreate"])
def test_only_a_late_copy_in_a_recreated_topic_may_be_a_duplicate(kind: str) -> None:
    """An unclean election excuses no duplicate, and a recreated topic only those that came late."""
    fault = Fault(1.0, kind, ("t",) if kind == "recreate" else ("t", 0))
    world = World(_plan(faults=(fault,)))
    late = ValueId("p", "t", 0, 1)
    world.rows = {value: Row(value, "t", 0, 0.0) for value in (VALUE, late)}
    world.late = {late}
    assert set(world.repeatable()) == ({late} if kind == "recreate" else set())


@pytest.mark.parametrize(
    ("settled", "moves", "may_repeat"),
    [(None, True, True), (150.0, True, True), (50.0, True, False), (None, False, False)],
)
def test_a_deleted_record_may_be_a_duplicate_if_its_producer_is_forgotten(
    settled: float | None, moves: bool, may_repeat: bool
) -> None:
    """A new replica has a copy of the log without it. The deletion came before the outcome."""
    plan = _plan(calls=(Call(0.1, "t", 0, None, 20),), brokers=2, retain=(5, 5))
    world = World(dataclasses.replace(plan, versions=(12, 12)))
    world.run()
    (row,) = world.rows.values()
    world.now, row.settled = 100.0, settled
    world.injector.inject(Fault(0.0, "purge", ("t", 0, 1.0)))
    if moves:
        world.injector.inject(Fault(0.0, "move", ("t", 0, 1)))
    world.removed.look()
    assert set(world.repeatable()) == ({row.value} if may_repeat else set())


def test_the_logs_of_clusters_are_in_the_order_in_which_they_were_left() -> None:
    """By their own order, the logs of a producer that goes back to the first would be reversed."""
    world = World(_plan(calls=(Call(0.1, "t", 0, None, 20),)))
    world.run()
    first, second = world.cluster, ClusterState(brokers=1, seed=7)
    world.clusters.insert(0, second)
    later = make_value(ValueId("p", "t", 0, 9))
    world.archive[second.cluster_id] = [[LogRecord("t", 0, 0, later)]]
    assert [record.value == later for record in world.log()] == [True, False]
    world.event(f"the cluster changed from {first.cluster_id} to {second.cluster_id}: and so on")
    assert [record.value == later for record in world.log()] == [False, True]


@pytest.mark.parametrize("left_out", [None, "sent", "failed"])
def test_a_number_that_an_operator_sees_and_that_is_not_so_is_noticed(
    monkeypatch: pytest.MonkeyPatch, left_out: str | None
) -> None:
    if left_out is not None:
        monkeypatch.setattr(Meters, left_out, lambda *_args: None)
    calls = tuple(Call(0.1 * number, "t", 0, None, 20) for number in range(3))
    refused = Glitch(1, "refuse", (ErrorCode.invalid_record, None))
    found = World(_plan(calls=calls, glitches=(refused,))).run().violations
    expected = set() if left_out is None else {Anomaly.MISCOUNTED}
    assert {violation.anomaly for violation in found} == expected


@pytest.mark.parametrize("number", ["average", "largest", "rate", "frequency", "percentile"])
def test_a_number_of_the_last_minute_that_is_not_so_is_noticed(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setattr(Distribution, number, lambda *_args: 1e6)
    calls = tuple(Call(0.1 * each, "t", 0, None, 20) for each in range(3))
    found = World(_plan(calls=calls)).run().violations
    assert {violation.anomaly for violation in found} == {Anomaly.MISCOUNTED}


def test_copies_in_a_deleted_log_and_its_successor_are_no_duplicates() -> None:
    """A value may be in several logs of a topic that is addressed by name, but once in each."""
    once, twice = (make_value(ValueId("p", "t", 0, call), 0) for call in (1, 2))
    log = [LogRecord("t", 0, at, value, number) for at, value, number in (
        (0, once, 0), (1, twice, 0), (0, twice, 1), (1, once, 1), (2, twice, 1),
    )]  # fmt: skip
    assert once_in_each_log(log) == {ValueId("p", "t", 0, 1)}
    assert not once_in_each_log(log[:2])


class _Queued(_Record):
    """A record that the engine has settled, and that it says was queued at some time."""

    def __init__(self, value: ValueId, queued: float) -> None:
        self.value, self.deadline = make_value(value), queued + 60.0


@pytest.mark.parametrize(("third", "counted"), [(12.0, 12.0), (12.5, 12.0)])
def test_each_value_of_a_send_many_may_wait_for_room_for_max_block(
    monkeypatch: pytest.MonkeyPatch, third: float, counted: float
) -> None:
    """The wait of a value begins when the value before it was queued, and ends after max_block.

    All three values were read at 10 s; the engine says that the second waited 1 s. From a third
    that waited longer, the delivery timeout counts as if it had waited for max_block (1 s).
    """
    whole = Whole(_plan(backend="trio"))
    monkeypatch.setattr(Whole, "now", 70.0)
    values = [ValueId("p", "t", 0, number) for number in range(3)]
    whole.rows = {value: Row(value, "t", 0, 10.0) for value in values}
    whole.before = dict(zip(values[1:], values, strict=False))
    outcome = SharedOutcome("t", 0, DeliveryStatus.NOT_WRITTEN)
    queued: Any = [_Queued(*each) for each in zip(values, (10.0, 11.0, third), strict=True)]
    whole.note_settled([Settlement(outcome, [record]) for record in reversed(queued)])
    started = {row.value.call: row.started for row in whole.counted()}
    assert started == {0: 10.0, 1: 11.0, 2: counted}


def test_an_engine_that_raises_inside_the_whole_producer_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash of the producer's background task is a violation, whatever the records' outcomes."""

    def broken(_whole: Whole, *_answer: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Whole, "heard", broken)
    plan = dataclasses.replace(draw_whole(1123, "trio"), all_acked=False)
    with quiet():
        found = [violation.anomaly for violation in perform(plan).violations]
    assert found == [Anomaly.CRASH]


_FLUSHED, _FOR_EVER = Outcomes.flushed, 10**9
_FLUSHES = tuple(Fault(0.45 + 0.3 * number, "flush") for number in range(8))
_FLUSHED_WRONGLY = [
    pytest.param(Outcomes, "flushed", lambda *_: True, Anomaly.UNSETTLED, id="too early"),
    pytest.param(
        Outcomes,
        "flushed",
        lambda outcomes, _: _FLUSHED(outcomes, _FOR_EVER),
        Anomaly.STUCK,
        id="too late",
    ),
    pytest.param(FlushCount, "add", lambda *_: None, Anomaly.MISCOUNTED, id="counts nothing"),
]


@pytest.mark.parametrize(("owner", "name", "wrong", "anomaly"), _FLUSHED_WRONGLY)
def test_a_flush_that_ends_at_the_wrong_time_or_counts_wrongly_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: Any, anomaly: Anomaly
) -> None:
    plan = schedule(faults=_FLUSHES)
    clean(plan)
    monkeypatch.setattr(owner, name, wrong)
    assert {each.anomaly for each in World(plan).run().violations} == {anomaly}


@pytest.mark.parametrize(("owner", "name", "wrong", "anomaly"), _FLUSHED_WRONGLY[::2])
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_flush_that_returns_what_is_not_so_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    owner: type,
    name: str,
    wrong: Any,
    anomaly: Anomaly,
) -> None:
    """The application that flushes waits for what it has queued without waiting for an outcome."""
    plan = _plan(backend=backend, rtt=0.3, faults=_FLUSHES, calls=calls(80))
    assert not perform(plan).violations
    monkeypatch.setattr(owner, name, wrong)
    assert anomaly in {each.anomaly for each in perform(plan).violations}


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (_keep_to_itself, "after it was told something"),
        (_oversleep, "after it asked to be woken"),
        (_look_away, "nobody looked"),
    ],
)
def test_a_sender_that_polls_too_late_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = draw_whole(1, "trio")
    with quiet():
        assert not perform(plan).violations
        plant(monkeypatch)
        found = perform(plan).violations
    assert any(told in violation.detail for violation in found)
