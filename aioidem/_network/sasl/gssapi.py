"""GSSAPI (RFC 4752): Kerberos, through the package ``gssapi``, which an extra installs.

First both sides exchange tokens until the security context is complete. Then the broker sends, in a
wrapped message, the security layers it offers and a maximum size. This client chooses no layer, so
only TLS protects the connection, and asks for no other user name than the ticket's. The credentials
are those of the process: a ticket cache or a keytab.

The library may wait for a ticket server, so this mechanism runs in a thread. The library's error
messages contain no secret, so they are shown.
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
    """The methods of ``gssapi.SecurityContext`` that are used here."""

    @property
    def complete(self) -> bool:
        """Whether the client and the broker have authenticated each other."""
        ...

    def step(self, token: bytes | None) -> bytes | None:
        """Process the broker's token (None at first), and return this client's next one, if any."""
        ...

    def unwrap(self, message: bytes) -> bytes:
        """Check a message's integrity, and return its content."""
        ...

    def wrap(self, message: bytes) -> bytes:
        """Return a message with a checksum that protects its integrity."""
        ...


def kerberos_context(service: str, host: str) -> SecurityContext:
    """Make a security context for ``service@host``, with mutual authentication.

    Raises:
        ImportError: The package, or the Kerberos library it needs, is not installed.
    """
    # `importlib` imports the package, because type checkers take `import gssapi` for this module.
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
    """The library's security context, adapted to the methods of `SecurityContext`."""

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
    """One SASL exchange with the mechanism GSSAPI.

    Args:
        make_context: Makes the security context; called in a thread, because it may ask for a
            ticket.
    """

    name = "GSSAPI"
    principal = None
    blocking = True

    def __init__(self, make_context: Callable[[], SecurityContext]) -> None:
        self._make_context = make_context
        self._context: SecurityContext | None = None
        self._over = False

    def first(self) -> bytes:
        """Return this client's first token."""
        return self._guarded(self._start)

    def _start(self) -> bytes:
        self._context = self._make_context()
        return self._context.step(None) or b""

    def next(self, challenge: bytes) -> bytes | None:
        """Answer the broker's token, then its offer of security layers; None at the end."""
        context = self._context
        if context is None:
            raise AuthenticationFailedError("GSSAPI: `next` was called before `first`")
        if self._over:
            if challenge:
                raise AuthenticationFailedError(
                    "GSSAPI: the broker sent another message after the exchange was complete"
                )
            return None
        if not context.complete:
            return self._guarded(lambda: context.step(challenge) or b"")
        return self._guarded(lambda: self._choose(context, challenge))

    def _choose(self, context: SecurityContext, challenge: bytes) -> bytes:
        offer = context.unwrap(challenge)
        if len(offer) != 4 or not offer[0] & _NO_LAYER:
            raise AuthenticationFailedError(
                "GSSAPI: the broker requires a SASL security layer, which is not supported"
            )
        self._over = True
        return context.wrap(bytes((_NO_LAYER, 0, 0, 0)))

    @staticmethod
    def _guarded(step: Callable[[], bytes]) -> bytes:
        try:
            return step()
        except AuthenticationFailedError:
            raise
        except Exception as error:  # noqa: BLE001 - the library may be absent, so its classes too
            said = printable(str(error))
        # The error is raised outside of the except block, so that it is not chained: the frames of
        # the library's exception hold tickets.
        raise AuthenticationFailedError(f"GSSAPI: {said}")
