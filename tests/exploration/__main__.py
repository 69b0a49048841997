"""The command: `python -m tests.exploration --space NAME --faults N --limit STATES --workers 2`.

Without arguments it explores every space within its bounds. It prints a line per space, and at the
end which rows of the engine's tables were taken. A violation is printed with the shortest path to
it, and a regression test is written that replays the path; the exit status is 1 then. SIGTERM or
SIGINT ends the run with the same summary; what it came to by then is in it.

`--mutants` breaks the rules of the engine, one at a time, with the changes that `tests.simulated`
has, and prints which space notices: those that `kills` lists, or those that `--space` names.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from . import kills
from .coverage import Coverage
from .regression import write_test
from .search import Found, explore
from .spaces import SPACES

__all__ = ["main"]

_LONGER = 2
"""How many faults more than its bound `--long` without a number allows in each space."""

_MOST_FAULTS = {"forgotten": 3, "a leader without state": 3}
"""The most that `--long` allows, by space: `test_limits` shows what no client can exclude then."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore the spaces that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration", description=__doc__)
    parser.add_argument("--space", action="append", help="only this one; may be repeated")
    parser.add_argument("--faults", type=int, help="how many faults; by default the space's bound")
    parser.add_argument("--limit", type=int, help="the most states of a space to visit")
    parser.add_argument("--minutes", type=float, help="how long each space may take")
    parser.add_argument("--workers", type=int, help="how many processes share a search")
    parser.add_argument(
        "--long",
        type=int,
        nargs="?",
        const=_LONGER,
        metavar="N",
        help=f"N faults more than a space's bound, by default {_LONGER}, on two processes: hours",
    )
    parser.add_argument("--every", type=float, default=60.0, help="seconds between progress lines")
    parser.add_argument("--mutants", nargs="*", help="break these rules, or all; no names: all")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.space or () if name not in SPACES]
    if unknown:
        parser.error(f"there is no space {unknown[0]!r}; there are: {', '.join(SPACES)}")
    if asked.mutants is not None:
        return kills.show(asked.mutants, asked.space or (), asked.limit, asked.workers or 1)
    if asked.workers is None:
        asked.workers = 1 if asked.long is None else 2
    return _explore_all(asked)


def _explore_all(asked: argparse.Namespace) -> int:
    names = asked.space or list(SPACES)
    coverage = Coverage()
    states, seconds, failed = 0, 0.0, False
    with _signalled() as end:
        for name in names:
            found = explore(
                SPACES[name],
                faults=asked.faults if asked.long is None else _long_faults(name, asked.long),
                limit=asked.limit,
                seconds=None if asked.minutes is None else asked.minutes * 60,
                asked=end.is_set,
                workers=asked.workers,
                coverage=coverage,
                progress=_Progress(name, asked.every),
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


def _long_faults(name: str, more: int) -> int:
    return min(SPACES[name].faults + more, _MOST_FAULTS.get(name, sys.maxsize))


def described(found: Found) -> str:
    """Return one line about a search."""
    extent = "all" if found.complete else "WRONG after" if found.violation else "stopped after"
    return (
        f"{found.space.name}, {found.faults} faults: {extent} {found.states} states, "
        f"{found.transitions} steps, {found.ends} ends, {found.depth} deep, {found.seconds:.1f} s"
    )


class _Progress:
    """Prints a line about a search now and then, to standard error.

    Args:
        name: the name of the space.
        every: seconds between two lines, at least.
    """

    def __init__(self, name: str, every: float) -> None:
        self._name = name
        self._every = every
        self._began = self._printed = time.monotonic()

    def __call__(self, met: int, waiting: int, depth: int) -> None:
        now = time.monotonic()
        if now - self._printed < self._every:
            return
        self._printed = now
        seconds = now - self._began
        sys.stderr.write(
            f"{self._name}: {met} states, {waiting} wait, {depth} deep, "
            f"{seconds:.0f} s, {met / seconds:.0f} states a second\n"
        )
        sys.stderr.flush()


@contextmanager
def _signalled() -> Iterator[threading.Event]:
    """Provide an event that is set when this process gets SIGINT or SIGTERM."""
    event = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: event.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
