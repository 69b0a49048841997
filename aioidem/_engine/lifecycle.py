"""The function by which state machines (of batches, connections, transactions) change their state.

A table maps (state, event) to the following state. A pair that the table does not have is a defect
of this package, not something that a broker or a caller can cause, so it raises an `InternalError`.
It is not an `assert`, because `python -O` removes those.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from aioidem.errors import InternalError

__all__ = ["Named", "transition"]


class Named(enum.Enum):
    """A state or an event, hashed by its identity as an object.

    Each member is a single object, so this is correct. It is also faster: the hash of `enum.Enum`
    is a function written in Python, and every step of a state machine hashes two members.
    """

    __hash__ = object.__hash__

    def __init_subclass__(cls) -> None:
        """Make each member an attribute of its class.

        In Python 3.11 it is none: `EnumType.__getattr__`, a function written in Python, finds it,
        which takes eight times as long. A request asks for thirty members.
        """
        for member in cls:
            type.__setattr__(cls, member.name, member)


S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


def transition(table: Mapping[tuple[S, E], S], state: S, event: E, subject: object) -> S:
    """Return the state that follows `state` upon `event`.

    Raises:
        InternalError: the table has no such step; the message names the subject, the event and the
        state.
    """
    try:
        return table[state, event]
    except KeyError:
        raise InternalError(f"{subject}: {event.value} while {state.value}") from None
