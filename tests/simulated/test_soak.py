"""The seeds of every day, and the machinery around them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import mutants
from .schedule import PROFILES, draw
from .shrink import shrink
from .soak import kind_of, run_seed
from .world import run

ROOT = Path(__file__).parents[2]

# One seed in ten is the whole producer: what it logs about faults is what it should.
pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.mark.timeout(600)
def test_two_thousand_seeds_show_nothing_wrong() -> None:
    """As `make soak` runs them: a process of its own, because its workers import it by name."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulated.soak", "--seeds", "2000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"2000 schedules, 0 violations, \d+ unknown", last)


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


def test_a_mutant_leaves_nothing_behind() -> None:
    seed = 0
    before = run(draw(seed), trace=True).trace
    for mutant in mutants.MUTANTS.values():
        with mutants.applied(mutant):
            pass
    assert run(draw(seed), trace=True).trace == before


def test_there_are_twenty_mutants_and_more() -> None:
    assert len(mutants.MUTANTS) >= 20


@pytest.mark.parametrize("name", ["no first ack gate", "lost request taken for unwritten"])
def test_a_mutant_is_caught(name: str) -> None:
    assert mutants.catch(name, limit=200).seed is not None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_every_mutant_is_caught(name: str) -> None:
    assert mutants.catch(name).seed is not None


@pytest.mark.parametrize("seed", [3, 13, 23])
def test_the_whole_producer_runs_on_both_loops(seed: int) -> None:
    assert {kind_of(3), kind_of(13)} == {"asyncio", "trio"}
    result = run_seed(seed)
    assert not result.violations
    assert result.outcomes
