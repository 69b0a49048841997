"""Tests of the comparison of two revisions by what their seeds do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .same import differences, main

TREE = Path(__file__).resolve().parents[2]
CALCULATION = "delay * (1.0 - _JITTER + 2.0 * _JITTER * self._random())"
SEEDS = range(5_000_000, 5_000_001)


@pytest.mark.slow
def test_an_engine_that_waits_longer_before_it_tries_again_differs(tmp_path: Path) -> None:
    for name in ("aioidem", "tests"):
        shutil.copytree(TREE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert [*differences(TREE, tmp_path, SEEDS)] == []
    backoff = tmp_path / "aioidem" / "_engine" / "backoff.py"
    text = backoff.read_text()
    assert CALCULATION in text
    backoff.write_text(text.replace(CALCULATION, f"2 * {CALCULATION}"))
    found = [*differences(TREE, tmp_path, SEEDS)]
    assert found
    assert all(" differs\n  here:  [500000" in each for each in found)


def test_a_revision_that_does_not_exist_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-revision"])
    assert "nothing to compare with" in capsys.readouterr().err
