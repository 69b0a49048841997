"""What a SASL mechanism is to a connection: a plain object that turns challenges into messages."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Mechanism"]


class Mechanism(Protocol):
    """One exchange of one mechanism. Fails closed: after an exception it is of no more use."""

    @property
    def name(self) -> str:
        """As the broker knows it."""
        ...

    @property
    def principal(self) -> str | None:
        """Who is authenticated, if that is known here. A session can not change it (KIP-368)."""
        ...

    @property
    def blocking(self) -> bool:
        """Whether `first` or `next` compute for long or wait: then they are called in a thread."""
        ...

    def first(self) -> bytes:
        """The first message.

        :raises AuthenticationFailedError: there is none with these credentials.
        """
        ...

    def next(self, challenge: bytes) -> bytes | None:
        """The answer to what the broker said without an error; None: it is over.

        None means as well that the broker has proved all the mechanism has it prove.

        :raises AuthenticationFailedError: the broker's message is wrong, or not its turn.
        """
        ...
