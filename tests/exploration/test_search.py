"""Tests of the search: what it remembers of the engine, its copies, and its processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from .canonical import digest
from .circles import path_to
from .kills import KILLED_IN, broken
from .search import explore
from .snapshot import copied
from .spaces import EVERYDAY, SPACES
from .visits import Visits
from .world import World

_MUTANTS = (
    "lost request taken for unwritten",
    pytest.param("no implicit ack", marks=pytest.mark.slow),
)

_LARGER = (EVERYDAY, "two partitions")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.exploration", *arguments]


def _printed(arguments: Sequence[str]) -> str:
    done = subprocess.run(
        _command(*arguments), capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def _visited(name: str, faults: int) -> tuple[World, Visits]:
    """Visit a space, and return its first world and what was visited."""
    visits = Visits(SPACES[name], faults, lambda _: False)
    assert visits.begin() is None
    while visits.waiting:
        assert visits.expand() is None
    return World(SPACES[name], faults), visits


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name", ["last epoch", *(pytest.param(name, marks=pytest.mark.slow) for name in _LARGER)]
)
def test_what_is_remembered_of_the_engine_is_what_a_real_engine_does(name: str) -> None:
    """Each world of a search is like the one to which a real engine comes on the same path."""
    _, visits = _visited(name, 1)
    assert len(visits.known) > 150
    for mark, number in visits.known.items():
        world = World(SPACES[name], 1)
        for action in path_to([visits.graph], number):
            world.do(action)
        assert digest(world) == mark


@pytest.mark.timeout(120)
def test_what_happens_in_a_copy_of_a_world_leaves_the_world_as_it_is() -> None:
    """Each action of each world on some paths happens in a copy."""
    worlds = [World(SPACES["recreated"], 1)]
    for world in worlds:
        mark = digest(world)
        for action in world.actions():
            after = copied(world)
            assert digest(after) == mark
            after.do(action)
            assert digest(world) == mark
            if len(worlds) < 100:
                worlds.append(after)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "faults"), [(EVERYDAY, 1), pytest.param("restarts", 2, marks=pytest.mark.slow)]
)
def test_two_processes_visit_the_same_number_of_worlds_as_one(name: str, faults: int) -> None:
    """A shared search has the same states, steps, ends and depth, and takes the same rows."""
    lines = [
        _printed(["--space", name, "--faults", str(faults), "--workers", workers]).splitlines()[:-1]
        for workers in ("1", "2")
    ]
    without_seconds = [[re.sub(r", [\d.]+ s$", "", each) for each in some] for some in lines]
    assert without_seconds[0] == without_seconds[1]
    assert "all " in without_seconds[0][0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mutant", _MUTANTS)
def test_two_processes_find_a_violation_on_a_path_as_short_as_one_finds(mutant: str) -> None:
    """A shared search finds a broken rule of the engine by as few actions."""
    alone = broken(mutant, KILLED_IN[mutant]).violation
    assert alone is not None
    printed = _printed(["--mutants", mutant, "--workers", "2"])
    assert f"{len(alone.path)} steps: {alone.what}" in printed


@pytest.mark.timeout(120)
def test_a_search_that_is_asked_to_end_by_a_signal_says_how_far_it_came() -> None:
    """After SIGTERM the command prints its summary, and its exit status is 0."""
    command = _command("--space", EVERYDAY, "--faults", "3", "--workers", "2", "--every", "0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "states" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"{EVERYDAY}, 3 faults: stopped after " in printed


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("long", "name", "more"),
    [
        (["--long"], "two partitions", 2),
        (["--long", "1"], "two partitions", 1),
        # `test_limits` shows what no client can exclude with more.
        (["--long"], "forgotten", 1),
    ],
)
def test_the_long_run_allows_more_faults_than_a_space_says(
    long: list[str], name: str, more: int
) -> None:
    """`--long` goes two faults further, or as many as it says, and can be bounded."""
    printed = _printed([*long, "--space", name, "--limit", "50"])
    assert f"{name}, {SPACES[name].faults + more} faults: stopped after " in printed


@pytest.mark.parametrize("bound", [{"limit": 100}, {"seconds": 0.0}])
def test_a_search_ends_at_its_bound(bound: dict[str, float]) -> None:
    """A search that reaches a bound does not claim that it visited everything."""
    found = explore(SPACES[EVERYDAY], **bound)  # type: ignore[arg-type]
    assert not found.complete
    assert found.violation is None
    assert 0 < found.states < 200


def test_a_world_from_which_no_end_can_be_reached_is_found() -> None:
    """The numbers of a shared search's worlds, some of which lead nowhere, are told apart."""
    from .circles import first_without_end
    from .visits import NOWHERE, Graph

    graphs = [Graph(), Graph()]
    for number, (before, steps) in enumerate([(NOWHERE, [1, 2]), (0, [3]), (0, [0]), (1, [3])]):
        graph = graphs[number % 2]
        graph.meet(before, f"to {number}")
        graph.steps_from.extend([number] * len(steps))
        graph.steps_to.extend(steps)
    graphs[1].good.append(1)
    assert first_without_end(graphs) == 3
    assert path_to(graphs, 3) == ("to 1", "to 3")
    graphs[1].good.append(3)
    assert first_without_end(graphs) is None
