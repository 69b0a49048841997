"""Tell whether seeds do the same with the engine of another revision.

Usage: `python -m tests.simulated.same REVISION [--seeds N] [--from K]`, or `make same
REVISION=main`. A change of names, of places or of comments must leave what the engine does as it
was. This runs the same seeds of each mix, transactions too, with the library of the tree and with
that of a revision of the repository, both under the tests of the tree. The exit status is 1 if one
differs, and the first that does is named for each mix.

It shows less than a soak does: only these seeds, and only what `fingerprint` tells of them.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import aioidem

from .soak import MIXES, TRANSACTIONAL_MIXES, quiet
from .world import Result

__all__ = ["differences", "fingerprint", "main"]

_TREE = Path(__file__).resolve().parents[2]
_SEEDS = 40
_FIRST = 5_000_000
_LIBRARY = "aioidem"


def fingerprint(result: Result) -> str:
    """Return what a run tells, as a text that is always the same for the same run."""
    told: list[object] = [result.schedule.seed, result.violations]
    told += sorted((outcome.name, count) for outcome, count in result.outcomes.items())
    told += sorted(map(str, result.reasons.items()))
    told += sorted(map(str, result.transactions.items()))
    told += sorted(map(str, result.allowances))
    values = [getattr(result, field.name) for field in fields(result)]
    return repr(told + [value for value in values if isinstance(value, int | float | str)])


def _fingerprints(seeds: range) -> Iterator[str]:
    """Run seeds of each mix, and yield a line for each."""
    mixes = {**MIXES, **{f"transactions {name}": run for name, run in TRANSACTIONAL_MIXES.items()}}
    for mix, run_one in mixes.items():
        for seed in seeds:
            with quiet():
                yield f"{mix} {seed}\t{fingerprint(run_one(seed))}"


def _fingerprints_in(directory: Path, seeds: range) -> dict[str, str]:
    """Return what the seeds tell in a tree, from a process of its own.

    Raises:
        subprocess.CalledProcessError: The tests do not run with this library.
    """
    told = subprocess.run(
        [sys.executable, "-m", "tests.simulated.same", "--here", str(seeds.start), str(len(seeds))],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory), "AIOIDEM_NO_EXTENSIONS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(line.split("\t", 1) for line in told.stdout.splitlines())


def differences(tree: Path, other: Path, seeds: range) -> Iterator[str]:
    """Yield the first seed of each mix that tells something else in another tree.

    Raises:
        subprocess.CalledProcessError: The tests of a tree do not run with its library.
    """
    others = _fingerprints_in(other, seeds)
    seen: set[str] = set()
    for name, told in _fingerprints_in(tree, seeds).items():
        mix, seed = name.rsplit(" ", 1)
        if others.get(name) != told and mix not in seen:
            seen.add(mix)
            yield f"{mix}: seed {seed} differs\n  here:  {told}\n  there: {others.get(name)}"


def _lay_out(revision: str, directory: Path) -> None:
    """Put the library of a revision, and the tests of the tree, into a directory.

    Raises:
        subprocess.CalledProcessError: There is no such revision.
    """
    packed = subprocess.run(
        ["git", "archive", "--end-of-options", revision, _LIBRARY],
        cwd=_TREE,
        stdout=subprocess.PIPE,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_TREE / "tests", directory / "tests", ignore=skipped)
    shutil.copy(_TREE / "pyproject.toml", directory)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the tree with a revision; return the exit status."""
    parser = argparse.ArgumentParser(description="Compare what seeds do in two revisions.")
    parser.add_argument("revision", nargs="?", help="a commit, a branch or a tag")
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="seeds of each mix")
    parser.add_argument("--from", dest="first", type=int, default=_FIRST, help="the first seed")
    parser.add_argument("--here", nargs=2, type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.here is not None:
        if not Path(aioidem.__file__).is_relative_to(_TREE):
            parser.error(f"these tests run with another library: {aioidem.__file__}")
        first, count = asked.here
        for line in _fingerprints(range(first, first + count)):
            _say(line)
        return 0
    if asked.revision is None or asked.seeds < 1:
        parser.error("name a revision, and at least one seed")
    seeds = range(asked.first, asked.first + asked.seeds)
    with tempfile.TemporaryDirectory() as directory:
        try:
            _lay_out(asked.revision, Path(directory))
            found = [*differences(_TREE, Path(directory), seeds)]
        except subprocess.CalledProcessError as error:
            parser.error(f"there is nothing to compare with: {error}")
    for line in found:
        _say(line)
    if not found:
        _say(f"{asked.seeds} seeds of each mix do the same as in {asked.revision}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
