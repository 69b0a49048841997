"""Secret: a password, token or key that cannot be shown by accident, and errors without frames.

Options, mechanisms and messages with credentials in them carry one of these from the caller to the
socket. Whoever prints, logs, formats or pickles what holds it gets three stars or a TypeError; a
debugger or an error reporter that shows local variables gets its repr. Functions that take a
password as the plain string a user has are decorated with `without_frames`.

Invariants: only `reveal` gives the value; comparing takes the same time wherever two differ.

Rejected: wiping memory (Python's strings cannot be); a subclass of str (everything that takes a
string would print it).
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Callable
from typing import AnyStr, Generic, NoReturn, ParamSpec, Self, TypeVar

__all__ = ["Secret", "in_utf8", "without_frames"]

P = ParamSpec("P")
R = TypeVar("R")

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

    def __getstate__(self) -> NoReturn:
        """Refuse to hand the value to a copier or pickler that asks for it.

        Raises:
            TypeError: always.
        """
        raise TypeError("a Secret has no state to be copied: pass the Secret itself on")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """A pickle is a file or a message, and neither may hold a secret.

        Raises:
            TypeError: always.
        """
        raise TypeError("a Secret is not pickled: give a callable that fetches it where it is used")


def in_utf8(text: str) -> bool:
    """Whether text has a form in UTF-8, as all but a lone surrogate has.

    Asked without an error: `UnicodeEncodeError` holds the text, which may be a password.
    """
    return text.encode(errors="ignore").decode() == text


def _raw(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def without_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function whose arguments may be plain passwords.

    What it raises comes without the frames below the caller's: an error reporter sends the local
    variables of every frame, and those of the function and of what it calls hold the password.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is raised again
            failure = error
        del args, kwargs  # this frame stays in the traceback
        _forget_frames(failure)
        raise failure

    return call


def _forget_frames(error: BaseException) -> None:
    """Take the traceback from an exception and from all that it is chained to."""
    seen: set[int] = set()
    chained: list[BaseException | None] = [error]
    while chained:
        link = chained.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            chained += [link.__cause__, link.__context__]
