"""LostLinks: what happens to the outstanding requests of a connection that ends.

A connection ends because this client closes it, because the network or the broker ends it, or
because its answers are invalid. A Produce request that was written on it may have been served, so
its batches are in doubt: they may have been appended. Any other request is sent again, at the next
opportunity or after a back-off.
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
    """Accounts for connections that end, and for their outstanding requests.

    Args:
        connections: all connections; a lost one is removed with its outstanding requests.
        requests: has the Sender close connections, and frees the memory of lost requests.
        home: records when the last byte moved on a connection to the producer's cluster.
        transactions: records that a request or the connection to a coordinator was lost.
        produce: records that the batches of lost Produce requests may have been appended.
        metadata: repeats a lost Metadata request.
        identity_request: repeats a lost InitProducerId request.
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
        """Close a connection, and account for its outstanding requests."""
        self._requests.close(leaving.link, leaving.reason)
        self.drop(leaving.link, leaving.error, now)

    def drop(
        self,
        link: Link,
        error: Exception | None,
        now: float,
        unwritten: Collection[int] = (),
    ) -> None:
        """Account for a connection that has ended.

        Args:
            link: the connection.
            error: why it ended; None if it was closed without an error.
            now: seconds.
            unwritten: tokens of the requests of which no byte was written.
        """
        self._home.lost(link)
        self._transactions.on_node_lost(link.node_id)
        for request in self._connections.drop(link, error, now):
            self._requests.lost(request)
            self.lose(request, written=request.token not in unwritten, now=now)

    def lose(self, request: Outstanding, *, written: bool, now: float) -> None:
        """Account for a request that will get no answer.

        Args:
            request: the request.
            written: whether the broker may have received it.
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
                    request.subject.ladder.on_producers(None)
            case RequestKind.READ_BACK:
                state = request.subject
                if state is not None and state.read_back.takes(request.token):
                    state.lookup.end()
            case RequestKind.COORDINATION:
                self._transactions.on_lost(now, written=written)
            case _:
                pass  # sent again on the next connection, unless `Connections.drop` prevents it
