"""OAUTHBEARER (RFC 7628, KIP-255): a bearer token, with extensions (KIP-342).

Anyone who reads the token can use it, so the configuration refuses this mechanism without TLS
unless an option permits it. A broker that refuses a token first sends the reason in JSON. The
client must answer that, and then receives an error code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from aioidem._config.secret import Secret
from aioidem._protocol.messages import printable
from aioidem.errors import AuthenticationFailedError

__all__ = ["OAuthBearer"]

_SEPARATOR: Final = b"\x01"
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")


class OAuthBearer:
    """One SASL exchange with the mechanism OAUTHBEARER.

    Args:
        token: The bearer token.
        extensions: Names and values to send with the token (KIP-342).

    Raises:
        AuthenticationFailedError: The token or an extension has characters that RFC 7628 does not
            allow.
    """

    name = "OAUTHBEARER"
    principal = None
    blocking = False

    def __init__(self, token: Secret[str], extensions: Mapping[str, str] | None = None) -> None:
        if not _TOKEN.fullmatch(token.reveal()):
            raise AuthenticationFailedError(
                "OAUTHBEARER: the token is empty or has characters that a bearer token cannot have"
            )
        self.token = token
        if extensions is not None and not _are_texts(extensions):
            raise AuthenticationFailedError(
                "OAUTHBEARER: extensions() did not return a mapping of texts to texts"
            )
        self._extensions = dict(extensions or {})
        for name, value in self._extensions.items():
            legal = _EXTENSION_NAME.fullmatch(name) and _EXTENSION_VALUE.fullmatch(value)
            if not legal or name == "auth":
                raise AuthenticationFailedError(f"OAUTHBEARER: extension {name!r} is not legal")
        self._refusal: str | None = None

    def first(self) -> bytes:
        """Return the message with the token and the extensions."""
        pairs = [f"{name}={value}".encode() for name, value in self._extensions.items()]
        head = b"n,,", b"auth=Bearer " + self.token.reveal().encode(), *pairs
        return _SEPARATOR.join([*head, b"", b""])

    def next(self, challenge: bytes) -> bytes | None:
        """Return None if the broker accepts the token, else the byte that must answer a refusal."""
        if self._refusal is not None:
            raise AuthenticationFailedError(f"OAUTHBEARER: the broker refused: {self._refusal}")
        if not challenge:
            return None
        self._refusal = printable(challenge[:2000].decode(errors="replace"))
        return _SEPARATOR


def _are_texts(extensions: object) -> bool:
    """Return whether the extensions from the user's token provider map strings to strings."""
    return isinstance(extensions, Mapping) and all(
        isinstance(name, str) and isinstance(value, str) for name, value in extensions.items()
    )
