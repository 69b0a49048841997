"""One step through a life cycle's table; every state machine of the engine takes its steps here.

A table maps (state, event) to the following state. A pair it does not have is a defect of ours, not
something a broker or a caller can cause, so it is an `InternalError`, never an `assert` (which
`python -O` removes).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from aioidem.errors import InternalError

__all__ = ["Named", "transition"]


class Named(enum.Enum):
    """A state or an event, hashed as an object.

    Each is one object, and the hash of `enum.Enum` is a function in Python: every step hashes two.
    """

    __hash__ = object.__hash__


S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


def transition(table: Mapping[tuple[S, E], S], state: S, event: E, subject: object) -> S:
    """Return the state that follows.

    Raises:
        InternalError: the table has no such step; it names the subject, the event and the state.
    """
    try:
        return table[state, event]
    except KeyError:
        raise InternalError(f"{subject}: {event.value} while {state.value}") from None
