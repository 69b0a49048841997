"""MetadataRequests: requesting metadata and the cluster id, and handling the answers."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from aioidem._config import ProducerConfig
from aioidem._engine.accusations import Accusation, Accusations
from aioidem._engine.classify import RETRIABLE_TOPIC_ERRORS
from aioidem._engine.cluster import ClusterView
from aioidem._engine.connections import Connections
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.links import Link
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._engine.steps import AskCluster, FetchMetadata
from aioidem._engine.transactions import Transactions
from aioidem._engine.unlisted import may_pass
from aioidem._log import LogLine
from aioidem._protocol.metadata import MetadataUpdate

__all__ = ["MetadataRequests"]


class MetadataRequests:
    """The Metadata requests of one producer, which keep its view of the cluster up to date.

    Args:
        config: validated options.
        cluster: the view of the cluster.
        connections: receive broker addresses, and the cluster that each connection leads to.
        metadata: decides when metadata is requested.
        accusations: the findings that a broker remembers fewer batches than it says, so that it
        may not recognise a duplicate; each waits for newer metadata.
        accumulator: has the records that wait until metadata names their partitions.
        requests: records outstanding requests, and has the Sender send them.
        identity: the producer id and epoch; the epoch is raised when a topic was recreated.
        outcomes: receives events for the operator.
        transactions: the open transaction fails if it wrote to a topic that was recreated.
    """

    def __init__(
        self,
        config: ProducerConfig,
        cluster: ClusterView,
        connections: Connections,
        metadata: MetadataRefresher,
        accusations: Accusations,
        accumulator: RecordAccumulator,
        requests: RequestLedger,
        identity: IdentityLedger,
        outcomes: Outcomes,
        transactions: Transactions,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._connections = connections
        self._metadata = metadata
        self._accusations = accusations
        self._accumulator = accumulator
        self._requests = requests
        self._identity = identity
        self._outcomes = outcomes
        self._transactions = transactions

    def ask(self, now: float) -> None:
        """Send a Metadata request, if one is due and a broker is connected."""
        if not self._metadata.due(now):
            return
        link = self._requests.any_link(now, identified=False)
        if link is None:
            return
        self._metadata.sent()
        link.note_asked_cluster()
        token = self._requests.register(link, RequestKind.METADATA, now)
        topics = tuple(sorted(self._accumulator.topics))
        auto = self._config.allow_auto_create_topics
        self._requests.add(FetchMetadata(link.link_id, token, topics, auto))

    def ask_clusters(self, now: float) -> None:
        """Ask each broker once per connection for its cluster id.

        A connection that already carried a Metadata request is left out: the answer to that request
        names the cluster, too.
        """
        for link in self._connections.links.values():
            if not link.asked_cluster and link.admits(now):
                link.note_asked_cluster()
                token = self._requests.register(link, RequestKind.CLUSTER, now)
                self._requests.add(AskCluster(link.link_id, token))

    def on_cluster(self, link: Link, cluster_id: str | None) -> bool:
        """Record which cluster a connection leads to; return whether it is the producer's cluster.

        A broker that names no cluster id (None) is assumed to be in the producer's cluster. The
        first id that any broker names becomes the id of the producer's cluster.
        """
        view = self._cluster
        if view.cluster_id is None:
            view.learn_id(cluster_id)
        at_home = view.is_home_of(cluster_id)
        first = not link.identified
        self._connections.identified(link, cluster_id, at_home=at_home)
        if at_home and first:  # the connection heard the level when it was opened
            view.learn_transaction_version(link.transaction_version)
        return at_home

    def merge_of(self, update: MetadataUpdate) -> MetadataMerge:
        """Return the object that merges a Metadata answer into the view of the cluster.

        If the answer is long, the Sender merges it in pieces and then calls `on_metadata`.
        """
        return MetadataMerge(
            self._cluster,
            update,
            self._accumulator.topics,
            in_turn=not self._metadata.out_of_turn,
        )

    def on_metadata(
        self,
        link: Link,
        request: Outstanding,
        update: MetadataUpdate,
        now: float,
        merge: MetadataMerge | None = None,
    ) -> None:
        """Handle the answer to a Metadata request.

        Args:
            link: the connection on which the answer came.
            request: the request.
            update: the answer.
            now: seconds.
            merge: for a long answer, the result of `merge_of`; None for a short one.
        """
        link.throttle(update.throttle_ms, now)
        if not self.on_cluster(link, update.cluster_id):
            self._metadata.failed(now)
            return
        # Topics that were not requested are not kept: a broker could name new ones in each answer.
        if merge is None or merge.stale:
            merge = self.merge_of(update)
        result = merge.finish()
        self._connections.learn(self._cluster.brokers.values())
        for accusation in self._accusations.take_due(request.sent_at):
            self._convict(accusation, now)
        told = {topic.name for topic in merge.topics if not topic.error_code and topic.partitions}
        told -= result.outdated
        for name in result.recreated:
            self._recreate(name)
        accumulator = self._accumulator
        for name, state in accumulator.topics.items():
            told_by = self._metadata.requests if name in told else None
            state.describe(result.failed.get(name, 0), told_by=told_by)
            if state.error_code and not _may_pass(state.error_code):
                accumulator.refuse_topic(state)
        accumulator.assign_known(now)
        missing = any(
            state.unassigned.waits or (state.waiting and self._cluster.partitions(name) is None)
            for name, state in accumulator.topics.items()
        )
        self._metadata.answered(
            now,
            enough=bool(update.brokers) and not (missing or result.leaderless or result.outdated),
        )

    def _convict(self, accusation: Accusation, now: float) -> None:
        """Limit how many batches of a partition may be in flight to an accused broker.

        The broker was seen to retain fewer batches than it says. A change of the partition's leader
        or leader epoch would explain that. If there was one, the accusation is dropped.
        """
        _, _, route, disproof, _ = accusation
        view = self._cluster.leader_of(accusation.topic, accusation.partition)
        node = self._connections.nodes.get(route.leader_id)
        here = view is not None and (view.leader_id, view.leader_epoch) == route[1:]
        if here and node is not None and node.memory.disprove(disproof, now):
            self._outcomes.event(LogLine.FEWER_RETAINED, accusation.text(node.memory.limit))

    def _recreate(self, name: str) -> None:
        """Give the partitions of a recreated topic new states, and the producer a new epoch."""
        before = self._identity.current
        self._outcomes.event(
            LogLine.TOPIC_RECREATED,
            f"topic {name!r} was deleted and recreated: batches in doubt end UNKNOWN, records that "
            "were never written go to the new topic",
        )
        self._accumulator.topics[name].forget_sizes()
        for link in self._connections.links.values():
            link.limits.forget(name)
        numbered = self._accumulator.numbered(name, before)
        self._accumulator.recreate(name)
        self._transactions.on_topic_recreated(name, numbered=numbered)
        if (
            not self._transactions.grants_epochs
            and self._config.enable_idempotence
            and self._identity.current == before
        ):
            self._identity.bump()  # `recreate` above did not raise the epoch


def _may_pass(error_code: int) -> bool:
    """Return whether an error code that metadata gives to a topic may be gone in a later answer.

    A topic that is to be created needs more brokers than have registered yet, for instance.
    """
    return (
        error_code in RETRIABLE_TOPIC_ERRORS
        or error_code == ErrorCode.invalid_replication_factor
        or may_pass(error_code)
    )
