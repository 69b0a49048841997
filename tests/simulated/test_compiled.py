"""Tests of the compiled simulation; `make soak-compiled` itself takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .compiled import compiled_modules, fingerprints, main

TREE = Path(__file__).resolve().parents[2]


def test_what_is_compiled_exists() -> None:
    modules = compiled_modules(TREE)
    assert len(modules) == len(set(modules))
    assert {"aioidem/_engine/core.py", "tests/simulated/world.py"} <= {*modules}
    assert [path for path in modules if not (TREE / path).is_file()] == []


def test_the_same_seeds_have_the_same_fingerprints_and_others_other_ones() -> None:
    once = [*fingerprints(1)]
    assert [*fingerprints(1)] == once
    assert not {*fingerprints(2)}.intersection(once)


def test_a_directory_with_something_else_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "thesis.txt"
    kept.write_text("years of work")
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "exists, and this did not make it" in capsys.readouterr().err
    assert kept.read_text() == "years of work"


def test_the_copy_is_not_made_in_what_is_copied(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(TREE / "tests" / "copy")])
    assert "name another directory" in capsys.readouterr().err
    assert not (TREE / "tests" / "copy").exists()
