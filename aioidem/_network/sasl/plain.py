"""PLAIN (RFC 4616): user name and password in clear text.

Anyone who reads the connection's bytes learns the password, so the configuration refuses this
mechanism without TLS unless an option permits it.
"""

from __future__ import annotations

from aioidem._config.secret import Secret, in_utf8
from aioidem.errors import AuthenticationFailedError

__all__ = ["Plain"]


class Plain:
    """One SASL exchange with the mechanism PLAIN.

    Args:
        username: The user name.
        password: The password.

    Raises:
        AuthenticationFailedError: One of the two is empty, cannot be encoded in UTF-8, or contains
            a NUL, which separates them in the message.
    """

    name = "PLAIN"
    blocking = False

    def __init__(self, username: str, password: Secret[str]) -> None:
        self.principal = username
        self._password = password
        if not _fits(username) or not _fits(password.reveal()):
            raise AuthenticationFailedError(
                "PLAIN: the user name or password is empty, contains a NUL or is not UTF-8"
            )

    def first(self) -> bytes:
        """Return the user name and the password, the client's only message."""
        return b"\0%b\0%b" % (self.principal.encode(), self._password.reveal().encode())

    def next(self, challenge: bytes) -> bytes | None:
        """Check that the challenge is empty, which means that the broker accepts the password."""
        if challenge:
            raise AuthenticationFailedError(
                "PLAIN: the broker sent another challenge, which PLAIN does not have"
            )
        return None


def _fits(text: str) -> bool:
    return bool(text) and "\0" not in text and in_utf8(text)
