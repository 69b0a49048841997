"""Tests of the ledger of soaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from . import ledger, soak
from .ledger import Portion, code_digest, note, read, totals
from .world import Result

PORTION = Portion("2026-11-26", "c0de", "ordinary", "swarm", 100, 50, 1, 7, 3)


def test_portions_are_read_as_they_were_noted(tmp_path: Path) -> None:
    file = tmp_path / "soaks.csv"
    other = dataclasses.replace(PORTION, first=150, mix="profiles")
    note(file, PORTION)
    note(file, other)
    assert read(file) == [PORTION, other]


def test_a_seed_that_was_run_twice_counts_once() -> None:
    again = dataclasses.replace(PORTION, first=120, seeds=40)
    inside = dataclasses.replace(PORTION, first=110, seeds=5)
    apart = dataclasses.replace(PORTION, first=1000)
    lines = list(totals([again, PORTION, apart, inside]))
    assert lines == ["c0de ordinary swarm: 110 seeds, 4 violations, 28 unknown, 12 s"]


def test_of_a_portion_that_was_run_again_the_last_run_counts() -> None:
    again = dataclasses.replace(PORTION, violations=0, unknown=8)
    assert list(totals([PORTION, again])) == [
        "c0de ordinary swarm: 50 seeds, 0 violations, 8 unknown, 3 s"
    ]


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(PORTION, code="other"),
        dataclasses.replace(PORTION, kind="transactions"),
        dataclasses.replace(PORTION, mix="profiles"),
    ],
)
def test_other_code_and_other_seeds_are_summed_apart(other: Portion) -> None:
    assert len(list(totals([PORTION, other]))) == 2


def test_a_line_that_is_no_portion_is_named(tmp_path: Path) -> None:
    file = tmp_path / "soaks.csv"
    note(file, PORTION)
    with file.open("a") as out:
        out.write("2026-11-26,c0de,ordinary,swarm,1,many,0,0,0\n")
    with pytest.raises(ValueError, match=r"soaks\.csv, line 3: .*many"):
        read(file)


def test_the_digest_follows_the_code_that_the_simulation_drives(tmp_path: Path) -> None:
    for name in ledger.DRIVEN:
        (tmp_path / name).mkdir()
    driven, other = tmp_path / "_engine" / "window.py", tmp_path / "cli.py"
    driven.write_text("a = 1\n")
    first = code_digest(tmp_path)
    other.write_text("b = 1\n")
    assert code_digest(tmp_path) == first
    driven.write_text('"""What it is."""\n\na = (\n    1  # a reason\n)\n')
    assert code_digest(tmp_path) == first
    driven.write_text('"""What it is."""\na = 2\n')
    assert code_digest(tmp_path) != first


def test_a_soak_notes_what_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run happens in this process; only the pool of processes is replaced."""

    def in_this_process(
        first: int, seeds: int, _: object, run_one: Callable[[int], Result]
    ) -> soak.Tally:
        return soak.run_chunk(range(first, first + seeds), run_one)

    monkeypatch.setattr(soak, "soak", in_this_process)
    file = tmp_path / "soaks.csv"
    flags = ["soak", "--transactions", "--seeds", "2", "--from", "7", "--ledger", str(file)]
    monkeypatch.setattr("sys.argv", flags)
    assert soak.main() == 0
    [portion] = read(file)
    assert portion.code == code_digest()
    assert (portion.kind, portion.mix) == ("transactions", "profiles")
    assert (portion.first, portion.seeds, portion.violations) == (7, 2, 0)
    assert f"2 schedules, 0 violations, {portion.unknown} unknown" in capsys.readouterr().out
