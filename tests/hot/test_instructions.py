"""The hot loops do not execute more instructions than recorded, and the guard notices if they do.

valgrind counts the instructions. Where it is not installed, these tests are skipped, but on CI
(``CI=true``) they fail.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.ci import lacking

ROOT = Path(__file__).parents[2]

SLOWER = """
_encode_records = encode_records

def encode_records(records):
    return _encode_records([max(record, record, key=id) for record in records])
"""


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import instructions

    return instructions


@pytest.fixture
def valgrind(guard: Any) -> None:
    if guard.valgrind() is None:
        lacking("valgrind is not installed: apt-get install valgrind")


@pytest.mark.usefixtures("valgrind")
@pytest.mark.parametrize("form", ["compiled", "pure"])
def test_the_hot_loops_execute_what_is_recorded(
    request: pytest.FixtureRequest, guard: Any, form: str
) -> None:
    """A hot loop executes at most 5 % more instructions than recorded (30 % if builds differ)."""
    if form == "compiled":
        request.getfixturevalue("compiled")
    found = guard.recorded(form)
    if found is None:
        pytest.skip(f"nothing is recorded for Python {guard.PYTHON}: see CONTRIBUTING.md")
    before, build = found
    same = build == guard.build()
    table, within = guard.judged(form, before, loops_only=True, same_build=same)
    assert within, f"\n{table}"


@pytest.mark.slow
@pytest.mark.usefixtures("valgrind")
def test_a_slower_loop_is_noticed(
    guard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more step per record in `encode_records` exceeds its tolerance, and that of no other."""
    shutil.copytree(ROOT / "aioidem" / "_hot", tmp_path / "aioidem" / "_hot")
    monkeypatch.setattr(guard, "ROOT", tmp_path)
    before = guard.measured("pure", loops_only=True)
    with (tmp_path / "aioidem" / "_hot" / "encoding.py").open("a") as file:
        file.write(SLOWER)
    after = guard.measured("pure", loops_only=True)
    table, within = guard.compare("pure", before, after, same_build=True)
    assert not within
    slower = [line.split(",")[0] for line in table.splitlines() if line.endswith("MORE")]
    assert slower == ["encode_records", "encode_records"]


def test_a_count_out_of_bounds_is_repeated_at_other_addresses(
    guard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest of three counts is compared, and a count within bounds is not repeated."""
    counts = {0: 106.0, 7: 104.0, 14: 90.0}
    layouts: list[int] = []

    def measured(_form: str, *, loops_only: bool, layout: int) -> dict[str, float]:
        assert loops_only
        layouts.append(layout)
        return {"a": counts[layout]}

    monkeypatch.setattr(guard, "measured", measured)
    assert guard.judged("pure", {"a": 100.0}, loops_only=True, same_build=True)[1]
    assert layouts == [0, 7]
    assert not guard.judged("pure", {"a": 10.0}, loops_only=True, same_build=True)[1]
    assert layouts == [0, 7, 0, 7, 14]


@pytest.mark.parametrize(
    ("found", "same_build", "verdict"),
    [
        (104.9, True, ""),
        (105.1, True, "MORE"),
        (129.9, False, ""),
        (130.1, False, "MORE"),
        (70.1, True, ""),
        (69.9, True, "LESS"),
        (69.9, False, "LESS"),
    ],
)
def test_the_tolerance(guard: Any, found: float, same_build: bool, verdict: str) -> None:
    """A count may be 30 % below the recorded one, and 5 % above it (30 % if the builds differ)."""
    table, within = guard.compare("pure", {"a": 100.0}, {"a": found}, same_build=same_build)
    assert within == (not verdict)
    assert table.splitlines()[1].endswith(verdict or "%")
