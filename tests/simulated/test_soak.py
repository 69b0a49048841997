"""Tests that run the first seeds of the simulation, and tests of the soak and its mutants."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aioidem._engine import ProducerCore
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.ladder import Ladder
from aioidem._engine.metadata_requests import MetadataRequests
from aioidem.testing import Anomaly

from . import mutants
from .faults import Injector
from .perform import perform
from .run import main as command_line
from .schedule import PROFILES, Schedule, draw
from .shrink import shrink
from .soak import drawn, kind_of, quiet, run_chunk, run_seed
from .swarm import ONLY_HERE
from .whole import draw_whole
from .world import Result, run

ROOT = Path(__file__).parents[2]
EVERYDAY = 120  # how many of the 500 seeds run with the everyday tests; half in `make check`

# One seed in ten runs the whole producer, whose ResourceWarnings are no failure here.
pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


def seeds_are_right(seeds: range, run_one: Callable[[int], Result]) -> None:
    """Run seeds in this process, as each worker of the soak does, and assert that all are right.

    A soak of a few dozen seeds spends more time on starting its three processes than on seeds.
    """
    tally = run_chunk(seeds, run_one)
    assert not tally.failed
    assert tally.schedules == len(seeds)


def nothing_is_wrong(seeds: int, *flags: str, first: int = 0) -> None:
    """Run the soak in a process of its own, and assert that it finds no violation.

    Its worker processes import its module by name, so it must be run as with `make soak`.
    """
    which = ["--from", str(first), "--seeds", str(seeds)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulated.soak", *flags, *which],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(rf"{seeds} schedules, 0 violations, \d+ unknown", last)


@pytest.mark.parametrize(
    "first",
    [0, 30, *(pytest.param(each, marks=pytest.mark.thorough) for each in range(60, EVERYDAY, 30))],
)
def test_the_first_seeds_show_nothing_wrong(first: int) -> None:
    """The first seeds of the soak show no violation.

    Later seeds find little more: half of the mutants are caught by seed 50.
    """
    seeds_are_right(range(first, first + 30), run_seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_further_seeds_show_nothing_wrong() -> None:
    nothing_is_wrong(500 - EVERYDAY, first=EVERYDAY)


def test_one_seed_in_ten_drives_the_whole_producer() -> None:
    kinds = [kind_of(seed) for seed in range(1000)]
    assert kinds.count("trio") + kinds.count("asyncio") >= 100
    assert kinds.count("asyncio") >= 20


@pytest.mark.parametrize("profile", PROFILES)
def test_a_seed_replays_to_the_letter(profile: str) -> None:
    first = run(draw(4711, profile), trace=True)
    again = run(draw(4711, profile), trace=True)
    assert first.trace == again.trace
    assert first.outcomes == again.outcomes


@pytest.mark.parametrize("seed", [3, 13, 23, 103])
def test_a_seed_of_the_whole_producer_replays_to_the_letter(seed: int) -> None:
    first, again = (perform(drawn(seed), trace=True) for _ in range(2))
    assert len(first.trace) > 10
    assert first.trace == again.trace
    assert first.outcomes == again.outcomes


def test_drawing_is_a_function_of_the_seed() -> None:
    assert draw(17) == draw(17)
    assert draw(17) != draw(18)


@contextmanager
def broken(name: str) -> Iterator[None]:
    with mutants.applied(mutants.MUTANTS[name]):
        yield


def test_a_failing_schedule_shrinks_and_still_fails() -> None:
    with broken("connection window ignored"):
        large = next(s for s in map(draw, range(50)) if run(s).violations)
        small = shrink(large, budget=150)
        assert run(small).violations
    assert not run(small).violations
    assert len(small.calls) < len(large.calls)
    assert len(small.faults) <= len(large.faults)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_failing_schedule_of_the_whole_producer_shrinks(backend: str) -> None:
    with broken("connection window ignored"), quiet():
        schedules = (draw_whole(seed, backend) for seed in range(100))
        large = next(schedule for schedule in schedules if perform(schedule).violations)
        small = shrink(large, budget=60)
        assert perform(small).violations
    assert not perform(small).violations
    assert small.backend == backend
    assert len(small.calls) < len(large.calls)


def test_the_command_line_traces_and_shrinks_whole_seeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "--seed", "13", "--shrink", "--trace"])
    assert command_line() == 0
    told = capsys.readouterr().out
    assert "backend='trio'" in told
    assert "> InitProducerId" in told


def kinds_known(injector: type[Injector]) -> set[str]:
    """Return the kinds of faults and glitches that an injector can carry out."""
    return {
        name.removeprefix("_do_").removeprefix("_on_")
        for name in dir(injector)
        if name.startswith(("_do_", "_on_")) and name not in ("_on_metadata", "_on_init")
    }


def kinds_drawn(schedules: Iterable[Schedule]) -> Counter[str]:
    """Return how often schedules have each kind of fault and glitch."""
    kinds: Counter[str] = Counter()
    for schedule in schedules:
        kinds.update(fault.kind for fault in schedule.faults)
        kinds.update(glitch.kind for glitch in schedule.glitches)
    return kinds


@pytest.mark.slow
def test_two_thousand_seeds_draw_every_fault_of_the_list() -> None:
    """The first 2000 seeds draw every kind of fault that profiles know, and often."""
    schedules = [drawn(seed) for seed in range(2000)]
    faults = kinds_drawn(schedules)
    known = kinds_known(Injector) - ONLY_HERE
    assert known - faults.keys() == set()
    assert min(faults[kind] for kind in known) >= 10
    assert sum(s.says is not None for s in schedules) >= 40, (
        "too few brokers lie about their memory"
    )
    assert sum(s.noticed for s in schedules) >= 10, "too few schedules show the lie"
    assert sum(s.wide_at_end for s in schedules) >= 40, "too few windows must come back"
    assert sum(s.limits_stand and s.options["late_sealing"] for s in schedules) > 100
    assert sum(s.small_limit > 0 and s.all_acked for s in schedules) > 10, (
        "too few schedules with a small limit promise every record"
    )
    assert sum(s.names_culprits for s in schedules) > 50
    options = [s.options for s in schedules]
    assert sum("buffer_memory" in o for o in options) > 50, "too few buffers are small"
    assert (
        sum(f.kind == "pid" and f.args[0] in (14, 15, 16) for s in schedules for f in s.faults) > 20
    )
    missing = [
        call
        for s in schedules
        for call in s.calls
        if call.partition is not None and call.partition >= dict(s.topics)[call.topic]
    ]
    never = sum(
        call.partition is not None and call.partition >= s.most_partitions[call.topic]
        for s in schedules
        for call in s.calls
    )
    assert len(missing) - never > 100, "too few records wait for a partition that is added"
    assert never > 100, "too few records name a partition that never exists"
    ages = [call.age for s in schedules for call in s.calls]
    assert min(ages) < 0 < max(ages), "record timestamps are not both old and in the future"


def test_a_mutant_leaves_nothing_behind() -> None:
    seed = 0
    before = run(draw(seed), trace=True).trace
    for mutant in mutants.MUTANTS.values():
        with mutants.applied(mutant):
            pass
    assert run(draw(seed), trace=True).trace == before


def first_anomaly(seeds: range) -> Anomaly | None:
    found = (violation for seed in seeds for violation in run(draw(seed)).violations)
    return next((violation.anomaly for violation in found), None)


def test_planted_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over(*_args: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(MetadataRequests, "on_metadata", fall_over)
    assert first_anomaly(range(1)) is Anomaly.CRASH


def test_planted_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerCore, "_next_wake", lambda _self, _active, now: now)
    assert first_anomaly(range(1)) is Anomaly.STUCK


def test_planted_event_where_nothing_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    bump = Effects.bump

    def cry_wolf(self: Effects, where: str, identity: ProducerIdentity | None, reason: str) -> None:
        self.data_loss(where, "planted")
        bump(self, where, identity, reason)

    monkeypatch.setattr(Effects, "bump", cry_wolf)
    assert first_anomaly(range(40)) is Anomaly.EVENT


def test_planted_question_about_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wants = property(lambda ladder: ladder._ledger.identity and not ladder._recovery.asked)
    monkeypatch.setattr(Ladder, "wants_producers", wants)
    found = (violation.anomaly for seed in range(40) for violation in run(draw(seed)).violations)
    assert Anomaly.CONDUCT in found


@pytest.mark.parametrize(
    ("name", "anomaly"),
    [
        ("growth not bounded by the topic", Anomaly.OUTGREW),
        ("innocent records fail with the culprits", Anomaly.BLAMED),
    ],
)
def test_planted_sizes_and_records(name: str, anomaly: Anomaly) -> None:
    likely = (each for each in map(draw, range(200)) if each.small_limit or each.bad_records)
    with broken(name):
        found = (violation for schedule in likely for violation in run(schedule).violations)
        assert any(violation.anomaly is anomaly for violation in found)


def test_a_planted_unknown_that_nothing_explains() -> None:
    """A refused batch whose records end UNKNOWN, although no attempt can have been appended."""
    with broken("refused batches said to be unknown"):
        found = run(draw(17)).violations
    assert any(violation.anomaly is Anomaly.BASELESS for violation in found)


def test_each_anomaly_is_planted_somewhere() -> None:
    tests = [*Path(__file__).parent.glob("test_*.py"), *(ROOT / "tests/testing").glob("test_*.py")]
    text = "".join(path.read_text() for path in tests)
    assert [a.name for a in Anomaly if f"Anomaly.{a.name}" not in text] == []


def test_a_name_that_no_mutant_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that fits no mutant ends the program with status 2, so that a typo is no success."""
    with pytest.raises(SystemExit) as ended:
        mutants.main(["window", "no such mutant"])
    assert ended.value.code == 2
    assert "no mutant's name contains 'no such mutant'" in capsys.readouterr().err


def test_there_are_twenty_mutants_and_more() -> None:
    assert len(mutants.MUTANTS) >= 20


@pytest.mark.parametrize("name", ["no first ack gate", "lost request taken for unwritten"])
def test_a_mutant_is_caught(name: str) -> None:
    assert mutants.catch(name, limit=200).seed is not None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_every_mutant_is_caught(name: str) -> None:
    assert mutants.catch(name, first=mutants.recorded().get(name)).seed is not None


def test_only_mutants_that_exist_are_recorded() -> None:
    assert not mutants.recorded().keys() - mutants.MUTANTS.keys()


@pytest.mark.parametrize("seed", [3, 13, 23])
def test_the_whole_producer_runs_on_both_loops(seed: int) -> None:
    assert {kind_of(3), kind_of(13)} == {"asyncio", "trio"}
    result = run_seed(seed)
    assert not result.violations
    assert result.outcomes
