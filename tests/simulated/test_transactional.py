"""Run the first seeds of the transactional simulation, and test its judge and its mutants."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import Counter
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.batch import StoredBatch, parse_single_batch
from aioidem._broker.markers import end_marker
from aioidem._broker.virtual import PlainRecord
from aioidem._engine import coordinator
from aioidem._engine.endings import Endings
from aioidem._records import build_batch
from aioidem.structs import DeliveryStatus
from aioidem.testing import Anomaly, LogRecord, Outcome, Row, ValueId, make_value

from . import mutants
from .perform import perform
from .read_committed import Attempt, Verdict, committed_records, judge, visible_at_brokers
from .run import main as command_line
from .schedule import Call, Fault, Work
from .shrink import shrink
from .soak import quiet, run_transactional, run_transactional_swarm
from .test_soak import nothing_is_wrong, seeds_are_right
from .transactional import CLEANUP_INTERVAL, PROFILES, draw_transactional, kind_of
from .transactional_run import Transactional

EVERYDAY = 30  # how many of the 240 seeds run with the everyday tests

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.mark.parametrize("first", range(0, EVERYDAY, 15))
def test_seeds_of_transactions_show_nothing_wrong(first: int) -> None:
    """The first seeds of the soak of transactions show no violation."""
    seeds_are_right(range(first, first + 15), run_transactional)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_rest_of_240_seeds_of_transactions_show_nothing_wrong() -> None:
    """Further seeds of the soak of transactions show no violation."""
    nothing_is_wrong(240 - EVERYDAY, "--transactions", first=EVERYDAY)


def test_a_connection_given_up_for_its_answer_is_no_second_route() -> None:
    """Batches of a connection that the engine gave up may go out on another one (seed 6389).

    An answer names a partition that its request did not have, so the engine gives the connection up
    and resends its batches on another one. The Sender closes the first connection a turn later. The
    wire monitor must not report that the batches are outstanding on two connections at once.
    """
    with quiet():
        result = perform(draw_transactional(6389))
    assert not result.violations, "\n".join(map(str, result.violations))


def test_records_that_the_coordinator_did_not_add_have_its_refusal_as_their_cause() -> None:
    """Their error tells the refusal."""
    with quiet():
        result = perform(draw_transactional(4001192))
    assert not result.violations, "\n".join(map(str, result.violations))


def test_first_records_of_a_new_producer_may_expire_while_it_asks_what_it_needs() -> None:
    """With a short delivery timeout, the last transaction may take two attempts (seed 2100664)."""
    with quiet():
        result = perform(draw_transactional(2100664))
    assert not result.violations, "\n".join(map(str, result.violations))


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_replays_to_the_letter(seed: int) -> None:
    with quiet():
        first, again = (perform(draw_transactional(seed), trace=True) for _ in range(2))
    assert len(first.trace) > 10
    assert first.trace == again.trace
    assert first.transactions == again.transactions
    assert {kind_of(each) for each in range(6)} == {"trio", "asyncio"}


def test_seeds_draw_every_fault_of_the_list() -> None:
    """The first 2000 seeds often draw every kind of fault, with transactions v1 and v2."""
    schedules = [draw_transactional(seed) for seed in range(2000)]
    kinds = Counter(fault.kind for s in schedules for fault in s.faults)
    kinds.update(glitch.kind for s in schedules for glitch in s.glitches)
    kinds.update(f"its {glitch.kind}" for s in schedules for glitch in s.coordination)
    wanted = {
        *(
            "kill",
            "move",
            "hold",
            "cut",
            "reset",
            "drop",
            "delay",
            "zombie",
            "spurious",
            "fence",
            "refuse",
        ),
        *("fail_coordinator", "move_coordinator", "hold_markers", "delay_markers"),
        *(
            "twin",
            "crash",
            "strike",
            "its drop",
            "its delay",
            "its zombie",
            "its refuse",
            "its after",
            "its garbage",
        ),
    }
    assert min(kinds[kind] for kind in wanted) >= 30, kinds
    assert {s.transaction_version for s in schedules} == {0, 2}
    assert {s.profile for s in schedules} == set(PROFILES)
    works = [work for s in schedules for work in s.work]
    assert {work.end for work in works} == {"commit", "abort", "raise"}
    assert min(sum(work.block for work in works), sum(work.restless for work in works)) > 500
    assert sum(work.patience is not None for work in works) > 500
    assert sum(s.options["transaction_timeout"] < 5 for s in schedules) > 50


def test_without_faults_every_transaction_ends_as_the_caller_asked() -> None:
    seen = 0
    with quiet():
        for seed in range(12):
            result = perform(draw_transactional(seed, "quiet"))
            assert not result.violations, result.violations[0]
            asked = sum(work.end == "commit" for work in result.schedule.work)
            assert result.transactions.get("unknown", 0) == 0
            assert result.transactions["committed"] == asked + 1
            seen += asked
    assert seen > 20


def test_a_failing_schedule_shrinks_and_still_fails() -> None:
    name = "lost commit taken for failed"
    with mutants.applied(mutants.MUTANTS[name]), quiet():
        schedules = (draw_transactional(seed) for seed in range(400))
        large = next(schedule for schedule in schedules if perform(schedule).violations)
        small = shrink(large, budget=60)
        assert perform(small).violations
    with quiet():
        assert not perform(small).violations
    assert 1 <= len(small.work) <= len(large.work)
    assert len(small.coordination) <= len(large.coordination)


def test_the_command_line_traces_transactions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "--seed", "1", "--transactions", "--trace"])
    assert command_line() == 0
    told = capsys.readouterr().out
    assert "transaction 0: " in told
    assert "> InitTransactions" in told
    assert re.search(r"transactions: .*\d+ committed", told)


@pytest.mark.parametrize("name", ["lost commit taken for failed", "aborted records are kept"])
def test_a_mutant_is_caught(name: str) -> None:
    assert mutants.catch(name, limit=200).seed is not None


def test_planted_fatal_error_that_nothing_explains() -> None:
    with mutants.applied(mutants.MUTANTS["concurrent taken for fatal"]), quiet():
        found = (each for seed in range(200) for each in run_transactional(seed).violations)
        assert next(found).anomaly is Anomaly.FATAL


@pytest.mark.parametrize("seconds", [5.0, 1e5])
def test_a_coordinator_whose_clock_jumps_may_fence_with_transactions_v1(seconds: float) -> None:
    """A jump beyond the transaction's timeout makes the coordinator abort it and raise the epoch.

    A shorter jump explains no fatal error.
    """
    base = draw_transactional(1, "quiet")
    plan = dataclasses.replace(
        base,
        transaction_version=0,
        broker_configs=base.broker_configs | {CLEANUP_INTERVAL: "100"},
        # The coordinator looks at its clock when a partition is added.
        work=(
            Work(tuple(Call(5.0 * p, "t", p, None, 60) for p in (0, 1)), block=False, dawdle=1.0),
        ),
        topics=(("t", 2),),
        faults=tuple(Fault(2.0, "skew", (b, seconds, 20.0)) for b in range(base.brokers)),
    )
    result = perform(plan)
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.transactions["committed"] == (1 if seconds > 60.0 else 2)


def test_planted_transaction_that_is_never_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge finds a transaction that is left open at the end.

    The last producer begins the transaction and vanishes.
    """

    async def leave(self: Transactional, application: Any, _name: str) -> None:
        work = Work((Call(0.0, "t", 0, None, 60),))
        last = await self._continue(application, work)
        await last.leave_open(work)
        await last.close(0)

    monkeypatch.setattr(Transactional, "_last_transaction", leave)
    with quiet():
        found = [each for seed in range(4) for each in run_transactional(seed).violations]
    assert Anomaly.HANGING in {each.anomaly for each in found}


# -- the reader and the judge ----------------------------------------------------------------------


class Log:
    """A partition's log, made by hand."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.end = 0

    def _append(self, data: bytes) -> None:
        batch = StoredBatch(data, parse_single_batch(data), self.end, 0, 0, False)
        self.batches.append(batch)
        self.end = batch.last_offset + 1

    def write(self, producer: int, *values: bytes, transactional: bool = True) -> None:
        self._append(
            build_batch(
                [PlainRecord(value) for value in values],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                transactional=transactional,
            ).data
        )

    def mark(self, producer: int, *, commit: bool) -> None:
        self._append(end_marker(producer, 0, commit=commit, stamp_ms=0))


def test_the_reader_sees_what_was_committed_in_the_order_of_the_log() -> None:
    log = Log()
    log.write(1, b"a", b"b")
    log.write(2, b"x")
    log.write(3, b"plain", transactional=False)
    log.write(1, b"c")
    log.mark(2, commit=False)
    log.mark(1, commit=True)
    log.write(2, b"y")
    seen, left_open = committed_records("t", 0, log.batches)
    assert [(record.offset, record.value) for record in seen] == [
        (0, b"a"),
        (1, b"b"),
        (3, b"plain"),
        (4, b"c"),
    ]
    assert [(each, len(records)) for each, records in left_open.items()] == [(2, 1)]
    told = visible_at_brokers("t", 0, log.batches, 7, [(2, 2, 5)])
    assert told == seen


def attempt(verdict: Verdict, *partitions: int, groups: tuple[str, ...] = ()) -> Attempt:
    made = Attempt(0, "p", 0.0, groups=dict.fromkeys(groups, 1), verdict=verdict)
    for number, partition in enumerate(partitions):
        made.rows.append(Row(ValueId("p", "t", partition, number), "t", partition, 0.0))
    return made


def seen_of(made: Attempt, *indexes: int) -> list[LogRecord]:
    rows = [made.rows[index] for index in indexes]
    return [LogRecord("t", r.partition, n, make_value(r.value)) for n, r in enumerate(rows)]


_ALL = {"g": {("src", 0): 1, ("src", 1): 1}}


@pytest.mark.parametrize(
    ("verdict", "indexes", "offsets", "anomalies"),
    [
        (Verdict.COMMITTED, (0, 1), _ALL, set()),
        (Verdict.UNKNOWN, (0, 1), _ALL, set()),
        (Verdict.UNKNOWN, (), {}, set()),
        (Verdict.NOT_COMMITTED, (), {}, set()),
        (Verdict.COMMITTED, (0,), _ALL, {Anomaly.LOST, Anomaly.HALF}),
        (Verdict.COMMITTED, (0, 1), {}, {Anomaly.HALF}),
        (Verdict.COMMITTED, (0, 1, 1), _ALL, {Anomaly.DUPLICATE}),
        (Verdict.COMMITTED, (1, 0), _ALL, {Anomaly.REORDERED}),
        (Verdict.NOT_COMMITTED, (0, 1), _ALL, {Anomaly.NOT_ABSENT, Anomaly.HALF}),
        (Verdict.NOT_COMMITTED, (), _ALL, {Anomaly.HALF}),
        (Verdict.UNKNOWN, (1,), _ALL, {Anomaly.HALF}),
        (Verdict.UNKNOWN, (0, 1), {}, {Anomaly.HALF}),
        (Verdict.COMMITTED, (0, 1), {"g": {("src", 0): 7, ("src", 1): 1}}, {Anomaly.HALF}),
        (Verdict.COMMITTED, (0, 1), {"g": {("src", 0): 1, ("src", 1): 2}}, {Anomaly.HALF}),
    ],
)
def test_the_judge(
    verdict: Verdict,
    indexes: tuple[int, ...],
    offsets: dict[str, dict[tuple[str, int], int]],
    anomalies: set[Anomaly],
) -> None:
    made = attempt(verdict, 0, 0, groups=("g",))
    found = judge([made], seen_of(made, *indexes), offsets)
    assert {violation.anomaly for violation in found} == anomalies


@pytest.mark.parametrize(
    ("verdict", "indexes", "anomalies"),
    [
        (Verdict.COMMITTED, (1,), set()),
        (Verdict.COMMITTED, (0, 1), set()),
        (Verdict.COMMITTED, (0,), {Anomaly.LOST, Anomaly.HALF}),
        (Verdict.UNKNOWN, (1,), set()),
        (Verdict.UNKNOWN, (), {Anomaly.HALF}),
        (Verdict.NOT_COMMITTED, (0,), {Anomaly.NOT_ABSENT, Anomaly.HALF}),
    ],
)
def test_only_what_a_deleted_log_held_may_be_missing(
    verdict: Verdict, indexes: tuple[int, ...], anomalies: set[Anomaly]
) -> None:
    made = attempt(verdict, 0, 0, groups=("g",))
    found = judge([made], seen_of(made, *indexes), _ALL, {made.rows[0].value})
    assert {violation.anomaly for violation in found} == anomalies


def test_a_caller_that_left_early_does_not_say_whether_its_record_is_stored() -> None:
    made = attempt(Verdict.COMMITTED, 0, 0)
    made.unsure.append(made.rows.pop())
    assert not judge([made], seen_of(made, 0), {})
    assert made.unsure[0].outcome is Outcome.UNKNOWN


def test_a_call_that_fails_for_a_code_that_passes_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for code in (ErrorCode.concurrent_transactions, ErrorCode.not_coordinator):
        monkeypatch.setitem(coordinator._COMMON, code, coordinator.Verdict.ABORTABLE)
    found = (each for seed in range(60) for each in run_transactional_swarm(seed).violations)
    assert any("a code that may pass" in violation.detail for violation in found)


def test_a_record_that_was_never_sent_and_ends_unknown_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle = Endings.settle_records
    unknown = DeliveryStatus.UNKNOWN
    monkeypatch.setattr(
        Endings,
        "settle_records",
        lambda self, records, _, *more, **named: settle(self, records, unknown, *more, **named),
    )
    found = (each for seed in range(60) for each in run_transactional_swarm(seed).violations)
    assert any("never sent, and ends UNKNOWN" in violation.detail for violation in found)
