"""Mutants: each breaks one rule of the engine from outside, and the run of some seed notices it.

The mutants themselves are in `mutants` and `transactional_mutants`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from .soak import quiet, run_seed
from .world import Result

__all__ = ["LIMIT", "MUTANTS", "Caught", "Mutant", "Patch", "applied", "catch", "mutant"]

LIMIT = 2000
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


def catch(name: str, limit: int = LIMIT) -> Caught:
    """Run seeds with a mutant in place until one notices.

    Raises:
        TypeError: the mutant's function does not take the arguments of the function that it
            replaces. Any seed would notice that crash, which shows nothing about the rule.
    """
    broken = MUTANTS[name]
    with quiet():
        for seed in range(limit):
            with applied(broken):
                violations = broken.run_one(seed).violations
            if any(_UNFIT.search(str(each)) for each in violations):
                raise TypeError(f"{name} does not fit what it replaces: {violations[0]}")
            if violations and not broken.run_one(seed).violations:
                return Caught(name, seed, str(violations[0])[:110])
    return Caught(name, None, "")
