"""Results and triage: what is kept of a run, and what is printed about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .judges import Verdict
from .operators import mutants_of
from .results import Result, Results, report
from .sources import all_mutants
from .triage import VERDICTS, Triage

YES, NO = Verdict(killed=True, how="profiles 1", seconds=1.0), Verdict(False, "all of 2 runs", 1.0)
MUTANT = mutants_of("a.py", "def f():\n call()", {})[0]
TRIAGE = Path(__file__).parent / "triage.toml"


def test_results_are_kept_as_long_as_their_file_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    Results(file, {"a.py": "1"}).add(Result(MUTANT.name, YES, NO))
    assert Results(file, {"a.py": "1"}).get(MUTANT) == Result(MUTANT.name, YES, NO)
    assert Results(file, {"a.py": "2"}).get(MUTANT) is None


def test_a_later_result_replaces_an_earlier_one(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", {"a.py": "1"})
    for verdict in (NO, YES):
        results.add(Result(MUTANT.name, verdict, NO))
    assert Results(tmp_path / "results.jsonl", {"a.py": "1"})[MUTANT.name].killed


def test_the_report_counts_who_killed_what_is_not_equivalent() -> None:
    """Equivalent mutants are in no rate; survivors are named, with what triage says of them."""
    triage = Triage({"d": ("equivalent", "it is")})
    results = [
        Result("a", YES, YES),
        Result("b", YES, NO),
        Result("c", NO, NO),
        Result("d", NO, NO),
    ]
    assert list(report(results, triage)) == [
        "survived: c (not triaged)",
        "survived: d (equivalent)",
        "4 judged, 1 of them equivalent",
        "killed by simulation and exploration: 2 of 3, 66.7 %",
        "killed by unit tests: 1 of 3, 33.3 %",
        "killed by both: 1 of 3, 33.3 %",
        "killed by either: 2 of 3, 66.7 %",
        "killed by neither: 1 of 3, 33.3 %",
        "verdicts because a run took too long: 0",
    ]


def test_a_kill_of_what_is_said_to_be_equivalent_is_told() -> None:
    lines = list(report([Result("a", YES, NO)], Triage({"a": ("equivalent", "it is")})))
    assert lines[0] == "killed although triaged as equivalent: a"


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "triage.toml"
    file.write_text('[[survivor]]\nmutants = ["a"]\nverdict = "closed"\nbecause = ""\n')
    with pytest.raises(ValueError, match="'a'"):
        Triage.read(file)


def test_the_file_of_survivors_is_read() -> None:
    """Mutants of code that has changed since are allowed: the command prints them."""
    triage = Triage.read(TRIAGE)
    assert {verdict for verdict, _ in triage.verdicts.values()} <= set(VERDICTS)
    assert not triage.names or triage.names & set(all_mutants())
