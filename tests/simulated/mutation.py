"""Mutants: each breaks one rule of the engine from outside, and the run of some seed notices it.

The mutants themselves are in `mutants` and `transactional_mutants`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from .soak import quiet, run_seed
from .world import Result

__all__ = [
    "LIMIT",
    "MUTANTS",
    "Caught",
    "Mutant",
    "Patch",
    "applied",
    "catch",
    "mutant",
    "record",
    "recorded",
]

LIMIT = 2000
RECORD: Final = Path(__file__).with_name("caught.json")
_UNFIT: Final = re.compile(r"TypeError\(.*argument")
Patch = Callable[[Any, str, Any], None]


class Mutant(NamedTuple):
    """A rule of the engine, and a change that breaks it.

    `apply` makes the change: its argument is a function that replaces attributes of the engine.
    `applied` restores the attributes at its end.
    """

    name: str
    rule: str
    apply: Callable[[Patch], None]
    run_one: Callable[[int], Result]


class Caught(NamedTuple):
    """The seed that noticed a mutant, and how; `seed` is None if no seed did."""

    name: str
    seed: int | None
    how: str


MUTANTS: dict[str, Mutant] = {}


def mutant(
    rule: str, run_one: Callable[[int], Result] = run_seed
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a mutant under its function's name; `run_one` runs one seed to test it."""

    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__.replace("_", " ")
        MUTANTS[name] = Mutant(name, rule, apply, run_one)
        return apply

    return register


@contextmanager
def applied(broken: Mutant) -> Iterator[None]:
    """Keep a mutant in place while the block runs."""
    saved: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, value: Any) -> None:
        if isinstance(owner, dict):
            saved.append((owner, name, owner[name]))
            owner[name] = value
            return
        saved.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    try:
        broken.apply(patch)
        yield
    finally:
        for owner, name, value in reversed(saved):
            if isinstance(owner, dict):
                owner[name] = value
            else:
                setattr(owner, name, value)


def recorded() -> dict[str, int]:
    """Return the seed that noticed each mutant when they were last recorded (`record`)."""
    seeds: dict[str, int] = json.loads(RECORD.read_text(encoding="utf-8"))
    return seeds


def record(seeds: Mapping[str, int]) -> None:
    """Write down which seed noticed each mutant, for `catch` to try first."""
    RECORD.write_text(json.dumps(dict(sorted(seeds.items())), indent=0) + "\n", encoding="utf-8")


def catch(name: str, limit: int = LIMIT, *, first: int | None = None) -> Caught:
    """Run seeds with a mutant in place until one notices, from 0 upwards.

    Args:
        name: the mutant's name.
        limit: how many seeds to try.
        first: a seed to try before all others; None for none.

    Raises:
        TypeError: the mutant's function does not take the arguments of the function that it
            replaces. Any seed would notice that crash, which shows nothing about the rule.
    """
    broken = MUTANTS[name]
    with quiet():
        for seed in chain(() if first is None else (first,), range(limit)):
            with applied(broken):
                violations = broken.run_one(seed).violations
            if any(_UNFIT.search(str(each)) for each in violations):
                raise TypeError(f"{name} does not fit what it replaces: {violations[0]}")
            if violations and not broken.run_one(seed).violations:
                return Caught(name, seed, str(violations[0])[:110])
    return Caught(name, None, "")
