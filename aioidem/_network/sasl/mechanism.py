"""The interface between a SASL mechanism and a connection.

A mechanism is a plain object that turns the broker's challenges into messages.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Mechanism"]


class Mechanism(Protocol):
    """One authentication exchange; after a method has raised, none may be called again."""

    @property
    def name(self) -> str:
        """The mechanism's name, as brokers know it."""
        ...

    @property
    def principal(self) -> str | None:
        """The user name, which a re-authentication must keep (KIP-368); None if there is none."""
        ...

    @property
    def blocking(self) -> bool:
        """Whether `first` or `next` may take long; the connection then calls them in a thread."""
        ...

    def first(self) -> bytes:
        """Return the client's first message.

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
