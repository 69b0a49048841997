"""Secret: a password, token or key that cannot be shown by accident.

Options, mechanisms and messages with credentials in them carry one of these from the caller to the
socket. Whoever prints, logs, formats or pickles what holds it gets three stars or a TypeError; a
debugger or an error reporter that shows local variables gets its repr.

Invariants: only `reveal` gives the value; comparing takes the same time wherever two differ.

Rejected: wiping memory (Python's strings cannot be); a subclass of str (everything that takes a
string would print it).
"""

from __future__ import annotations

import hmac
from typing import AnyStr, Generic, NoReturn, Self

__all__ = ["Secret"]

_SHOWN = "***"


class Secret(Generic[AnyStr]):
    """Text or bytes that are not to be shown.

    Args:
        value: what to hide; a `Secret` is taken over.
    """

    __slots__ = ("_value",)

    def __init__(self, value: AnyStr | Secret[AnyStr]) -> None:
        self._value: AnyStr = value.reveal() if isinstance(value, Secret) else value

    def reveal(self) -> AnyStr:
        """The value. Do not keep it in a variable: it would show in a traceback with locals."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret('{_SHOWN}')"

    def __str__(self) -> str:
        return _SHOWN

    def __format__(self, spec: str) -> str:
        return _SHOWN

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_raw(self._value), _raw(other.reveal()))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """A pickle is a file or a message, and neither may hold a secret.

        Raises:
            TypeError: always.
        """
        raise TypeError("a Secret is not pickled: give a callable that fetches it where it is used")


def _raw(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
