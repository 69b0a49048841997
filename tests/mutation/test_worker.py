"""The worker: a mutant that breaks something is killed, one that does not survives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .applying import Functions, Unfit
from .judges import Job, drill_runs, forked, judge
from .operators import Mutant
from .sources import ROOT, all_mutants
from .worker import Worker

GOODPUT = "aioidem/_engine/goodput.py"
TESTS = "tests/engine/test_goodput.py"
# Its tests are collected with all others of a folder, and left out.
ON_KAFKA = "tests/producer/on_kafka/test_windows.py"


@pytest.fixture(scope="module")
def mutants() -> dict[str, Mutant]:
    return all_mutants()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker([TESTS, ON_KAFKA], tmp_path_factory.mktemp("worker") / "log")
    yield worker
    worker.close()


def _mutant(mutants: dict[str, Mutant], part: str) -> Mutant:
    return next(each for name, each in mutants.items() if GOODPUT in name and part in name)


def _job(*names: str) -> Job:
    return Job([(name, 0.1) for name in names], 20.0)


def test_a_mutant_in_a_function_is_killed(worker: Worker, mutants: dict[str, Mutant]) -> None:
    """The verdict names the test; the first tests in the list do not notice."""
    names = worker.names()
    verdict = worker.judge(_mutant(mutants, "`elapsed > 0` -> `elapsed <= 0`"), _job(*names))
    assert verdict.killed
    assert verdict.how.startswith(f"{TESTS}::test_goodput_of_pipelined_requests")


def test_a_mutant_that_no_test_notices_survives(worker: Worker, mutants: dict[str, Mutant]) -> None:
    """Each mutant has a process of its own, so no earlier mutant is left in the next one."""
    name = f"{TESTS}::test_goodput_is_unknown_until_something_was_acknowledged"
    removed = _mutant(mutants, "removed `self._samples.append")
    assert worker.judge(removed, _job(*worker.names())).killed
    verdict = worker.judge(removed, _job(name))
    assert not verdict.killed
    assert verdict.how == "all of 1 runs"


def test_a_drill_notices_at_once(worker: Worker, mutants: dict[str, Mutant]) -> None:
    """No seed is needed for a part that has a drill of its own."""
    removed = _mutant(mutants, "removed `self._samples.append")
    verdict = worker.judge(removed, Job(drill_runs(), 20.0))
    assert verdict.killed
    assert "drill 'linked'" in verdict.how


def test_a_seed_and_a_space_are_runs_too(worker: Worker, mutants: dict[str, Mutant]) -> None:
    """They notice nothing of a mutant that is not about promises."""
    removed = _mutant(mutants, "removed `self._samples.append")
    verdict = worker.judge(removed, _job("profiles 0", "transactions 0", "space split"))
    assert verdict == (False, "all of 3 runs", verdict.seconds)


def test_a_mutant_outside_of_functions_is_imported(
    mutants: dict[str, Mutant], worker: Worker, tmp_path: Path
) -> None:
    """A process that has imported everything refuses it; one that imports it kills it."""
    constant = _mutant(mutants, "`8` -> `9`")
    with pytest.raises(Unfit):
        worker.judge(constant, _job())
    own = Worker([TESTS], tmp_path / "log", constant)
    try:
        verdict = own.judge(None, _job(*own.names()))
    finally:
        own.close()
    assert verdict.killed
    assert "test_goodput_forgets_old_samples" in verdict.how


def test_a_mutant_that_never_ends_is_killed() -> None:
    """A process that reaches its bound of CPU time is ended, and the verdict says so."""

    def endless() -> None:
        while True:
            pass

    verdict = judge(endless, Job([("profiles 0", 0.1)], budget=1.0, least=0.1), {})
    assert verdict == (True, "out of time: ", verdict.seconds)


def test_what_goes_wrong_in_the_judge_is_no_kill() -> None:
    """An error of this package is raised: it says nothing about a mutant."""

    def unfit() -> None:
        raise KeyError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        judge(unfit, Job([("profiles 0", 0.1)], budget=1.0), {})


def test_a_traced_run_tells_its_lines(worker: Worker, mutants: dict[str, Mutant]) -> None:
    """The lines of a test are those that it executes, and no other test's."""
    empty, sampled, *_ = worker.trace(worker.names())
    place = _mutant(mutants, "removed `self._samples.append").place
    assert sampled.executes(place.path, 1 << place.line)
    assert not empty.executes(place.path, 1 << place.line)


def test_code_is_replaced_in_a_forked_process_only(mutants: dict[str, Mutant]) -> None:
    from aioidem._engine.goodput import Goodput

    mutant = _mutant(mutants, "removed `self.delivered += nbytes`")

    def delivered() -> int:
        goodput = Goodput()
        goodput.acknowledge(10, sent_at=0.0, delivered_at_send=0, now=1.0)
        return goodput.delivered

    def broken(_say: object) -> int:
        Functions([GOODPUT]).replace(mutant)
        return delivered()

    assert forked(broken).result == 0
    assert delivered() == 10
    assert (ROOT / GOODPUT).read_text().count("self.delivered += nbytes") == 1
