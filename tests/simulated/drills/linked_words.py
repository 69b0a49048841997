"""The texts about addresses that do not answer, derived from their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aioidem import errors

from .linked_rows import Place

__all__ = ["failure_of_all", "like", "state_of_all", "unreachable"]

_NAMED: Final = 3
"""A text names no more reasons than this."""

_Told = tuple[object, ...] | None
"""The class of an error, its arguments, and what caused it; None for no error."""


def like(error: BaseException | None) -> _Told:
    """Return the class, the arguments and the cause of an error, for a comparison."""
    if error is None:
        return None
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return type(error), error.args, list(cause.exceptions)
    return type(error), error.args, cause


def state_of_all(places: Sequence[Place], now: float) -> str:
    """Return the state of each address, and since when it is in that state."""
    return "; ".join(f"{each.address}: {_state(each, now)}" for each in places)


def _state(place: Place, now: float) -> str:
    wire, error = place.wire, place.error()
    if wire is not None:
        what = "connected, no answer" if wire.up else "no greeting answered"
        return f"{what} for {now - max(wire.moved):.1f} s"
    since = f" for {now - place.down[0]:.1f} s" if place.down else ""
    return f"no connection{since}" + ("" if error is None else f": {error.args[0]}")


def failure_of_all(places: Sequence[Place]) -> _Told:
    """Return why no bootstrap address can be used: a refusal by one, or else a failure of each."""
    found = [place.error() for place in places]
    failures = [error for error in found if error is not None]
    for error in failures:
        if isinstance(error, errors.AuthenticationFailedError | errors.ConfigError):
            return like(error)
    if len(failures) < len(places):
        return None
    strange = [error for error in failures if isinstance(error, errors.NotKafkaError)]
    first = [*strange, *failures][0]
    kind = type(first) if isinstance(first, errors.KafkaError) else errors.KafkaConnectionError
    tried = ", ".join(place.address for place in places)
    why = "; ".join(str(error.args[0]) for error in failures)
    below = [error.__cause__ or error for error in failures]
    text = f"Unable to bootstrap from {tried}: {why}"
    return kind, (text,), below if len(below) > 1 else below[0]


def unreachable(places: Sequence[Place], failed: Sequence[float], now: float) -> _Told:
    """Return the error that tells for how long no connection is up, and why."""
    if not failed:
        return None
    found = [place.error() for place in places]
    failures = [error for error in found if error is not None]
    reasons = list(dict.fromkeys(str(error.args[0]) for error in failures))
    why = "; ".join(reasons[:_NAMED]) or "the connections were closed"
    more = f"; {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
    times = f"{len(failed)} attempt{'' if len(failed) == 1 else 's'}"
    text = f"no broker can be reached for {now - failed[0]:.1f} s and {times}: {why}{more}"
    return errors.KafkaConnectionError, (text,), failures[0] if failures else None
