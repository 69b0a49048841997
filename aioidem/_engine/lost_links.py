"""LostLinks: connections that end, and what becomes of the requests that they owed answers to.

A connection ends because the engine leaves it, because the driver lost it, or because its answers
are none. What was written on it may have been served, so a Produce request is in doubt; a question
is asked again, at the next chance or after a back-off.
"""

from __future__ import annotations

from collections.abc import Collection

from aioidem._engine.connections import Connections
from aioidem._engine.home_cluster import HomeCluster
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.links import Leaving, Link
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.produce import ProduceRequests
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.transactions import Transactions

__all__ = ["LostLinks"]


class LostLinks:
    """Accounts for connections that end.

    Args:
        connections: drop the connection, and know what it owed.
        requests: where the step goes that closes it.
        home: notes when the cluster was last heard of.
        transactions: note that a call was lost, or its coordinator's connection.
        produce: notes which batches are in doubt.
        metadata: is asked for again.
        identity_request: asks again.
    """

    __slots__ = (
        "_connections",
        "_home",
        "_identity_request",
        "_metadata",
        "_produce",
        "_requests",
        "_transactions",
    )

    def __init__(
        self,
        connections: Connections,
        requests: RequestLedger,
        home: HomeCluster,
        transactions: Transactions,
        produce: ProduceRequests,
        metadata: MetadataRefresher,
        identity_request: IdentityRequest,
    ) -> None:
        self._connections = connections
        self._requests = requests
        self._home = home
        self._transactions = transactions
        self._produce = produce
        self._metadata = metadata
        self._identity_request = identity_request

    def leave(self, leaving: Leaving, now: float) -> None:
        """Close a connection, and account for it."""
        self._requests.close(leaving.link, leaving.reason)
        self.drop(leaving.link, leaving.error, now)

    def drop(
        self,
        link: Link,
        error: Exception | None,
        now: float,
        unwritten: Collection[int] = (),
    ) -> None:
        """Account for a connection that is lost.

        Args:
            link: the connection.
            error: why; None where it just ended.
            now: seconds.
            unwritten: tokens of the requests of which no byte was written.
        """
        self._home.lost(link)
        self._transactions.on_node_lost(link.node_id)
        for request in self._connections.drop(link, error, now):
            self.lose(request, written=request.token not in unwritten, now=now)

    def lose(self, request: Outstanding, *, written: bool, now: float) -> None:
        """Account for a request that gets no answer.

        Args:
            request: what was asked.
            written: whether the broker may have it.
            now: seconds.
        """
        match request.kind:
            case RequestKind.PRODUCE:
                self._produce.on_lost(request, written=written, now=now)
            case RequestKind.METADATA:
                self._metadata.failed(now)
            case RequestKind.INIT_PRODUCER_ID:
                self._identity_request.failed(now)
            case RequestKind.DESCRIBE_PRODUCERS:
                if request.subject is not None:
                    request.subject.on_producers(None)
            case RequestKind.READ_BACK:
                if request.subject is not None:
                    request.subject.end_read_back()
            case RequestKind.COORDINATION:
                self._transactions.on_lost(now, written=written)
            case _:
                pass  # asked again on the next connection, if `Connections.drop` lets it
