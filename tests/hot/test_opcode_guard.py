"""A record costs as many opcodes as are recorded, and the guard notices if it does not."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aioidem import Producer, build_info

ROOT = Path(__file__).parents[2]

SLOWER = """
def slower(*arguments, **named):
    checked = {name: value for name, value in (*named.items(), *zip("abcdefgh", range(8)))}
    for name in "abcdefgh":
        del checked[name]
    return send_nowait(*arguments, **checked)
"""


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import opcode_guard

    return opcode_guard


@pytest.mark.parametrize("form", ["compiled", "pure"])
def test_a_record_costs_what_is_recorded(
    request: pytest.FixtureRequest, guard: Any, form: str
) -> None:
    """No workload costs more opcodes or calls than recorded for this Python, with 2 % tolerance."""
    if form == "compiled":
        request.getfixturevalue("compiled")
    before = guard.recorded(form)
    if before is None:
        pytest.skip(f"nothing is recorded for Python {guard.PYTHON}: see CONTRIBUTING.md")
    table, within = guard.compare(form, before, guard.measured(form))
    assert within, f"\n{table}"


def test_a_slower_send_is_noticed(guard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard counts the same in two runs, and finds a `send_nowait` that does more."""

    def count() -> Any:
        return guard.measure(build_info().hot_path, ["queued"])

    before, again = count(), count()
    for what, number in before["queued"].items():
        assert again["queued"][what] == pytest.approx(number, rel=guard.ABOVE / 10)
    scope: dict[str, Any] = {"send_nowait": Producer.send_nowait}
    # The guard counts only code of the library's files, so the slower call gets such a file's name.
    exec(compile(SLOWER, ROOT / "aioidem" / "slower.py", "exec"), scope)  # noqa: S102 - ours
    monkeypatch.setattr(Producer, "send_nowait", scope["slower"])
    table, within = guard.compare("pure", before, count())
    assert not within
    assert "queued, opcodes" in table
    assert "MORE" in table
    assert "--record" in table


@pytest.mark.parametrize(
    ("opcodes", "calls", "verdict"),
    [
        (101.9, 10.0, ""),
        (102.1, 10.0, "MORE"),
        (100.0, 10.3, "MORE"),
        (90.1, 10.0, ""),
        (89.8, 10.0, "LESS"),
        (89.8, 10.3, "MORE"),
    ],
)
def test_the_tolerance(guard: Any, opcodes: float, calls: float, verdict: str) -> None:
    """A count may be up to 2 % above or 10 % below the recorded one; the table names any other."""
    before = {"one": {"opcodes": 100.0, "calls": 10.0}}
    now = {"one": {"opcodes": opcodes, "calls": calls}}
    table, within = guard.compare("pure", before, now)
    assert within == (not verdict)
    assert f"Sending costs {verdict} than" in table if verdict else "Sending costs" not in table


def test_a_workload_that_is_not_recorded_is_noticed(guard: Any) -> None:
    """A new workload fails until its counts are recorded."""
    table, within = guard.compare("pure", {}, {"new": {"opcodes": 1.0, "calls": 1.0}})
    assert not within
    assert "--record" in table
