"""Tests that explore a space of about ten seconds, and tests of the exploration itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.simulated.mutants import MUTANTS
from tests.simulated.mutation import applied

from .__main__ import main
from .canonical import digest
from .kills import KILLED_IN, broken
from .regression import write_test
from .search import explore, replay
from .spaces import EVERYDAY, SPACES
from .world import World

# By mutant: with how many faults the space of `KILLED_IN` kills it within a second or so.
KILLS = {
    "lost request taken for unwritten": 1,
    "no implicit ack": 1,
    "out of order ends doubt": 1,
    "timed out taken for a rejection": 1,
    "unknown code taken for a rejection": 1,
    "no bump after giving up": 1,
    "epoch past its end": 1,
    "epoch raised when fenced": 1,
    "connection window ignored": 0,
    "wrap skips zero": 0,
    "acked from describe producers alone": 2,
    "new batches pass what waits": 1,
    "one refused pass is enough": 1,
    "epoch of describe producers ignored": 1,
    "recreated topic taken for the same": 1,
    "leader of a deleted topic believed": 2,
    "recreated topics begin again in the same epoch": 1,
    "implicit ack where suspect": 2,
    "gate not reset after an error": 3,
    "no data loss event": 1,
    "identity kept in another cluster": 1,
    "doubt carried to another cluster": 1,
    "committed before all is delivered": 0,
    "lost commit taken for done": 1,
    "lost commit taken for failed": 1,
    "epoch of the end ignored": 1,
    "end refused taken for done": 1,
    "first page taken for the log": 1,
    "read back whatever the epoch": 2,
}

# The spaces that take more than a second or two with one fault: `make measured` explores them.
LARGER = {
    *("recreated", "recreated once", "new leaders without state", "healed transactions v2"),
    *("usurped", "one more record", "topic unlisted", "another cluster", "a stranger's broker"),
    *("window that changes", "without idempotence", "old records", "transactions v2"),
    *("refused for good", "expired transactions v2", "last epoch"),
}


@pytest.mark.timeout(300)
def test_every_world_of_the_everyday_space_is_right() -> None:
    """All interleavings of two faults and three batches keep every promise."""
    found = explore(SPACES[EVERYDAY])
    assert found.violation is None
    assert found.complete
    assert found.states > 5000


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LARGER else [])
        for name in SPACES
        if name != EVERYDAY
    ],
)
def test_one_fault_in_every_other_space(name: str) -> None:
    """All interleavings of one fault (of none in the largest) keep every promise of each space."""
    found = explore(SPACES[name], faults=SPACES[name].everyday)
    assert found.violation is None
    assert found.complete


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", KILLS)
def test_a_broken_rule_is_noticed(mutant: str) -> None:
    """With a rule of the engine broken, the exploration finds a violation.

    `python -m tests.exploration --mutants` tries the other rules.
    """
    assert broken(mutant, KILLED_IN[mutant], faults=KILLS[mutant]).violation is not None


def test_a_violation_becomes_a_test_that_fails_as_long_as_it_is_there(tmp_path: Path) -> None:
    """The file that is written replays the path: it fails with the mutant and passes without."""
    mutant = "lost request taken for unwritten"
    violation = broken(mutant, EVERYDAY, faults=1).violation
    assert violation is not None
    file = write_test(SPACES[EVERYDAY], violation, tmp_path)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (test,) = (value for name, value in vars(module).items() if name.startswith("test_"))
    test()
    with applied(MUTANTS[mutant]), pytest.raises(AssertionError):
        test()


def test_the_shortest_path_is_found_first() -> None:
    """A search that allows more faults never finds a longer path than one that allows fewer."""
    mutant = "lost request taken for unwritten"
    paths = [broken(mutant, EVERYDAY, faults=faults).violation for faults in (1, 2)]
    assert paths[0] is not None
    assert paths[1] is not None
    assert len(paths[1].path) <= len(paths[0].path)


def test_the_order_of_independent_actions_leads_to_equal_worlds() -> None:
    """Two worlds that differ in nothing that can matter have the same form."""
    space = SPACES[EVERYDAY]
    one, other = World(space, 2), World(space, 2)
    first = next(action for action in one.actions() if action.startswith("serve"))
    again = first.replace("serve", "deliver")
    for action in (first, first, again):
        one.do(action)
    for action in (first, again, first):
        other.do(action)
    assert digest(one) == digest(other)
    one.do(again)
    assert digest(one) != digest(other)


def test_a_path_without_a_violation_is_replayed_without_one() -> None:
    """A path that is cut off in the middle is no violation."""
    space = SPACES[EVERYDAY]
    world = World(space, 1)
    first = next(action for action in world.actions() if action.startswith("serve"))
    assert replay(space, (first,)) is None


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="dance"):
        World(SPACES[EVERYDAY], 0).do("dance 1")


def test_the_command_prints_what_it_covered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--space", EVERYDAY, "--faults", "1"]) == 0
    printed = capsys.readouterr().out
    assert f"{EVERYDAY}, 1 faults: all 3" in printed
    assert "the ladder: " in printed
    assert "1 spaces, 3" in printed
