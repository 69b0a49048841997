"""PLAIN (RFC 4616): user name and password, readable for whoever reads the connection.

That is why the configuration refuses it without TLS unless told otherwise.
"""

from __future__ import annotations

from aioidem._config.secret import Secret, in_utf8
from aioidem.errors import AuthenticationFailedError

__all__ = ["Plain"]


class Plain:
    """One exchange.

    :raises AuthenticationFailedError: name or password is empty, cannot be encoded in UTF-8, or has
        a NUL, which ends each in the message.
    """

    name = "PLAIN"
    blocking = False

    def __init__(self, username: str, password: Secret[str]) -> None:
        self.principal = username
        self._password = password
        if not _fits(username) or not _fits(password.reveal()):
            raise AuthenticationFailedError(
                "PLAIN: user name or password is empty, has a NUL or is not UTF-8"
            )

    def first(self) -> bytes:
        """All there is to say."""
        return b"\0%b\0%b" % (self.principal.encode(), self._password.reveal().encode())

    def next(self, challenge: bytes) -> bytes | None:
        """The broker has nothing to say to a password it takes."""
        if challenge:
            raise AuthenticationFailedError("PLAIN: the broker asks on")
        return None


def _fits(text: str) -> bool:
    return bool(text) and "\0" not in text and in_utf8(text)
