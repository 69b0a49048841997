"""How drills compare and complain: what the engine told, and what was expected instead.

Every complaint has the same form, so that the line of a failing seed can be read by somebody who
does not know the drill: `what: told X, expected Y`. X comes from the engine, Y from the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from aioidem.errors import InternalError

__all__ = ["Pairs", "differences", "differs", "misjudged", "raises_internal", "typed", "unequal"]

Pairs = Mapping[str, tuple[object, object]]
"""By what is compared: what the engine told, and what the model expects."""


def differs(what: str, told: object, expected: object) -> str | None:
    """Return a complaint if two objects are not equal; None if they are."""
    return None if told == expected else f"{what}: told {told!r}, expected {expected!r}"


def differences(pairs: Pairs) -> Iterator[str]:
    """Yield a complaint about each pair of unequal objects."""
    for what, (told, expected) in pairs.items():
        wrong = differs(what, told, expected)
        if wrong is not None:
            yield wrong


def unequal(pairs: Pairs) -> str | None:
    """Return a complaint about the first pair of unequal objects; None if there is none."""
    return next(differences(pairs), None)


def typed(steps: Iterable[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return steps of the engine with their classes, without which named tuples may be equal."""
    return [(type(step), *step) for step in steps]


def raises_internal(call: Callable[[], object]) -> bool:
    """Return whether a call raises `InternalError`, as the engine does for what may never happen.

    Any other exception is passed on.
    """
    try:
        call()
    except InternalError:
        return True
    return False


def misjudged(what: str, call: Callable[[], object], *, allowed: bool) -> str | None:
    """Make a call, and return a complaint unless it raises `InternalError` if it is not allowed."""
    return differs(f"{what} is allowed", not raises_internal(call), allowed)
