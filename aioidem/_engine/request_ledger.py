"""RequestLedger: the outstanding requests to brokers, and what the Sender is to do next.

`ProducerCore.poll` returns a list of steps (requests to send, connections to open or close) to the
Sender, which performs them. This module collects that list.

Every request has a token, a number that is never used again. An answer is matched with its request
by link (connection) and token. If no such request is outstanding on that link, the answer is
ignored.
"""

from __future__ import annotations

from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.connections import Connections
from aioidem._engine.links import Link
from aioidem._engine.memory import ByteBudget
from aioidem._engine.partition import PartitionState
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.steps import CloseLink, Step

__all__ = ["RequestLedger"]


class RequestLedger:
    """The requests of one producer to brokers, and the steps that send them.

    Args:
        connections: the connections, which keep their outstanding requests.
        budget: the memory budget; it counts the bytes of batches in outstanding requests.
    """

    __slots__ = ("_budget", "_connections", "_next_token", "_steps")

    def __init__(self, connections: Connections, budget: ByteBudget) -> None:
        self._connections = connections
        self._budget = budget
        self._next_token = 1
        self._steps: list[Step] = []

    def begin_poll(self) -> list[Step]:
        """Begin a new list of steps and return it; the other methods add steps to this list."""
        self._steps = []
        return self._steps

    def add(self, step: Step) -> None:
        """Add a step for the Sender to perform."""
        self._steps.append(step)

    def close(self, link: Link, reason: str) -> None:
        """Add the step that closes a connection."""
        self._steps.append(CloseLink(link.link_id, reason))

    # -- connections to ask on

    def any_link(self, now: float, *, identified: bool = True) -> Link | None:
        """Return a connection for a request that any broker can answer; open one if there is none.

        Args:
            now: seconds.
            identified: whether the connection must have named its cluster.
        """
        return self._connections.any(now, self._steps, identified=identified)

    def link_to(self, node_id: int, now: float) -> Link | None:
        """Return the connection to a broker; None if it is not ready.

        If there is no connection, begin to open one, unless a back-off forbids that yet.
        """
        return self._connections.to(node_id, now, self._steps)

    # -- requests

    def next_token(self) -> int:
        """Return a token that was never used before."""
        token = self._next_token
        self._next_token += 1
        return token

    def register(
        self,
        link: Link,
        kind: RequestKind,
        now: float,
        subject: PartitionState | None = None,
        topic_limit: BatchLimit | None = None,
    ) -> int:
        """Record a request that is given to a connection, and return its token."""
        token = self.next_token()
        link.add(Outstanding(token, kind, now, subject=subject, topic_limit=topic_limit))
        return token

    def carry(self, link: Link, request: Outstanding) -> None:
        """Record a request that carries batches, and take their bytes from the memory budget."""
        link.add(request)
        self._budget.add_copy(request.nbytes)

    def lost(self, request: Outstanding) -> None:
        """Give back the memory of a request whose connection has ended."""
        self._budget.drop_copy(request.nbytes)

    def answered(self, link_id: int, token: int, now: float) -> tuple[Link, Outstanding] | None:
        """Take out the request that was answered, with its connection.

        Returns:
            None if no such request is outstanding on that connection.
        """
        link = self._connections.links.get(link_id)
        if link is None:
            return None
        request = link.take(token, now)
        if request is None:
            return None
        if request.nbytes:
            self._budget.drop_copy(request.nbytes)
        return link, request

    def withdrawn(self, link_id: int, token: int) -> tuple[Link, Outstanding] | None:
        """Take out a request that was not written or gets no answer, with its connection.

        Returns:
            None if no such request is outstanding on that connection.
        """
        link = self._connections.links.get(link_id)
        if link is None:
            return None
        request = link.withdraw(token)
        if request is None:
            return None
        self._budget.drop_copy(request.nbytes)
        return link, request
