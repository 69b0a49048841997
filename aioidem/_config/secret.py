"""Secret: a password, token or key that is not shown by accident.

Options, SASL mechanisms and messages hold credentials as a `Secret` from the caller to the socket.
Printing, logging or formatting a `Secret` shows three stars, and so does a debugger or error
reporter that shows local variables; pickling a `Secret` raises TypeError. Functions whose arguments
may be passwords as plain strings are decorated with `without_frames`: an exception that such a
function raises has no traceback frames of the function, because frames hold local variables.

Invariants: only `reveal` returns the value; a comparison takes the same time wherever two values
differ.

Rejected: overwriting the memory (Python's strings are immutable); a subclass of str (everything
that takes a string would print it).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import AnyStr, Generic, NoReturn, ParamSpec, Self, TypeVar

__all__ = ["Secret", "in_utf8", "without_frames"]

P = ParamSpec("P")
R = TypeVar("R")

_SHOWN = "***"


class Secret(Generic[AnyStr]):
    """Text or bytes that printing, logging and pickling do not show.

    Args:
        value: The text or bytes to hide, or a `Secret` of them.
    """

    __slots__ = ("_value",)

    def __init__(self, value: AnyStr | Secret[AnyStr]) -> None:
        self._value: AnyStr = value.reveal() if isinstance(value, Secret) else value

    def reveal(self) -> AnyStr:
        """Return the value.

        Do not keep the value in a variable: a traceback with local variables would show it.
        """
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
        import hmac  # only here, because few programs compare secrets

        return hmac.compare_digest(_raw(self._value), _raw(other.reveal()))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> NoReturn:
        """Refuse to give the value to code that copies or pickles.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a Secret has no state to be copied: pass the Secret itself on")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled: a pickle becomes a file or a message, which must hold no secret.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a Secret is not pickled: give a callable that fetches it where it is used")


def in_utf8(text: str) -> bool:
    """Return whether text can be encoded in UTF-8: whether it has no lone surrogate.

    This raises nothing, because a `UnicodeEncodeError` holds the text, which may be a password.
    """
    return text.encode(errors="ignore").decode() == text


def _raw(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def without_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function whose arguments may be passwords as plain strings.

    An exception that the function raises has a traceback without the frames of the function and of
    its callees. Their local variables may hold the password, and error reporters send the local
    variables of every frame.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        handled = sys.exception()  # the caller's own; its frames are the caller's to keep
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is raised again
            failure = error
        del args, kwargs  # this frame stays in the traceback
        _forget_frames(failure, handled)
        raise failure

    return call


def _forget_frames(error: BaseException, handled: BaseException | None) -> None:
    """Remove the traceback from an exception and from those chained to it, down to `handled`."""
    seen = {id(handled)}
    chained: list[BaseException | None] = [error]
    while chained:
        link = chained.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            chained += [link.__cause__, link.__context__]
