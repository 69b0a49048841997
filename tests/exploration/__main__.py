"""The command: `python -m tests.exploration --space NAME --faults N --states LIMIT`.

Without arguments it explores every space within its bounds. It prints a line per space, and at the
end which rows of the engine's tables were taken. A violation is printed with the shortest path to
it, and a regression test is written that replays the path; the exit status is 1 then.

`--mutants` breaks the rules of the engine, one at a time, with the changes that `tests.simulated`
has, and prints which space notices: those that `kills` lists, or those that `--space` names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import kills
from .coverage import Coverage
from .regression import write_test
from .search import Found, explore
from .spaces import SPACES

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore the spaces that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration", description=__doc__)
    parser.add_argument("--space", action="append", help="only this one; may be repeated")
    parser.add_argument("--faults", type=int, help="how many faults; by default the space's bound")
    parser.add_argument("--states", type=int, help="the most states of a space to visit")
    parser.add_argument("--mutants", nargs="*", help="break these rules, or all; no names: all")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.space or () if name not in SPACES]
    if unknown:
        parser.error(f"there is no space {unknown[0]!r}; there are: {', '.join(SPACES)}")
    if asked.mutants is not None:
        return kills.show(asked.mutants, asked.space or (), asked.states)
    names = asked.space or list(SPACES)
    coverage = Coverage()
    states, seconds, failed = 0, 0.0, False
    for name in names:
        with coverage.counted():
            found = explore(
                SPACES[name], faults=asked.faults, limit=asked.states, progress=_progress
            )
        states += found.states
        seconds += found.seconds
        _say(described(found))
        if found.violation is not None:
            failed = True
            _say(f"    {found.violation.what}")
            _say(f"    path: {'; '.join(found.violation.path)}")
            _say(f"    written: {write_test(found.space, found.violation)}")
    for line in coverage.lines():
        _say(line)
    rate = states / max(seconds, 0.001)
    _say(f"{len(names)} spaces, {states} states, {seconds:.0f} s, {rate:.0f} states a second")
    return 1 if failed else 0


def described(found: Found) -> str:
    """Return one line about a search."""
    extent = "all" if found.complete else "WRONG after" if found.violation else "stopped after"
    return (
        f"{found.space.name}, {found.faults} faults: {extent} {found.states} states, "
        f"{found.transitions} steps, {found.ends} ends, {found.depth} deep, {found.seconds:.1f} s"
    )


def _progress(states: int, waiting: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{states} states, {waiting} wait ")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
