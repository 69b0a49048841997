"""Fresh seeds: seeds that are tried besides those whose lines were traced.

A mutant that shows itself in one seed of a hundred is one that a soak notices, but tracing hundreds
of seeds would take longer than running them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["fresh_runs"]

_MIXES: Final = (
    "varied",
    "odd",
    "swarm",
    "profiles",
    "transactional swarm",
    "transactions",
    "resolve",
)
_ALIKE: Final = {"swarm": {"varied", "odd"}}
"""Mixes of which hardly a run is traced, by a mix that executes what they do."""
_FROM: Final = 20_000_000
_MOST: Final = 20_000
_SECONDS: Final = 0.1
"""About the CPU time of a seed without a mutant."""


def fresh_runs(reached: Iterable[str], most: int = _MOST) -> list[tuple[str, float]]:
    """Return names of seeds, by turns of their mixes, and the CPU time that each takes, about.

    Args:
        reached: The runs that execute what is mutated. The seeds are of the same mixes; they are of
            all mixes if no seed is among these runs.
        most: How many seeds.
    """
    mixes = {name.rpartition(" ")[0] for name in reached}.intersection(_MIXES) or set(_MIXES)
    mixes |= {alike for mix, others in _ALIKE.items() if mix in mixes for alike in others}
    turns = [mix for mix in _MIXES if mix in mixes]
    # Seeds of one mix follow one another: how a seed is run depends on its remainders.
    return [(f"{turns[n % len(turns)]} {_FROM + n // len(turns)}", _SECONDS) for n in range(most)]
