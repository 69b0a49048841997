"""Coordination: sends a transaction's requests to coordinators; settles its records if it fails.

`Transactions` decides which request (call) to a coordinator comes next. This module finds the
connection to the coordinator, and makes the call a step of `ProducerCore.poll`, which the Sender
performs. When the transaction fails, this module settles its records; after a fatal error it ends
the producer.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.cluster import ClusterView
from aioidem._engine.connections import Connections
from aioidem._engine.coordinator import CallKind
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.links import Link
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.partitions import Partitions
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import RequestKind
from aioidem._engine.transactions import V2, Call, Outcome, Transactions, TransactionState
from aioidem._protocol.add_offsets import AddOffsetsAnswer
from aioidem._protocol.add_partitions import AddPartitionsAnswer
from aioidem._protocol.end_txn import EndTxnAnswer
from aioidem._protocol.find_coordinator import CoordinatorAnswer
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.producer_id import ProducerIdAnswer, TransactionalIdentity
from aioidem._protocol.txn_offset_commit import TxnOffsetCommitAnswer
from aioidem.structs import DeliveryStatus

__all__ = ["Coordination"]

_ABORTED = "the record's transaction was aborted"


class Coordination:
    """Sends the transaction's calls to coordinators, and settles its records when it fails.

    Args:
        config: validated options.
        transactions: decides what is requested from coordinators.
        identity: the producer's identities, which the coordinator grants.
        identity_request: keeps the reason why the producer has no identity.
        cluster: the view of the cluster, for its brokers.
        connections: all connections, among them those to coordinators.
        metadata: says whether the cluster is known; before that no call is made.
        partitions: the partitions. When a transaction (v1) begins, their first-ack gates close:
        each may then have only one batch in flight, until error NONE shows that its leader holds
        the producer's state.
        accumulator: holds the records that are settled when the transaction fails or is aborted.
        requests: registers calls, and passes them to the Sender through `ProducerCore.poll`.
        effects: ends the producer after a fatal error; has metadata requested.
    """

    def __init__(
        self,
        config: ProducerConfig,
        transactions: Transactions,
        identity: IdentityLedger,
        identity_request: IdentityRequest,
        cluster: ClusterView,
        connections: Connections,
        metadata: MetadataRefresher,
        partitions: Partitions,
        accumulator: RecordAccumulator,
        requests: RequestLedger,
        effects: Effects,
    ) -> None:
        self._config = config
        self._transactions = transactions
        self._identity = identity
        self._identity_request = identity_request
        self._cluster = cluster
        self._connections = connections
        self._metadata = metadata
        self._partitions = partitions
        self._accumulator = accumulator
        self._requests = requests
        self._effects = effects

    # -- what the application asks for: an identity, begin, commit, abort --------------------------

    def init(self) -> None:
        """Request an identity (producer id and epoch), for the first time or after a refusal."""
        self._transactions.init()
        self._identity_request.report(None)

    def change_id(self, transactional_id: str) -> None:
        """Request an identity under another transactional id, between two transactions.

        Raises:
            KafkaError: for the reasons that `Transactions.change_id` names.
        """
        self._transactions.change_id(transactional_id)
        self._identity_request.report(None)

    def begin(self) -> None:
        """Begin a transaction, in the protocol version that the cluster has finalised.

        Raises:
            KafkaError: for the reasons that `Transactions.begin` names.
        """
        self._transactions.begin(self._cluster.transaction_version)
        self._partitions.begin_transaction(gated=self._transactions.gated)

    def learn_coordinator(self, group: str, broker: BrokerAddress) -> None:
        """Note which broker coordinates a group; the caller has asked for it just now.

        If another broker coordinates it by the time of the call, this one answers NOT_COORDINATOR,
        and FindCoordinator is sent.
        """
        self._connections.learn([*self._cluster.brokers.values(), broker])
        self._transactions.learn_coordinator(group, broker.node_id)

    def commit(self) -> Outcome:
        """Begin to commit: first deliver the queued records, then end the transaction.

        Returns:
            The outcome to wait for, which `Transactions.commit` returns.

        Raises:
            KafkaError: for the reasons that `Transactions.commit` names.
        """
        outcome = self._transactions.commit()
        self._accumulator.begin_flush()
        return outcome

    def abort(self) -> Outcome:
        """Begin to abort the transaction: records that are still queued fail.

        Returns:
            The outcome to wait for, which `Transactions.abort` returns.

        Raises:
            KafkaError: for the reasons that `Transactions.abort` names.
        """
        outcome = self._transactions.abort()
        self.follow()
        return outcome

    def follow(self) -> None:
        """Settle the records of a failed or aborted transaction; end the producer if it must end.

        The reason why the coordinator granted no identity is passed to `IdentityRequest`.
        """
        transactions = self._transactions
        match transactions.state:
            case TransactionState.FATAL if transactions.cause is not None:
                self._effects.fatal(transactions.cause)
            case TransactionState.UNINITIALISED:
                self._identity_request.report(transactions.cause)
            case TransactionState.ABORTABLE:
                failed = errors.AbortableTransactionError(
                    f"the record's transaction can only be aborted: {transactions.cause}"
                )
                failed.__cause__ = transactions.cause
                self._abort_records(failed, DeliveryStatus.UNKNOWN)
            case TransactionState.ABORTING:
                self._abort_records(errors.TransactionAborted(_ABORTED), None)
            case _ if transactions.outcome.committed is False and self._accumulator.unsettled:
                aborted = errors.TransactionAborted(_ABORTED)
                self._abort_records(aborted, DeliveryStatus.NOT_WRITTEN)

    def _abort_records(self, error: errors.KafkaError, doubt: DeliveryStatus | None) -> None:
        self._accumulator.abort(error, doubt)

    # -- calls: requests to coordinators -----------------------------------------------------------

    def call(self, now: float) -> None:
        """Send a coordinator the call that the transaction needs next, if there is one."""
        transactions = self._transactions
        if self._metadata.refreshed_at is None:
            return
        call = transactions.next_call(
            now,
            quiet=transactions.ending and self._partitions.quiet,
            delivered=self._accumulator.unsettled == 0,
        )
        self.follow()
        if call is None:
            return
        link = self._link_for(call, now)
        if link is None or not link.admits(now):
            return
        token = self._requests.register(link, RequestKind.COORDINATION, now)
        transactions.sent(call)
        self._requests.add(self._step_for(transactions, call, link.link_id, token))

    def _link_for(self, call: Call, now: float) -> Link | None:
        node_id = call.coordinator.node_id
        if call.kind is CallKind.FIND or node_id is None:
            return self._requests.any_link(now)
        if node_id not in self._connections.nodes:
            call.coordinator.forget()  # FindCoordinator is sent again
        link = self._requests.link_to(node_id, now)
        return link if link is not None and link.identified else None

    def _step_for(
        self, transactions: Transactions, call: Call, link_id: int, token: int
    ) -> steps.Step:
        name = transactions.transactional_id
        if call.kind is CallKind.FIND:
            return steps.FindCoordinator(
                link_id, token, call.coordinator.kind, call.coordinator.key
            )
        identity = self._identity.current
        who = None if identity is None else TransactionalIdentity(name, *identity)
        if call.kind is CallKind.INIT:
            timeout_ms = round(self._config.transaction_timeout * 1000)
            return steps.InitTransactions(link_id, token, name, timeout_ms, who)
        if who is None:
            raise errors.InternalError(f"{call.kind.value} without a producer id")
        v2 = transactions.version >= V2
        if call.kind is CallKind.END:
            return steps.EndTransaction(link_id, token, who, call.commit, v2)
        if call.offsets is None:
            return steps.AddPartitions(link_id, token, who, call.partitions)
        if call.kind is CallKind.ADD_OFFSETS:
            return steps.AddOffsets(link_id, token, who, call.offsets.group.group_id)
        left = dict(call.offsets.left)
        return steps.CommitOffsets(link_id, token, who, call.offsets.group, left, v2)

    # -- answers -----------------------------------------------------------------------------------

    def on_coordinator(self, link: Link, answer: CoordinatorAnswer, now: float) -> None:
        """Record the broker that FindCoordinator names as the coordinator, or the refusal."""
        link.throttle(answer.throttle_ms, now)
        code, node_id = answer.error_code, answer.node_id
        if code == ErrorCode.none and node_id >= 0:
            named = BrokerAddress(node_id, answer.host, answer.port)
            self._connections.learn([*self._cluster.brokers.values(), named])
        self._transactions.on_found(code, node_id, now)
        self.follow()

    def on_identity(self, link: Link, answer: ProducerIdAnswer, now: float) -> None:
        """Record the producer id and epoch that the coordinator grants, or its refusal."""
        link.throttle(answer.throttle_ms, now)
        self._transactions.on_init(
            answer.error_code, answer.producer_id, answer.producer_epoch, now
        )
        self.follow()

    def on_partitions_added(self, link: Link, answer: AddPartitionsAnswer, now: float) -> None:
        """Record which partitions were added to the transaction (transactions v1).

        If the coordinator does not know one, its topic may have been recreated with fewer. No
        leader can say so, because nothing is sent to the partition before it is added.
        """
        link.throttle(answer.throttle_ms, now)
        if ErrorCode.unknown_topic_or_partition in answer.error_codes.values():
            self._effects.refresh_metadata()
        self._transactions.on_partitions_added(answer.error_codes, now)
        self.follow()

    def on_group_added(self, link: Link, answer: AddOffsetsAnswer, now: float) -> None:
        """Record whether a group's offsets may be added to the transaction (transactions v1)."""
        link.throttle(answer.throttle_ms, now)
        self._transactions.on_group_added(answer.error_code, now)
        self.follow()

    def on_offsets_committed(self, link: Link, answer: TxnOffsetCommitAnswer, now: float) -> None:
        """Record which offsets of a group are part of the transaction now."""
        link.throttle(answer.throttle_ms, now)
        self._transactions.on_offsets_committed(answer.error_codes, now)
        self.follow()

    def on_ended(self, link: Link, answer: EndTxnAnswer, now: float) -> None:
        """Record whether the transaction has ended, and the next epoch (transactions v2)."""
        link.throttle(answer.throttle_ms, now)
        self._transactions.on_ended(
            answer.error_code, answer.producer_id, answer.producer_epoch, now
        )
        self.follow()

    def on_unsupported(self, error: errors.KafkaError) -> None:
        """Handle a call that was not sent, because the broker supports no version of its API."""
        self._transactions.on_unsupported(error)
        self.follow()
