"""Which seeds are tried besides the traced ones."""

from __future__ import annotations

from tests.simulated.corpus import RUNS
from tests.simulated.swarm import kind_of

from .fresh import fresh_runs


def test_seeds_are_of_the_mixes_that_execute_the_mutant() -> None:
    """A seed of a mix that never comes to the mutated line would be lost time."""
    reached = ["transactions 7", "space twin", "whole space cut", "transactional swarm 3"]
    assert fresh_runs(reached, 3) == [
        ("transactional swarm 20000000", 0.1),
        ("transactions 20000000", 0.1),
        ("transactional swarm 20000001", 0.1),
    ]


def test_seeds_are_of_all_mixes_if_no_traced_seed_executes_the_mutant() -> None:
    """A place that only a space reaches, or nothing, may be reached by a seed all the same."""
    names = [name for name, _ in fresh_runs(["space cut"], 7)]
    mixes = [name.rpartition(" ")[0] for name in names]
    assert sorted(mixes) == sorted({*RUNS, "transactional swarm", "resolve"})


def test_what_the_swarm_executes_may_show_itself_in_calls_of_other_kinds() -> None:
    """Hardly a seed of the mixes "varied" and "odd" was traced."""
    mixes = {name.rpartition(" ")[0] for name, _ in fresh_runs(["swarm 1", "resolve 2"], 8)}
    assert mixes == {"swarm", "varied", "odd", "resolve"}


def test_the_seeds_of_a_mix_are_run_in_all_the_ways_that_it_has() -> None:
    """One seed of the swarm in three runs the whole producer, as its remainder says."""
    runs = [name for name, _ in fresh_runs(["swarm 1"], 60) if name.startswith("swarm ")]
    assert {kind_of(int(name.partition(" ")[2])) for name in runs} == {"engine", "trio", "asyncio"}
