"""Kills: which broken rules of the engine the exploration notices, and in which space.

The changes that break a rule are those of `tests.simulated.mutants`, which were written for another
judge. A mutant is killed if a space that is fine without it shows a violation with it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.simulated.mutants import MUTANTS
from tests.simulated.mutation import applied

from .search import Found, explore
from .spaces import SPACES

__all__ = ["broken", "engine_mutants", "show"]


def engine_mutants() -> list[str]:
    """Return the names of the mutants that are not about transactions."""
    return [
        name
        for name, each in MUTANTS.items()
        if each.apply.__module__.rpartition(".")[2] != "transactional_mutants"
    ]


def broken(
    mutant: str, space: str, *, faults: int | None = None, limit: int | None = None
) -> Found:
    """Explore a space with a mutant in place.

    Raises:
        TypeError: the mutant does not fit what it replaces, so any world would notice it.
    """
    with applied(MUTANTS[mutant]):
        found = explore(SPACES[space], faults=faults, limit=limit)
    if found.violation is not None and "TypeError" in found.violation.what:
        raise TypeError(f"{mutant}: {found.violation.what}")
    return found


def show(mutants: Sequence[str], spaces: Sequence[str], limit: int | None) -> int:
    """Print for each mutant the first space that kills it; return the exit status of the command.

    Args:
        mutants: parts of the mutants' names; empty: all mutants.
        spaces: the names of the spaces to try, in this order.
        limit: the most states to visit in each space.
    """
    began = time.monotonic()
    names = [
        name for name in engine_mutants() if not mutants or any(part in name for part in mutants)
    ]
    killed = 0
    for name in names:
        verdict = "survived"
        for space in spaces:
            found = broken(name, space, limit=limit)
            if found.violation is not None:
                killed += 1
                steps = len(found.violation.path)
                verdict = f"{space}, {found.states} states, {steps} steps: {found.violation.what}"
                break
        sys.stdout.write(f"{name}: {verdict}\n")
        sys.stdout.flush()
    seconds = time.monotonic() - began
    sys.stdout.write(f"{len(names)} mutants, {killed} killed, {seconds:.0f} s\n")
    return 0 if killed else 1
