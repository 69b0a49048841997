"""HomeCluster: closes connections to other clusters, and moves the producer to a new cluster.

The producer moves if a bootstrap address leads to another cluster than before. `cluster_change` has
the rules; this module applies them to the connections of one producer.
"""

from __future__ import annotations

from collections.abc import Iterator

from aioidem._config import ProducerConfig
from aioidem._engine.accusations import Accusations
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.cluster import ClusterView
from aioidem._engine.cluster_change import changed, misrouted
from aioidem._engine.connections import Connections
from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.links import Leaving, Link
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partitions import Partitions
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._log import LogLine
from aioidem._protocol.messages import printable

__all__ = ["HomeCluster"]

_RESOLVE_AGAIN = (
    "a broker that the cluster names is at another cluster now, so the bootstrap servers' names "
    "are resolved again"
)


class HomeCluster:
    """The cluster that one producer writes to.

    A move means that the producer goes over to another cluster.

    Args:
        config: validated options.
        cluster: the view of the cluster.
        connections: the connections, some of which may lead to another cluster.
        partitions: the partitions, which are forgotten at a move.
        accumulator: its records are carried to the new cluster if they were never appended.
        identity: the producer's identity, which is given up at a move.
        identity_request: requests an identity from the new cluster.
        inquiries: what brokers said about themselves, which is forgotten at a move.
        doubt: the reading of logs, which ends at a move.
        accusations: verdicts on brokers, which are dropped at a move.
        outcomes: receives events for the operator.
        effects: ends the producer, or requests metadata.
    """

    def __init__(
        self,
        config: ProducerConfig,
        cluster: ClusterView,
        connections: Connections,
        partitions: Partitions,
        accumulator: RecordAccumulator,
        identity: IdentityLedger,
        identity_request: IdentityRequest,
        inquiries: BrokerInquiries,
        doubt: DoubtResolution,
        accusations: Accusations,
        outcomes: Outcomes,
        effects: Effects,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._connections = connections
        self._partitions = partitions
        self._accumulator = accumulator
        self._identity = identity
        self._identity_request = identity_request
        self._inquiries = inquiries
        self._doubt = doubt
        self._accusations = accusations
        self._outcomes = outcomes
        self._effects = effects
        self._heard_at = 0.0

    def lost(self, link: Link) -> None:
        """Record when the last byte moved on a connection that has ended.

        Connections on which no broker had named its cluster are left out.
        """
        if link.identified:
            self._heard_at = max(self._heard_at, link.last_progress)

    def leave_strangers(self, now: float) -> Iterator[Leaving]:
        """Yield the connections to close: those to another cluster, and bootstrap ones with them.

        But if a bootstrap address leads to another cluster and no connection to the known cluster
        is left, the producer moves to the other cluster, and every other connection is yielded. The
        caller must drop each connection before it takes the next one.
        """
        home = self._cluster.cluster_id
        for link in self._connections.strangers(home):
            if link.closed:
                continue  # closed already, together with a previous connection
            if home is None or link.cluster_id is None or self._effects.fatal_error is not None:
                return
            node = self._connections.nodes[link.node_id]
            address = node.address
            alone = not link.outstanding and not self._connections.at_home(home)
            if node.node_id < 0 and alone:
                yield from self._move(link, home, link.cluster_id, address, now)
                return
            name = "a bootstrap server" if node.node_id < 0 else f"broker {node.node_id}"
            error = misrouted(name, address, home, link.cluster_id)
            if node.misrouted(link.cluster_id):
                self._outcomes.event(LogLine.OTHER_CLUSTER, str(error.args[0]))
            yield Leaving(link, str(error.args[0]), error)
            self._effects.refresh_metadata()
            for older in self._connections.bootstrap_only():
                # A bootstrap connection may have been opened before the addresses moved. It is
                # closed, so that the next one is opened to the present address.
                yield Leaving(older, _RESOLVE_AGAIN, None)

    def _move(self, link: Link, was: str, to: str, address: str, now: float) -> Iterator[Leaving]:
        """Move to the cluster that the bootstrap address leads to now, or end the producer.

        The producer ends if the option `on_cluster_change` is "fail", or if it has a transactional
        id. Otherwise everything known about the old cluster is forgotten, records in doubt end
        UNKNOWN, and records that were never appended are written to the new cluster.
        """
        for other in [each for each in self._connections.links.values() if each is not link]:
            yield Leaving(other, f"the producer leaves this cluster for {printable(to)}", None)
        error = changed(was, to, address, now - self._heard_at)
        config = self._config
        if config.on_cluster_change == "fail" or config.transactional_id is not None:
            self._outcomes.event(
                LogLine.CLUSTER_CHANGED,
                f"{error.args[0]}. This producer ends: on_cluster_change is 'fail', or it has a "
                "transactional_id",
            )
            self._effects.fatal(error)
            return
        self._outcomes.event(
            LogLine.CLUSTER_CHANGED,
            f"{error.args[0]}. Batches in doubt end UNKNOWN; records that were never written go to "
            "the new cluster, under a new producer id",
        )
        unwritten = self._accumulator.take_unwritten()
        self._forget(to)
        self._partitions.forget_cluster(error)
        self._accumulator.carry(unwritten, now)

    def _forget(self, to: str) -> None:
        self._cluster.forget(to)
        self._connections.forget_cluster()
        self._identity.disown()
        self._identity_request.forget_cluster()
        self._effects.refresh_metadata()
        self._accusations.clear()
        self._inquiries.forget_cluster()
        self._doubt.forget_cluster()
