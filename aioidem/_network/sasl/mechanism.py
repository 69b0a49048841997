"""The interface between a SASL mechanism and a connection.

A mechanism is a plain object that turns the broker's challenges into messages.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Mechanism"]


class Mechanism(Protocol):
    """One exchange of one mechanism; after an exception it must not be used again."""

    @property
    def name(self) -> str:
        """The mechanism's name, as brokers know it."""
        ...

    @property
    def principal(self) -> str | None:
        """The user name, or None if the client does not know it; a session keeps it (KIP-368)."""
        ...

    @property
    def blocking(self) -> bool:
        """Whether `first` or `next` may take long; the connection then calls them in a thread."""
        ...

    def first(self) -> bytes:
        """Return the first message.

        Raises:
            AuthenticationFailedError: The mechanism cannot use these credentials.
        """
        ...

    def next(self, challenge: bytes) -> bytes | None:
        """Return the answer to the broker's challenge, or None if the exchange is complete.

        None also means that the broker has proved everything that the mechanism requires of it.

        Raises:
            AuthenticationFailedError: The broker's message is wrong or not expected at this point.
        """
        ...
