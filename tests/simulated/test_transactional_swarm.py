"""Tests of swarm testing of transactions, where each seed draws a random subset of all faults."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Literal

import pytest

from aioidem.testing import Anomaly, Outcome

from . import mutants
from .mutation import applied
from .perform import perform
from .run import main as command_line
from .schedule import Call, Schedule, Work
from .soak import quiet
from .swarm import FEATURES
from .test_soak import nothing_is_wrong
from .transactional_mutants import noticed_late, recreated
from .transactional_swarm import OWN_FEATURES, SHARED_FEATURES, draw_transactional_swarm

EVERYDAY = 12  # how many seeds `make check` runs; `make test` runs 200

BOTH = pytest.mark.parametrize("version", [0, 2])
pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.mark.timeout(600)
def test_the_first_seeds_show_nothing_wrong() -> None:
    nothing_is_wrong(EVERYDAY, "--transactions", "--mix", "swarm")


def test_the_first_seeds_in_which_the_id_changes_show_nothing_wrong() -> None:
    with quiet():
        results = [perform(draw_transactional_swarm(seed, other_ids=True)) for seed in range(4)]
    assert [each.violations for each in results] == [[]] * 4
    ids = [{work.transactional_id for work in each.schedule.work} for each in results]
    assert max(map(len, ids)) > 1


def test_the_first_seeds_with_a_range_leave_nothing_unknown() -> None:
    with quiet():
        results = [perform(draw_transactional_swarm(seed, doubts=True)) for seed in range(6)]
    assert [each.violations for each in results] == [[]] * 6
    assert any(each.retries for each in results)


def test_the_first_seeds_with_oddities_show_nothing_wrong() -> None:
    with quiet():
        results = [perform(draw_transactional_swarm(seed, oddities=True)) for seed in range(8)]
    assert [each.violations for each in results] == [[]] * 8
    schedules = [each.schedule for each in results]
    assert any(each.odd.tells_coordinators for each in schedules)
    assert {("hollow",), ("refuse", 120)} <= {
        fault.args[1:] for each in schedules for fault in each.faults if fault.kind == "strike"
    }


def test_the_first_dense_seeds_show_nothing_wrong() -> None:
    """Something happens to four requests in ten to coordinators."""
    with quiet():
        results = [perform(draw_transactional_swarm(seed, dense=True)) for seed in range(8)]
    assert [each.violations for each in results] == [[]] * 8
    schedules = [each.schedule for each in results]
    assert sum(len(each.coordination) > 5 for each in schedules) > 4
    assert any(each.odd.misuses for each in schedules)
    assert any(fault.kind == "recreate" for each in schedules for fault in each.faults)


def test_an_identity_that_is_used_under_another_id_is_noticed() -> None:
    broken = mutants.MUTANTS["another id asked for with the old identity"]
    with applied(broken), quiet():
        found = broken.run_one(0).violations
    assert Anomaly.FOREIGN in {each.anomaly for each in found}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(2406271, id="an answer shorter than its cut leaves the cut to no later one"),
        pytest.param(2440286, id="no copies of what a topic got before it was known as recreated"),
        pytest.param(2442069, id="records are settled at the end of the turn that aborts"),
        pytest.param(2735475, id="the leader of a deleted topic is none of the new one"),
        pytest.param(3253416, id="twins with different ids keep no order among them"),
        pytest.param(4010779, id="a topic without numbers in this epoch is renewed one end later"),
        pytest.param(4010995, id="the same, with a topic that is another one"),
    ],
)
def test_seeds_that_were_wrong_are_right(seed: int) -> None:
    with quiet():
        result = perform(draw_transactional_swarm(seed))
    assert not result.violations, "\n".join(map(str, result.violations))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rest_of_two_hundred_seeds_show_nothing_wrong() -> None:
    nothing_is_wrong(200 - EVERYDAY, "--transactions", "--mix", "swarm", first=EVERYDAY)


def unfinished(version: Literal[0, 2], age: float) -> Schedule:
    """Return one transaction of two topics, of which one is recreated before the commit.

    Args:
        version: the level of `transaction.version`.
        age: `metadata_max_age`, in seconds.
    """
    records = tuple(Call(0.0, topic, 0, None, 60) for topic in ("t", "u"))
    work = Work(records, ("g",), block=False, dawdle=2.0)
    return recreated(1, version, age, (("t", 1), ("u", 1)), work)


@BOTH
def test_a_transaction_is_committed_whole_but_for_a_log_that_was_deleted(
    version: Literal[0, 2],
) -> None:
    """A producer that has not heard of it commits, and only the deleted record is missing."""
    result = perform(unfinished(version, 300.0))
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.transactions["committed"] == 2
    assert result.outcomes[Outcome.UNKNOWN] == 1, "the deleted record's outcome means nothing"


@BOTH
def test_a_transaction_is_not_committed_once_a_part_is_known_to_be_gone(
    version: Literal[0, 2],
) -> None:
    result = perform(unfinished(version, 0.2))
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.transactions == {"not committed": 1, "committed": 1}


@BOTH
def test_a_commit_of_what_is_known_to_be_gone_is_noticed(version: Literal[0, 2]) -> None:
    broken = mutants.MUTANTS["recreated topics doom no transaction"]
    with applied(broken):
        result = perform(unfinished(version, 0.2))
    assert {violation.anomaly for violation in result.violations} == {Anomaly.HALF}


def test_records_are_no_copies_of_those_that_went_to_the_new_topic_before() -> None:
    """The third one's record would have the epoch and the sequence of the second one's."""
    result = perform(noticed_late(1))
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.transactions == {"committed": 3, "not committed": 1}


def test_a_record_that_is_taken_for_a_copy_is_noticed() -> None:
    broken = mutants.MUTANTS["recreated topics begin again in the same epoch"]
    with applied(broken):
        result = perform(noticed_late(1))
    assert Anomaly.LOST in {violation.anomaly for violation in result.violations}


def test_every_feature_is_drawn_alone_and_with_others() -> None:
    """Some seeds have a feature with few others, and some with many."""
    few, many = Counter[str](), Counter[str]()
    for seed in range(1500):
        chosen = draw_transactional_swarm(seed).features
        (few if len(chosen) <= 4 else many).update(chosen)
    assert min(few[name] for name in (*SHARED_FEATURES, *OWN_FEATURES)) >= 3
    assert min(many[name] for name in (*SHARED_FEATURES, *OWN_FEATURES)) >= 10
    assert set(SHARED_FEATURES) < FEATURES.keys()


def test_drawing_is_a_function_of_the_seed() -> None:
    assert draw_transactional_swarm(17) == draw_transactional_swarm(17)
    assert draw_transactional_swarm(17) != draw_transactional_swarm(18)


def test_the_command_line_replays_a_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--seed", "5", "--transactions", "--mix", "swarm"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert command_line() == 0
    assert f"features={draw_transactional_swarm(5).features!r}" in capsys.readouterr().out
