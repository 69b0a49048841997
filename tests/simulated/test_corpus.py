"""Tests of the corpus (seeds that take what all others have taken), and of counting rows."""

from __future__ import annotations

import pytest

from .corpus import CORPUS, Reached, chosen, reached, rows_of_corpus, seeds_of
from .rows import Rows
from .soak import MIXES, quiet, run_seed

# One seed in three runs the whole producer, whose ResourceWarnings are no failure here.
pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


def judged(seeds: list[tuple[str, int]]) -> None:
    """Check that seeds of the corpus show no violation, and take the rows that they should take.

    The seeds of the swarm draw something else when its list of features changes. If rows are lost
    by that, run `python -m tests.simulated.corpus`.
    """
    rows = rows_of_corpus()
    for mix, seed in seeds:
        run = reached(mix, seed)
        assert not run.wrong, f"{mix} {seed}: {run.wrong}"
        lost = [row for row, by in rows.items() if by == (mix, seed) and row not in run.what]
        assert not lost, f"{mix} {seed} does not take {lost}"


def test_every_sixth_seed_of_the_corpus_shows_nothing_wrong() -> None:
    judged(seeds_of()[::6])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_corpus_shows_nothing_wrong_and_takes_the_rows() -> None:
    judged(seeds_of())


def test_rows_are_counted_and_the_engine_is_left_as_it_was() -> None:
    """Counting changes no outcome, and ends with the block."""
    rows = Rows()
    with quiet():
        before = run_seed(7)
        with rows.counted():
            during = run_seed(7)
        counted = rows.taken.total()
        run_seed(7)
    assert during.outcomes == before.outcomes
    assert rows.taken["batch: sealed + send"] == during.batches - during.retries
    assert rows.taken.total() == counted


def test_pairs_name_the_fault_that_came_before_the_row() -> None:
    rows = Rows()
    with quiet(), rows.counted():
        result = run_seed(9268)
    kinds = {fault.kind for fault in result.schedule.faults}
    kinds |= {glitch.kind for glitch in result.schedule.glitches} | {"no fault"}
    after = {pair.split(" / ")[0] for pair in rows.pairs if "/ persistence" in pair}
    assert after <= kinds
    assert len(after) > 1


def test_the_cover_reaches_what_all_seeds_reach_with_fewer() -> None:
    runs = [
        Reached("swarm", 1, frozenset("ab"), ""),
        Reached("swarm", 2, frozenset("abc"), ""),
        Reached("swarm", 3, frozenset("d"), ""),
        Reached("swarm", 4, frozenset("cd"), ""),
    ]
    assert [run.seed for run in chosen(runs)] == [2, 3]


def test_branches_are_found_in_the_engine_only() -> None:
    run = reached("profiles", 7, branches=True)
    branches = {what for what in run.what if ".py:" in what}
    assert any(what.startswith("partition.py:") for what in branches)
    assert not any(what.startswith("world.py:") for what in branches)


def test_the_corpus_is_a_file_of_seeds() -> None:
    assert CORPUS.exists()
    assert {mix for mix, _ in seeds_of()} == {*MIXES, "transactions"}
    assert len(seeds_of()) == len(set(seeds_of()))
    assert set(rows_of_corpus().values()) <= set(seeds_of())
