"""Each test of the tree runs in one stage of `make test`, and in no second one."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.markers import THOROUGH

ROOT = Path(__file__).parents[2]
PURE = "AIOIDEM_NO_EXTENSIONS=1"  # tests that have run are run once more, in pure Python


@dataclass(frozen=True)
class Run:
    """One call of pytest in `make test`."""

    folders: tuple[str, ...]
    ignored: tuple[str, ...]
    patterns: tuple[str, ...]
    markers: str

    @property
    def slow(self) -> bool:
        """Whether the call selects the slow tests; with neither marker it selects all."""
        return "not slow" not in self.markers

    @property
    def quick(self) -> bool:
        return "slow" not in self.markers or "not slow" in self.markers

    def takes(self, file: str) -> bool:
        """Return whether pytest would run tests of a file."""
        parents = [str(parent) for parent in Path(file).parents]
        if "not install" in self.markers and "tests/install" in parents:
            return False
        # Pytest collects a folder that it is given, although it is told to ignore that folder.
        ignored = {each for each in self.ignored if each not in self.folders}
        return (
            any(folder in parents for folder in self.folders)
            and ignored.isdisjoint(parents)
            and not any(fnmatch(parent, each) for parent in parents for each in self.patterns)
        )


@cache
def runs() -> tuple[Run, ...]:
    """Return the calls of pytest that `make test` would make."""
    made = subprocess.run(
        ["make", "--dry-run", "test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    lines = made.stdout.replace("\\\n", " ").splitlines()
    return tuple(
        _parsed(shlex.split(line))
        for line in lines
        if " -m pytest " in line and not line.startswith(PURE)
    )


def _parsed(words: list[str]) -> Run:
    words = words[words.index("pytest") + 1 :]
    found: dict[str, list[str]] = {"": []}
    following = iter(words)
    for word in following:
        if word.startswith("--no-"):
            continue
        if word.startswith("-"):
            found.setdefault(word, []).append(next(following))
        else:
            found[""].append(word)
    ignored, patterns = found.get("--ignore", []), found.get("--ignore-glob", [])
    [markers] = found.get("-m", [""])
    return Run(tuple(found[""]), tuple(ignored), tuple(patterns), markers)


def files() -> Iterator[str]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        yield path.relative_to(ROOT).as_posix()


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def test_each_file_s_quick_tests_run_once_and_so_do_its_slow_ones() -> None:
    calls = runs()
    assert len(calls) >= 6
    counts = {
        file: (
            sum(run.quick for run in calls if run.takes(file)),
            sum(run.slow for run in calls if run.takes(file)),
        )
        for file in files()
    }
    assert len(counts) > 300
    assert {file: count for file, count in counts.items() if count != (1, 1)} == {}


@pytest.mark.parametrize("path", THOROUGH)
def test_what_make_check_leaves_out_is_a_part_of_the_tests(path: str) -> None:
    assert (ROOT / "tests" / path).exists()
