"""The record of long soaks: which seeds were run on which code, and what came of them.

`make soak LEDGER=docs/soaks.csv` adds a line for each run, so that a million seeds can be run in
portions, on several days. `python -m tests.simulated.ledger` prints the sums for each code, kind
and mix. A line names the code by `code_digest`: portions count together only while no statement of
the packages that the simulation drives has changed.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

__all__ = ["Portion", "code_digest", "main", "note", "read", "today", "totals"]

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "docs" / "soaks.csv"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
DRIVEN = ("_engine", "_hot", "_network", "_producer", "_protocol", "_records")


@dataclass(frozen=True, slots=True)
class Portion:
    """One run of the soak."""

    date: str  # of the run's end, UTC
    code: str  # `code_digest`
    kind: str  # "ordinary" or "transactions", and "compiled" after `make soak-compiled`
    mix: str
    first: int
    seeds: int
    violations: int
    unknown: int  # records
    seconds: int


_COLUMNS = tuple(Portion.__dataclass_fields__)
_NUMBERS = ("first", "seeds", "violations", "unknown", "seconds")


def today() -> str:
    """Return the date in UTC, as ISO 8601 writes it."""
    return datetime.now(UTC).date().isoformat()


def code_digest(package: Path = ROOT / "aioidem") -> str:
    """Return 12 hex digits of the SHA-256 of all Python code that the simulation drives.

    Comments, docstrings and line breaks do not count. Another minor version of Python may give
    another digest of the same files, so that portions run by several do not count together.
    """
    digest = hashlib.sha256()
    for name in DRIVEN:
        for file in sorted((package / name).rglob("*.py")):
            digest.update(f"{file.relative_to(package).as_posix()}\0".encode())
            digest.update(_statements(file.read_text(encoding="utf-8")).encode() + b"\0")
    return digest.hexdigest()[:12]


def _statements(source: str) -> str:
    """Return the syntax tree of a module, without docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def note(file: Path, portion: Portion) -> None:
    """Add a portion to a ledger, which is created if it does not exist.

    Raises:
        OSError: the file cannot be written.
    """
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        if new:
            writer.writerow(_COLUMNS)
        writer.writerow([getattr(portion, column) for column in _COLUMNS])


def read(file: Path) -> list[Portion]:
    """Return the portions of a ledger.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not a portion; the message names the line.
    """
    portions = []
    with file.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        for row in reader:
            try:
                portions.append(_portion(row))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{file.name}, line {reader.line_num}: {error!r}") from error
    return portions


def _portion(row: dict[str, Any]) -> Portion:
    numbers = {each: int(row[each]) for each in _NUMBERS}
    return Portion(**(row | numbers))


def totals(portions: Iterable[Portion]) -> Iterator[str]:
    """Yield a line for each code, kind and mix; a seed that was run twice counts once.

    Of a portion that was run again, with a judge that was corrected, the last run counts.
    """

    def key(portion: Portion) -> tuple[str, str, str]:
        return portion.code, portion.kind, portion.mix

    for (code, kind, mix), group in groupby(sorted(portions, key=key), key):
        run = list({(each.first, each.seeds): each for each in group}.values())
        seconds = sum(each.seconds for each in run)
        yield (
            f"{code} {kind} {mix}: {_distinct(run)} seeds, "
            f"{sum(each.violations for each in run)} violations, "
            f"{sum(each.unknown for each in run)} unknown, {seconds} s"
        )


def _distinct(portions: list[Portion]) -> int:
    seeds = end = 0
    for portion in sorted(portions, key=lambda each: each.first):
        until = portion.first + portion.seeds
        seeds += max(0, until - max(end, portion.first))
        end = max(end, until)
    return seeds


def main() -> int:
    """Print the sums of a ledger."""
    parser = argparse.ArgumentParser(description="Print the sums of a ledger of soaks.")
    parser.add_argument("file", nargs="?", type=Path, default=LEDGER)
    for line in totals(read(parser.parse_args().file)):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
