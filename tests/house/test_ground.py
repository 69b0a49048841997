"""The tests and the command line run in an environment with other programs' settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import AIOIDEM
from tests.ground import foreign, hostile

ROOT = Path(__file__).parents[2]
DEMO = "perf --rtt 1 --retain 20 --in-flight 1,5 --num-records 20 --record-size 10"


def test_the_command_line_runs_on_hostile_ground(tmp_path: Path) -> None:
    """`aioidem perf` runs although other programs have set wrong environment variables."""
    done = subprocess.run(
        [*AIOIDEM, *DEMO.split()],
        env=hostile(tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(120)
def test_tests_that_read_the_environment_pass_on_hostile_ground(tmp_path: Path) -> None:
    """Tests that read the environment pass with other programs' wrong variables in it."""
    files = [
        "tests/load/test_render.py",
        "tests/jars/test_jars.py",
        "tests/security/test_mechanisms.py",
    ]
    # The Makefile removes these two, because Python reads them before it imports any of our code.
    environment = hostile(tmp_path)
    del environment["PYTHONOPTIMIZE"], environment["PYTHONWARNINGS"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize(
    "name", ["PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE", "PYTHONPATH", "PIP_TARGET"]
)
def test_make_takes_away_what_is_meant_for_other_pythons(name: str, tmp_path: Path) -> None:
    """The Makefile removes variables that would change how its Python runs or installs."""
    folder = tmp_path / "a b"
    folder.mkdir()
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    folder.joinpath("Makefile").write_text(text + "\nseen:\n\t@env\n", encoding="utf-8")
    done = subprocess.run(
        ["make", "-s", "seen"],
        cwd=folder,
        env={**hostile(tmp_path), name: "/nowhere", "PIP_USER": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert name not in seen
    assert seen["PIP_USER"] == "0"


def test_what_is_foreign_is_not_seen_by_tests() -> None:
    """conftest.py has removed other programs' variables from the environment of the tests."""
    assert not [name for name in os.environ if foreign(name)]
