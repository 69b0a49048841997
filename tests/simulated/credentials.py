"""The judge of credentials: when a producer gives up, because brokers refuse its password.

It gives up at the fifth refusal in a row if no connection is up, and only then. Refusals of a
password that it does not use any more do not count, nor do those before a connection was opened.
"""

from __future__ import annotations

from collections.abc import Callable

from aioidem._engine import ProducerCore
from aioidem._engine.links import LinkState
from aioidem.errors import AuthenticationFailedError

__all__ = ["Credentials"]

_REFUSALS = 5


class Credentials:
    """Counts refusals of the password.

    Args:
        core: The engine.
        complain: Is told what is wrong.
    """

    def __init__(self, core: ProducerCore, complain: Callable[[str], None]) -> None:
        self._core = core
        self._complain = complain
        self._refused = 0
        self._newest_link = 0
        self._first_to_count = 1
        self.given_up = False
        """Whether the producer must have given up."""

    def opens(self, link_id: int) -> None:
        """Note that a connection begins to be opened."""
        self._newest_link = link_id

    def opened(self) -> None:
        """Note that a connection is up."""
        self._refused = 0

    def renewed(self) -> None:
        """Note that the producer uses another password from now on."""
        self._refused, self._first_to_count = 0, self._newest_link + 1

    def refused(self, link_id: int) -> None:
        """Judge whether the producer has given up, after a broker has refused the password."""
        self._refused += link_id >= self._first_to_count
        links = self._core.connections.links.values()
        if self._refused >= _REFUSALS and all(link.state is not LinkState.READY for link in links):
            self.given_up = True
        gave_up = isinstance(self._core.fatal_error, AuthenticationFailedError)
        if gave_up and not self.given_up:
            self._complain(f"the producer gives up after {self._refused} refusals of its password")
        elif self.given_up and self._core.fatal_error is None:
            self._complain(f"the producer goes on after {self._refused} refusals of its password")
