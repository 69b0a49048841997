"""GSSAPI (RFC 4752): Kerberos, through the package ``gssapi``, in an extra.

The rounds: tokens until the security context stands, then the broker offers security layers and a
size in a wrapped message, and we answer: no layer (TLS is what protects the connection), no name
but the ticket's. The credentials are the process's: a ticket cache or a keytab.

The library waits for a ticket server, so this mechanism runs in a thread. What it says is in its
error; it holds no secret that could be shown.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from aioidem._protocol.messages import printable
from aioidem.errors import AuthenticationFailedError

__all__ = ["Gssapi", "SecurityContext", "kerberos_context"]

_NO_LAYER: Final = 1


class SecurityContext(Protocol):
    """What is needed of ``gssapi.SecurityContext``."""

    @property
    def complete(self) -> bool:
        """Whether both sides have proved themselves."""
        ...

    def step(self, token: bytes | None) -> bytes | None:
        """Take the other side's token; the next one of ours, if there is one."""
        ...

    def unwrap(self, message: bytes) -> bytes:
        """Check a message's integrity, and return what is in it."""
        ...

    def wrap(self, message: bytes) -> bytes:
        """Protect a message's integrity."""
        ...


def kerberos_context(service: str, host: str) -> SecurityContext:
    """A context for ``service@host``, with mutual authentication.

    :raises ImportError: the package or its library is not installed.
    """
    # By name: type checkers take a plain import here for this module.
    gssapi: Any = importlib.import_module("gssapi")
    name = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
    canonical = name.canonicalize(gssapi.MechType.kerberos)
    flags = gssapi.RequirementFlag
    return _Library(
        gssapi.SecurityContext(
            name=canonical,
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=[flags.mutual_authentication, flags.integrity, flags.out_of_sequence_detection],
        )
    )


class _Library:
    """The library's context, with what we need of it."""

    def __init__(self, context: object) -> None:
        self._context: object = context

    @property
    def complete(self) -> bool:
        return bool(self._context.complete)  # type: ignore[attr-defined]

    def step(self, token: bytes | None) -> bytes | None:
        answer: bytes | None = self._context.step(token)  # type: ignore[attr-defined]
        return answer

    def unwrap(self, message: bytes) -> bytes:
        unwrapped: bytes = self._context.unwrap(message).message  # type: ignore[attr-defined]
        return unwrapped

    def wrap(self, message: bytes) -> bytes:
        wrapped: bytes = self._context.wrap(message, False).message  # type: ignore[attr-defined]
        return wrapped


class Gssapi:
    """One exchange.

    :param make_context: called in the thread, because it may ask for a ticket.
    """

    name = "GSSAPI"
    principal = None
    blocking = True

    def __init__(self, make_context: Callable[[], SecurityContext]) -> None:
        self._make_context = make_context
        self._context: SecurityContext | None = None
        self._over = False

    def first(self) -> bytes:
        """Our first token."""
        return self._guarded(self._start)

    def _start(self) -> bytes:
        self._context = self._make_context()
        return self._context.step(None) or b""

    def next(self, challenge: bytes) -> bytes | None:
        """Tokens, then the choice of no security layer; then it is over."""
        context = self._context
        if context is None:
            raise AuthenticationFailedError("GSSAPI: not begun")
        if self._over:
            if challenge:
                raise AuthenticationFailedError("GSSAPI: the broker goes on after the end")
            return None
        if not context.complete:
            return self._guarded(lambda: context.step(challenge) or b"")
        return self._guarded(lambda: self._choose(context, challenge))

    def _choose(self, context: SecurityContext, challenge: bytes) -> bytes:
        offer = context.unwrap(challenge)
        if len(offer) != 4 or not offer[0] & _NO_LAYER:
            raise AuthenticationFailedError("GSSAPI: the broker wants a security layer of SASL's")
        self._over = True
        return context.wrap(bytes((_NO_LAYER, 0, 0, 0)))

    @staticmethod
    def _guarded(step: Callable[[], bytes]) -> bytes:
        try:
            return step()
        except AuthenticationFailedError:
            raise
        except Exception as error:  # noqa: BLE001 - the library may not be here, nor its classes
            said = printable(str(error))
        # Outside, so that nothing is chained: the library's frames hold tickets.
        raise AuthenticationFailedError(f"GSSAPI: {said}")
